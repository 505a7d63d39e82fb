"""Lookahead decoding against lists and dicts in plain Python, as it is published."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_jacobi import BUDGET, PROMPTS, V, again, best, rounds, text_of

from specjax.base import Context, Evaluation, Features, Verdict
from specjax.drafters import fallback, lookahead, prompt_lookup, union
from specjax.drafters.jacobi.lookahead import SLOTS, Lookahead, insert, newest
from specjax.testing import fixed_draft
from specjax.trees.structure import ancestors
from specjax.verifiers import greedy, target_only

Pool = dict[int, list[tuple[int, ...]]]


class Row:
  """One text, with the window by rows and a list of n-grams for each token."""

  def __init__(self, N: int, W: int, G: int, prompt, seeded: bool):
    self.N, self.W, self.G, self.text = N, W, G, list(prompt)
    ahead = [prompt[-1], *again(prompt, max(N + W - 3, 1))]
    self.window = [[ahead[i + row] for i in range(W)] for row in range(N - 1)]
    self.pool: Pool = collections.defaultdict(list)
    if seeded:
      for i in range(len(prompt) - N + 1):
        self.learn(prompt[i : i + N])

  def learn(self, gram) -> None:
    key, rest = gram[0], tuple(gram[1:])
    found = self.pool[key]
    if rest in found:
      found.remove(rest)
    found.append(rest)
    if len(found) > self.G:
      found.pop(0)

  def way(self, i: int) -> list[int]:
    """The tokens below the root to the newest of column i."""
    return self.window[0][1 : i + 1] + [self.window[row][i] for row in range(1, self.N - 1)]

  def round_(self) -> int:
    """How many tokens are committed."""
    self.window[0][0] = self.text[-1]
    grams = [
      [*(row[i] for row in self.window), best(self.text + self.way(i))] for i in range(self.W)
    ]
    true = list(self.text)
    for _ in range(self.N + self.W):
      true.append(best(true))
    true = true[len(self.text) :]
    guessed = [*map(self.way, range(self.W)), *self.pool[self.text[-1]]]

    def accepted(way) -> int:
      return next((j for j, token in enumerate(way) if token != true[j]), len(way))

    count = 1 + max(map(accepted, guessed))
    self.text += true[:count]
    for gram in grams:
      self.learn(gram)
    columns = [g[1:] if len(set(g)) > 1 else [*g[1:-1], self.text[-1]] for g in grams]
    columns = (columns[count - 1 :] + [columns[-1]] * self.W)[: self.W]
    self.window = [[column[row] for column in columns] for row in range(self.N - 1)]
    return count


def compare(state: Lookahead, b: int, row: Row) -> None:
  """Nothing reads the root's own place, row 0 of column 0."""
  got, want = state.window[b].copy(), np.array(row.window).T.copy()
  got[0, 0] = want[0, 0] = -1
  np.testing.assert_array_equal(got, want)
  for token in range(V):
    follow, known = newest(jnp.asarray(state.pool[b : b + 1]), jnp.full((1, 1), token), row.G)
    assert [tuple(x) for x in follow[known].tolist()] == row.pool[token][::-1]


@pytest.mark.slow
@pytest.mark.full(but=["3-4-2-1"])
@pytest.mark.parametrize("name", ["5-7-7-1", "3-4-2-1", "4-2-3-0", "2-3-2-1", "3-1-2-0", "2-1-1-1"])
def test_windows_and_pools_of_many_rounds(name):
  """The published window moves by one column whatever was accepted, so it lags behind the text, and
  the last accepted token is taken for all of them where the pool learns; the oracle does neither.
  """
  N, W, G, seeded = map(int, name.split("-"))
  rows = [Row(N, W, G, prompt, bool(seeded)) for prompt in PROMPTS]
  states = rounds(lookahead(N, W, G, bool(seeded)), greedy())
  before, several = next(states), 0
  for b, row in enumerate(rows):
    compare(before.drafter, b, row)
  for after in states:
    for b, row in enumerate(rows):
      if not before.done[b]:
        several += row.round_() > 1
        assert text_of(after, b) == row.text[: len(PROMPTS[b]) + BUDGET]
        if not after.done[b]:
          compare(after.drafter, b, row)
    before = after
  assert several > 3


@pytest.mark.full
@pytest.mark.parametrize("joined", ["union", "fallback"])
def test_the_window_is_found_among_the_nodes_of_others(joined):
  """In a union other nodes come first, and equal ones are merged."""
  own = lookahead(3, 3, 2, False)
  if joined == "union":
    drafter = union(fixed_draft([[0], [1], [0, 0], [1, 0]], [1, 2, 3, 4]), own)
  else:
    drafter = fallback(prompt_lookup(4, 2, 2), own)
  kept = (lambda state: state.drafter[1]) if joined == "union" else lambda s: s.drafter.sources[1]
  states = rounds(drafter, greedy(), ((), ()))
  before, moved, looked = next(states), 0, 0
  for after in states:
    for b in np.flatnonzero(~after.done):
      row = Row(3, 3, 2, text_of(before, b), False)
      row.window = kept(before).window[b].T.tolist()
      row.window[0][0] = row.text[-1]
      count = len(text_of(after, b)) - len(row.text)
      grams = [[*(r[i] for r in row.window), best(row.text + row.way(i))] for i in range(3)]
      root = text_of(after, b)[-1]
      new = [g[1:] if len(set(g)) > 1 else [*g[1:-1], root] for g in grams]
      old = np.array(row.window).T.tolist()
      got = kept(after).window[b].tolist()
      got[0][0] = -1
      ran, idle = ((x + [x[-1]] * 9)[k:][:3] for x, k in ((new, count - 1), (old, count)))
      for way in (ran, idle):
        way[0] = [-1, *way[0][1:]]
      assert got == ran or (joined == "fallback" and got == idle)
      looked, moved = looked + (got == ran), moved + (got == idle != ran)
    before = after
  assert looked > 3 and (joined == "union" or moved > 0)


