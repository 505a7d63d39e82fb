"""Networks of random weights, for measurements of time: there the shape counts, not the text."""

from typing import Any, Literal, get_args

import jax

from specjax.base import LayeredTarget, Params
from specjax.heads import HEADS
from specjax.heads.base import Head
from specjax.models import transformer
from specjax.models.config import Config
from specjax.models.weights import parameter
from specjax.sampling import new_key

Size = Literal["small", "134m", "8b", "32b", "70b"]
SIZES: dict[str, Config] = dict(
  zip(
    get_args(Size),
    (
      Config(
        vocab_size=512,
        width=64,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        mlp_width=128,
        tied=False,
      ),
      Config(
        vocab_size=32000,
        width=768,
        layers=12,
        heads=12,
        kv_heads=12,
        head_dim=64,
        mlp_width=2048,
        tied=False,
      ),
      Config(
        vocab_size=128256,
        width=4096,
        layers=32,
        heads=32,
        kv_heads=8,
        head_dim=128,
        mlp_width=14336,
        rope_theta=500000.0,
        tied=False,
      ),
      Config(
        vocab_size=151936,
        width=5120,
        layers=64,
        heads=64,
        kv_heads=8,
        head_dim=128,
        mlp_width=25600,
        rope_theta=1000000.0,
        tied=False,
        qk_norm=True,
      ),
      Config(
        vocab_size=128256,
        width=8192,
        layers=80,
        heads=64,
        kv_heads=8,
        head_dim=128,
        mlp_width=28672,
        rope_theta=500000.0,
        tied=False,
      ),
    ),
    strict=True,
  )
)
"""The network of each size; the last have the shapes of Llama 3 8B, Qwen3 32B and Llama 3 70B."""

HeadName = Literal["eagle3", "dflash", "dspark"]
_HEADS: dict[HeadName, dict[str, Any]] = {
  "eagle3": {}, "dflash": {"layers": 5}, "dspark": {"layers": 5, "rank": 256},
}  # fmt: skip


def large_head(name: HeadName, target: LayeredTarget, depth: int) -> Head:
  """A head with as many layers as those published for targets of 8B have, which guesses `depth`
  tokens ahead by three of the target's states."""
  build, shape = HEADS[name]
  taps = 0, target.layers // 2, target.layers
  return build(target, shape(depth=depth, hidden_layers=taps, **_HEADS[name]))


def own_vocabulary(name: HeadName) -> bool:
  """Whether the published heads guess in a draft vocabulary; others have the target's LM head."""
  return name == "eagle3"


def random_weights(model: Config, dtype: str, weights: str = "float") -> Params:
  """Normal weights of deviation 0.02, drawn one array at a time.

  So they take no more memory than the model and its largest matrix.

  Args:
    dtype: that of the arithmetic.
    weights: how matrices lie in memory, one of `models.weights.WEIGHTS`.
  """
  shapes = jax.eval_shape(lambda: transformer.init(model, new_key(0)))
  leaves, tree = jax.tree.flatten(shapes)
  draw = jax.jit(lambda key, shape: 0.02 * jax.random.normal(key, shape, dtype), static_argnums=1)
  keys = jax.random.split(new_key(0), len(leaves))
  drawn = [
    parameter(draw(key, x.shape), dtype, weights) for key, x in zip(keys, leaves, strict=True)
  ]
  return jax.tree.unflatten(tree, drawn)
