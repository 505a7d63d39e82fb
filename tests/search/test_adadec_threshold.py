"""AdaDec's threshold: the regression, its choice, and what is read of a model."""

import numpy as np
import pytest
from test_conversation import MODEL
from test_switching import after

from specjax.search import adadec_threshold
from specjax.search.adadec_threshold import learned_threshold, regressed, uncertainty

NOISE = np.random.default_rng(0)
TEXTS = [
  ([1, 2, 3, 4, 1, 7], [True, False, True, True, False, True]),
  ([5, 5, 6, 2], [False, True, True, True]),
]


def test_entropies_are_those_of_a_loop():
  entropy, first = [], []
  for ids, counted in TEXTS:
    for i in range(1, len(ids)):
      if counted[i]:
        log_p = after(MODEL, ids[:i])
        entropy.append(-(np.exp(log_p) * log_p).sum())
        first.append(log_p.argmax() == ids[i])
  got = uncertainty(MODEL, TEXTS)
  np.testing.assert_allclose(got[0], entropy, atol=1e-5)
  assert got[1].tolist() == first


@pytest.mark.parametrize(("w", "b"), [(-2.0, 1.5), (0.7, -0.2)])
def test_no_other_line_is_better(w, b):
  x = NOISE.random(300) * 3
  y = NOISE.random(300) < 1 / (1 + np.exp(-w * x - b))

  def loss(w, b):
    p = 1 / (1 + np.exp(-w * x - b))
    return -np.log(np.where(y, p, 1 - p)).sum() + w**2 / 2

  found = regressed(x, y)
  for step in ((1e-3, 0), (-1e-3, 0), (0, 1e-3), (0, -1e-3)):
    assert loss(*found) < loss(found[0] + step[0], found[1] + step[1])


def test_the_threshold_parts_tokens_that_entropy_parts(monkeypatch):
  """Tokens are the likeliest up to 0.9 nats, but for one in twenty."""
  entropy = NOISE.random(4000) * 3
  first = (entropy < 0.9) ^ (NOISE.random(4000) < 0.05)
  monkeypatch.setattr(adadec_threshold, "uncertainty", lambda *_: (entropy, first))
  found = learned_threshold(MODEL, TEXTS)
  assert abs(found.nats - 0.9) < 0.1 and 0.9 < found.accuracy < 1
  assert found.above == (entropy >= found.nats).mean() and found.tokens == 4000
  np.testing.assert_allclose(found.first, first.mean())


@pytest.mark.parametrize(
  ("first", "message"),
  [
    (np.ones(40, bool), "`texts` must be texts with likeliest tokens and others"),
    (np.arange(40) >= 20, "`texts` must be texts whose entropy is lower"),
  ],
)
def test_texts_that_say_nothing_are_refused(first, message, monkeypatch):
  monkeypatch.setattr(adadec_threshold, "uncertainty", lambda *_: (np.arange(40) / 10, first))
  with pytest.raises(ValueError, match=message):
    learned_threshold(MODEL, TEXTS)
