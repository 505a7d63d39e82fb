"""Token Recycling against dicts in plain Python."""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cut import cut

from specjax import Decoder, speculate
from specjax.base import Context, Draft, Evaluation, Features, Verdict
from specjax.decoding.method import method as pair
from specjax.drafters import draft_tree, token_recycling, union
from specjax.drafters.retrieval.token_recycling import CHUNK, published, remember
from specjax.sampling import Settings, request_keys
from specjax.testing import (
  Case,
  emitted_distribution,
  random_table,
  table_model,
  target_distribution,
  total_variation,
)
from specjax.trees import IID, Dynamic, Static
from specjax.verifiers import recursive, target_only

V, B = 11, 4
PATHS = [(0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (0, 0, 0), (2, 0, 1)]  # in order of the nodes
R, N, A = 3, 1 + len(PATHS), 4
TARGET = table_model(V)  # its head gives hidden states back as logits
DRAFTER = token_recycling(TARGET, tree=Static(PATHS))
PROPOSE, UPDATE, READ = jax.jit(DRAFTER.propose), jax.jit(DRAFTER.update), jax.jit(DRAFTER.read)
Memory = dict[int, list[int]]


def best(logits) -> list[int]:
  return sorted(range(V), key=lambda t: (-logits[t], t))[:R]


def as_array(memories: list[Memory]) -> np.ndarray:
  return np.array([[m.get(t, [-1] * R) for t in range(V)] for m in memories])


def start(tokens, length, logits, seeded: bool):
  drafter = DRAFTER if seeded else token_recycling(TARGET, seeded=False, tree=Static(PATHS))
  context = Context(jnp.pad(jnp.asarray(tokens), ((0, 0), (0, 5))), jnp.asarray(length))
  return jax.jit(drafter.init, static_argnums=4)(
    (), (), context, Features(jnp.asarray(logits)), tokens.shape[1] + 5
  )


def drafted(memory: Memory, root: int) -> dict[tuple[int, ...], int]:
  """The token of every path that the memory knows."""
  found = {(): root}
  for path in PATHS:
    if path[:-1] in found and found[path[:-1]] in memory:
      found[path] = memory[found[path[:-1]]][path[-1]]
  return found


def random_verdict(rng, draft: Draft, rows: list[int]) -> tuple[Verdict, list[list[int]]]:
  """A path to a random valid node, and which of its nodes are committed, `rows` at most."""
  parent, valid = np.asarray(draft.parent), np.asarray(draft.valid)
  path, kept = np.zeros((len(parent), A), np.int32), []
  for b, most in enumerate(rows):
    node = int(rng.choice(np.flatnonzero(valid[b])))
    way = [node]
    while way[0]:
      way.insert(0, int(parent[b, way[0]]))
    path[b] = (way + [node] * A)[:A]
    kept.append(way[:most])
  count = jnp.asarray([len(x) - 1 for x in kept], jnp.int32)
  return Verdict(jnp.asarray(path), count, jnp.zeros((len(rows), A), jnp.int32)), kept


def learn(memory: Memory, tokens, logits, nodes, last) -> None:
  """Reads `nodes` in order, and those of `last` once more, so that they win."""
  for node in [*nodes, *last]:
    memory[int(tokens[node])] = best(logits[node])


def test_drafts_and_memories_of_many_rounds():
  rng = np.random.default_rng(0)
  memories: list[Memory] = [{} for _ in range(B)]
  state = start(np.zeros((B, 7), np.int32), np.ones(B, np.int32), np.zeros((B, 7, V)), False)
  shown = collections.Counter()
  for round_ in range(12):
    root = rng.integers(V, size=(B, 1)).astype(np.int32)
    draft, same = PROPOSE((), (), state, Context(jnp.asarray(root), jnp.ones(B, jnp.int32)), (), ())
    for b, memory in enumerate(memories):
      want = drafted(memory, int(root[b, 0]))
      got = {(): int(draft.tokens[b, 0])} | {
        path: int(draft.tokens[b, i]) for i, path in enumerate(PATHS, 1) if draft.valid[b, i]
      }
      assert got == want
      shown["unknown"] += len(want) < N
      shown["whole"] += len(want) == N
      shown["repeated"] += len(set(want.values())) < len(want)
    logits = rng.normal(size=(B, N, V)).astype(np.float32)
    rows = [0 if b == round_ % B and round_ > 3 else int(rng.integers(1, A + 1)) for b in range(B)]
    verdict, kept = random_verdict(rng, draft, rows)
    rows = jnp.asarray([len(x) for x in kept], jnp.int32)
    evaluation = Evaluation(jnp.asarray(logits), Features(jnp.zeros((B, N, 1))), ())
    state = UPDATE((), (), same, draft, evaluation, verdict, rows)
    for b, memory in enumerate(memories):
      if kept[b]:
        learn(memory, draft.tokens[b], logits[b], np.flatnonzero(draft.valid[b]), kept[b])
    np.testing.assert_array_equal(state, as_array(memories))
  assert min(shown["unknown"], shown["whole"], shown["repeated"]) > 5


@pytest.mark.parametrize("given", [False, True], ids=["guessed", "given"])
def test_drafts_of_others_are_remembered(given):
  """In a union most nodes are not its own; a user's turn is a chain, of which a part may count."""
  rng, nodes = np.random.default_rng(1), 20
  tokens = rng.integers(V, size=(B, nodes)).astype(np.int32)
  parent = np.array([[0, *(rng.integers(max(i - 3, 0), i) for i in range(1, nodes))]] * B, np.int32)
  valid = rng.random((B, nodes)) < 0.7
  valid[:, 0] = True
  for i in range(1, nodes):
    valid[:, i] &= valid[np.arange(B), parent[:, i]]
  draft = Draft(*map(jnp.asarray, (tokens, parent, np.zeros_like(parent), valid)))
  logits = rng.normal(size=(B, nodes, V)).astype(np.float32)
  verdict, kept = random_verdict(rng, draft, [A, 2, 0, A])
  memories: list[Memory] = [{3: [7, 8, 9]} for _ in range(B)]
  evaluation = Evaluation(jnp.asarray(logits), Features(jnp.zeros((B, nodes, 1))), ())
  state = (READ if given else UPDATE)(
    (), (), jnp.asarray(as_array(memories), jnp.int32), draft, evaluation, verdict,
    jnp.asarray([len(x) for x in kept], jnp.int32),
  )  # fmt: skip
  for b, memory in enumerate(memories):
    others = np.flatnonzero(valid[b]) if kept[b] and not given else []
    learn(memory, tokens[b], logits[b], others, kept[b])
  np.testing.assert_array_equal(state, as_array(memories))


@pytest.mark.parametrize("T", [1, CHUNK, 2 * CHUNK + 22])
def test_a_seeded_memory_is_that_of_the_prompt(T):
  rng = np.random.default_rng(2)
  tokens = rng.integers(V - 2, size=(B, T)).astype(np.int32)
  length = np.minimum([T, CHUNK, CHUNK + 1, 1], T).astype(np.int32)
  tokens[np.arange(T) >= length[:, None]] = V - 1  # padding leaves no trace
  logits = rng.normal(size=(B, T, V)).astype(np.float32)
  memories: list[Memory] = [{} for _ in range(B)]
  np.testing.assert_array_equal(start(tokens, length, logits, False), as_array(memories))
  for b, memory in enumerate(memories):
    learn(memory, tokens[b], logits[b], range(length[b]), [])
  np.testing.assert_array_equal(start(tokens, length, logits, True), as_array(memories))


def test_the_published_tree_and_its_parts():
  paths = [tuple(path) for path in published()]
  assert collections.Counter(map(len, paths)) == {1: 8, 2: 21, 3: 25, 4: 15, 5: 8, 6: 3}
  for n in range(2, 82):
    drafter = token_recycling(TARGET, n)
    assert (drafter.nodes, drafter.proposal) == (n, "deterministic")
    assert all(path[:-1] in paths[: n - 1] for path in paths[: n - 1] if path[1:])
  inner = {path[:-1] for path in paths}
  assert sum(path not in inner for path in paths) == 40


@pytest.mark.slow
def test_what_was_refused_in_one_round_biases_no_other():
  """Drawn tokens that were refused are remembered too."""
  table = table_model(3)
  drawn = draft_tree(table, IID(((0,),)))
  method = pair(table, union(token_recycling(table, tree=Static([[0]])), drawn), recursive())
  for seed in range(2):
    logits = np.asarray(random_table(seed, 3)["logits"])
    case = Case(logits, prompt=(0, 2, 0), temperature=0.9)
    found = emitted_distribution(case, method, ((), random_table(100 + seed, 3)), rounds=2)
    assert total_variation(found, target_distribution(case)) < 1e-6


def writes(program: str, shape: tuple[int, ...]) -> set[str]:
  """The operations whose result has the shape, in a compiled program."""
  return set(re.findall(rf"= s32\[{','.join(map(str, shape))}\]\S* ([\w-]+)\(", program))


@pytest.mark.slow
def test_the_loop_does_not_copy_the_memory():
  size, B = 40, 2
  target = table_model(size)
  method = pair(target, token_recycling(target, tree=Static([[0], [1]])), target_only())
  weights = speculate.Weights(random_table(0, size), ())
  request = speculate.DecodeRequest(
    Settings(jnp.zeros(B), jnp.zeros(B, jnp.int32), jnp.ones(B), jnp.zeros(B)),
    request_keys(0, range(B)), jnp.full(B, 30), jnp.full(2, -1),
  )  # fmt: skip
  tokens, length = jnp.zeros((B, 4), jnp.int32), jnp.ones(B, jnp.int32)
  state = speculate.start(method, weights, tokens, length, request, 64)
  compiled = speculate.compiled_advance.lower(
    method, weights, request, state, jnp.int32(1)
  ).compile()
  found = writes(compiled.as_text(), state.drafter.shape)
  written = found - {"parameter", "get-tuple-element", "fusion"}
  assert written and written <= {"scatter", "dynamic-update-slice"}  # by the kind of compiler

  # What keeps its argument must copy it, and that is seen.
  some, flags = jnp.zeros((B, 5), jnp.int32), jnp.ones((B, 5), bool)
  kept = jax.jit(remember).lower(state.drafter, some, jnp.zeros((B, 5, size)), some, flags)
  assert "copy" in writes(kept.compile().as_text(), state.drafter.shape)


@pytest.mark.parametrize(
  ("settings", "words"),
  [
    (
      {"nodes": 1},
      "`nodes` must be between 2 and 81 for the published tree of.*got 1; a larger tree is "
      r"given as a tree\.",
    ),
    (
      {"nodes": 82},
      "`nodes` must be between 2 and 81 for the published tree of.*got 82; a larger tree is "
      r"given as a tree\.",
    ),
    ({"tree": Static([[V]] + [[i] for i in range(V)])}, "tree has rank 11: the target has 11"),
  ],
)
def test_impossible_trees_are_an_error(settings, words):
  with pytest.raises(ValueError, match=words):
    token_recycling(TARGET, **settings)


@pytest.mark.full
def test_what_a_request_left_starts_the_next():
  model = cut()
  decoder = Decoder(model, "token_recycling-8,seeded=0,kept=1+prompt_lookup-4", batch=2)
  prompts = ["Q: Ann has 3 apples and buys 4.", "Q: Bob has 9 pears and eats 2."]
  first = decoder(prompts, 24)
  memory, _ = decoder.weights.drafter
  text = {t for r in first for t in r.tokens[:-1]}
  known = np.flatnonzero(np.asarray(memory[:, 0]) >= 0)
  assert text - set(model.stop) <= set(known.tolist()) and len(known) < model.config.vocab_size
  compiled = []
  jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: compiled.append(name))
  again = decoder(prompts, 24)
  jax.monitoring.clear_event_listeners()
  assert [r.tokens for r in again] == [r.tokens for r in first]
  assert sum(r.passes for r in again) < sum(r.passes for r in first)
  assert not any("compile" in name for name in compiled)
  fresh = Decoder(model, "token_recycling-8,seeded=0", batch=2)
  assert fresh(prompts, 24) and fresh.weights.drafter == ()


