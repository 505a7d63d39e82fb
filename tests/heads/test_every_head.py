"""What every trained head owes: training and drafting agree, trees fit, state is what it should be.

The loop's own checks (lossless, batch-independent, one trace) are in test_speculate.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import speculate
from specjax.decoding.method import method as pair
from specjax.heads import HEADS, drafting, few_bits
from specjax.heads.base import Examples
from specjax.heads.parallel import Frames
from specjax.models import transformer
from specjax.models.config import Config
from specjax.models.transformer import Transformer, attention_mask, target
from specjax.sampling import Noise, Settings, request_keys
from specjax.trees import Dynamic, Static
from specjax.verifiers import greedy

V = 32
MODEL = Config(
  vocab_size=V, width=16, layers=4, heads=4, kv_heads=2, head_dim=8, mlp_width=24, max_length=128
)
TARGET = target(MODEL)
VOCABULARY = np.array([0, 1, 2, 5, 6, 8, 9, 13, 17, 18, 20, 21, 25, 28, 30, 31], np.int32)
T, BUDGET = 12, 14


def noisy(params, seed: int):
  """Random weights in place of zeros, copies and identities, which would hide mistakes."""
  rng = np.random.default_rng(seed)

  def disturb(x):
    scale = 1 / 4 if x.ndim > 1 else 1 / 8
    return x + jnp.asarray(rng.normal(size=x.shape) * scale, x.dtype)

  return params | {"params": jax.tree.map(disturb, params["params"])}


@functools.cache
def target_params():
  return noisy(transformer.init(MODEL, jax.random.key(0)), 0)


@functools.cache
def head(name: str, reduced: bool = False):
  """(Head, params)."""
  build, config = HEADS[name]
  made = build(target(MODEL), config())
  vocabulary = jnp.asarray(VOCABULARY) if reduced else None
  return made, noisy(made.init(jax.random.key(1), target_params(), vocabulary), 1)


def examples_of(made, tokens, position, segment, at) -> Examples:
  """Where and on what `made` drafts."""
  features, _ = Transformer(MODEL).apply(
    target_params(), tokens, position, attention_mask(segment, True),
    hidden_layers=made.hidden_layers, method="features",
  )  # fmt: skip
  return Examples(tokens, position, segment, features, at)


def chain(depth: int):
  return tuple((0,) * d for d in range(1, depth + 1))


@functools.cache
def guesses_of(name: str, reduced: bool = False):
  """Compiled (tokens i32[B, T], position, segment, at i32[B, M]) -> (states, logits) of a depth."""
  made, params = head(name, reduced)

  @jax.jit
  def run(params, tokens, position, segment, at):
    examples = examples_of(made, tokens, position, segment, at)
    states = drafting.unroll(made, params, target_params(), examples)
    assert len(states) == made.depth
    logits = [made.read(params, target_params(), s, d) for d, s in enumerate(states, 1)]
    assert all(x.dtype == jnp.float32 for x in logits)
    return states, logits

  def call(tokens, at, position=None, segment=None):
    tokens = np.asarray(tokens, np.int32)
    if position is None:
      position = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
      segment = np.zeros_like(tokens)
    states, logits = run(params, tokens, position, segment, np.asarray(at, np.int32))
    return list(map(np.asarray, states)), list(map(np.asarray, logits))

  return call


def asked(drafter, params, lengths):
  """(method, weights, tokens, length, request, capacity) of random prompts."""
  rng = np.random.default_rng(0)
  B = len(lengths)
  tokens = jnp.asarray(rng.integers(0, V, (B, T)), jnp.int32)
  length = jnp.asarray(lengths, jnp.int32)
  tokens = jnp.where(jnp.arange(T)[None] < length[:, None], tokens, 0)
  f = jnp.zeros(B)
  request = speculate.DecodeRequest(
    Settings(f, jnp.zeros(B, jnp.int32), f + 1, f), request_keys(0, np.arange(B)),
    length + BUDGET, jnp.asarray([-1], jnp.int32),
  )  # fmt: skip
  method = pair(TARGET, drafter, greedy())
  capacity = speculate.capacity_for(T, BUDGET, drafter.depth)
  return method, speculate.Weights(target_params(), params), tokens, length, request, capacity


def start(drafter, params, lengths):
  method, own, tokens, length, request, capacity = asked(drafter, params, lengths)
  begun = speculate.compiled_start(method, own, tokens, length, request, capacity)
  return method, own, request, begun


def folded(symbols, ids) -> list[int]:
  """What frames say, the blank being the symbol after those of all ids."""
  told = [x for x, before in zip(symbols, [None, *symbols], strict=False) if x != before]
  return [int(ids[x]) for x in told if x < len(ids)]


def drafts(name: str, tree, reduced: bool = False, rounds=range(1, 5)):
  """(committed text, its length, draft) of a few rounds, greedily decoded."""
  made, params = head(name, reduced)
  drafter = drafting.drafter(made, tree)
  method, weights, request, state = start(drafter, params, [T, 2, 7])

  @jax.jit
  def propose(state):
    noise = Noise(request.key, state.context.length)
    context = state.context._replace(cache=state.cache)
    return drafter.propose(
      params, target_params(), state.drafter, context, request.settings, noise
    )[0]

  for _ in rounds:
    state = speculate.compiled_advance(method, weights, request, state, jnp.int32(1))
    yield np.asarray(state.context.tokens), np.asarray(state.context.length), propose(state)


@pytest.mark.slow
@pytest.mark.full(
  but=["hydra-all tokens", "hidden_transfer-all tokens", "eagle3-reduced", "pard-reduced"]
)
@pytest.mark.parametrize("reduced", [False, True], ids=["all tokens", "reduced"])
@pytest.mark.parametrize("name", HEADS)
def test_what_is_drafted_is_what_training_sees(name, reduced):
  """The chain of best guesses after a few rounds, against `unroll` over that text from scratch.

  It ties the loss to the draft, and the state carried from round to round, accepted rows, caches
  and all, to a recomputation.
  """
  made, _ = head(name, reduced)
  ids = VOCABULARY if reduced else np.arange(V)
  checked = 0
  for text, length, draft in drafts(name, chain(made.depth), reduced):
    guessed, valid = np.asarray(draft.tokens), np.asarray(draft.valid)
    whole = np.zeros((len(length), T + BUDGET + made.depth + 1), np.int32)
    for b, n in enumerate(length):
      whole[b, : n + made.depth] = np.concatenate([text[b, :n], guessed[b, 1:]])
    _, logits = guesses_of(name, reduced)(whole, (length - 2)[:, None])
    for d, x in enumerate(logits, 1):
      assert x.shape == (len(length), 1, len(ids) + isinstance(made, Frames))
      if isinstance(made, Frames):
        continue
      for b in np.flatnonzero(valid[:, d]):
        best = np.flatnonzero(x[b, 0] > x[b, 0].max() - 1e-4)
        assert guessed[b, d] in ids[best]
        checked += 1
    if isinstance(made, Frames):
      frames = np.stack(logits, 1)[:, :, 0].argmax(-1)
      for b, symbols in enumerate(frames):
        assert guessed[b, valid[b]].tolist()[1:] == folded(symbols.tolist(), ids)
        checked += len(symbols)
  assert checked > 12


@pytest.mark.full(but=["medusa", "hydra", "ppd", "eagle3"])
@pytest.mark.parametrize("name", HEADS)
def test_unroll_keeps_texts_and_later_tokens_apart(name):
  """Two texts packed in a row give the states of each alone; nothing after at + d is seen."""
  made, _ = head(name)
  rng = np.random.default_rng(3)
  first, second = rng.integers(0, V, (2, 9))
  at = 2
  changed = second.copy()
  changed[at + made.depth + 1 :] = (changed[at + made.depth + 1 :] + 1) % V
  (alone, _), (later, _) = (
    guesses_of(name)(np.concatenate([x, 0 * first])[None], [[at, at, at]])
    for x in (second, changed)
  )
  packed, _ = guesses_of(name)(
    np.concatenate([first, second])[None], [[4, 9 + at, 17]],
    np.tile(np.arange(9, dtype=np.int32), 2)[None], np.repeat(np.int32([0, 1]), 9)[None],
  )  # fmt: skip
  for one, other, both in zip(alone, later, packed, strict=True):
    assert both.shape[:2] == (1, 3)
    np.testing.assert_allclose(both[0, 1], one[0, 1], rtol=2e-4, atol=2e-5)
    np.testing.assert_array_equal(one, other)
    assert np.isfinite(both).all()


TREES = {
  "static": ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0)),
  "dynamic": Dynamic(nodes=9, depth=2, beam=3),
}


@pytest.mark.full(but=["ppd-static"])
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("name", HEADS)
def test_drafts_are_trees(name, tree):
  made, _ = head(name)
  for text, length, draft in drafts(name, tree, rounds=range(2)):
    tokens, parent, depth, valid = map(np.asarray, draft[:4])
    np.testing.assert_array_equal(tokens[:, 0], text[np.arange(3), length - 1])
    assert valid[:, 0].all() and (tokens >= 0).all() and (tokens < V).all()
    for b in range(3):
      assert parent[b, 0] == 0 and (parent[b, 1:] < np.arange(1, tokens.shape[1])).all()
      np.testing.assert_array_equal(depth[b, 1:], depth[b, parent[b, 1:]] + 1)
      kept = np.flatnonzero(valid[b, 1:]) + 1
      assert len(set(zip(parent[b, kept], tokens[b, kept], strict=True))) == len(kept)
  assert depth.max() <= 2 <= made.depth


@pytest.mark.full(but=["eagle3", "ppd", "redrafter"])
@pytest.mark.parametrize("name", HEADS)
def test_a_gradient_reaches_every_trained_weight(name):
  made, params = head(name)
  tokens = jnp.asarray(np.random.default_rng(4).integers(0, V, (2, T)), jnp.int32)
  position = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (2, T))
  segment = jnp.zeros_like(tokens)

  @jax.jit
  @jax.grad
  def gradient(trained):
    at = jnp.asarray([[3, 5], [0, 6]], jnp.int32)
    examples = examples_of(made, tokens, position, segment, at)
    states = drafting.unroll(made, params | {"params": trained}, target_params(), examples)
    loss = jnp.zeros(())
    for d, state in enumerate(states, 1):
      logits = made.read(params | {"params": trained}, target_params(), state, d)
      wave = jnp.sin(jnp.arange(logits.size, dtype=jnp.float32))
      loss += (logits * wave.reshape(logits.shape)).sum()
      if made.log_odds is not None:
        loss += made.log_odds(params | {"params": trained}, state).sum()
    return loss

  for path, g in jax.tree.leaves_with_path(gradient(params["params"])):
    assert np.isfinite(g).all() and np.abs(g).max() > 0, jax.tree_util.keystr(path)


@pytest.mark.full(but=["medusa", "ctc", "blockwise", "ppd", "mlp_speculator", "eagle3"])
@pytest.mark.parametrize("name", HEADS)
def test_matrices_may_be_in_8_bits(name, monkeypatch):
  monkeypatch.setattr(few_bits, "_LEAST", 1)
  made, params = head(name, True)
  small = few_bits.narrow(params, "int8", "float")
  drafter = drafting.drafter(made, Static(chain(made.depth)))
  method, own, tokens, length, request, capacity = asked(drafter, small, (5, 9))

  def traced(*arrays):
    begun = speculate.start(method, *arrays, capacity)
    return speculate.advance(method, arrays[0], arrays[-1], begun, jnp.int32(4))

  jax.eval_shape(traced, own, tokens, length, request)


@pytest.mark.full(but=["medusa", "eagle3"])
@pytest.mark.parametrize("name", HEADS)
def test_a_tree_that_is_too_deep_is_refused(name):
  made, _ = head(name)
  with pytest.raises(ValueError, match=f"tree is {made.depth + 1} deep: the head guesses"):
    drafting.drafter(made, chain(made.depth + 1))
