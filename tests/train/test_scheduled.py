"""A model that reads some of its own tokens, against a loop token by token."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from options import changed
from test_early_exits import CONFIG, NETWORK, PARAMS, V

from specjax.data.packing import PackedRows
from specjax.data.tokenizer import train_bpe
from specjax.models.transformer import attention_mask
from specjax.train import lm
from specjax.train.recipe import scheduled
from specjax.train.recipe.scheduled import Drawn, Replaceable, Scheduled

B, T = 2, 7
NOISE = np.random.default_rng(2)
ROWS = PackedRows(
  NOISE.integers(V, size=(B, T)).astype(np.int32), np.array([[0, 1, 2, 3, 0, 1, 2]] * B, np.int32),
  np.array([[0, 0, 0, 0, 1, 1, 1]] * B, np.int32), np.ones((B, T), bool),
)  # fmt: skip


def law(tokens: np.ndarray, b: int, t: int) -> np.ndarray:
  """What the network says at place t of row b, by its own pass over the tokens before."""
  mask = attention_mask(jnp.asarray(ROWS.segment), CONFIG.causal)
  features, _ = NETWORK.apply(PARAMS, tokens, ROWS.position, mask, method="features")
  logits = np.asarray(NETWORK.apply(PARAMS, features.hidden, method="head"), np.float64)[b, t - 1]
  p = np.exp(logits - logits.max())
  return p / p.sum()


def test_enough_passes_draw_as_one_token_after_the_other():
  replaced = NOISE.random((B, T)) < 0.6
  replaced[:, [0, 4]] = False
  noise = NOISE.random((B, T)).astype(np.float32)
  want = ROWS.tokens.copy()
  for b in range(B):
    for t in range(1, T):
      if replaced[b, t]:
        want[b, t] = np.searchsorted(np.cumsum(law(want, b, t)), noise[b, t])
  got = scheduled.read(NETWORK, PARAMS, ROWS, Drawn(replaced, noise), T)
  assert np.asarray(got).tolist() == want.tolist()
  assert (want != ROWS.tokens).any() and (want == ROWS.tokens)[~replaced].all()


def test_the_share_of_what_is_said_is_replaced_and_nothing_else():
  said = np.tile(NOISE.random((1, 400)) < 0.5, (50, 1))
  rows = Replaceable(*[np.zeros((50, 400), np.int32)] * 3, np.ones((50, 400), bool), said)
  _, drawn = scheduled.draw(rows, jax.random.key(1), Scheduled(own_tokens=0.3))
  replaced = np.asarray(drawn.replaced)
  assert not replaced[~said].any() and abs(replaced[said].mean() - 0.3) < 0.02
  assert abs(np.asarray(drawn.noise).mean() - 0.5) < 0.02


def test_answers_are_said_and_questions_are_not(tiny):
  tokenizer = train_bpe(["a b c"], 300)
  turns = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "so."}]
  (ids, counted), = lm.said(turns, tiny, tokenizer)  # fmt: skip
  spoken = [i for i, own in zip(ids, counted, strict=True) if own]
  assert tokenizer.inner.decode(spoken, skip_special_tokens=False).strip() == "so.<|end|>"
  assert lm.documents(turns, tiny, tokenizer)[0][0] == ids


@pytest.mark.slow
def test_a_model_learns_with_its_own_tokens(tiny, tmp_path):
  config = changed(tiny, out=str(tmp_path), own_tokens=0.3, steps=40)
  lm.main(config)
  with open(tmp_path / "metrics.jsonl") as file:
    loss = [json.loads(line)["loss"] for line in file]
  assert np.mean(loss[-5:]) < 0.8 * loss[0]
  with pytest.raises(ValueError, match="`own_tokens` must be 0 with layer_dropout or exit_loss"):
    lm.main(changed(config, out=str(tmp_path / "other"), exit_loss=0.1))
