"""A denoiser that is causal over blocks, and the cache that is exact for it.

The passes of the cache have other shapes than those over the whole canvas, so their states agree to
rounding, and what they decode token for token.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_denoise import PARAMS

from specjax.diffusion import blocks, caches, denoise, draft_verify, stopping
from specjax.diffusion.base import Canvas
from specjax.diffusion.credit import Credit, credit
from specjax.diffusion.guidance import Guided, guided
from specjax.diffusion.policies import POLICIES, Redundancy
from specjax.diffusion.policies.r2 import r2
from specjax.models.config import Config
from specjax.models.denoiser import denoiser
from specjax.models.transformer import Transformer, init
from specjax.sampling import request_keys

V, MASK, D, L, B = 24, 23, 6, 40, 6
CONFIG = Config(
  vocab_size=V, width=16, layers=2, heads=2, kv_heads=1, head_dim=16, mlp_width=24, causal=False,
  block_length=D,
)  # fmt: skip


@functools.cache
def weights():
  rng = np.random.default_rng(0)
  shapes = jax.eval_shape(functools.partial(init, CONFIG), jax.random.key(0))
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape) / 2 if x.ndim > 1 else np.ones(x.shape),
                          jnp.float32),
    shapes,
  )  # fmt: skip


def canvases() -> Canvas:
  """Prompts that end within a block and with one, holes blocks apart, a row that is full.

  No row begins with a masked block: its slots are all alike, so that rounding would decide.
  """
  tokens = np.random.default_rng(1).integers(0, V - 1, (B, L)).astype(np.int32)
  masked = np.zeros((B, L), bool)
  end = np.array([30, 21, 34, 12, 9, 40 - D], np.int32)
  masked[0, 12:30] = True  # the prompt fills two blocks
  masked[1, 2:4] = masked[1, 20] = True  # two blocks between the holes were given
  masked[2, 3:34:2] = True
  masked[4, 1:8] = True
  masked[5, 16:] = True  # the prompt ends within a block
  return Canvas(jnp.asarray(tokens), jnp.asarray(masked), jnp.asarray(end))


class Case:
  """A method on these canvases."""

  def __init__(self, policy="threshold", shift=False, size=D, stop=stopping.whole, **more):
    self.policy, self.shift, self.size, self.stop = policy, shift, size, stop
    self.temperature = more.pop("temperature", 0.7)
    self.credit, self.r2, self.weight = (more.pop(k, None) for k in ("credit", "r2", "weight"))
    assert not more

  @functools.cache  # noqa: B019
  def method(self, cache) -> denoise.DenoiseMethod:
    network = denoiser(CONFIG, MASK, self.shift)
    network = network if self.weight is None else guided(network)
    policy = POLICIES[self.policy]()
    return denoise.DenoiseMethod(
      network, cache(network, self.size), r2(policy) if self.r2 else policy,
      blocks.fixed(self.size), self.stop(), (credit(),) if self.credit else (),
    )  # fmt: skip

  def decode(self, cache, rows=range(B), guesses=None):
    rows = np.asarray(rows)
    canvas = jax.tree.map(lambda x: x[rows], canvases())
    count, method = len(rows), self.method(cache)
    row = functools.partial(jnp.full, count)
    parameters = PARAMS[self.policy]
    parameters = parameters if isinstance(parameters, tuple) else (parameters,)
    params = POLICIES[self.policy]().parameters(
      *(row(x) if np.ndim(x) == 0 else x for x in parameters)
    )
    if self.r2:
      params = Redundancy(params, row(0.3), row(0.3), row(0.3), row(2))
    network = weights()
    if self.weight is not None:
      network = Guided(network, ~canvas.masked, row(self.weight))
    strength = (Credit(row(3.0), row(0.8), row(0.2)),) if self.credit else ()
    parts = denoise.Weights(network, params, (), jnp.array([3, 11], jnp.int32), strength)
    request = denoise.DenoiseRequest(request_keys(0, rows), row(jnp.float32(self.temperature)))
    loop = denoise if guesses is None else draft_verify
    options = {} if guesses is None else {"guesses": guesses}
    state = loop.compiled_start(method, parts, canvas)
    state = loop.compiled_advance(method, parts, request, state, jnp.int32(1000), **options)
    return jax.device_get(state)


CASES = {
  **{policy: Case(policy) for policy in PARAMS},
  "shifted": Case(shift=True),
  "shifted, one by one, drawn": Case("confidence", shift=True, temperature=1.0),
  "blocks of half the length": Case(size=D // 2),
  "blocks of a third, shifted": Case(size=D // 3, shift=True),
  "credit": Case(credit=True),
  "r2": Case(r2=True, shift=True),
  "guidance": Case(weight=1.5, shift=True),
  "after_end": Case(stop=stopping.after_end, shift=True),
  "prediction": Case(stop=stopping.end_of_text_prediction),
  "sure_end": Case(stop=functools.partial(stopping.sure_end, 0.3)),
}
QUICK = ["blocks of a third, shifted", "after_end"]


def assert_same(got, wanted):
  np.testing.assert_array_equal(got.canvas.tokens, wanted.canvas.tokens)
  np.testing.assert_array_equal(got.canvas.end, wanted.canvas.end)
  np.testing.assert_array_equal(got.when, wanted.when)
  np.testing.assert_array_equal(got.passes, wanted.passes)


@pytest.mark.slow
@pytest.mark.full(but=QUICK)
@pytest.mark.parametrize("case", CASES)
def test_the_cache_leaves_nothing_out(case):
  got, wanted = (CASES[case].decode(cache) for cache in (caches.committed, caches.none))
  assert got.done.all()
  assert_same(got, wanted)
  np.testing.assert_allclose(got.log_prob, wanted.log_prob, atol=2e-5)


@pytest.mark.slow
@pytest.mark.full(but=["shifted"])
@pytest.mark.parametrize("case", CASES)
def test_rows_are_independent(case):
  together = CASES[case].decode(caches.committed)
  for b in range(B):
    alone = CASES[case].decode(caches.committed, [b])
    np.testing.assert_array_equal(alone.canvas.tokens[0], together.canvas.tokens[b])
    np.testing.assert_array_equal(alone.when[0], together.when[b])


def test_where_few_rows_begin_a_block_the_pass_over_two_is_theirs():
  """(rows, slots) of the passes that were run, where so many of six rows have finished one."""
  network, ran = denoiser(CONFIG, MASK), []

  def evaluate(params, tokens, *others):
    jax.debug.callback(lambda _, shape=tokens.shape: ran.append(shape), tokens[0, 0])
    return network.evaluate(params, tokens, *others)

  cache = caches.committed(network._replace(evaluate=evaluate), D)
  canvas = Canvas(jnp.zeros((B, L), jnp.int32), jnp.ones((B, L), bool), jnp.full(B, L))
  memory = cache.init(weights(), canvas)
  step = jax.jit(lambda memory, lo: cache.states(weights(), memory, canvas, lo, lo == 0)[1])
  alone, few, many = (B, D), (2, 2 * D), (B, 2 * D)
  for next_, wanted in (((), [alone]), ((4,), [alone, few]), ((1, 2, 5), [alone, many]),
                        (range(B), [many])):  # fmt: skip
    lo = memory.length.at[np.array(next_, int)].add(D)
    memory = step(memory, lo)
    jax.effects_barrier()
    np.testing.assert_array_equal(memory.length, lo)
    assert sorted(ran) == sorted(wanted)
    ran.clear()


@pytest.mark.full
@pytest.mark.parametrize("case", [k for k in CASES if k != "guidance"])
def test_draft_and_verify_decodes_the_same_in_fewer_passes(case):
  base = CASES[case].decode(caches.committed)
  got = CASES[case].decode(caches.committed, guesses=4)
  assert_same(got.state, base)
  assert (got.passes <= base.passes).all()
  if "one by one" in case:
    assert got.passes.sum() < base.passes.sum()


@pytest.mark.slow
@pytest.mark.parametrize("shift", [False, True])
def test_it_decodes_as_the_published_loop(shift):
  """SDAR's generate.py at temperature 0: block by block, each after the prefix that it sees."""
  network = Transformer(CONFIG)

  @jax.jit
  def log_probs(tokens, seen):
    slot = jnp.arange(L)
    mask = seen[None] & (slot[None] // D <= slot[:, None] // D)
    hidden, _ = network.apply(weights(), tokens[None], slot[None], mask[None])
    logits = network.apply(weights(), hidden, method="head")[0].at[:, MASK].set(-jnp.inf)
    return jax.nn.log_softmax(logits)

  got = Case(shift=shift, temperature=0.0).decode(caches.committed)
  for b, (tokens, masked, end) in enumerate(zip(*map(np.array, canvases()[:3]), strict=True)):
    tokens[masked] = MASK
    passes = 0
    for block in range(0, end, D):
      slots = np.arange(block, min(block + D, end))
      while (left := slots[masked[slots]]).size:
        # No slot past the block is known to the published loop.
        seen = np.arange(L) < slots[-1] + 1
        found = np.array(log_probs(tokens, seen))
        found = found[np.maximum(left - shift, 0)]
        sure = np.exp(found.max(1)) >= PARAMS["threshold"]
        sure[found.max(1).argmax()] = True
        tokens[left[sure]] = found.argmax(1)[sure]
        masked[left[sure]] = False
        passes += 1
    np.testing.assert_array_equal(got.canvas.tokens[b, :end], tokens[:end])
    assert got.passes[b] == passes


@pytest.mark.slow
def test_blocks_of_one_position_are_causal_and_one_block_is_the_whole_canvas():
  tokens = jnp.asarray(np.random.default_rng(2).integers(0, V - 1, (2, L)), jnp.int32)
  position = jnp.broadcast_to(jnp.arange(L, dtype=jnp.int32), tokens.shape)
  seen = jnp.ones(tokens.shape, bool)

  def states(length):
    config = dataclasses.replace(CONFIG, block_length=length)
    return denoiser(config, MASK).evaluate(weights(), tokens, position, seen)[0]

  causal, whole = jnp.tril(jnp.ones((2, L, L), bool)), jnp.ones((2, L, L), bool)
  for length, mask in ((1, causal), (L, whole)):
    wanted, _ = Transformer(CONFIG).apply(weights(), tokens, position, mask)
    np.testing.assert_allclose(states(length), wanted, atol=1e-5)
  np.testing.assert_array_equal(states(None), states(L))


def test_thresholds_and_texts_compile_nothing_anew():
  case = CASES["threshold"]
  case.decode(caches.committed)
  before = denoise.compiled_advance._cache_size()
  case.decode(caches.committed, rows=[5, 4, 3, 2, 1, 0])
  assert denoise.compiled_advance._cache_size() == before


@pytest.mark.parametrize(
  "sizes", [blocks.fixed(4), blocks.fixed(12), blocks.fixed(3, 3), blocks.adaptive(D)]
)
def test_blocks_that_cross_the_denoisers_are_refused(sizes):
  network = denoiser(CONFIG, MASK)
  method = denoise.DenoiseMethod(
    network, caches.none(network, sizes.window), POLICIES["threshold"](), sizes, stopping.whole()
  )
  with pytest.raises(ValueError, match=r"`blocks` must be fixed.* divides 6.*, got '"):
    denoise.start(method, denoise.Weights(weights()), canvases())


@pytest.mark.parametrize("name", sorted(caches.CACHES.keys() - {"none", "committed", "streamed"}))
def test_caches_of_a_whole_canvas_are_refused(name):
  with pytest.raises(ValueError, match=f"`cache` must be none or committed.*, got '{name}'"):
    caches.CACHES[name](denoiser(CONFIG, MASK), D)


def test_what_has_no_blocks_of_its_own_is_refused():
  whole = dataclasses.replace(CONFIG, block_length=None)
  with pytest.raises(
    ValueError,
    match=("cache='committed' needs a denoiser that is causal over blocks: this one sees"),
  ):
    caches.committed(denoiser(whole, MASK), D)
  with pytest.raises(ValueError, match="`block_length` must be None with causal=True, got 6"):
    dataclasses.replace(CONFIG, causal=True)
  with pytest.raises(
    ValueError, match=(r"`block_length` must be between 1 and 2147483647 \(positions\), got 0\.")
  ):
    dataclasses.replace(CONFIG, block_length=0)