def test_every_node_sees_its_own_way_only():
  """The published mask: row 0 up to the column, then the column; a guess sees its own tokens."""
  N, W, G = 4, 3, 2
  drafter = lookahead(N, W, G)
  rng = np.random.default_rng(0)
  state = Lookahead(
    jnp.asarray(np.arange(100, 100 + W * (N - 1)).reshape(1, W, N - 1)),  # all different
    jnp.asarray(np.concatenate([np.full((1, SLOTS - G, N), -1),
                                [[[9, *rng.permutation(50)[:3]] for _ in range(G)]]], 1)),
  )  # fmt: skip
  context = Context(jnp.asarray([[9]]), jnp.asarray([1]))
  draft, _ = jax.jit(drafter.propose)((), (), state, context=context, settings=(), noise=())
  mask = np.asarray(ancestors(draft.parent, drafter.depth))[0]
  assert draft.tokens.shape == (1, (W + G) * (N - 1)) == (1, drafter.nodes)
  assert draft.valid.all()
  token = draft.tokens[0].tolist()
  cell = {(i, r): 100 + i * (N - 1) + r for i in range(W) for r in range(N - 1)}
  sees = {token[k]: {token[j] for j in np.flatnonzero(mask[k])} for k in range(drafter.nodes)}
  for (i, r), own in cell.items():
    if (i, r) != (0, 0):
      above = {9} | {cell[c, 0] for c in range(1, i + 1)} | {cell[i, x] for x in range(1, r + 1)}
      assert sees[own] == above
      assert draft.depth[0, token.index(own)] == i + r
  for gram in np.asarray(state.pool)[0, -G:].tolist():
    for j in range(1, N):
      assert sees[gram[j]] == set(gram[: j + 1])


def test_a_pool_keeps_the_newest():
  rng, N, S = np.random.default_rng(1), 3, 8
  pool, kept = jnp.full((2, S, N), -1, jnp.int32), [[], []]
  put = jax.jit(insert)
  for _ in range(40):
    gram, wanted = rng.integers(3, size=(2, N)), rng.random(2) < 0.8
    pool = put(pool, jnp.asarray(gram, jnp.int32), jnp.asarray(wanted))
    for b in np.flatnonzero(wanted):
      one = tuple(gram[b].tolist())
      kept[b] = [*[x for x in kept[b] if x != one][-S + 1 :], one]
    for b in range(2):
      want = [(-1,) * N] * (S - len(kept[b])) + kept[b]
      assert [tuple(x) for x in pool[b].tolist()] == want


def said_always(V: int, token: int, nodes: int):
  """Logits of a target that says one token whatever it reads."""
  return jnp.zeros((1, nodes, V)).at[..., token].set(1.0)


@pytest.mark.full
def test_a_window_does_not_stay_with_one_token():
  """Behind the end of a text a model may say one token for ever. The pool has it once, and a column
  of it goes on with what is committed."""
  N, W, end, root = 3, 3, 5, 4
  drafter = lookahead(N, W, 2, False)
  propose, update = jax.jit(drafter.propose), jax.jit(drafter.update)
  state = Lookahead(jnp.full((1, W, N - 1), end), jnp.full((1, SLOTS, N), -1))
  for _ in range(2):
    context = Context(jnp.full((1, 1), end), jnp.ones(1, jnp.int32))
    draft, _ = propose((), (), state, context=context, settings=(), noise=())
    logits = said_always(V, end, drafter.nodes)
    path = jnp.zeros((1, drafter.depth + 1), jnp.int32)
    verdict = Verdict(path, jnp.zeros(1, jnp.int32), jnp.full_like(path, root))
    after = update(
      (), (), state, draft=draft, evaluation=Evaluation(logits, Features(logits), ()),
      verdict=verdict, rows=jnp.ones(1, jnp.int32),
    )  # fmt: skip
    state = state._replace(pool=after.pool)
  assert (np.asarray(after.pool[0]) == [end] * N).all(1).sum() == 1
  assert (after.window[0, :, -1] == root).all()


@pytest.mark.full
def test_a_whole_match_counts_the_token_after_it():
  """The published loop loses that token. A cycle is accepted to full depth, and one token more."""
  N, G = 4, 2
  start = (0, 0)
  text = list(start)
  for _ in range(60):
    text.append(best(text))
  states = [*rounds(lookahead(N, 1, G), greedy(), prompts=[tuple(text)])]
  steps = np.diff([s.context.length[0] for s in states])
  assert steps[0] == N  # N - 1 guesses of the pool, and the target's own


@pytest.mark.full
def test_sampled_tokens_are_those_of_plain_sampling():
  *_, plain = rounds(prompt_lookup(2), target_only(), temperature=0.9)
  *_, got = rounds(lookahead(3, 4, 2), target_only(), temperature=0.9)
  for b in range(len(PROMPTS)):
    assert text_of(got, b) == text_of(plain, b)
