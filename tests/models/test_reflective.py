"""The reflective distribution equals whole passes over the text, however it is decoded."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafters, speculate
from specjax.decoding.method import method as pair
from specjax.models import transformer
from specjax.models.config import Config
from specjax.models.reflective import reflective, reflective_once
from specjax.models.transformer import Transformer, attention_mask, target
from specjax.sampling import Settings, request_keys
from specjax.testing import random_draft
from specjax.verifiers import greedy, target_only

V, T, BUDGET = 32, 8, 16
CONFIG = Config(
  vocab_size=V,
  width=16,
  layers=2,
  heads=4,
  kv_heads=2,
  head_dim=8,
  mlp_width=24,
  max_length=64,
  tied=False,
)
PLAIN = target(CONFIG)
PROMPT = (7, 30, 2)
WEIGHT = 0.4
SECOND = reflective(PLAIN, PROMPT, WEIGHT)
TREE = random_draft([[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]], V)
CHAIN = drafters.draft_model(PLAIN, 4)
PROMPTS = ((3, 1, 4, 1, 5), (9,), (2, 6, 5, 3, 5, 8, 9, 7))


@functools.cache
def params():
  init = transformer.init(CONFIG, jax.random.key(0))
  return jax.tree.map(lambda p: p * 8.0 if p.ndim > 1 else p, init)


@jax.jit
def logits(params, ids):
  """Of a pass without a cache, [B, T, V]."""
  position = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
  model, mask = Transformer(CONFIG), attention_mask(jnp.zeros_like(ids), True)
  return model.apply(params, model.apply(params, ids, position, mask)[0], method="head")


def after(text, prompt=PROMPT, weight=WEIGHT) -> np.ndarray:
  """Logits after a text: it is read, then the prompt, then its last token again."""
  ids = [*text, *prompt, text[-1]]
  padded = jnp.asarray([ids + [0] * (T + BUDGET + 8 - len(ids))], jnp.int32)
  z = np.asarray(logits(params(), padded), np.float64)[0]
  return (1 - weight) * z[len(text) - 1] + weight * z[len(ids) - 1]


@functools.cache
def decode(network, drafter, verifier, temperature: float, prompts=PROMPTS):
  """(new tokens of each prompt, final state)."""
  B = len(prompts)
  tokens = jnp.asarray([[*p, *[0] * (T - len(p))] for p in prompts], jnp.int32)
  length = jnp.asarray([len(p) for p in prompts], jnp.int32)
  one, zero = jnp.ones(B), jnp.zeros(B)
  request = speculate.DecodeRequest(
    Settings(temperature * one, jnp.zeros(B, jnp.int32), one, zero),
    request_keys(3, [PROMPTS.index(p) for p in prompts]), length + BUDGET, jnp.array([-1]),
  )  # fmt: skip
  method = pair(network, drafter, verifier)
  weights = speculate.Weights(params(), params() if drafter is CHAIN else ())
  capacity = speculate.capacity_for(T, BUDGET, 3)
  state = speculate.compiled_start(method, weights, tokens, length, request, capacity)
  state = speculate.compiled_advance(method, weights, request, state, jnp.int32(99))
  text = np.asarray(state.context.tokens)
  return [text[b, len(p) : len(p) + BUDGET].tolist() for b, p in enumerate(prompts)], state


@pytest.mark.slow
def test_plain_decoding_follows_the_distribution_written_out():
  got, _ = decode(SECOND, drafters.none(), greedy(), 0.0)
  for prompt, tokens in zip(PROMPTS, got, strict=True):
    text = list(prompt)
    for _ in range(BUDGET):
      text.append(int(np.argmax(after(text))))
    assert tokens == text[len(prompt) :]
  assert got != decode(PLAIN, drafters.none(), greedy(), 0.0)[0]


PARENT = np.array([0, 0, 0, 1, 1, 2, 3])
DEPTH = np.array([0, 1, 1, 2, 2, 2, 3], np.int32)
MASK = np.eye(7, dtype=bool)
for child in range(1, 7):
  MASK[child] |= MASK[PARENT[child]]
NODES = np.array([5, *np.random.default_rng(0).integers(V, size=6)], np.int32)
prefill = jax.jit(PLAIN.prefill, static_argnums=3)


def cached(texts):
  """The cache of texts, at one shape."""
  ids = np.zeros((len(PROMPTS), T + BUDGET), np.int32)
  for b, text in enumerate(texts):
    ids[b, : len(text)] = text
  length = jnp.asarray([len(text) for text in texts], jnp.int32)
  return prefill(params(), ids, length, T + BUDGET)[0]


def evaluate(network):
  """The tree above after the first prompt, in every row."""
  tree = (jnp.asarray(np.broadcast_to(x, (3, *x.shape))) for x in (NODES, DEPTH, MASK))
  return jax.jit(functools.partial(network.evaluate, hidden_layers=(1,)))(
    params(), cached([PROMPTS[0]] * 3), *tree
  )


def test_every_node_of_a_tree_has_the_distribution_of_its_path():
  assert NODES[0] == PROMPTS[0][-1]
  got = evaluate(SECOND)
  for i in range(7):
    text = [*PROMPTS[0][:-1], *NODES[MASK[i]].tolist()]
    np.testing.assert_allclose(got.logits[0, i], after(text), atol=2e-5)


def test_only_the_logits_are_other_and_at_weight_0_not_they():
  want, got, none = (evaluate(x) for x in (PLAIN, SECOND, reflective(PLAIN, PROMPT, 0.0)))
  chex.assert_trees_all_close(none, want, atol=2e-5)
  chex.assert_trees_all_close(got._replace(logits=want.logits), want, atol=2e-5)
  assert np.abs(got.logits - want.logits).max() > 0.1


@pytest.mark.slow
@pytest.mark.full(but=["tree-0.8"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafter", [CHAIN, TREE], ids=["chain", "tree"])
def test_drafts_give_the_tokens_of_plain_decoding(drafter, temperature):
  want, plain = decode(SECOND, drafters.none(), target_only(), temperature)
  got, state = decode(SECOND, drafter, target_only(), temperature)
  assert got == want
  assert decode(SECOND, drafter, target_only(), temperature, PROMPTS[:1])[0] == want[:1]
  if drafter is CHAIN:
    assert state.stats.passes.sum() < plain.stats.passes.sum()


def test_the_cache_holds_what_the_plain_target_would():
  got, state = decode(SECOND, TREE, target_only(), 0.8)
  texts = [[*prompt, *new] for prompt, new in zip(PROMPTS, got, strict=True)]
  want = cached(texts)
  assert state.cache.length.tolist() == want.length.tolist()
  for b, n in enumerate(want.length.tolist()):
    rows = (jax.tree.map(lambda x, b=b, n=n: x[b, :, :n], c.kv) for c in (state.cache, want))
    chex.assert_trees_all_close(*rows, atol=2e-5)


@pytest.mark.parametrize(
  ("prompt", "weight", "words"),
  [
    ((), 0.3, r"`prompt` must be at least one token id, got \(\)\."),
    ((1, 32), 0.3, r"`prompt\[1\]` must be between 0 and 31, got 32\."),
    ((1,), 1.5, r"`weight` must be between 0 and 1, got 1\.5\."),
    ((1,), float("nan"), r"`weight` must be a finite number between 0 and 1, got nan\."),
  ],
)
def test_nonsense_is_refused(prompt, weight, words):
  with pytest.raises(ValueError, match=words):
    reflective(PLAIN, prompt, weight)


@pytest.mark.slow
@pytest.mark.parametrize("tree", [False, True])
def test_the_published_layout_reads_the_draft_again_after_one_prompt(tree):
  """In a chain it is one causal pass over the text, the draft, the prompt and the draft."""
  text, drafted = [3, 1, 4, 1, 5], [9, 2, 6]
  tokens = jnp.asarray([[text[-1], *drafted]], jnp.int32)
  parent = [0, 0, 0, 1] if tree else [0, 0, 1, 2]
  depth = jnp.asarray([[0, 1, 1, 2] if tree else [0, 1, 2, 3]], jnp.int32)
  mask = np.eye(4, dtype=bool)
  for node in range(1, 4):
    mask[node] |= mask[parent[node]]
  cache, _ = PLAIN.prefill(params(), jnp.asarray([text], jnp.int32), jnp.array([5]), 32)
  once = reflective_once(PLAIN, PROMPT, WEIGHT)
  got = jax.jit(once.evaluate)(params(), cache, tokens, depth, jnp.asarray(mask[None])).logits[0]
  for node in range(4):
    path = [i for i in range(4) if mask[node, i]]
    plain = [*text[:-1], *(int(tokens[0, i]) for i in path)]
    read = [*text, *drafted, *PROMPT, *(int(tokens[0, i]) for i in path)]
    if tree:  # what the prompt sees has no order of positions that a plain pass could have
      continue
    z, again = (np.asarray(logits(params(), jnp.asarray([ids], jnp.int32)))[0, -1]
                for ids in (plain, read))  # fmt: skip
    np.testing.assert_allclose(got[node], (1 - WEIGHT) * z + WEIGHT * again, atol=2e-4)
  alone, want = (
    jax.jit(x.evaluate)(params(), cache, tokens, depth, jnp.asarray(mask[None]))
    for x in (reflective_once(PLAIN, PROMPT, 0.0), PLAIN)
  )
  np.testing.assert_allclose(alone.logits, want.logits, atol=2e-4)
  chex.assert_trees_all_close(alone.kv, want.kv, atol=2e-4)
