"""The tokens at which the text of a GGUF file ends: by its keys, and by name as in llama.cpp.

Many files give only the end of a document as `eos_token_id`, though their turns end otherwise. So
llama.cpp ends at every token with one of these texts (`special_eog_ids` of its llama-vocab.cpp).
"""

from collections.abc import Mapping, Sequence
from typing import Any

_NAMES = (
  "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
  "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "< EOT >", "_< EOT >",
  "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
)  # fmt: skip
# Further names of the tokens of a key, for files that lack it: the first that is there counts.
_KEYS: dict[str, tuple[str, ...]] = {
  "eos_token_id": (),
  "eot_token_id": ("<\uff5cend\u2581of\u2581sentence\uff5c>",),
  "eom_token_id": (),
  "fim_pad_token_id": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
  "fim_rep_token_id": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
  "fim_sep_token_id": ("<|file_sep|>",),
}
KEYS = tuple(_KEYS)
"""The keys of these tokens, after `tokenizer.ggml.`."""


def of(found: Mapping[str, Any], tokens: Sequence[str]) -> tuple[tuple[int, ...], frozenset[int]]:
  """Ids at which a text ends, those of keys first; and those that have their name, which are
  markers, whatever type a file gives them.

  Args:
    found: the checked metadata, by what follows `tokenizer.ggml.`.
    tokens: texts of all tokens.
  """
  ids = {token: i for i, token in enumerate(tokens)}
  names = {name for name in _NAMES if name in ids}
  for key, others in _KEYS.items():
    if key not in found:
      names.update([name for name in others if name in ids][:1])
  # In a vocabulary of Harmony or of Solar, <|end|> stands between the parts of one turn.
  calls = "<|call|>" in ids or "<|calls|>" in ids
  inner = {"<|end|>"} if calls and ("<|return|>" in ids or "<|flush|>" in ids) else set()
  inner |= {"</s>"} if "<|tool_response>" in ids else set()  # and in Gemma 4's, </s> is no end
  left_out = {ids[name] for name in inner if name in ids}
  named = frozenset(ids[name] for name in names) - left_out
  ends = [found[key] for key in KEYS if key in found and found[key] not in left_out]
  return tuple(dict.fromkeys([*ends, *sorted(named)])), named
