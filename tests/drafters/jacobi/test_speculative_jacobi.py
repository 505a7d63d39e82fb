"""Speculative Jacobi decoding: what it emits by enumeration, what it keeps against plain Python."""

import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.base import Context, Draft, Drafter, Evaluation, Features, Verdict, Verifier
from specjax.decoding.method import method as pair
from specjax.drafters import speculative_jacobi
from specjax.drafters.jacobi.speculative_jacobi import coupled
from specjax.sampling import Noise, Settings, request_keys, warp
from specjax.testing import (
  Case,
  emitted_distribution,
  random_table,
  table_model,
  target_distribution,
  total_variation,
)
from specjax.verifiers import block, target_only, token, traversal

EXACT, BIASED = 1e-6, 1e-3


@functools.cache
def drafter(V: int, D: int, mistake: str = "") -> Drafter:
  """The drafter, whose first guesses are drawn too, so that two rounds have all there is."""
  own = speculative_jacobi(table_model(V), D + 1)

  def init(*weights, **more):
    state = own.init(*weights, **more)
    logits = np.random.default_rng(5).normal(size=state.logits.shape[1:])
    return state._replace(logits=jnp.broadcast_to(jnp.float32(logits), state.logits.shape))

  def propose(*arguments, settings, **more):
    *weights, state = arguments
    if mistake == "all are kept":  # and said to come from what the last pass found
      state = state._replace(log_probs=warp(state.logits, settings))
    draft, after = own.propose(*weights, state, settings=settings, **more)
    if mistake == "said to come from the old distributions":
      old = arguments[-1].log_probs
      draft = draft._replace(log_probs=jnp.concatenate([old, draft.log_probs[:, -1:]], 1))
    return draft, after

  proposal = "chain" if mistake == "called a chain" else own.proposal
  return own._replace(init=init, propose=propose, proposal=proposal)


def distance(V: int, D: int, rounds: int, rule: Verifier, mistake: str = "", **settings) -> float:
  method = pair(table_model(V), drafter(V, D, mistake), rule)
  settings = {"prompt": (0, 1, 0), "length": rounds * (D + 1), "temperature": 0.8} | settings
  found = []
  for seed in range(2):
    case = Case(np.asarray(random_table(seed, V)["logits"]), **settings)
    emitted = emitted_distribution(case, method, rounds=rounds)
    found.append(total_variation(emitted, target_distribution(case)))
  return max(found)


SETTINGS = {
  "sampled": {},
  "cold": {"temperature": 0.4},
  "greedy": {"temperature": 0.0},
  "cut": {"top_p": 0.8, "temperature": 1.2},
  "stop": {"stop": (1,)},
  "budget": {"budget": 3},
}


@pytest.mark.full
@pytest.mark.parametrize(
  ("V", "D", "rounds"), [(2, 3, 2), (3, 2, 2), (2, 2, 3), (3, 1, 3)],
  ids=["2-3-2", "3-2-2", "2-2-3", "3-1-3"],
)  # fmt: skip
@pytest.mark.parametrize("name", SETTINGS)
def test_the_emitted_distribution_is_the_targets(name, V, D, rounds):
  assert distance(V, D, rounds, token(), **SETTINGS[name]) < EXACT


@pytest.mark.full
def test_target_only_is_exact():
  assert distance(3, 1, 2, target_only()) < EXACT


@pytest.mark.full
@pytest.mark.parametrize("mistake", ["all are kept", "said to come from the old distributions"])
def test_a_mistake_is_seen(mistake):
  assert distance(2, 3, 2, token(), mistake) > BIASED


@pytest.mark.full
@pytest.mark.parametrize("rule", [block(), traversal()], ids=lambda rule: rule.name)
def test_rules_that_weigh_the_whole_chain_are_biased_and_refused(rule):
  """It is no "chain": its distributions tell about the tokens before them."""
  assert distance(2, 3, 2, rule, "called a chain") > BIASED
  with pytest.raises(ValueError, match=r"no rule may look ahead.*Use target_only or token\."):
    pair(table_model(2), drafter(2, 3), rule)


def test_a_coupling_keeps_what_it_can():
  """Drawn from q, coupled tokens are distributed as p, and equal as often as tokens can be."""
  rng, V = np.random.default_rng(0), 5
  p, q = rng.dirichlet(np.ones(V), size=(2, 40))
  p[:10, 2], q[5:15, 3] = 0, 0
  p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
  with np.errstate(divide="ignore"):
    log_p, log_q = (jnp.log(jnp.float32(z))[:, None] for z in (p, q))
  each = [jax.jit(coupled)(jnp.full((40, 1), x), log_q, log_p) for x in range(V)]
  joint = np.stack([q[:, x, None] * np.exp(each[x])[:, 0] for x in range(V)], 1)
  np.testing.assert_allclose(joint.sum(1), p, atol=1e-6)
  np.testing.assert_allclose(np.trace(joint, axis1=1, axis2=2), np.minimum(p, q).sum(1), atol=1e-6)


