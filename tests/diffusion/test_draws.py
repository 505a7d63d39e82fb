"""The law of texts at a temperature above 0, against programs that add up all that can happen.

Most tests decode three slots of two tokens each. The token of a slot is then the first one where a
uniform number is below the probability of that, and with Gumbel noise there is such a number too.
Between two neighbouring probabilities of the slot it makes no difference where the number lies, so
the law of draws that are kept is a finite sum, just as that of draws that are made anew.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from specjax.diffusion import blocks, caches, denoise, stopping
from specjax.diffusion.base import Canvas, Denoiser, Policy
from specjax.diffusion.draws import DRAWS, draw, kept
from specjax.diffusion.policies import POLICIES
from specjax.sampling import request_keys
from specjax.testing.enumerate import next_distribution

N, MASK, ROWS = 3, 2, 20_000
TEXTS = list(itertools.product((0, 1), repeat=N))
JOINT = np.random.default_rng(3).dirichlet(np.full(2**N, 0.6)).reshape((2,) * N)
ALONE = np.einsum("a,b,c->abc", [0.7, 0.3], [0.55, 0.45], [0.2, 0.8])


def evaluate(params, tokens, position, seen, earlier=None):
  """log p of each slot's tokens given the slots that are filled."""
  texts = jnp.asarray(TEXTS, jnp.int32)
  said = tokens[:, None, :N]
  fits = ((said == texts[None]) | (said == MASK)).all(-1)
  weight = jnp.where(fits, params.reshape(1, -1), 0.0)
  p = weight @ jax.nn.one_hot(texts, N).reshape(2**N, N * N)
  log_p = jnp.log(p.reshape(-1, N, N) / weight.sum(-1)[:, None, None])
  return jnp.pad(log_p, ((0, 0), (0, tokens.shape[1] - N), (0, 0))), ()


TABLE = Denoiser(N, MASK, False, evaluate, lambda params, states: states)


def sampled(joint, policy: str, parameters, draws: str, temperature: float, tempered=False):
  """i[8], how often each text is decoded."""
  method = denoise.DenoiseMethod(
    TABLE, caches.none(TABLE, N), POLICIES[policy](), blocks.fixed(N), stopping.whole(),
    draws=DRAWS[draws](), tempered=tempered,
  )  # fmt: skip
  canvas = Canvas(
    jnp.zeros((ROWS, 2 * N), jnp.int32), jnp.tile(jnp.arange(2 * N) < N, (ROWS, 1)),
    jnp.full(ROWS, N),
  )  # fmt: skip
  params = method.policy.parameters(*(jnp.full(ROWS, x) for x in parameters))
  weights = denoise.Weights(jnp.asarray(joint, jnp.float32), params)
  request = denoise.DenoiseRequest(request_keys(5, np.arange(ROWS)), jnp.full(ROWS, temperature))
  state = denoise.compiled_start(method, weights, canvas)
  state = denoise.compiled_advance(method, weights, request, state, jnp.int32(99))
  return np.bincount(np.asarray(state.canvas.tokens)[:, :N] @ [4, 2, 1], minlength=2**N)


def conditional(joint, said: dict[int, int], slot: int) -> np.ndarray:
  """f[2], of a slot given what others hold."""
  p = [0.0, 0.0]
  for text in TEXTS:
    if all(text[i] == token for i, token in said.items()):
      p[text[slot]] += joint[text]
  return np.array(p) / sum(p)


def flattened(p: np.ndarray, temperature: float) -> np.ndarray:
  return p ** (1 / temperature) / (p ** (1 / temperature)).sum()


def entropy(p: np.ndarray) -> float:
  return -(p * np.log(p)).sum()


# Given confidences and entropies of the open slots: (what is committed, with what probability).
RULES = {
  "confidence": lambda c, H: [([max(c, key=lambda i: (c[i], -i))], 1.0)],
  "threshold": lambda c, H: [
    ([i for i in c if c[i] >= 0.6] or [max(c, key=lambda i: (c[i], -i))], 1.0)
  ],
  "entropy": lambda c, H: [([min(H, key=lambda i: (H[i], i))], 1.0)],
  "random": lambda c, H: [([i], 1 / len(c)) for i in c],
  "left_to_right": lambda c, H: [([min(c)], 1.0)],
}
BEST = np.int32(1), np.float32(0)
PARAMETERS = {
  "threshold": (np.float32(0.6),), "random": BEST[:1], "left_to_right": BEST[:1],
  "confidence": BEST, "entropy": BEST,
}  # fmt: skip


