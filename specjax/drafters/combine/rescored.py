"""A language model that is too small to draft alone chooses among the guesses of parallel heads.

Heads that guess at once do not know each other's guesses and repeat words. Kim et al. 2024 (arXiv
2404.09221, sections 5 and 6) choose again among the best guesses of each head before the target
verifies; the head is not trained anew. There is no public code: what the paper leaves open is named
below.

Letters: B batch, D depth, E width, W draft vocabulary, K best guesses per depth, P paths.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import (
  Cache,
  Context,
  Draft,
  Drafter,
  Evaluation,
  Features,
  Params,
  Target,
  Verdict,
)
from specjax.heads import draft_vocabulary, prefix
from specjax.heads.base import Head
from specjax.heads.parallel import Parallel
from specjax.models.cache import append_one, cut
from specjax.sampling import NoiseSource, Settings
from specjax.trees.k_best import p_best
from specjax.trees.paths import from_paths
from specjax.trees.structure import chain, gather


def parallel(head: Head) -> Parallel:
  """The head; ValueError where it does not guess at once from the target's newest state alone."""
  if type(head) is not Parallel or head.memory is not None:
    raise ValueError(
      "`head` must guess all tokens at once from the target's newest state alone, as medusa and "
      f"blockwise do, to be rescored, got {head.name!r}."
    )
  return head


def best_guesses(
  head: Parallel, params: Params, target_params: Params, hidden: Array, top: int
) -> tuple[Array, Array]:
  """A head's guesses from hidden [B, E]: (logits f32[B, D, K], ranks i32[B, D, K] in its draft
  vocabulary), K = `top` or all it has."""
  states = head.states(params, target_params, hidden[:, None])[:, 0]
  logits = head.read(params, target_params, states, None)
  score, ranks = jax.lax.top_k(logits, min(top, logits.shape[-1]))
  return score, ranks.astype(jnp.int32)


def named(params: Params, ranks: Array) -> Array:
  """Target ids of ranks in the draft vocabulary."""
  ids = draft_vocabulary.ids(params)
  return ranks if ids is None else jnp.take(ids, ranks, axis=0)


class Rescored(NamedTuple):
  """hidden: [B, E], the target's state that predicted the root; cache: the small LM's."""

  hidden: Array
  cache: Cache


