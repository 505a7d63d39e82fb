"""Blockwise heads by their formula, and parallel heads rescored by an LM or by bigrams."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafters, speculate
from specjax.base import Context, Features
from specjax.decoding.method import method as pair
from specjax.drafters.combine.rescored import local, ngram
from specjax.heads import drafting
from specjax.heads.base import Examples
from specjax.heads.blockwise import BlockwiseConfig, blockwise
from specjax.heads.medusa import MedusaConfig, medusa
from specjax.models import transformer
from specjax.models.config import Config
from specjax.models.transformer import target
from specjax.sampling import Settings, request_keys
from specjax.verifiers import target_only

V, D, K, T, BUDGET = 16, 3, 4, 8, 16
MODEL = Config(vocab_size=V, width=8, layers=1, heads=2, kv_heads=1, head_dim=4, mlp_width=8)
SMALL = Config(vocab_size=V, width=6, layers=1, heads=1, kv_heads=1, head_dim=6, mlp_width=6)
VOCABULARY = np.array([1, 2, 4, 5, 7, 8, 11, 13, 14], np.int32)
LENGTH = np.array([8, 1, 4], np.int32)
B = len(LENGTH)
BLOCKWISE = blockwise(target(MODEL), BlockwiseConfig(depth=D, hidden=5))
MEDUSA = medusa(target(MODEL), MedusaConfig(depth=D))
CHAIN = tuple((0,) * d for d in range(1, D + 1))


def noisy(params, seed: int):
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) / 2, jnp.float32), params)


def network(config: Config, seed: int):
  shapes = jax.eval_shape(functools.partial(transformer.init, config), jax.random.key(0))
  return noisy(shapes, seed)


PARAMS, LM = network(MODEL, 0), network(SMALL, 1)


@functools.cache
def weights_of(head, reduced: bool):
  params = head.init(jax.random.key(0), PARAMS, jnp.asarray(VOCABULARY) if reduced else None)
  return params | {"params": noisy(params["params"], 2)}


def formula(params, h):
  """(states [D, E], logits [D, W]) of one target state h [E], head by head."""
  p = {name: np.asarray(x, np.float64) for name, x in params["params"].items()}
  embedding = np.asarray(PARAMS["params"]["embedding"], np.float64)
  states = []
  for d in range(D):
    own = slice(5 * d, 5 * d + 5)
    units = np.maximum(p["up"][own] @ h + p["up_bias"][own], 0)
    states.append(h + p["down"][d] @ units + p["down_bias"][d])
  kept = VOCABULARY if "vocabulary" in params else np.arange(V)
  return np.stack(states), np.stack(states) @ embedding[kept].T


@pytest.mark.full(but=["reduced"])
@pytest.mark.parametrize("reduced", [False, True], ids=["all tokens", "reduced"])
def test_heads_are_their_formula(reduced):
  params = weights_of(BLOCKWISE, reduced)
  hidden = np.random.default_rng(3).normal(size=(B, T, MODEL.width)).astype(np.float32)
  index = np.array([[0, 5], [7, 7], [3, 2]], np.int32)
  zero = jnp.zeros((B, T), jnp.int32)
  examples = Examples(zero, zero, zero, Features(jnp.asarray(hidden)), jnp.asarray(index))
  states = jax.jit(functools.partial(drafting.unroll, BLOCKWISE))(params, PARAMS, examples)
  for b, m in np.ndindex(B, 2):
    want_states, want = formula(params, hidden[b, index[b, m]])
    for d in range(D):
      np.testing.assert_allclose(states[d][b, m], want_states[d], atol=1e-5)
      logits = BLOCKWISE.read(params, PARAMS, states[d], d + 1)
      np.testing.assert_allclose(logits[b, m], want[d], atol=1e-4)


def test_untrained_heads_are_the_lm_head():
  params = BLOCKWISE.init(jax.random.key(0), PARAMS, None)
  context = Context(jnp.full((B, T), 3, jnp.int32), jnp.asarray(LENGTH))
  hidden = jax.random.normal(jax.random.key(1), (B, MODEL.width))
  propose = jax.jit(drafting.drafter(BLOCKWISE, CHAIN).propose)
  draft, _ = propose(params, PARAMS, hidden, context, None, None)
  best = np.argmax(np.asarray(hidden) @ np.asarray(PARAMS["params"]["embedding"]).T, 1)
  np.testing.assert_array_equal(draft.tokens, np.stack([np.full(B, 3), best, best, best], 1))


ALPHA = 0.8
HEAD = weights_of(BLOCKWISE, True)
TABLE = np.random.default_rng(4).normal(size=(len(VOCABULARY),) * 2).astype(np.float32)
# name: alpha -> drafter, and its weights
RESCORED = {
  "local": (
    lambda alpha: local(BLOCKWISE, target(SMALL), alpha, K), {"head": HEAD, "lm": LM}
  ),
  "ngram": (
    lambda alpha: ngram(BLOCKWISE, 9, alpha, K, 6), {"head": HEAD, "ngram": jnp.asarray(TABLE)}
  ),
}  # fmt: skip
METHODS = {
  "plain": (drafters.none(), ()),
  "itself": (  # all tokens are among the best, and the LM alone decides
    local(MEDUSA, target(MODEL), 1e4, V + 1), {"head": weights_of(MEDUSA, False), "lm": PARAMS}
  ),
  **{name: (build(ALPHA), params) for name, (build, params) in RESCORED.items()},
}  # fmt: skip
GREEDY = slice(0, 2)
REQUEST = speculate.DecodeRequest(
  Settings(jnp.asarray([0.0, 0.0, 0.8]), jnp.zeros(B, jnp.int32), jnp.ones(B), jnp.zeros(B)),
  request_keys(0, np.arange(B)), jnp.asarray(LENGTH + BUDGET, jnp.int32), jnp.asarray([-1]),
)  # fmt: skip


@functools.cache
def rounds(name: str):
  """The state before each round and after the last, as numpy arrays."""
  drafter, params = METHODS[name]
  method = pair(target(MODEL), drafter, target_only())
  weights = speculate.Weights(PARAMS, params)
  tokens = np.random.default_rng(5).integers(V, size=(B, T)).astype(np.int32)
  capacity = speculate.capacity_for(T, BUDGET, D)
  state = speculate.compiled_start(method, weights, tokens, LENGTH, REQUEST, capacity)
  seen = [jax.tree.map(np.array, state)]
  while not seen[-1].done.all():
    state = speculate.compiled_advance(method, weights, REQUEST, state, jnp.int32(1))
    seen.append(jax.tree.map(np.array, state))
  return seen


def drafts(name: str, alpha: float):
  """(text, its length, draft, logits [B, D, W] of the heads) of each round.

  The logits are recomputed from the text, so what is carried between rounds is tested too.
  """
  build, params = RESCORED[name]
  propose = jax.jit(build(alpha).propose)
  for state in rounds(name):
    text, length, _ = state.context
    draft, _ = propose(params, PARAMS, state.drafter, state.context, REQUEST.settings, ())
    hidden = states_of(text)[np.arange(B), np.maximum(length - 2, 0)]
    logits = np.stack([formula(HEAD, h)[1] for h in hidden])
    yield text, length, jax.tree.map(np.asarray, draft), logits


@jax.jit
def compiled_states(tokens):
  length = jnp.full(B, tokens.shape[1])
  return target(MODEL).prefill(PARAMS, tokens, length, tokens.shape[1])[1].hidden


def states_of(text):
  """The target's states [B, N, E] over i32[B, N], from scratch."""
  return np.asarray(compiled_states(text), np.float64)


