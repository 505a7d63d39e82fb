"""A chain that the target drafts for itself, with some of its sublayers.

Its rows see the target's cache and each other, and never enter the cache: nothing is copied, and
nothing is undone after a refusal. The likeliest token is always taken, so that drafts are
deterministic, and a verifier that follows the target alone is exact at any temperature.

Letters: B batch, D depth, A = D + 1 rows, E width, V vocabulary, L layers, W tokens of a window.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.base import KV, Context, Draft, LayeredTarget, Params
from specjax.sampling import most_likely
from specjax.trees.structure import chain, gather


class LayerRows(NamedTuple):
  """What the sublayers that ran leave of the A rows of a draft, the root first.

  Attributes:
    kv: KV of all layers, 0 where attention did not run.
    stream: [B, A, E], the residual stream behind the last sublayer.
    inputs: an array [B, A, E] for each layer that was asked for, the stream before it.
  """

  kv: KV
  stream: Array
  inputs: tuple[Array, ...]


def nothing(
  target: LayeredTarget, target_params: Params, batch: int, rows: int, layers: int
) -> LayerRows:
  """Rows of zeros, of which `layers` inputs are kept."""

  def shapes(params: Params) -> LayerRows:
    x = target.embed(params, jnp.zeros((batch, rows), jnp.int32))
    every = jnp.ones((target.layers, 2), bool)
    mask = jnp.ones((batch, rows, rows), bool)
    place = jnp.zeros((batch, rows), jnp.int32)
    _, kv, _ = target.run_some(params, x, place, mask, None, every)
    return LayerRows(kv, x, (x,) * layers)

  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(shapes, target_params))


def drafted(
  target: LayeredTarget,
  target_params: Params,
  context: Context,
  run: Array,
  depth: int,
  *,
  longest: Array | int | None = None,
  least: Array | None = None,
  joint: bool = False,
  whole: bool = False,
  layers: tuple[int, ...] = (),
) -> tuple[Draft, LayerRows]:
  """A chain of the tokens that some sublayers find likeliest, token by token.

  Args:
    run: bool[L, 2], see `pieces.RunSome`.
    depth: D (static).
    longest: tokens drafted at most, 0 to D; None is D.
    least: f32[B]; a row ends after a token that is less likely than this. None ends no row.
    joint: whether `least` is compared with the probability of all tokens so far (static).
    whole: whether the last token of a draft passes the sublayers too (static), as one must whose
      rows are used again.
    layers: those whose inputs are wanted (static).
  """
  B, cache = context.length.shape[0], context.cache
  begin = nothing(target, target_params, B, depth + whole, len(layers))
  every = jnp.ones((B, 1, 1), bool)
  going = jnp.full(B, True if longest is None else jnp.asarray(longest) > 0)

  def read(x: Array) -> tuple[Array, Array]:
    """(token, its probability) that follow a stream [B, 1, E]."""
    logits = target.head(target_params, target.norm(target_params, x))[:, 0]
    best = most_likely(logits)
    if least is None:
      return best, jnp.ones(B, jnp.float32)
    return best, jnp.exp(gather(logits, best[:, None])[:, 0] - jax.nn.logsumexp(logits, -1))

  def one(carry):
    step, tokens, valid, going, before_it, rows = carry
    token = lax.dynamic_slice_in_dim(tokens, step, 1, 1)
    x = target.embed(target_params, token)
    before = jnp.arange(depth + whole, dtype=jnp.int32)[None, None] < step
    mask = jnp.concatenate([jnp.broadcast_to(before, (B, *before.shape[1:])), every], 2)
    x, kv, inputs = target.run_some(
      target_params, x, context.length[:, None] - 1 + step, mask, cache, run, earlier=rows.kv
    )
    new = LayerRows(kv, x, tuple(inputs[i] for i in layers))
    rows = LayerRows(
      jax.tree.map(lambda old, x: lax.dynamic_update_slice_in_dim(old, x, step, 2), rows.kv, kv),
      *jax.tree.map(
        lambda old, x: lax.dynamic_update_slice_in_dim(old, x, step, 1), rows[1:], new[1:]
      ),
    )
    token, sure = lax.cond(
      going.any(), read, lambda x: (jnp.zeros(B, jnp.int32), jnp.zeros(B, jnp.float32)), x
    )
    tokens = lax.dynamic_update_slice_in_dim(tokens, token[:, None], step + 1, 1)
    valid = lax.dynamic_update_slice_in_dim(valid, going[:, None], step + 1, 1)
    going = going & (step + 2 <= (depth if longest is None else longest))
    sure = sure * before_it if joint else sure
    if least is not None:
      going = going & (sure >= least)
    return step + 1, tokens, valid, going, sure, rows

  def unfinished(carry) -> Array:
    step, _, valid, going, *_ = carry
    has = lax.dynamic_slice_in_dim(valid, step, 1, 1) if whole else going
    return (step < depth + whole) & has.any()

  # One column more than there are nodes, for what the last pass of `whole` rows would draft.
  tokens = jnp.pad(context.root, ((0, 0), (0, depth + 1)))
  valid = jnp.pad(jnp.ones((B, 1), bool), ((0, 0), (0, depth + 1)))
  carry = (jnp.int32(0), tokens, valid, going, jnp.ones(B, jnp.float32), begin)
  _, tokens, valid, _, _, rows = lax.while_loop(unfinished, one, carry)
  return chain(tokens[:, : depth + 1], valid[:, : depth + 1]), rows


def agreement(
  target: LayeredTarget, target_params: Params, context: Context, end: Array, width: int, run: Array
) -> Array:
  """f32[B]: of W tokens of the text, how many some sublayers find likeliest, in one pass.

  Args:
    end: i32[B], the length of the text at which the W tokens end, W + 1 to n; rows of other ends
      are not to be used.
    width: W (static).
  """
  step = jnp.arange(width, dtype=jnp.int32)[None]
  first = jnp.maximum(end - width - 1, 0)
  position = first[:, None] + step
  x = target.embed(target_params, gather(context.tokens, position))
  causal = jnp.broadcast_to(jnp.tril(jnp.ones((1, width, width), bool)), (len(end), width, width))
  before = context.cache._replace(length=first)
  x, _, _ = target.run_some(target_params, x, position, causal, before, run)
  said = most_likely(target.head(target_params, target.norm(target_params, x)))
  return (said == gather(context.tokens, position + 1)).mean(1, dtype=jnp.float32)