@functools.cache
def local(head: Head, lm: Target, alpha: float = 0.5, top: int = 16) -> Drafter:
  """The head and a small LM choose every token of a chain together.

  At depth d they take, of head d's K best guesses v, the one with the largest logit_d(v) + alpha
  log LM(v | text, the draft so far). The paper leaves the scales open: here they are the head's raw
  logits and the LM's distribution over its whole vocabulary at temperature 1. The LM takes D + 1
  steps per round, the last of which caches the last token. The tokens follow a fixed rule, so
  "greedy" and "target_only" are exact; there is no q.

  This is "local rescoring" (Kim et al. 2024, arXiv 2404.09221, section 5). It accepts 2.55 without,
  and has half the speed.

  Measured: 2.70 tokens per pass (draft_models)

  Args:
    head: guesses all depths at once from the target's newest state alone (Medusa, blockwise).
    lm: the small LM, of the target's vocabulary. Params are {"head": .., "lm": ..}.
    alpha: weight of the LM; with 0 the chain is the head's.
    top: K.
  """
  guessing, D = parallel(head), head.depth

  def init(
    params: Params, target_params: Params, context: Context, features: Features, capacity: int
  ) -> Any:
    cache = prefix.prefilled(lm, params["lm"], context, features, capacity)
    return Rescored(prefix.before_root(features.hidden, context), cache)

  def propose(
    params: Params,
    target_params: Params,
    state: Rescored,
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]:
    own, ranks = best_guesses(guessing, params["head"], target_params, state.hidden, top)
    guesses = named(params["head"], ranks)
    token, cache = context.root, state.cache
    zero, alone = jnp.zeros_like(token), jnp.ones((*token.shape, 1), bool)
    tokens = [token]
    for d in range(D + 1):
      evaluation = lm.evaluate(params["lm"], cache, tokens[-1], zero, alone)
      log_probs = jax.nn.log_softmax(evaluation.logits[:, 0])
      cache = append_one(lm, cache, evaluation)
      if d < D:
        score = own[:, d] + alpha * gather(log_probs, guesses[:, d])
        tokens.append(gather(guesses[:, d], jnp.argmax(score, 1, keepdims=True)))
    return chain(jnp.concatenate(tokens, 1)), Rescored(state.hidden, cache)

  def update(
    params: Params,
    target_params: Params,
    state: Rescored,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    hidden = prefix.newest(evaluation.features.hidden, verdict, rows, state.hidden)
    length = state.cache.length - (D + 1) + rows
    return Rescored(hidden, cut(state.cache, length))

  def read(
    params: Params,
    target_params: Params,
    state: Rescored,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    hidden = prefix.newest(evaluation.features.hidden, verdict, rows, state.hidden)
    return Rescored(hidden, prefix.reread(lm, params["lm"], state.cache, draft, verdict, rows))

  return Drafter(
    f"{head.name}_local",
    "deterministic",
    D + 1,
    D,
    init,
    propose,
    update,
    read=read,
    by_pieces=True,
  )


@functools.cache
def ngram(
  head: Head, tree_nodes: int = 16, alpha: float = 0.5, top: int = 16, paths: int = 16
) -> Drafter:
  """The heads and a bigram table choose the best paths together.

  The score of a path is the sum of its logits plus alpha times its log-probability given the root.
  The P best of all K ** D paths are found exactly and packed into a tree, best first, with equal
  prefixes once. The paper leaves the packing open: here N is fixed, and the ends of the worst paths
  that do not fit are dropped. Its 4-grams are not offered, and after a root outside the draft
  vocabulary the first guesses are the head's alone. The state is that [B, E] which predicted the
  root. Siblings are distinct and chosen without looking at noise, so "greedy" and "target_only" are
  exact; there is no q.

  This is "global rescoring" (Kim et al. 2024, arXiv 2404.09221, section 6).

  Measured: 3.08 tokens per pass (trees)

  Args:
    head: as in `local`. Params are {"head": .., "ngram": f32[W, W], see `data.ngram`}.
    tree_nodes: N, the root included.
    alpha: weight of the bigrams; 0 is the paper's baseline, the best paths of the heads alone.
    top: K.
    paths: P.
  """
  guessing = parallel(head)

  def init(
    params: Params, target_params: Params, context: Context, features: Features, capacity: int
  ) -> Any:
    return prefix.before_root(features.hidden, context)

  def propose(
    params: Params,
    target_params: Params,
    hidden,
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]:
    root = context.root
    table = params["ngram"]
    score, ranks = best_guesses(guessing, params["head"], target_params, hidden, top)
    every = named(params["head"], jnp.arange(len(table), dtype=jnp.int32))
    is_root = every[None] == root
    row = jnp.take(table, jnp.argmax(is_root, 1), axis=0)
    first = jnp.where(is_root.any(1, keepdims=True), gather(row, ranks[:, 0]), 0)
    score = score.at[:, 0].add(alpha * first)
    between = table[ranks[:, :-1, :, None], ranks[:, 1:, None, :]]
    best, _ = p_best(score, alpha * between, paths)
    chosen = jnp.take_along_axis(ranks, best.swapaxes(1, 2), axis=2).swapaxes(1, 2)
    return from_paths(named(params["head"], chosen), root, tree_nodes), hidden

  def update(
    params: Params,
    target_params: Params,
    hidden,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    return prefix.newest(evaluation.features.hidden, verdict, rows, hidden)

  return Drafter(
    f"{head.name}_ngram",
    "deterministic",
    tree_nodes,
    head.depth,
    init,
    propose,
    update,
    by_pieces=True,
  )
