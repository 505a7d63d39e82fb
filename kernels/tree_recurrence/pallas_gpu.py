"""The gated delta rule, or state space duality, over a tree: every number is read once.

XLA reads the memory twice, once with the keys and once with the queries, repeats both for the value
heads, and writes what each product gives. Here a thread block has a part of a head's values: it
reads its columns of the memory in pieces, and the system of the tree, its inverse and all that
follows stay on the chip. Products are IEEE's of float32. Compiled for
Hopper, without a spilled register, it has not run on a GPU yet.

Letters: those of `models.recurrence`, and P nodes with what fills a tile.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

PIECE = 32  # rows of the memory that are read at once
COLUMNS = 64  # of the memory in a thread block
_LEAST = -128.0  # of the logarithm of a gate, whose exponential is 0 from -104 on
_product = functools.partial(lax.dot_general, precision=lax.Precision.HIGHEST)


def _times(a: Array, b: Array) -> Array:
  """[P, n] times [n, m]."""
  return _product(a, b, (((1,), (0,)), ((), ())))


def _scores(a: Array, b: Array) -> Array:
  """[P, n] times [P, n], of each row with each."""
  return _product(a, b, (((1,), (1,)), ((), ())))


def _decays(gate: Array, above: Array) -> tuple[Array, Array]:
  """What is left at node i of what node j wrote, [P, P], and of the memory, [P]; of the logarithms
  of gates [P]. Sums of multiples of 1 / 256 lose no digits, as in `models.recurrence`."""
  gate = jnp.maximum(gate, _LEAST)
  steps = jnp.floor(gate * 256 + 0.5) / 256
  sums = [(above * x[None]).sum(1) for x in (steps, gate - steps)]
  between = sum(x[:, None] - x[None] for x in sums)
  seen = above > 0
  return jnp.where(seen, jnp.exp(jnp.where(seen, between, 0)), 0), jnp.exp(sums[0] + sums[1])


def _inverse(system: Array) -> Array:
  """That of [P, P], of which only what is below the diagonal counts; on it are ones.

  Blocks on the diagonal are inverted, twice as large ones in each step: with X the inverse of those
  so far and L what lies between two of them, the next is X - X L X.
  """
  row, column = (lax.broadcasted_iota(jnp.int32, system.shape, i) for i in range(2))
  found = jnp.where(row == column, 1.0, 0.0)
  for bits in range((system.shape[0] - 1).bit_length()):
    first, second = row >> bits, column >> bits
    pair = (first - second == 1) & (second & 1 == 0)
    found = found - _times(found, _times(jnp.where(pair, system, 0), found))
  return found


def _kernel(memory, q, k, v, gate, mask, goes_on, *rest, solves: bool):
  """memory [C, columns], q and k [P, C], v [P, columns], gate and goes_on [P], mask [P, P] -> what
  nodes read [P, columns]; and with their rates [P] the updates [P, columns]."""
  P, C = q.shape
  piece = min(PIECE, C)
  decay, kept = _decays(gate[...], mask[...])
  kept = kept * goes_on[...]

  def further(i, sums):
    rows = pl.ds(i * piece, piece)
    own_q, own_k, part = q[:, rows], k[:, rows], memory[rows, :]
    new = _times(own_q, part), _scores(own_q, own_k)
    if solves:
      new += _times(own_k, part), _scores(own_k, own_k)
    return tuple(x + y for x, y in zip(sums, new, strict=True))

  sizes = ((P, memory.shape[1]), (P, P)) * (1 + solves)
  sums = tuple(jnp.zeros(x, jnp.float32) for x in sizes)
  of_memory, of_keys, *old = lax.fori_loop(0, C // piece, further, sums)
  update = v[...]
  if solves:
    rate, read, updates = rest
    each = rate[...][:, None]
    update = each * (update - kept[:, None] * old[0])
    update = _times(_inverse(each * decay * old[1]), update)
    updates[...] = update
  else:
    (read,) = rest
  read[...] = kept[:, None] * of_memory + _times(decay * of_keys, update)


def evaluate(
  memory: Array,
  q: Array,
  k: Array,
  v: Array,
  gate: Array,
  rate: Array | None,
  mask: Array,
  goes_on: Array,
  interpret: bool = False,
) -> tuple[Array, Array]:
  """See `api.evaluate`, of which mask and goes_on are 0 and 1 in float32. Without rates the updates
  are the values. `interpret` says whether the kernel is simulated (static)."""
  (B, H, C, F), (_, K, N, _) = memory.shape, q.shape
  P = max(16, 1 << (N - 1).bit_length())

  def filled(x: Array, *axes: int) -> Array:
    return jnp.pad(x, [(0, P - N if axis in axes else 0) for axis in range(x.ndim)])

  columns = min(COLUMNS, F)

  shared = pl.BlockSpec((None, None, P, C), lambda b, h, f: (b, h // (H // K), 0, 0))
  vector = pl.BlockSpec((None, None, P), lambda b, h, f: (b, h, 0))
  nodes = pl.BlockSpec((None, None, P, columns), lambda b, h, f: (b, h, 0, f))
  in_specs = [
    pl.BlockSpec((None, None, C, columns), lambda b, h, f: (b, h, 0, f)),
    shared,
    shared,
    nodes,
    vector,
    pl.BlockSpec((None, P, P), lambda b, h, f: (b, 0, 0)),
    pl.BlockSpec((None, P), lambda b, h, f: (b, 0)),
  ]
  given = [memory, *(filled(x, 2) for x in (q, k, v, gate)), filled(mask, 1, 2), filled(goes_on, 1)]
  solves = rate is not None
  if rate is not None:
    in_specs.append(vector)
    given.append(filled(rate, 2))
  found = pl.pallas_call(
    functools.partial(_kernel, solves=solves),
    out_shape=[jax.ShapeDtypeStruct((B, H, P, F), jnp.float32)] * (1 + solves),
    grid=(B, H, F // columns),
    in_specs=in_specs,
    out_specs=[nodes] * (1 + solves),
    compiler_params=plgpu.CompilerParams(num_warps=P // 4, num_stages=2),
    interpret=interpret,
  )(*given)
  read, *update = (x[:, :, :N] for x in found)
  return read, update[0] if solves else v
