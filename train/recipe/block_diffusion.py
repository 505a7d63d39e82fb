"""All blocks of a row at once: one pass over its noisy half and its clean half.

A block of block diffusion is predicted from its own noisy tokens and the clean ones before it. Rows
of T tokens are read as 2 T rows of the network, noisy tokens first, both halves at positions 0..T -
1: a noisy token sees its own block of the noisy half and earlier blocks of the clean one, a clean
token its own block and earlier ones of the clean half. BD3-LM (Arriola et al. 2025, arXiv
2503.09573, section 3), as in Fast-dLLM v2 (arXiv 2509.26328) and SDAR (arXiv 2510.06303).

Letters: B batch, T row length, D length of a block, E width.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Params
from specjax.data.packing import PackedRows
from specjax.models.denoiser import in_order
from specjax.models.transformer import Transformer
from specjax.train.recipe import masking


def corrupt(key: Array, maskable: Array, D: int) -> tuple[Array, Array]:
  """`masking.corrupt` block by block: (masked bool[B, T], p f32[B, T]).

  Each block has a number of masks of its own, as in the published programs. The expected loss is
  that of one number per row.
  """
  B, T = maskable.shape
  of_order, of_noise = jax.random.split(key)
  blocks = jnp.pad(maskable, ((0, 0), (0, -T % D))).reshape(-1, D)
  # Neighbours get neighbouring numbers of masks; those of one row shall differ.
  order = jax.random.permutation(of_order, len(blocks))
  masked, p = masking.corrupt(of_noise, blocks[order])

  def rows(x: Array) -> Array:
    placed = jnp.zeros(blocks.shape, x.dtype).at[order].set(x)
    return placed.reshape(B, -1)[:, :T]

  return rows(masked), rows(jnp.broadcast_to(p, masked.shape))


def causal_mask(T: int, D: int) -> Array:
  """bool[T, T]: what each token sees of a row with one noisy block: its block and earlier ones."""
  block = jnp.arange(T, dtype=jnp.int32) // D
  return block[None] <= block[:, None]


def halves_mask(T: int, D: int) -> Array:
  """bool[2 T, 2 T]: what each token of the noisy half, then of the clean half, sees."""
  block = jnp.tile(jnp.arange(T, dtype=jnp.int32) // D, 2)
  noisy = jnp.arange(2 * T, dtype=jnp.int32) < T
  own = noisy[:, None] & noisy[None] & (block[:, None] == block[None])
  earlier = (block[:, None] - noisy[:, None].astype(jnp.int32)) >= block[None]
  return own | (~noisy[None] & earlier)


def states(
  network: Transformer,
  params: Params,
  noisy: Array,
  clean: PackedRows,
  shift: bool,
  seen: Array | None = None,
  *,
  D: int | None = None,
  masked: Array | None = None,
) -> Array:
  """States [B, T, E] that say every slot, each given its noisy block and the clean ones before it.

  With `shift` the state before a slot says it. Before the first slot of a block that is the
  last of the clean block, as in decoding, where a block begins once the one before is finished;
  Fast-dLLM v2 trains with the noisy one there. The first slot of a text says itself.

  Args:
    noisy: i32[B, T], tokens and masks.
    clean: the rows without masks. Blocks begin at multiples of D, and so do texts.
    seen: bool[T, T], whether slot i may see slot j of its own block; by default all do.
    D: static; by default the network's.
    masked: bool[B, T], the masks of a model that reads them last, see `models.denoiser.in_order`:
      both halves are then causal, the clean one from left to right (WeDLM, Liu et al. 2025, arXiv
      2512.22737, dual-stream masking).
  """
  T, D = noisy.shape[1], D or network.config.block_length
  assert D is not None
  slot = jnp.arange(T, dtype=jnp.int32)
  position, segment = (jnp.tile(jnp.asarray(x), 2) for x in (clean.position, clean.segment))
  mask = halves_mask(T, D)
  mask = mask if seen is None else mask & jnp.tile(seen, (2, 2))
  mask = mask[None] & (segment[:, :, None] == segment[:, None, :])
  if masked is not None:
    mask = mask & in_order(jnp.concatenate([masked, jnp.zeros_like(masked)], 1), position)
  tokens = jnp.concatenate([noisy, jnp.asarray(clean.tokens)], 1)
  hidden: Any = network.apply(params, tokens, position, mask)[0]
  if not shift:
    return jnp.asarray(hidden[:, :T])
  before = slot - 1 + jnp.where(slot % D == 0, T, 0)
  reading = jnp.where(position[:, :T] > 0, before[None], slot[None])
  return jnp.take_along_axis(hidden, reading[..., None], 1)
