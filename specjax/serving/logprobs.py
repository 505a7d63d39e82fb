"""Scores of tokens in the two forms of OpenAI's protocol."""

from collections.abc import Sequence
from typing import Any

from specjax.data.tokenizer import Tokenizer
from specjax.decoding.scores import Score

NEVER = -9999.0  # JSON has no infinity; OpenAI writes this


def _bytes(tokenizer: Tokenizer, i: int, before: int | None) -> bytes:
  """What a token adds after another; a special one, its name."""
  spoken = tokenizer.spoken(i, before)
  return str(tokenizer.inner.id_to_token(i) or "").encode() if spoken is None else spoken


def _name(said: bytes) -> str:
  """A token as text; one that is a part of a character, as its bytes."""
  try:
    return said.decode()
  except UnicodeDecodeError:
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in said)


def of_chat(
  tokenizer: Tokenizer, before: int | None, ids: Sequence[int], scores: Sequence[Score], top: int
) -> dict[str, Any]:
  """Of a chat's answer `ids` after the id `before`, with the `top` likeliest of each place."""

  def one(i: int, log_prob: float) -> dict[str, Any]:
    said = _bytes(tokenizer, i, before)
    return {
      "token": said.decode(errors="replace"),
      "logprob": max(log_prob, NEVER),
      "bytes": [*said],
    }

  content = []
  for i, score in zip(ids, scores, strict=True):
    best = [one(*pair) for pair in score.likeliest[:top]]
    content.append(one(i, score.log_prob) | {"top_logprobs": best})
    before = i
  return {"content": content, "refusal": None}


def of_completion(
  tokenizer: Tokenizer,
  before: int | None,
  ids: Sequence[int],
  scores: Sequence[Score | None],
  top: int,
  offset: int = 0,
) -> dict[str, Any]:
  """Of a completion; the score of a text's first token is None. Offsets, from the first token's
  `offset` on, are those in its text."""
  found: dict[str, list[Any]] = {
    "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": [],
  }  # fmt: skip
  for i, score in zip(ids, scores, strict=True):
    name = _name(_bytes(tokenizer, i, before))
    found["tokens"].append(name)
    found["text_offset"].append(offset)
    if score is None:
      found["token_logprobs"].append(None)
      found["top_logprobs"].append(None)
    else:
      said = max(score.log_prob, NEVER)
      best = {_name(_bytes(tokenizer, j, before)): x for j, x in score.likeliest[:top]}
      found["token_logprobs"].append(said)
      found["top_logprobs"].append({name: said} | best)  # two ids may have one name
    offset += len(name)
    before = i
  return found
