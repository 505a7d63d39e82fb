"""Losses by which tokens that follow each other activate few experts, and the same ones.

BlockFFN (Song et al. 2025, arXiv 2507.08771): a verification of a draft reads every expert that one
of its tokens activates. The activation locality loss draws a token's experts to those of the token
before it, the chunk sparsification loss penalises the share of experts that a chunk of tokens
activates. The paper's program (github.com/thunlp/BlockFFN, pretrain/entrance.sh) takes 0.002 and
0.05 of them, chunks of 64 tokens and a sharpness of 100, and changes the scale of the second one in
training by how it goes, which is not done here.

Letters: L layers with experts, B rows, T tokens of a row, C tokens of a chunk, X experts.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from specjax import checks
from specjax.base import Params
from specjax.data.packing import PackedRows
from specjax.models.config import Experts
from specjax.models.experts import of_layers
from specjax.models.transformer import Transformer, attention_mask
from specjax.train.recipe.config import Amount, Length
from specjax.train.recipe.means import Mean

SHARPNESS = 100.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChunkSparsity:
  """What makes consecutive tokens share their experts, with the "relu" router.

  Attributes:
    locality_loss: scale of the loss of experts that a token and the next one do not share.
    chunk_loss: scale of the loss of the share of experts that a chunk activates.
    chunk_length: tokens of a chunk.
  """

  locality_loss: Amount = 0.0
  chunk_loss: Amount = 0.0
  chunk_length: Length = 64


def is_used(options: ChunkSparsity, experts: Experts | None) -> bool:
  """Whether a loss has a scale; ValueError where it has and the router is another one or none."""
  used = {x: getattr(options, x) for x in ("locality_loss", "chunk_loss") if getattr(options, x)}
  for name, value in used.items():
    if experts is None or experts.router != "relu":
      checks.refuse(name, value, "0 for a network without experts that router=relu chooses")
  return bool(used)


def read(network: Transformer, params: Params, rows: PackedRows) -> tuple[Array, Array]:
  """The states [B, T, E] of rows, and what the routers say of the experts, f32[L, B, T, X]."""
  mask = attention_mask(jnp.asarray(rows.segment), network.config.causal)
  (features, _), kept = network.apply(
    params, rows.tokens, rows.position, mask, method="features", mutable=["intermediates"]
  )  # type: ignore[misc]  # what is kept comes with the result
  logits = of_layers(kept["intermediates"], "logits", network.config.layers)
  return features.hidden, jnp.stack(logits)


def locality(logits: Array, segment: Array) -> Mean:
  """Binary cross-entropy, in nats, of softened activations sigmoid(alpha * logits) f32[L, B, T, X]
  with those of the next token of the document; segment i32[B, T] as in `PackedRows`."""
  sharp = SHARPNESS * logits
  nats = optax.sigmoid_binary_cross_entropy(sharp[:, :, :-1], jax.nn.sigmoid(sharp[:, :, 1:]))
  pairs = ((segment[:, 1:] == segment[:, :-1]) & (segment[:, 1:] >= 0)).astype(jnp.float32)
  value = (nats.mean((0, 3)) * pairs).sum() / jnp.maximum(pairs.sum(), 1.0)
  return Mean(value, pairs.sum())


def union(share: Array, length: int) -> Array:
  """f32[L, B, T / C, X]: 1 - prod(1 - p) over each chunk of C tokens, of shares p f32[L, B, T, X].

  It is the chance that an expert is activated if tokens draw one each; a row's last chunk may be
  shorter.
  """
  L, B, T, X = share.shape
  padded = jnp.pad(share, ((0, 0), (0, 0), (0, -T % length), (0, 0)))
  return 1 - (1 - padded).reshape(L, B, -1, length, X).prod(3)


def terms(
  logits: Array, rows: PackedRows, options: ChunkSparsity
) -> tuple[dict[str, Any], dict[str, Any]]:
  """(the two terms of the loss, figures) of what routers say, f32[L, B, T, X].

  The figures are both losses and `activated`, the share of experts that a token activates.
  """
  segment = jnp.asarray(rows.segment)
  real = (segment >= 0).astype(jnp.float32)
  routed = jax.nn.relu(logits) * real[None, ..., None]
  near = locality(logits, segment)
  chunk = union(
    routed / jnp.maximum(routed.sum(-1, keepdims=True), 1e-6), options.chunk_length
  ).mean()
  activated = lax.stop_gradient((routed > 0).mean((0, 3)).sum() / jnp.maximum(real.sum(), 1.0))
  figures = {"locality": near, "chunk": chunk, "activated": Mean(activated, real.sum())}
  scaled = near._replace(value=options.locality_loss * near.value)
  return {"locality": scaled, "chunk": options.chunk_loss * chunk}, figures
