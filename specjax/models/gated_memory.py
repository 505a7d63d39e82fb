"""Gated memory units: layers that read again what a recurrent layer read (SambaY).

Ren et al. 2025 (arXiv 2507.06607), section 2. A layer that is early mixes tokens: its memory gives
node i a readout m_i. A later layer mixes none. It gates the readout of the same node, by its own
input x_i, in attention's place:

    y_i = W2 norm(m_i * silu(W1 x_i)).

The norm is that of the paper's normalised unit, which it has for memories whose own layers have a
norm behind the readout; those of Mamba-2 and of gated delta nets do. So m_i is the readout before
that norm and before the layer's own gate, with Mamba-2's skip. It comes with the pass over a tree,
for each node from its ancestors, and the unit has nothing to cache.

Letters: those of `recurrence`; E is the width of the stream, M that of all heads, H * F.
"""

import dataclasses
from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
from jax import Array, lax

from specjax import checks
from specjax.models.config import Config, GatedMemory, Kind
from specjax.models.linear import linear
from specjax.models.lora import weight

_INIT = nn.initializers.normal(0.02)


class GatedMemoryUnit(nn.Module):
  """What stands in attention's place; `config` is that of the layer."""

  config: Config

  @nn.compact
  def __call__(self, x: Array, read: Array) -> Array:
    """x [B, N, E], normed, and what the same nodes read f32[B, H, N, F] -> [B, N, E]."""
    B, N, E = x.shape
    m = read.swapaxes(1, 2).reshape(B, N, -1)
    M = m.shape[2]
    y = m * nn.silu(linear(x, weight(self, "gate", _INIT, (M, E))).astype(jnp.float32))
    y = y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + self.config.norm_epsilon)
    norm = self.param("norm", nn.initializers.ones, (M,))
    out_init = nn.initializers.normal(0.02 / (2 * self.config.layers) ** 0.5)
    out: Array = linear(y.astype(x.dtype) * norm[None, None], weight(self, "out", out_init, (E, M)))
    return out


def decoder_hybrid_decoder(kinds: Sequence[Kind], first: int) -> tuple[Kind, ...]:
  """SambaY of a hybrid's layers: from number `first` on none has a state or rows of its own.

  The layers before it are the self-decoder. Of the others, recurrent ones become units over the
  last recurrent layer there, and those that attend read the keys and values of the last such layer.

  Raises:
    ValueError: the first layers are not of both kinds, or there are no others.
  """
  recurrent = [i for i, kind in enumerate(kinds) if kind.recurrence is not None]
  attends = [i for i, kind in enumerate(kinds) if kind.recurrence is None]
  least = max(recurrent[0], attends[0]) + 1
  checks.whole("self_decoder", first, least, len(kinds) - 1, note="layers of both kinds")
  memory, rows = (max(i for i in numbers if i < first) for numbers in (recurrent, attends))
  own = kinds[memory].recurrence
  assert own is not None
  unit = dataclasses.replace(kinds[memory], source=memory, recurrence=GatedMemory(own.width))
  crossing = dataclasses.replace(kinds[rows], source=rows)
  return (*kinds[:first], *(unit if kind.recurrence else crossing for kind in kinds[first:]))