@pytest.mark.slow
def test_what_is_kept_over_many_rounds():
  """The published loop takes the least accepted row of a batch for all; here each has its own."""
  rng, V, D, B = np.random.default_rng(1), 5, 4, 3
  own = speculative_jacobi(table_model(V), D + 1)
  propose, update, read, law = map(jax.jit, (own.propose, own.update, own.read, warp))
  context = Context(jnp.asarray([[1, 2, 3], [4, 0, 0], [1, 3, 0]]), jnp.asarray([3, 1, 2]))
  state = own.init((), (), context=context, features=None, capacity=0)
  settings = Settings(jnp.asarray([0.8, 0.0, 1.3]), jnp.asarray([0, 0, 3]), jnp.ones(B),
                      jnp.zeros(B))  # fmt: skip
  eye = np.where(np.eye(V) > 0, 0.0, -np.inf)
  first = [[1, 2, 3, 1], [4, 4, 4, 4], [1, 3, 1, 3]]
  known = [[(x, eye[x], eye[x]) for x in row] for row in first]  # token, log q, logits
  depth = np.broadcast_to(np.arange(D + 1), (B, D + 1))
  for round_ in range(8):
    for b, row in enumerate(known):
      for j, want in enumerate(row):
        for got, one in zip(state, want, strict=True):
          np.testing.assert_array_equal(got[b, j], np.float32(one))
    noise = Noise(request_keys(round_, range(B)), context.length)
    draft, state = propose((), (), state, context=context, settings=settings, noise=noise)
    log_p = np.asarray(law(jnp.asarray(np.float32([[x[2] for x in r] for r in known])), settings))
    np.testing.assert_allclose(np.asarray(draft.log_probs)[:, :D], log_p, atol=1e-6)
    logits = rng.normal(size=(B, D + 1, V)).astype(np.float32)
    rows = rng.integers(1, D + 2, size=B)
    path = jnp.asarray(depth, jnp.int32)
    verdict = Verdict(path, jnp.asarray(rows - 1, jnp.int32), path)
    evaluation = Evaluation(jnp.asarray(logits), Features(None), ())
    state = update((), (), state, draft=draft, evaluation=evaluation, verdict=verdict,
                   rows=jnp.asarray(rows, jnp.int32))  # fmt: skip
    for b in range(B):
      last = int(logits[b, D].argmax())
      tokens = [*draft.tokens[b, 1:].tolist(), last]
      log_q = [*np.asarray(draft.log_probs)[b, :D], eye[last]]
      ahead = list(zip(tokens, log_q, logits[b], strict=True))[rows[b] :]
      known[b] = (ahead + [(last, eye[last], eye[last])] * D)[:D]
  given = Draft(path, path, path, path == 0)
  after = read((), (), state, draft=given, evaluation=evaluation, rows=jnp.asarray([1, 3, 2]),
               verdict=verdict._replace(tokens=path))  # fmt: skip
  assert after.tokens.tolist() == [[0] * D, [2] * D, [1] * D]
  np.testing.assert_array_equal(after.log_probs, eye[np.asarray(after.tokens)])


@pytest.mark.full
def test_guesses_behind_a_refusal_are_kept_as_they_were_drawn():
  """The published loop draws them anew."""
  V, D, B = 6, 3, 64
  own = speculative_jacobi(table_model(V), D + 1)
  rng = np.random.default_rng(3)
  law = jnp.asarray(rng.normal(size=(1, D, V)), jnp.float32)
  law = jnp.broadcast_to(law, (B, D, V))
  state = own.init((), (), context=Context(jnp.zeros((B, 1), jnp.int32), jnp.ones(B, jnp.int32)),
                   features=None, capacity=0)  # fmt: skip
  settings = Settings(jnp.ones(B), jnp.zeros(B, jnp.int32), jnp.ones(B), jnp.zeros(B))
  noises = (Noise(request_keys(s, range(B)), jnp.ones(B, jnp.int32)) for s in itertools.count())
  context = Context(jnp.zeros((B, 1), jnp.int32), jnp.ones(B, jnp.int32))
  propose = jax.jit(own.propose)
  step = functools.partial(propose, (), (), context=context, settings=settings)
  one, state = step(state._replace(logits=law), noise=next(noises))
  same, _ = step(state, noise=next(noises))  # the next pass found the same distributions
  np.testing.assert_array_equal(one.tokens, same.tokens)
  other, _ = step(state._replace(logits=law[:, ::-1]), noise=next(noises))
  p = np.exp(warp(law, settings)[0])
  kept = (np.asarray(other.tokens) == np.asarray(one.tokens))[:, 1:].mean()
  assert abs(kept - np.minimum(p, p[::-1]).sum(-1).mean()) < 0.1


@pytest.mark.full
def test_noise_is_not_drawn_for_every_token():
  """The published loop draws noise of the size of all distributions to read an entry of each."""
  V, D, B = 49152, 3, 2
  own = speculative_jacobi(table_model(V), D + 1)
  context = Context(jnp.zeros((B, 1), jnp.int32), jnp.ones(B, jnp.int32))
  settings = Settings(jnp.ones(B), jnp.zeros(B, jnp.int32), jnp.ones(B), jnp.zeros(B))

  def draft(context, settings, key):
    state = own.init((), (), context=context, features=None, capacity=0)
    noise = Noise(key, context.length)
    return own.propose((), (), state, context=context, settings=settings, noise=noise)

  program = str(jax.make_jaxpr(draft)(context, settings, request_keys(0, range(B))))
  drawn = re.findall(r"random_bits\[\s*bit_width=32\s+shape=\(([\d, ]*)\)", program)
  sizes = [math.prod(int(x) for x in re.findall(r"\d+", shape)) for shape in drawn]
  assert sizes and max(sizes) < V / 100
