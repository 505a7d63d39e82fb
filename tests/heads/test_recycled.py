"""Heads rescored by what the target found likely: against all paths, and through the door."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cut import cut
from test_every_head import TARGET, head, start, target_params

from specjax import speculate
from specjax.decoding.decoder import Decoder
from specjax.drafters.combine.rescored import local, ngram
from specjax.drafters.retrieval.recycled import RATES, recycled
from specjax.drafters.retrieval.token_recycling import token_recycling
from specjax.heads import HEADS
from specjax.trees import Static

K, P, N, ALPHA = 3, 5, 9, 0.7
LENGTHS = [8, 2, 7]


def log_rate(likely: list[int], token: int, size: int) -> float:
  if token in likely:
    return float(np.log(RATES[likely.index(token)]))
  return float(np.log((1 - sum(RATES[r] for r, x in enumerate(likely) if x >= 0)) / size))


@pytest.mark.slow
def test_the_drafts_are_the_best_of_all_paths():
  made, params = head("medusa")
  drafter = recycled(made, N, ALPHA, K, P)
  method, weights, request, state = start(drafter, params, LENGTHS)
  propose = jax.jit(drafter.propose)
  swayed = 0
  for _ in range(3):
    hidden, likely = jax.device_get(state.drafter)
    draft, _ = propose(params, target_params(), state.drafter, state.context, None, None)
    states = made.states(params, target_params(), hidden[:, None])[:, 0]
    logits = np.asarray(made.read(params, target_params(), states, None))
    for b in range(len(logits)):
      root = int(draft.tokens[b, 0])
      best = [sorted(range(len(x)), key=lambda v, x=x: -x[v])[:K] for x in logits[b]]

      def score(path, own=logits[b], likely=likely[b], root=root):
        pairs = zip((root, *path[:-1]), path, strict=True)
        rates = (log_rate(likely[u].tolist(), v, TARGET.vocab_size) for u, v in pairs)
        return own[range(len(path)), path].sum() + ALPHA * sum(rates)

      every = sorted(itertools.product(*best), key=score, reverse=True)
      swayed += every[0] != tuple(row[0] for row in best)
      want = {way[:d] for way in every[:P] for d in range(1, len(way) + 1)}
      ways = {0: ()}
      for i in range(1, N):
        if draft.valid[b, i]:
          ways[i] = (*ways[int(draft.parent[b, i])], int(draft.tokens[b, i]))
      got = {way for way in ways.values() if way}
      assert got <= want and every[0] in got and len(got) == min(N - 1, len(want))
    state = speculate.compiled_advance(method, weights, request, state, jnp.int32(1))
  assert swayed > 2


def test_its_memory_is_that_of_token_recycling():
  made, params = head("medusa")
  state = start(recycled(made, N, ALPHA, K, P), params, LENGTHS)[3]
  recycler = token_recycling(TARGET, tree=Static([[r] for r in range(len(RATES))]))
  likely = start(recycler, (), LENGTHS)[3].drafter
  np.testing.assert_array_equal(state.drafter.likely, likely)


@pytest.mark.parametrize("name", ["hydra", "ctc", "eagle", "pard", "ppd"])
@pytest.mark.parametrize("rescored", [recycled, ngram, lambda made: local(made, TARGET)])
def test_heads_that_guess_otherwise_are_refused(rescored, name):
  build, config = HEADS[name]
  with pytest.raises(
    ValueError, match=f"`head` must .* from the target's newest state alone.*'{name}'"
  ):
    rescored(build(TARGET, config()))


@pytest.mark.slow
def test_it_is_named_and_changes_no_token():
  model, prompt = cut(), "Q: Ann has 3 apples and buys 4.\nA:"
  plain = Decoder(model)([prompt], 24)[0].tokens
  decoder = Decoder(model, "medusa/recycled")
  (got,) = decoder([prompt], 24)
  assert got.tokens == plain and got.passes < 20 and decoder.name == "medusa/recycled"