@jax.jit
def log_probs_after(tokens):
  """The small LM's log-probabilities after every token of i32[B, N], from scratch."""
  small, length = target(SMALL), jnp.full(B, tokens.shape[1])
  _, features = small.prefill(LM, tokens, length, tokens.shape[1])
  return jax.nn.log_softmax(small.head(LM, features.hidden))


@pytest.mark.slow
@pytest.mark.full(but=["local"])
@pytest.mark.parametrize("name", ["itself", *RESCORED])
def test_tokens_are_those_of_plain_decoding(name):
  got, plain = rounds(name)[-1], rounds("plain")[-1]
  for b, n in enumerate(LENGTH + BUDGET):
    assert got.context.length[b] == n
    assert got.context.tokens[b, :n].tolist() == plain.context.tokens[b, :n].tolist()


@pytest.mark.full
def test_the_target_as_its_own_lm_drafts_what_it_will_say():
  accepted = rounds("itself")[-1].stats.accepted[GREEDY]
  assert accepted.tolist() == [[0] * D + [BUDGET // (D + 1)]] * 2
  # A poor LM leaves most to the heads.
  assert (rounds("local")[-1].stats.accepted[GREEDY, D] < BUDGET // (D + 1)).all()


@pytest.mark.full
@pytest.mark.parametrize("alpha", [0.0, ALPHA])
def test_local_is_head_and_lm_together(alpha):
  swayed, rows = 0, np.arange(B)
  for text, length, draft, logits in drafts("local", alpha):
    text = np.pad(text, ((0, 0), (0, D)))
    for d in range(D):
      log_probs = np.asarray(log_probs_after(text))[rows, length + d - 1]
      for b in rows:
        order = np.argsort(-logits[b, d])[:K]
        score = logits[b, d, order] + alpha * log_probs[b, VOCABULARY[order]]
        text[b, length[b] + d] = VOCABULARY[order[np.argmax(score)]]
        swayed += np.argmax(score) > 0
    got = draft.tokens[:, 1:].tolist()
    assert got == [text[b, n : n + D].tolist() for b, n in enumerate(length)]
  assert (swayed > 4) == (alpha > 0)


@pytest.mark.slow
@pytest.mark.full(but=["0.0"])
@pytest.mark.parametrize("alpha", [0.0, ALPHA])
def test_ngram_is_the_best_of_all_paths(alpha):
  rooted = set()
  for text, length, draft, logits in drafts("ngram", alpha):
    for b, n in enumerate(length):
      order = np.argsort(-logits[b], 1)[:, :K]
      before = np.flatnonzero(text[b, n - 1] == VOCABULARY).tolist()
      rooted.add(bool(before))

      def score(path, own=logits[b], before=before):
        pairs = itertools.pairwise([*before, *path])
        return sum(own[range(D), path]) + alpha * sum(TABLE[pair] for pair in pairs)

      best = sorted(itertools.product(*order.tolist()), key=score, reverse=True)[:6]
      prefixes = dict.fromkeys(path[:d] for path in best for d in range(1, D + 1))
      want = [tuple(VOCABULARY[list(path)].tolist()) for path in prefixes][:8]
      got = [()]
      for token, parent in zip(draft.tokens[b, 1:], draft.parent[b, 1:], strict=True):
        got.append((*got[parent], int(token)))
      assert draft.valid[b].tolist() == [i <= len(want) for i in range(9)]
      assert got[1 : len(want) + 1] == want
  assert rooted == {False, True}
