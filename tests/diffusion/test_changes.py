"""Policies that change their mind: published loops restated, and the end of every block."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from published_loops import END, LENGTH, MASK, PROMPT, TABLE, B, V, prompts, rows, table
from published_loops import probabilities as plainly

from specjax.diffusion import blocks, caches, denoise, draws, groups, stopping
from specjax.diffusion.base import Canvas, Change, Policy
from specjax.diffusion.cooling import Cooling, cooling
from specjax.diffusion.policies import ADDED, POLICIES, Stable, Threshold
from specjax.diffusion.policies.best import EntropyBound
from specjax.diffusion.policies.editing import Edited, Remasked
from specjax.diffusion.policies.remasking import Believed, Wide
from specjax.diffusion.policies.renoise import Renoised, Settled
from specjax.sampling import request_keys

SIZE, KEPT = 8, draws.kept()


def evaluate(params, tokens, position, seen, earlier=None, soft=None):
  states, kv = TABLE.evaluate(params, tokens, position, seen)
  return states if soft is None else states + jnp.tanh(soft @ params["gate"]), kv


def weights_of(seed: int) -> dict[str, np.ndarray]:
  gate = 2 * np.random.default_rng(seed + 9).normal(size=(5, 5))
  return table(seed) | {"gate": gate}


UNIFORM = TABLE._replace(
  mask=None, evaluate=evaluate, soften=lambda params, probs, step: probs @ params["embed"]
)
MASKED = TABLE._replace(evaluate=evaluate)


@functools.cache
def method_of(denoiser, policy, transforms=(), own=KEPT):
  cache = caches.none(denoiser, SIZE)
  return denoise.DenoiseMethod(
    denoiser, cache, policy, blocks.fixed(SIZE), stopping.whole(), transforms, own
  )


def canvas_of(denoiser, seed: int, rows_=slice(None)) -> Canvas:
  tokens = np.zeros((B, LENGTH), np.int32)
  tokens[:, :PROMPT] = prompts(seed)
  column = np.broadcast_to(np.arange(LENGTH), tokens.shape)
  masked = (column >= PROMPT) & (column < END)
  canvas = Canvas(jnp.asarray(tokens), jnp.asarray(masked), jnp.full(B, END, jnp.int32))
  canvas = draws.first_noise(denoiser, request_keys(0, np.arange(B)), canvas)
  return jax.tree.map(lambda x: x[rows_], canvas)


def steps_of(method, params, seed: int, temperature=0.0, transforms=(), most=200):
  """The states after every round, until all rows are done."""
  weights = denoise.Weights(
    jax.tree.map(jnp.float32, weights_of(seed)), params, transforms=transforms
  )
  request = denoise.DenoiseRequest(request_keys(0, np.arange(B)), jnp.full(B, temperature))
  state = denoise.compiled_start(method, weights, canvas_of(method.denoiser, seed))
  found = [jax.device_get(state)]
  while not found[-1].done.all():
    state = denoise.compiled_advance(method, weights, request, state, jnp.int32(1))
    found.append(jax.device_get(state))
    assert len(found) < most
  return found


def logits_by_hand(seed: int, tokens, soft=None):
  t = weights_of(seed)
  states = t["bias"][:END] + t["mix"][:END, :END] @ t["embed"][tokens]
  if soft is not None:
    states = states + np.tanh(soft @ t["gate"])
  return states @ t["head"]


def softmax(x):
  p = np.exp(x - x.max(-1, keepdims=True))
  return p / p.sum(-1, keepdims=True)


# LLaDA2.1's program: two thresholds, and passes after the last commit.


def edited_by_hand(seed, row, least, other, passes):
  """(tokens, passes) of a row; its program reads a block once more to find it finished."""
  tokens = np.full(END, MASK)
  tokens[:PROMPT] = prompts(seed)[row]
  count = 0
  for lo in range(PROMPT, END, SIZE):
    block, after = np.arange(lo, lo + SIZE), 0
    while True:
      masked = tokens[block] == MASK
      if not masked.any():
        after += 1
        if after > passes:
          break
      logits = logits_by_hand(seed, tokens)
      logits[:, MASK] = -np.inf
      p = softmax(logits)[block]
      count += 1
      said, sure = p.argmax(-1), p.max(-1)
      take = np.zeros(SIZE, bool)
      if masked.any():
        take = masked & (sure >= least)
        if not take.any():
          take[np.where(masked, sure, -1).argmax()] = True
      take |= ~masked & (sure > other) & (said != tokens[block])
      if not take.any():
        break
      tokens[block[take]] = said[take]
  return tokens, count


@pytest.mark.parametrize(
  ("least", "other", "passes"), [(0.5, 0.0, 16), (0.3, 0.5, 2), (0.9, 0.0, 0)]
)
def test_edits_are_those_of_llada21(least, other, passes):
  policy = ADDED["edit"](POLICIES["threshold"]())
  changed = 0
  for seed in (0, 1):
    params = rows(Edited(Threshold(least), other, passes))
    states = steps_of(method_of(MASKED, policy), params, seed)
    plain = steps_of(method_of(MASKED, POLICIES["threshold"]()), rows(Threshold(least)), seed)[-1]
    for row in range(B):
      tokens, count = edited_by_hand(seed, row, least, other, passes)
      np.testing.assert_array_equal(states[-1].canvas.tokens[row, :END], tokens)
      assert states[-1].passes[row] == count
      changed += (plain.canvas.tokens[row, :END] != tokens).any()
  assert changed  # so that some edit counts


# WINO's and dInfer's programs: what is not believed is masked again.


def remasked_by_hand(seed, row, name, least, back):
  """(tokens, passes, slots masked again) of a row."""
  tokens, count, more = np.full(END, MASK), 0, 0
  tokens[:PROMPT] = prompts(seed)[row]
  for lo in range(PROMPT, END, SIZE):
    block, last = np.arange(lo, lo + SIZE), 1
    while (masked := tokens[block] == MASK).any():
      p = plainly(seed, tokens)[block]
      said, sure = p.argmax(-1), p.max(-1)
      held = np.where(masked, said, tokens[block])
      chance = p[np.arange(SIZE), held]
      lowest = sorted(range(SIZE), key=lambda i: (chance[i], i))
      if name == "wino":
        order = sorted(np.flatnonzero(masked), key=lambda i: (-sure[i], i))
        most = min(max(int(masked.sum() * 0.7), 5), 20)
        take = [i for i in order if sure[i] > least][:most] or order[:1]
        redo = [i for i in lowest if not masked[i] and chance[i] < back]
        redo, last = redo[: last - 1] if len(take) > 1 else [], len(take)
        tokens[block[take]] = said[take]
      else:
        redo = [i for i in lowest if chance[i] < least][: masked.sum() - 1]
        tokens[block] = held
      more += (~masked[redo]).sum()
      tokens[block[redo]] = MASK
      count += 1
  return tokens, count, more


@pytest.mark.parametrize(
  ("name", "params"),
  [("wino", Wide(0.4, 0.9)), ("wino", Wide(0.6, 0.5)), ("remask", Believed(0.7))],
)
def test_what_is_masked_again_is_what_the_programs_mask(name, params):
  changed = 0
  for seed in (0, 1):
    last = steps_of(method_of(MASKED, POLICIES[name]()), rows(params), seed)[-1]
    for row in range(B):
      tokens, count, more = remasked_by_hand(seed, row, name, *params[:1], params[-1])
      np.testing.assert_array_equal(last.canvas.tokens[row, :END], tokens)
      assert last.passes[row] == count <= END - PROMPT
      changed += more
  assert changed > 4


# DiffusionGemma's program: renoising, a falling temperature, self-conditioning, and its stop.

STEPS, BOUND, MOST = 6, 0.4, 0.5


@functools.cache
def noise_of(round_: int):
  """The tokens [B, END] and the Gumbel noise [B, END, V] of a round."""
  key, position = request_keys(0, np.arange(B)), jnp.broadcast_to(jnp.arange(END), (B, END))
  now = jnp.full(B, round_, jnp.int32)
  tokens = draws.noise(UNIFORM, key, now, position)
  slot = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(draws.anew().key(key, now), position)
  gumbel = jax.vmap(jax.vmap(lambda k: jax.random.gumbel(k, (V,), mode="high")))(slot)
  return np.asarray(tokens), np.asarray(gumbel)


def renoised_by_hand(seed, row, fault=""):
  """The canvases of a row after every pass."""
  tokens = np.array(noise_of(-1)[0][row])
  tokens[:PROMPT] = prompts(seed)[row]
  found, soft = [], np.zeros((END, 5))
  for lo in range(PROMPT, END, SIZE):
    block, last = np.arange(lo, lo + SIZE), None
    for n in range(STEPS):
      left = STEPS - n - (fault == "temperature")
      logits = logits_by_hand(seed, tokens, soft) / (0.4 + 0.4 * left / STEPS)
      p = softmax(logits)
      fresh, gumbel = (x[row] for x in noise_of(len(found) + (fault == "noise")))
      drawn, best = (np.log(p) + gumbel).argmax(-1)[block], p.argmax(-1)[block]
      entropy = -(p * np.log(p)).sum(-1)[block]
      order = np.argsort(entropy, kind="stable")
      total = np.cumsum(entropy[order])
      accept = np.zeros(SIZE, bool)
      accept[order[total - entropy[order] <= BOUND]] = True
      ends = last is not None and (best == last).all() and entropy.mean() < MOST
      tokens[block] = np.where(accept, drawn, fresh[block])
      if ends or n == STEPS - 1:
        tokens[block] = best
      if fault != "soft" or n:
        soft[block] = (p @ weights_of(seed)["embed"])[block]
      last = best
      found.append(tokens.copy())
      if ends:
        break
  return found


def gemma():
  policy = ADDED["settled"](ADDED["renoise"](POLICIES["entropy_bound"]()))
  params = rows(Settled(Renoised(EntropyBound(BOUND), STEPS), 1, MOST))
  return method_of(UNIFORM, policy, (cooling(),), draws.anew()), params


def canvases_differ(states, seed, fault=""):
  """How many rows are not, canvas by canvas, what the program gives with some fault."""
  differ = 0
  for row in range(B):
    want = renoised_by_hand(seed, row, fault)
    got = [state.canvas.tokens[row, :END] for state in states[1 : len(want) + 1]]
    same = len(got) == len(want) == states[-1].passes[row]
    differ += not (same and all((a == b).all() for a, b in zip(got, want, strict=True)))
  return differ


def test_canvases_are_those_of_diffusion_gemma_step_by_step():
  method, params = gemma()
  cool = (rows(Cooling(0.8, 0.4, STEPS)),)
  lengths = set()
  for seed in (0, 1):
    states = steps_of(method, params, seed, 1.0, cool)
    assert canvases_differ(states, seed) == 0
    lengths |= set(states[-1].passes.tolist())
    given = np.arange(LENGTH) < PROMPT
    np.testing.assert_array_equal(states[-1].canvas.tokens[:, given], prompts(seed))
    # Only what was written counts as filled, in the round that wrote it.
    assert (states[-1].when[:, PROMPT:END] >= 0).all() and states[1].when.max() == -1
    for fault in ("noise", "temperature", "soft"):
      assert canvases_differ(states, seed, fault) > B // 4, fault
  assert len(lengths) > 3  # rows stop alone


@pytest.mark.parametrize("name", ["gemma", "klass"])
def test_few_logits_at_a_time_change_nothing(name, monkeypatch):
  """Of a policy that says tokens of its own, and of one that reads whole distributions."""
  method, params = gemma()
  transforms = (rows(Cooling(0.8, 0.4, STEPS)),)
  if name == "klass":
    method, params, transforms = method_of(MASKED, POLICIES["klass"]()), rows(Stable()), ()
  own = method.draws._replace(name="in groups")  # a trace of its own
  whole = steps_of(method, params, 0, 0.7, transforms)
  monkeypatch.setattr(groups, "TOGETHER", 2 * B * V)
  assert groups.groups_of(B, SIZE, V) == SIZE // 2
  found = steps_of(method._replace(draws=own), params, 0, 0.7, transforms)
  assert len(found) == len(whole)
  for a, b in zip(found, whole, strict=True):
    np.testing.assert_array_equal(a.canvas.tokens, b.canvas.tokens)
    np.testing.assert_array_equal(a.when, b.when)
    np.testing.assert_allclose(a.log_prob, b.log_prob, atol=1e-5)
  assert (whole[-1].log_prob < -0.01).any()


@pytest.mark.parametrize(
  ("shape", "count"),
  [((8, 256, 262144), 8), ((8, 32, 126464), 1), ((1, 7, 2**26), 7), ((1, 6, 2**25), 3)],
)
def test_as_few_groups_as_memory_allows(shape, count):
  assert groups.groups_of(*shape) == count


# Every block ends, whatever a policy wants.


def restless(params, memory, prediction):
  """Wants everything of every slot, anew in every round."""
  fold = jax.vmap(jax.random.fold_in)
  key = fold(request_keys(1, jnp.arange(B)), 100 * prediction.step + prediction.position[:, 0])
  some = jax.vmap(lambda k: jax.random.bernoulli(k, 0.5, (3, SIZE)))(key)
  stay = jnp.ones(B, bool)
  change = Change(some[:, 0], replace=some[:, 1], again=some[:, 2], stay=stay)
  return change, prediction.confidence, memory


def policy_of(name: str):
  threshold = POLICIES["threshold"]()
  return {
    "restless": (
      Policy("restless", lambda B, W, V: (), restless, tuple, rounds=lambda p, W: jnp.full(B, 5)),
      (), 5,
    ),
    "edit": (ADDED["edit"](threshold), rows(Edited(Threshold(0.9), 0.0, 3)), 3),
    "remdm": (POLICIES["remdm"](), rows(Remasked(7, 1.0)), 7 - SIZE),
    "wino": (POLICIES["wino"](), rows(Wide(0.3, 1.0)), 0),
    "remask": (POLICIES["remask"](), rows(Believed(1.0)), 0),
    "renoise": (ADDED["renoise"](threshold), rows(Renoised(Threshold(0.9), 9)), 9 - SIZE),
    "settled": (ADDED["settled"](threshold), rows(Settled(Threshold(0.9), 1, 0.5)), 0),
  }[name]  # fmt: skip


@pytest.mark.full(but=["[ew]*-absorbing", "rem*-absorbing", "rest*-absorbing", "renoise-uniform"])
@pytest.mark.parametrize("denoiser", [MASKED, UNIFORM], ids=["absorbing", "uniform"])
@pytest.mark.parametrize(
  "name", ["restless", "edit", "remdm", "wino", "remask", "renoise", "settled"]
)
def test_every_block_ends(name, denoiser):
  """After the policy's rounds and a slot a round at most; what is behind it does not change."""
  policy, params, more = policy_of(name)
  method = method_of(denoiser, policy, own=draws.anew())
  states = steps_of(method, params, 0, 0.7)
  last = states[-1]
  assert last.passes.max() <= (END - PROMPT) // SIZE * (more + SIZE)
  column = np.arange(LENGTH)
  for before, after in itertools.pairwise(states):
    assert (after.step <= more + SIZE).all() and (after.lo >= before.lo).all()
    elsewhere = (column < before.lo[:, None]) | (column >= before.lo[:, None] + SIZE)
    x, y = before.canvas, after.canvas
    assert ((x.tokens == y.tokens) & (x.masked == y.masked) | ~elsewhere).all()
    assert ((after.when >= 0) == ~after.canvas.masked)[:, PROMPT:END].all()
  assert not last.canvas.masked.any() and (last.canvas.tokens[:, PROMPT:END] < V).all()
  if denoiser is MASKED:
    assert (last.canvas.tokens[:, PROMPT:END] != MASK).all()


