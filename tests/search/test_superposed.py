"""Superposed decoding against a loop over whole texts with n-grams in dictionaries."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_conversation import MODEL, V

import specjax
from specjax.data import datastore
from specjax.search.superposed import EXACTNESS, MIX, UNSUPPORTED, superposed

RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(V, size=60).tolist() for _ in range(4)]
STORE = datastore.build(TEXTS)


def counts(longest: int = 6):
  found = collections.Counter()
  for text in TEXTS:
    for n in range(1, longest + 1):
      found.update(tuple(text[i : i + n]) for i in range(len(text) - n + 1))
  return found


COUNTS = counts()


def log_ngram(text: list[int], token: int) -> float:
  total = 0.0
  for m, weight in enumerate(MIX, 1):
    context = tuple(text[-m:])
    if len(context) == m and COUNTS[context]:
      total += weight * COUNTS[*context, token] / COUNTS[context]
  return np.log(total) if total else -np.inf


def by_hand(prompt, k, new, alpha, top, temperature, stop=()):
  """[(score, new ids)], best first: every pass reads the whole superposed text again."""
  target, params = MODEL.target, MODEL.params

  @jax.jit
  def logits_after(x):
    position = jnp.arange(x.shape[1], dtype=jnp.int32)[None]
    mask = jnp.tril(jnp.ones((1, x.shape[1], x.shape[1]), bool))
    x, _ = target.run_layers(params, x, position, mask)
    return target.head(params, target.norm(params, x))[0]

  table = np.asarray(target.embed(params, jnp.arange(V)[None]))[0]
  stream, drafts, ended = table[prompt], [(0.0, [])], []
  for _ in range(new):
    padded = np.zeros((1, len(prompt) + new, stream.shape[1]), np.float32)
    padded[0, : len(stream)] = stream
    logits = np.asarray(logits_after(jnp.asarray(padded)))[len(stream) - 1].astype(float)
    best = np.argsort(-logits, kind="stable")[:top]
    p = np.exp((logits[best] - logits.max()) / temperature)
    log_p = np.log(p / p.sum())
    every = []
    for score, tokens in drafts:
      for token, own in zip(best.tolist(), log_p, strict=True):
        gram = log_ngram([*prompt, *tokens], token)
        gram = alpha * gram if gram > -np.inf else (UNSUPPORTED if alpha else 0.0)
        every.append((score + (1 - alpha) * own + gram, [*tokens, token]))
    every = sorted(every, key=lambda x: -x[0])[: 2 * k]
    ended += [x for x in every if x[1][-1] in stop]
    drafts = [x for x in every if x[1][-1] not in stop][:k]
    if not drafts:
      break
    weight = np.exp([score for score, _ in drafts])
    weight /= weight.sum()
    mean = sum(w * table[tokens[-1]] for w, (_, tokens) in zip(weight, drafts, strict=True))
    stream = np.concatenate([stream, mean[None]])
  return sorted(drafts + ended, key=lambda x: -x[0])[:k]


@pytest.mark.slow
@pytest.mark.full(but=["2-*"])
@pytest.mark.parametrize(
  ("k", "alpha", "stop"), [(3, 0.54, ()), (2, 0.3, (1, 4, 7)), (3, 0.0, (2,))]
)
def test_the_drafts_are_those_of_the_loop_by_hand(k, alpha, stop):
  prompt = TEXTS[0][5:12]
  model = specjax.Model("random", MODEL.config, MODEL.params, None, stop, (), MODEL.template)
  want = by_hand(prompt, k, 6, alpha, 5, 0.7, stop)
  got = superposed(model, prompt, STORE, k, 6, alpha=alpha, candidates=5, temperature=0.7)
  assert [x.tokens for x in got] == [tokens for _, tokens in want]
  np.testing.assert_allclose([x.score for x in got], [score for score, _ in want], rtol=1e-3)
  assert len({tuple(x.tokens) for x in got}) == k and EXACTNESS.startswith("LOSSY")


@pytest.mark.full
def test_one_draft_without_ngrams_is_greedy_decoding():
  prompt = TEXTS[1][:9]
  (got,) = superposed(MODEL, prompt, STORE, 1, 12, alpha=0.0)
  assert got.tokens == specjax.Decoder(MODEL)([prompt], 12)[0].tokens


@pytest.mark.parametrize("wrong", [{"drafts": 0}, {"candidates": 1}, {"alpha": 1.5},
                                   {"temperature": 0.0}, {"max_new_tokens": 0}])  # fmt: skip
def test_bad_numbers_are_refused(wrong):
  with pytest.raises(
    ValueError, match="`{}` must be .*, got {}".format(*next(iter(wrong.items())))
  ):
    superposed(MODEL, [1, 2], STORE, **wrong)
