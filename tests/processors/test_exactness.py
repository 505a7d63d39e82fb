"""Processors change the distribution of the emitted tokens as they should, in the shipped loop."""

import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers

from specjax.base import Context, Draft
from specjax.data.tokenizer import Tokenizer
from specjax.decoding.method import method as pair
from specjax.drafters import draft_model, draft_tree, none
from specjax.processors import (
  Automaton,
  Momentum,
  Penalties,
  constraint,
  grammar,
  momentum,
  penalties,
)
from specjax.processors.matchers import matchers
from specjax.processors.schemas import of_lark
from specjax.testing import (
  Case,
  emitted_distribution,
  fixed_draft,
  random_table,
  table_model,
  target_distribution,
  total_variation,
)
from specjax.trees import WithoutReplacement
from specjax.verifiers import block, greedy, recursive, target_only, token

V, PROMPT = 3, (0, 2)
EXACT, BIASED = 1e-6, 1e-3
STRENGTH = 1.7, 0.8, 0.5
BIAS = np.array([0.5, 2.0, -1.0])
# After token 1 no 1; after two tokens of 2 in a row only 0.
FOLLOWING = np.array([[0, 1, 2], [0, -1, 2], [0, 1, 3], [0, -1, -1]], np.int32)


def penalised(logits, tokens):
  """The three penalties, token by token."""
  repetition, presence, frequency = STRENGTH
  out = np.array(logits, np.float64)
  for x in range(V):
    count = tokens.count(x)
    if count or x in PROMPT:
      out[x] = out[x] / repetition if out[x] > 0 else out[x] * repetition
    out[x] -= presence * (count > 0) + frequency * count
  return out


def biased(logits, tokens):
  """The penalties after a bias of each token; the first two tokens are not the stop token 1."""
  out = penalised(np.array(logits, np.float64) + BIAS, tokens)
  out[1] = -np.inf if len(tokens) < 2 else out[1]
  return out


def constrained(logits, tokens):
  state = 0
  for x in tokens:
    state = FOLLOWING[state][x]
  return np.where(FOLLOWING[state] < 0, -np.inf, logits)


def repeated(text) -> int:
  """The longest end of a text, of 6 tokens at most, that stands in it before."""
  ends = (text[len(text) - n :] for n in range(1, 7))
  before = text[:-1]
  return max(
    (len(e) for e in ends for i in range(len(before)) if before[i : i + len(e)] == e), default=0
  )


def slowed(logits, tokens, alpha=0.3, candidates=3, prompt=PROMPT):
  """Momentum decoding, token by token."""
  p = np.exp(logits - np.max(logits))
  p /= p.sum()
  best = np.argsort(-p, kind="stable")[:candidates]
  r = {x: repeated((*prompt, *tokens, int(x))) for x in best}
  score = {x: p[x] - alpha * r[x] for x in best if r[x] <= 5} or {x: p[x] - alpha * 6 for x in best}
  return np.array([score.get(x, -np.inf) for x in range(len(p))])


def alphas(B: int):
  return (Momentum(jnp.full(B, 0.3)),)


def strengths(B: int):
  return (Penalties(*(jnp.full(B, x, jnp.float32) for x in STRENGTH)),)


def biases(B: int):
  bias = jnp.broadcast_to(jnp.asarray(BIAS, jnp.float32), (B, V))
  (own,) = strengths(B)
  stop = jnp.broadcast_to(jnp.arange(V) == 1, (B, V))
  return (own._replace(min_tokens=jnp.full(B, 2), bias=bias, stop=stop),)


TEXTS = ("ab", "aab", "ba", "bab", "baa")  # in tokens a, b and the end


def spelled(logits, tokens):
  said = "".join("ab."[x] for x in tokens)
  allowed = [*(any(t.startswith(said + c) for t in TEXTS) for c in "ab"), said in TEXTS]
  return np.where(allowed, logits, -np.inf) if any(allowed) else logits  # after the end


def letters() -> Tokenizer:
  inner = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "<|end|>": 2}, []))
  inner.add_special_tokens(["<|end|>"])
  return Tokenizer(inner)


MATCHERS = matchers(letters(), V, (2,))


def masks(grammar, text, length, left, *draft):
  """Far from the end of the budget, where a text need not end."""
  return MATCHERS.masks(grammar, text, length, left + 99, *draft)


def words(B: int):
  with tempfile.NamedTemporaryFile("w", suffix=".lark") as file:
    file.write("start: " + " | ".join(f'"{text}"' for text in TEXTS))
    file.flush()
    return (of_lark(file.name, MATCHERS),)


def automaton(B: int):
  return (Automaton(jnp.asarray(FOLLOWING), jnp.zeros(4, bool)),)