def law(joint, rule: str, draws: str, temperature: float, tempered=False) -> np.ndarray:
  """f[8], the probability of each text."""
  found = np.zeros(2**N)

  def go_on(said: dict[int, int], weight: float, cell) -> None:
    left = [i for i in range(N) if i not in said]
    if not left:
      found[np.dot([said[i] for i in range(N)], [4, 2, 1])] += weight
      return
    own = {i: conditional(joint, said, i) for i in left}
    drawn_from = {i: flattened(own[i], temperature) for i in left}
    told = drawn_from if tempered else own
    H = {i: entropy(told[i]) for i in left}
    if cell is None:
      ways = [
        (dict(zip(left, tokens, strict=True)),
         np.prod([drawn_from[i][t] for i, t in zip(left, tokens, strict=True)]))
        for tokens in itertools.product((0, 1), repeat=len(left))
      ]  # fmt: skip
    else:
      ways = [({i: int(cell[i] >= drawn_from[i][0]) for i in left}, 1.0)]
    for tokens, p in ways:
      confidence = {i: told[i][tokens[i]] for i in left}
      for slots, q in RULES[rule](confidence, H):
        go_on(said | {i: tokens[i] for i in slots}, weight * p * q, cell)

  if draws == "anew":
    go_on({}, 1.0, None)
    return found
  cells = []
  for slot in range(N):
    others = [i for i in range(N) if i != slot]
    known = [
      {i: t for i, t in zip(others, tokens, strict=True) if t is not None}
      for tokens in itertools.product((0, 1, None), repeat=N - 1)
    ]
    edges = {flattened(conditional(joint, said, slot), temperature)[0] for said in known}
    edges = sorted({0.0, 1.0} | edges)
    cells.append([((a + b) / 2, b - a) for a, b in itertools.pairwise(edges)])
  for cell in itertools.product(*cells):
    go_on({}, float(np.prod([width for _, width in cell])), [middle for middle, _ in cell])
  return found


CASES = [
  *((rule, draws, 1.0, False) for rule in RULES for draws in DRAWS),
  ("confidence", "kept", 0.5, False), ("confidence", "anew", 0.5, False),
  ("threshold", "anew", 0.5, True), ("threshold", "kept", 2.0, True),
  ("entropy", "anew", 0.5, True),
]  # fmt: skip


@pytest.mark.full(but=["confidence-*-1.0-*", "threshold-anew-0.5-*"])
@pytest.mark.parametrize(("rule", "draws", "temperature", "tempered"), CASES)
def test_texts_have_the_law_of_their_draws(rule, draws, temperature, tempered):
  want = law(JOINT, rule, draws, temperature, tempered)
  assert want.sum() == pytest.approx(1)
  got = sampled(JOINT, rule, PARAMETERS[rule], draws, temperature, tempered)
  assert stats.chisquare(got, ROWS * want).pvalue > 1e-3
  if (rule, temperature) == ("confidence", 1.0):  # the test can tell the two laws apart
    other = law(JOINT, rule, "anew" if draws == "kept" else "kept", temperature)
    assert stats.chisquare(got, ROWS * other).pvalue < 1e-9


@pytest.mark.parametrize("rule", ["random", "left_to_right", "entropy"])
def test_where_nothing_looks_at_tokens_both_laws_are_one(rule):
  np.testing.assert_allclose(law(JOINT, rule, "kept", 0.7), law(JOINT, rule, "anew", 0.7))
  if rule == "left_to_right":
    np.testing.assert_allclose(law(JOINT, rule, "kept", 1.0), JOINT.ravel())


@pytest.mark.parametrize("rule", RULES)
def test_no_draw_that_is_kept_is_thrown_away(rule):
  """Where slots do not depend on each other, only draws made anew prefer what is likely."""
  np.testing.assert_allclose(law(ALONE, rule, "kept", 1.0), ALONE.ravel())
  biased = law(ALONE, rule, "anew", 1.0)
  if rule in ("confidence", "threshold"):
    assert entropy(biased) < entropy(ALONE.ravel()) - 0.1
  else:
    np.testing.assert_allclose(biased, ALONE.ravel())


@pytest.mark.slow
def test_a_draw_is_far_in_the_tail_as_often_as_it_must_be():
  """The noise of the other mode ends at 15.95, so that this token would come half as often."""
  B, W, V = 512, 64, 512
  scores = jnp.zeros((B, W, V)).at[..., 0].set(-9.0)
  position = jnp.tile(jnp.arange(W, dtype=jnp.int32), (B, 1))
  tokens = draw(kept(), request_keys(0, np.arange(B)), jnp.zeros(B, jnp.int32), position, scores)
  p = np.exp(-9) / (np.exp(-9) + V - 1)
  assert stats.binomtest(int((tokens == 0).sum()), B * W, p).pvalue > 1e-3