def test_a_change_needs_rounds():
  policy = Policy("mine", lambda B, W, V: (), restless)
  method = method_of(MASKED, policy)
  weights = denoise.Weights(jax.tree.map(jnp.float32, weights_of(0)))
  request = denoise.DenoiseRequest(request_keys(0, np.arange(B)), jnp.zeros(B))
  state = denoise.compiled_start.eval_shape(method, weights, canvas_of(MASKED, 0))
  sentence = "`rounds` of the policy 'mine' must be given, for it returns a Change"
  with pytest.raises(ValueError, match=sentence):
    denoise.compiled_advance.eval_shape(method, weights, request, state, jnp.int32(1))


def test_remasking_leaves_as_many_slots_as_its_times_say():
  """After step k of T each slot is committed with probability k / T, whatever eta is."""
  T, R, W = 6, 20_000, 4
  rng, policy = np.random.default_rng(0), POLICIES["remdm"]()
  for share in (0.0, 0.4, 1.0):
    params = Remasked(jnp.full(R, T), jnp.full(R, share))
    left, turned = np.ones((R, W), bool), 0
    for step in range(T):
      now = jnp.asarray(left)
      some, zero = jnp.zeros((R, W)), jnp.zeros((R, W), jnp.int32)
      seen = denoise.Prediction(
        zero, some, some, some, some[..., None], zero, now, now, jnp.ones_like(now),
        jnp.full(R, step), jnp.float32(rng.random((R, W))), ~now, zero, zero,
      )  # fmt: skip
      change, *_ = policy.select(params, (), seen)
      commit, again = np.asarray(change.commit), np.asarray(change.again)
      assert not (commit & ~left).any() and not (again & left).any()
      left, turned = (left & ~commit) | again, turned + again.sum()
      assert abs((~left).mean() - (step + 1) / T) < 0.01
      assert (np.asarray(change.stay) == (step < T - 1)).all()
    assert not left.any() and (turned > 0) == (share > 0)