KINDS = {
  "penalties": (penalties(V), strengths, penalised),
  "biases": (penalties(V), biases, biased),
  "constraint": (constraint(), automaton, constrained),
  "grammar": (grammar(masks), words, spelled),
  "momentum": (momentum(3), alphas, slowed),
}
TREE = fixed_draft([[0], [1], [0, 0], [1, 0], [1, 0, 0]], [2, 0, 2, 1, 1])
PAIR = draft_tree(table_model(V), WithoutReplacement(((0,), (1,))))
METHODS = {
  "plain": (none(), target_only(), 2),
  "tree": (TREE, target_only(), 1),
  "tree, greedy": (TREE, greedy(), 1),
  "chain, token": (draft_model(table_model(V), 2), token(), 2),
  "chain, block": (draft_model(table_model(V), 3), block(), 1),
  "drawn tree": (PAIR, recursive(), 1),
}


def case(kind: str, seed: int, temperature: float, **settings) -> Case:
  _, params, oracle = KINDS[kind]
  return Case(
    np.asarray(random_table(seed, V)["logits"]), prompt=PROMPT, temperature=temperature,
    processors=params, processed=oracle, **settings,
  )  # fmt: skip


@pytest.mark.slow
@pytest.mark.full(
  but=[
    "plain-constraint",
    "tree-*",
    "chain, token-penalties",
    "tree-biases",
    "drawn tree-constraint",
    "chain, token-grammar",
    "drawn tree-grammar",
  ]
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", METHODS)
def test_the_distribution_is_that_of_the_path(name, kind):
  drafter, verifier, rounds = METHODS[name]
  method = pair(table_model(V), drafter, verifier, (KINDS[kind][0],))
  q = random_table(50, V)
  for seed in range(2):
    for settings in ({}, {"top_p": 0.8, "stop": (1,)}, {"top_k": 2, "budget": 2}):
      temperature = 0.0 if verifier.temperature == "zero" else 0.8
      asked = case(kind, seed, temperature, **settings)
      got = emitted_distribution(asked, method, q, rounds=rounds)
      assert total_variation(got, target_distribution(asked)) < EXACT, (seed, settings)


@pytest.mark.parametrize("kind", KINDS)
def test_the_path_matters(kind):
  """Without the tokens on its path a node has another distribution, and the harness sees it."""
  processor = KINDS[kind][0]

  def blind(params, state, draft, mask, logits):
    alone = draft._replace(depth=0 * draft.depth, valid=draft.depth < 1)
    return processor.logits(params, state, alone, jnp.zeros_like(mask), logits)

  blinded = processor._replace(logits=blind)
  asked = case(kind, 0, 0.8)
  method = pair(table_model(V), TREE, target_only(), (blinded,))
  assert total_variation(emitted_distribution(asked, method), target_distribution(asked)) > BIASED


@pytest.mark.parametrize("prompt", [[0, 1, 2] * 6, [3], [4] * 9, [1, 2, 3, 4, 5, 0, 1, 2, 3, 4]])
def test_momentum_of_long_texts(prompt):
  """Every node of a tree against the text on its path; the text is committed in two parts."""
  size, first = 6, prompt[:-2] or prompt
  paths = [[0], [1], [0, 0], [0, 1], [1, 0]]
  tree, tokens = [[], *paths], [prompt[-1], 0, 5, 1, prompt[0], 0]
  node = {tuple(path): i for i, path in enumerate(tree)}
  above = [[node[tuple(path[:d])] for d in range(len(path) + 1)] for path in tree]
  mask = np.zeros((1, len(tree), len(tree)), bool)
  for i, nodes in enumerate(above):
    mask[0, i, nodes] = True
  processor, params = momentum(3), Momentum(jnp.full(1, 0.2))
  text = np.zeros((1, 24), np.int32)
  text[0, : len(first)] = first
  context = Context(jnp.asarray(text), jnp.full(1, len(first), jnp.int32))
  state = processor.init(params, context, jnp.full(1, 24, jnp.int32))
  more = len(prompt) - len(first)
  said = jnp.asarray([(prompt[len(first) :] + [3] * 3)[:3]], jnp.int32)
  state = processor.update(params, state, said, jnp.full(1, more, jnp.int32))
  draft = Draft(*(jnp.asarray([x]) for x in (
    tokens, [a[-2] if len(a) > 1 else 0 for a in above], [len(a) - 1 for a in above], [True] * 6,
  )))  # fmt: skip
  logits = np.random.default_rng(1).normal(size=(1, len(tree), size)).astype(np.float32)
  got = jax.jit(processor.logits)(params, state, draft, jnp.asarray(mask), jnp.asarray(logits))
  for i, nodes in enumerate(above):
    path = tuple(tokens[j] for j in nodes[1:])
    want = slowed(logits[0, i].astype(float), path, 0.2, 3, tuple(prompt))
    np.testing.assert_allclose(got[0, i], want, atol=1e-5)
