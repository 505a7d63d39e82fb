"""Copying from a source: against a plain loop, and through the door."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cut import cut

from specjax.base import Context, Features, Verdict
from specjax.decoding.decoder import Decoder
from specjax.drafters.retrieval.aggressive import aggressive

B, S, D, NEW = 40, 20, 6, 30


def place_by_hand(source: list[int], text: list[int]) -> int:
  """Behind the one occurrence of the fewest last tokens that have just one; -1 without."""
  for n in (1, 2, 3):
    starts = [i for i in range(len(source) - n + 1) if source[i : i + n] == text[-n:]]
    if len(text) < n or not starts:
      return -1
    if len(starts) == 1:
      return starts[0] + n
  return -1


def answers(rng, source):
  """Texts that follow the source with small edits."""
  kept = [np.delete(row, rng.integers(S, size=2)) for row in source]
  edited = [
    np.where(rng.random(len(row)) < 0.15, rng.integers(9, size=len(row)), row) for row in kept
  ]
  return np.stack([np.resize(row, NEW + 2 * D) for row in edited]).astype(np.int32)


@pytest.mark.parametrize("given", [True, False], ids=["a source", "the prompt"])
def test_it_copies_where_the_papers_loop_copies(given):
  rng = np.random.default_rng(0)
  source = rng.integers(12, size=(B, S)).astype(np.int32)
  if given:
    source[:] = source[0]
  answer = answers(rng, source)
  prompt = source if not given else rng.integers(12, size=(B, 5)).astype(np.int32)
  T = prompt.shape[1]
  drafter, params = aggressive(D + 1), jnp.asarray(source[0]) if given else ()
  context = Context(jnp.asarray(np.pad(prompt, ((0, 0), (0, 60)))), jnp.full(B, T))
  features = Features(jnp.zeros((B, T, 2)))
  state = drafter.init(params, (), context=context, features=features, capacity=T + 60)
  update = jax.jit(drafter.update)
  texts = [row.tolist() for row in prompt]
  place, told = [0 if given else -1] * B, np.zeros(B, np.int32)
  copied = apart = 0
  for _ in range(12):
    draft, _ = drafter.propose(params, (), state, context=context, settings=None, noise=None)
    for b in range(B):
      want = source[b, place[b] : place[b] + D].tolist() if place[b] >= 0 else []
      assert draft.tokens[b, 1:][draft.valid[b, 1:]].tolist() == want
      copied, apart = copied + bool(want), apart + (not want)
    rows = rng.integers(D + 2, size=B).astype(np.int32)
    step = np.minimum(told[:, None] + np.arange(D + 1), answer.shape[1] - 1)
    said = np.take_along_axis(answer, step, 1)
    verdict = Verdict(jnp.zeros((B, D + 1), jnp.int32), jnp.asarray(rows - 1), jnp.asarray(said))
    state = update(
      params, (), state, draft=draft, evaluation=None, verdict=verdict, rows=jnp.asarray(rows)
    )
    for b, n in enumerate(rows.tolist()):
      new = said[b, :n].tolist()
      if n:
        texts[b] += new
        follows = place[b] >= 0 and source[b, place[b] : place[b] + n].tolist() == new
        place[b] = place[b] + n if follows else place_by_hand(source[b].tolist(), texts[b])
    told += rows
    assert state.place.tolist() == place
  assert copied > 50 and apart > 50


@pytest.mark.slow
def test_a_source_that_is_the_answer_is_copied_whole(tmp_path):
  model, prompt = cut(), "Q: Ann has 3 apples and buys 4.\nA:"
  plain = Decoder(model)([prompt], 24)[0]
  path = tmp_path / "source.txt"
  path.write_text(plain.text)
  decoder = Decoder(model, f"aggressive-8[{path}]")
  got = decoder([prompt], 24)[0]
  assert got.tokens == plain.tokens and got.passes <= 8 < plain.passes
  assert decoder.name == f"aggressive-8[{path}]"
  for name, words in (
    (f"aggressive[{tmp_path}/no.txt]",
     r"must name a file of text \(\[Errno 2\] No such file or directory:"),
    ("aggressive-1",
     r"`drafter` must have between 2 and 4096 nodes, or be 'none', got 'aggressive-1'\."),
  ):  # fmt: skip
    with pytest.raises(ValueError, match=words):
      Decoder(model, name)
  path.write_text("")
  with pytest.raises(ValueError, match="the file has no text"):
    Decoder(model, f"aggressive[{path}]")