def test_of_rows_that_learnt_about_a_token_the_first_is_kept():
  drafter = token_recycling(TARGET, kept=True, tree=Static([[0], [1]]))
  before = np.array([[-1, -1], [5, 6], [7, 8], [2, 3]], np.int32)
  rows = np.stack([before, before, before])
  rows[1, 0], rows[2, 0], rows[2, 1] = (1, 2), (3, 4), (5, 9)
  got = drafter.keep(jnp.asarray(before), jnp.asarray(rows), None)
  assert got.tolist() == [[1, 2], [5, 9], [7, 8], [2, 3]]


def test_names():
  model = cut()
  for name, tree, shown, nodes in (
    ("token_recycling-16,seeded=0", None, "token_recycling-16,seeded=0", 16),
    ("token_recycling-8,seeded=1", None, "token_recycling", 8),
    ("token_recycling-8,seeded=1,kept=1", None, "token_recycling,kept=1", 8),
    ("token_recycling/static-2-1", None, "token_recycling/static-2-1", 5),
    ("token_recycling", [[0], [1]], "token_recycling/static", 3),
    ("prompt_lookup-4+token_recycling-12", None, "prompt_lookup-4+token_recycling-12", 15),
  ):
    decoder = Decoder(model, name, tree=tree)
    assert (decoder.name, decoder.method.drafter.nodes) == (shown, nodes)
  for name, tree, words in (
    (
      "token_recycling/dynamic-6,depth=2,beam=3",
      None,
      r"token_recycling/dynamic: after token_recycling/ may follow tree, static\.",
    ),
    ("token_recycling", Dynamic(6, 2, 3), "has no probabilities: it takes a static tree"),
    ("token_recycling-8/static-2-1", None, "its tree decides the nodes"),
    (
      "token_recycling-100",
      None,
      "`nodes` must be between 2 and 81 for the published tree of.*got 100; a larger tree is "
      r"given as a tree\.",
    ),
  ):
    with pytest.raises(ValueError, match=words):
      Decoder(model, name, tree=tree)