W, V = 3, 7
LOGITS = np.random.default_rng(1).normal(size=(W, V)).astype(np.float32) * 2
SETTINGS = [(0.0, 0, 1.0, 0.0), (0.0, 3, 0.8, 0.0), (1.0, 0, 1.0, 0.0), (0.7, 3, 1.0, 0.0),
            (1.3, 0, 0.7, 0.0), (1.0, 4, 0.9, 0.1), (2.0, 1, 1.0, 0.0)]  # fmt: skip


def read(params, tokens, position, seen, earlier=None):
  return params[position], ()


FIXED = Denoiser(V + 1, V, False, read, lambda params, states: states)


def spy() -> Policy:
  """The first open slot of every round; its memory is what it was told."""

  def select(params, memory, prediction):
    told = (prediction.confidence, prediction.entropy, prediction.margin, prediction.log_probs)
    return jnp.zeros_like(prediction.open), -prediction.position.astype(jnp.float32), told

  def init(B, W, V):
    return (*(jnp.zeros((B, W)) for _ in range(3)), jnp.zeros((B, W, V)))

  return Policy("spy", init, select)


@functools.cache
def method_of(tempered: bool) -> denoise.DenoiseMethod:
  return denoise.DenoiseMethod(
    FIXED, caches.none(FIXED, W), spy(), blocks.fixed(W), stopping.whole(), tempered=tempered
  )


def filled(tempered: bool, settings, rounds: int) -> denoise.DenoiseState:
  """The state after some rounds, of a row for each of the settings."""
  B, method = len(settings), method_of(tempered)
  params = jnp.pad(jnp.asarray(LOGITS), ((0, W), (0, 1)))
  canvas = Canvas(
    jnp.zeros((B, 2 * W), jnp.int32), jnp.tile(jnp.arange(2 * W) < W, (B, 1)), jnp.full(B, W)
  )
  kinds = (np.float32, np.int32, np.float32, np.float32)
  columns = zip(*settings, strict=True)
  asked = [jnp.asarray(np.array(x, kind)) for x, kind in zip(columns, kinds, strict=True)]
  request = denoise.DenoiseRequest(request_keys(2, np.arange(B)), *asked)
  state = denoise.compiled_start(method, denoise.Weights(params), canvas)
  state = denoise.compiled_advance(
    method, denoise.Weights(params), request, state, jnp.int32(rounds)
  )
  return jax.device_get(state)


@pytest.mark.parametrize("tempered", [False, True])
def test_what_policies_are_told_of(tempered):
  state = filled(tempered, SETTINGS, 1)
  before = denoise.compiled_advance._cache_size()
  filled(tempered, SETTINGS[::-1], 1)
  assert denoise.compiled_advance._cache_size() == before  # settings are traced
  confidence, entropies, margin, log_probs = state.memory
  for b, (temperature, *filters) in enumerate(SETTINGS):
    own = next_distribution(LOGITS[0], 1.0)
    token = state.canvas.tokens[b, 0]
    drawn_from = [next_distribution(x, temperature or 1.0, *filters) for x in LOGITS]
    assert drawn_from[0][token] > 0 and (temperature or token == LOGITS[0].argmax())
    assert state.log_prob[b, 0] == pytest.approx(np.log(own[token]), abs=1e-5)
    told = drawn_from if tempered else [next_distribution(x, 1.0) for x in LOGITS]
    for w, p in enumerate(told):
      np.testing.assert_allclose(np.exp(log_probs[b, w, :V]), p, atol=1e-6)
      assert np.isclose(p, confidence[b, w], atol=1e-6).any()
      assert entropies[b, w] == pytest.approx(entropy(p[p > 0]), abs=1e-5)
      top = np.sort(p)
      assert margin[b, w] == pytest.approx(top[-1] - top[-2], abs=1e-5)
    assert confidence[b, 0] == pytest.approx(told[0][token], abs=1e-6)


@pytest.mark.slow
def test_filters_decide_what_is_drawn():
  each = 4000
  state = filled(False, [x for x in SETTINGS for _ in range(each)], W)
  for i, setting in enumerate(SETTINGS):
    for w in range(W):
      tokens = state.canvas.tokens[i * each : (i + 1) * each, w]
      p = next_distribution(LOGITS[w], *setting)
      got = np.bincount(tokens, minlength=V)
      assert not got[p == 0].any()
      if (p > 0).sum() > 1:
        assert stats.chisquare(got[p > 0], each * p[p > 0]).pvalue > 1e-3
