"""The best paths through a lattice of guesses, of which each and each pair in a row has a score.

Letters: B batch, D depth, K guesses per depth (ranks 0..K - 1), P paths.
"""

import jax.numpy as jnp
from jax import Array

from specjax.distributed import top_k
from specjax.trees.structure import gather


def p_best(scores: Array, transitions: Array, paths: int) -> tuple[Array, Array]:
  """The P highest-scoring of all K ** D paths, best first; exact.

  This is Viterbi from the last depth to the first with the P best continuations of every guess,
  which are all that the P best paths can contain. Of equal paths the first in lexicographic order
  of ranks wins.

  Args:
    scores: f32[B, D, K], of each guess.
    transitions: f32[B, D - 1, K, K]; entry d, i, j is for rank i at depth d + 1 followed by rank j.
    paths: P.

  Returns:
    (ranks i32[B, P, D], score f32[B, P], the sum along each path).

  Raises:
    ValueError: P is not 1 to K ** D.
  """
  B, D, K = scores.shape
  if not 1 <= paths <= K**D:
    raise ValueError(
      f"`paths` must be between 1 and {K**D}, for {K} guesses at {D} depths, got {paths}."
    )
  best = scores[:, -1, :, None]  # [B, K, kept]: scores of the continuations of each guess
  following: list[tuple[Array, int]] = []
  for d in reversed(range(D - 1)):
    kept = best.shape[2]
    reach = transitions[:, d, :, :, None] + best[:, None]
    score, index = top_k(reach.reshape(B, K, -1), min(paths, K * kept))
    best = scores[:, d, :, None] + score
    following.append((index.reshape(B, -1).astype(jnp.int32), kept))
  kept = best.shape[2]
  score, entry = top_k(best.reshape(B, -1), paths)
  ranks = [entry // kept]
  for index, kept in reversed(following):
    entry = gather(index, entry)
    ranks.append(entry // kept)
  return jnp.stack(ranks, 2).astype(jnp.int32), score
