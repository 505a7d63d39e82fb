"""A transformer as a denoiser: bidirectional as in LLaDA or, with shifted states, in Dream; or
causal over blocks and bidirectional within them, as in SDAR or, with shifted states, Fast-dLLM v2;
or causal in an order that has the masks last, as in WeDLM.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from specjax import checks
from specjax.base import Cache, Params
from specjax.diffusion.base import Denoiser, Earlier, Pieces
from specjax.models.canvas_denoiser import canvas_denoiser
from specjax.models.config import Config
from specjax.models.rotary import angles
from specjax.models.transformer import Transformer


def _pieces(config: Config) -> Pieces:
  """The network's layers one by one, for caches that run only parts of a layer."""
  apply: Callable[..., Any] = Transformer(config).apply

  def of_block(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a block and more arguments as a function of (params, layer i, ...)."""
    return lambda params, i, *x: apply(
      params, *x, method=lambda network, *x: run(network.layers.blocks[i], *x)
    )

  def attention(block, q: Array, k: Array, v: Array, seen: Array) -> Array:
    B, _, N, _ = q.shape
    return block.attention(q, k, v, jnp.broadcast_to(seen[:, None], (B, N, seen.shape[1])))

  return Pieces(
    layers=config.layers,
    embed=functools.partial(apply, method="embed"),
    project=of_block(lambda block, x, position: block.project(x, angles(block.config, position))),
    values=of_block(lambda block, x: block.values(x)),
    attention=of_block(attention),
    mlp=of_block(lambda block, x: block.mlp(x)),
    norm=functools.partial(apply, method="final_norm"),
  )


def in_order(masked: Array, position: Array) -> Array:
  """bool[B, N, N]: what each slot sees where the filled slots come first and the masked ones last.

  WeDLM (Liu et al. 2025, arXiv 2512.22737, topological reordering): attention is causal in that
  order, and positions stay what they are, so nothing has to be moved. masked: bool[B, N],
  position: i32[B, N].
  """
  before = position[:, None] <= position[:, :, None]
  reading, read = masked[:, :, None], masked[:, None]
  return jnp.where(read, reading & before, reading | before)


@functools.cache
def denoiser(config: Config, mask: int | None, shift: bool = False) -> Denoiser:
  """The network as the functions of the contract; one object per config, so jit caches hit.

  With `config.block_length` it is a block diffusion model: BD3-LM (Arriola et al. 2025, arXiv
  2503.09573), Fast-dLLM v2 (Wu et al. 2025, arXiv 2509.26328), SDAR (Cheng et al. 2025, arXiv
  2510.06303). Blocks begin at multiples of their length, the prompt's last tokens may be part of
  the first block that is filled.

  Args:
    mask: id of the mask token, None for uniform noise.
    shift: see `Denoiser`.

  Raises:
    ValueError: a causal config, one with an attention window, a mask that is no token of it, or
      shifted states where masks are read last.
  """
  if config.causal:
    raise ValueError("`causal` must be False for a denoiser, which sees both sides, got True.")
  if config.canvas is not None:
    return canvas_denoiser(config)
  if config.windows:
    raise ValueError(
      f"`window` must be None for a denoiser, which sees the whole canvas, got {config.windows[0]}."
    )
  if mask is not None:
    checks.whole("mask", mask, 0, config.vocab_size - 1)
  if shift and config.masks_last:
    checks.refuse("shift", True, "False for a model that reads masks last")
  apply: Callable[..., Any] = Transformer(config).apply

  def evaluate(
    params: Params,
    tokens: Array,
    position: Array,
    seen: Array,
    earlier: Earlier | None = None,
    soft: Array | None = None,  # [B, N, E], added to the mask's embedding, see `smoothed`
  ):
    B, N = tokens.shape
    sees = jnp.broadcast_to(seen if seen.ndim == 3 else seen[:, None], (B, N, N))
    if config.block_length is not None:
      block = position // config.block_length
      sees = sees & (block[:, None] <= block[:, :, None])
    if config.masks_last:
      assert mask is not None  # noise is not uniform, see `Config`
      sees = sees & in_order(jnp.equal(tokens, mask), position)
    cache, visible = None, None
    if earlier is not None:
      cache, visible = Cache(earlier.kv, jnp.zeros(B, jnp.int32)), earlier.visible
    added = None
    if soft is not None and mask is not None:
      added = jnp.where(jnp.equal(tokens, mask)[..., None], soft, 0)
    features, kv = apply(
      params, tokens, position, sees, cache, visible=visible, added=added, method="features"
    )
    return features.hidden, kv

  head = functools.partial(apply, method="head")
  pieces = None if config.block_length or config.masks_last else _pieces(config)
  made = Denoiser(config.vocab_size, mask, shift, evaluate, head, pieces, config.block_length)
  return made._replace(masks_last=config.masks_last)


@functools.cache
def smoothed(
  config: Config,
  mask: int,
  shift: bool,
  most: float = 0.3,
  first: float = 0.15,
  more: float = 0.02,
) -> Denoiser:
  """LOSSY: a masked slot's embedding is mixed with those of the tokens that were expected there.

  dInfer (Ma et al. 2025, arXiv 2510.08666), iteration smoothing: what a pass said of slots that it
  left masked is not lost. In a block's round n the mean embedding, by the last pass's
  probabilities, has the share min(first + more n, most), and the mask's the rest. A slot of which
  nothing has been said has the mask's alone.

  Measured: 2.9 passes, 91.0 % right (denoising_lists)

  Args:
    mask, shift: see `denoiser`.
    most, first: published 0.3 and 0.15.
    more: what a round adds; published 0.02.

  Raises:
    ValueError: see `denoiser`; a share is not between 0 and 1.
  """
  for name, share in {"most": most, "first": first, "more": more}.items():
    checks.number(name, share, 0, 1)
  apply: Callable[..., Any] = Transformer(config).apply

  def soften(params: Params, probs: Array, step: Array) -> Array:
    expected = apply(params, probs, method="soften")
    of_mask = apply(params, jnp.full((1, 1), mask, jnp.int32), method="embed")
    share = jnp.minimum(first + more * step.astype(jnp.float32), most)[:, None, None]
    return share.astype(expected.dtype) * (expected - of_mask)

  return denoiser(config, mask, shift)._replace(pieces=None, soften=soften)
