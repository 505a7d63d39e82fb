"""Tree attention: the choice of the implementation that serves a call, with reasons."""

import dataclasses
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from specjax import checks, switches
from specjax.kernels import compiled
from specjax.kernels.platform import device, mesh_axis, platform
from specjax.kernels.tree_attention import config, cpu, pallas_tpu, reference, xla
from specjax.kernels.tree_attention.paged import PAGE, Paged
from specjax.kernels.tree_attention.quantised import Cached, Quantised
from specjax.kernels.tree_attention.reference import Result

Implementation = Literal["reference", "xla", "cpu", "pallas_tpu", "pallas_gpu"]
ONE_PRODUCT = 512  # cached rows that one product reads
FULL = config.GPU_TILE  # rows of a head from which the GPU kernel is taken unasked


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Served:
  """A call's result, and the implementation that served it.

  `passed_over` has (kernel, reason) for the kernels not taken, and is () where one was asked for.
  """

  result: Result
  implementation: Implementation = dataclasses.field(metadata={"static": True})
  passed_over: tuple[tuple[Implementation, str], ...] = dataclasses.field(metadata={"static": True})


def _cpu_refusal(q: Array, k_cache: Cached, prefix: Array) -> str | None:
  if platform() != "cpu":
    return f"the platform is {platform()}, not cpu"
  if jax.device_count() > 1:
    return f"there are {jax.device_count()} devices, not 1"
  if isinstance(k_cache, Quantised) or prefix.dtype == bool:
    return "it reads the first rows of a cache that is not quantised"
  if not q.dtype == k_cache.dtype == jnp.float32:
    return f"nodes are {q.dtype} and the cache {k_cache.dtype}, not both float32"
  if q.shape[-1] % cpu.LANES:
    return f"heads are {q.shape[-1]} wide, no multiple of {cpu.LANES}"
  return None if compiled.available() else "no C++ compiler has made it"


def _tpu_refusal(q: Array, k_cache: Cached, columns: int) -> str | None:
  if platform() != "tpu":
    return f"the platform is {platform()}, not tpu"
  values = jax.tree.leaves(k_cache)[0]
  if q.shape[-1] not in pallas_tpu.WIDTHS:
    *others, last = pallas_tpu.WIDTHS
    return f"heads are {q.shape[-1]} wide, not {', '.join(map(str, others))} or {last}"
  if jnp.float16 in (q.dtype, values.dtype):
    return f"nodes are {q.dtype} and the cache {values.dtype}, not bfloat16 or float32"
  if values.shape[2] < 2:
    return "the cache has 1 row, not 2 or more"
  shape, group = config.AttentionShape.of(q, k_cache), q.shape[1] // values.shape[1]
  if not (config.nodes_fit(shape, q.shape[2], columns) and config.sizes("pallas_tpu", shape)):
    return f"{q.shape[2]} nodes of {group} query heads to a key head do not fit beside a block"
  return None


def _gpu_refusal(q: Array, k_cache: Cached, prefix: Array) -> str | None:
  if not any(name in device().device_kind for name in ("H100", "H200")):
    return f"the device is {device().device_kind}, not an H100 or H200"
  if isinstance(k_cache, Quantised) or prefix.dtype == bool:
    return "it reads the first rows of a cache that is not quantised"
  if k_cache.dtype not in (jnp.bfloat16, jnp.float16) or k_cache.dtype != q.dtype:
    return f"nodes are {q.dtype} and the cache {k_cache.dtype}, not both bfloat16 or float16"
  if q.shape[-1] not in (64, 128):
    return f"heads are {q.shape[-1]} wide, not 64 or 128"
  if k_cache.shape[2] < config.GPU_BLOCK:
    return f"the capacity is {k_cache.shape[2]}, below {config.GPU_BLOCK}"
  if k_cache.shape[2] % 8:  # rows are copied by eights
    return f"the capacity is {k_cache.shape[2]}, no multiple of 8"
  return None


def refusals(
  q: Array,
  k_cache: Cached,
  prefix: Array,
  start: Array | None = None,
  sinks: Array | None = None,
) -> dict[Implementation, str | None]:
  """For each kernel why it cannot serve such a call here, or None; see `tree_attention`."""
  columns = (start is not None) + (sinks is not None)
  return {
    "cpu": _cpu_refusal(q, k_cache, prefix),
    "pallas_tpu": _tpu_refusal(q, k_cache, columns),
    "pallas_gpu": _gpu_refusal(q, k_cache, prefix),
  }


def default_implementation(
  q: Array,
  k_cache: Cached,
  prefix: Array,
  start: Array | None = None,
  sinks: Array | None = None,
) -> Implementation:
  """The kernel of the platform where it serves, that of GPUs where its tiles are full, else XLA.

  On an H100 a single node over few cached rows takes the GPU kernel half as long again as XLA, and
  64 nodes take it a quarter to all of XLA's time (`docs/kernels.md`).
  """
  reasons = refusals(q, k_cache, prefix, start, sinks)
  for name in ("cpu", "pallas_tpu"):
    if reasons[name] is None:
      return name
  return "pallas_gpu" if reasons["pallas_gpu"] is None and _rows(q, k_cache) >= FULL else "xla"


def _rows(q: Array, k_cache: Cached) -> int:
  """How many rows share a head's keys, G N."""
  return q.shape[1] // jax.tree.leaves(k_cache)[0].shape[1] * q.shape[2]


def reads_blocks(
  q: Array,
  k_cache: Cached,
  prefix: Array,
  start: Array | None = None,
  sinks: Array | None = None,
) -> bool:
  """Whether a cache [B, K, S, C] is better read in blocks than by one product.

  On one CPU the kernel always is, since it does in one call what XLA does in ten. Elsewhere one
  product is better where the cache is a block or two, and on GPU where the kernel does not serve,
  since XLA asks the host before each block. With one key/value head, XLA would multiply a batch and
  a single row by different methods, so that their bits would differ: it does not read blocks there
  either.
  """
  K, S = jax.tree.leaves(k_cache)[0].shape[1:3]
  by = default_implementation(q, k_cache, prefix, start, sinks)
  if platform() == "gpu" and by != "pallas_gpu":
    return False
  return by == "cpu" or (K > 1 and S > ONE_PRODUCT)


def _check(q, k_cache, v_cache, prefix, k_tree, v_tree, tree_mask, start, sinks, before) -> None:
  """Raises ValueError for shapes that do not fit; see `tree_attention`."""
  for name, x in {"q": q, "k_tree": k_tree, "k_cache": jax.tree.leaves(k_cache)[0]}.items():
    if x.ndim != 4:
      raise ValueError(f"`{name}.shape` must have four axes, got {x.shape}.")
  B, H, N, C = q.shape
  K, S = jax.tree.leaves(k_cache)[0].shape[1:3]
  M = k_tree.shape[2]
  wanted: dict[str, tuple] = {
    "k_tree": (k_tree, (B, K, M, C)), "v_tree": (v_tree, (B, K, M, C)),
    "tree_mask": (tree_mask, (B, N, M)),
    "prefix": (prefix, (B, S) if prefix.dtype == bool else (B,)),
  }  # fmt: skip
  if start is not None:
    wanted |= {"start": (start, (B, N))}
  if sinks is not None:
    wanted |= {"sinks": (sinks, (H,))}
  if before is not None:
    wanted |= {"before": (before, (B,))}
  for name, x in {"k_cache": k_cache, "v_cache": v_cache}.items():
    if isinstance(x, Quantised):
      wanted |= {f"{name}.values": (x.values, (B, K, S, C)), f"{name}.scale": (x.scale, (B, K, S))}
    else:
      wanted |= {name: (x, (B, K, S, C))}
  for name, (x, shape) in wanted.items():
    if x.shape != shape:
      raise ValueError(f"`{name}.shape` must be {shape}, got {x.shape}.")
  if H % K:
    raise ValueError(f"the heads of `q` must be a multiple of the cache's {K}, got {H}.")


def paged_attention(
  q: Array,
  k_cache: Paged,
  v_cache: Paged,
  length: Array,
  k_tree: Array,
  v_tree: Array,
  tree_mask: Array,
  *,
  start: Array | None = None,
  cap: float | None = None,
  sinks: Array | None = None,
) -> Array | None:
  """`tree_attention` over a cache in pages, of which all nodes see the first rows, length i32[B].

  The kernels of one CPU, of TPUs and of H100s follow the tables; on one CPU the result [B, H, N, C]
  has the bits that it has over a dense cache. The H100's serves whenever it can, not only where its
  tiles are full, for XLA would copy all pages. Where none serves, XLA gathers the pages of a block
  at a time; or it is None, where one product is better (see `reads_blocks`), or `length` marks any
  rows, bool[B, S]: then the caller gathers all pages.
  """
  arguments = q, k_cache, v_cache, length, k_tree, v_tree, tree_mask, float(q.shape[-1] ** -0.5)
  columns = (start is not None) + (sinks is not None)
  if _cpu_refusal(q, k_cache.pages, length) is None:
    return cpu.paged_attention(*arguments, cap, start, sinks).out
  if _gpu_refusal(q, k_cache.pages, length) is None:
    from specjax.kernels.tree_attention import pallas_gpu  # seconds that others need not wait

    return pallas_gpu.tree_attention(*arguments, start=start, cap=cap, sinks=sinks).out
  S, by_kernel = k_cache.table.shape[1] * PAGE, _tpu_refusal(q, k_cache.pages, columns) is None
  in_blocks = platform() != "gpu" and k_cache.pages.shape[1] > 1 and S > ONE_PRODUCT
  if length.dtype == bool or not (by_kernel or in_blocks):
    return None
  shape = config.AttentionShape.of(q, k_cache.pages)._replace(capacity=S)
  seen: dict[str, Any] = {"start": start, "cap": cap, "sinks": sinks}
  if by_kernel:
    size = config.block("pallas_tpu", shape)
    return pallas_tpu.tree_attention(*arguments, block=size, **seen).out
  visible = jnp.arange(S, dtype=jnp.int32)[None] < length[:, None]
  arguments = *arguments[:3], visible, *arguments[4:]
  return xla.tree_attention(*arguments, block=config.block("xla", shape), **seen).out


@switches.hold
def tree_attention(
  q: Array,
  k_cache: Cached,
  v_cache: Cached,
  prefix: Array,
  k_tree: Array,
  v_tree: Array,
  tree_mask: Array,
  *,
  scale: float | None = None,
  start: Array | None = None,
  cap: float | None = None,
  sinks: Array | None = None,
  before: Array | None = None,
  implementation: Implementation | None = None,
  block: int | None = None,
  return_residuals: bool = False,
) -> Any:
  """Attention of N nodes over a cache and over each other.

  Nodes are fresh rows, which `models.cache.commit` writes to the cache once they are verified.
  Their mask never spans the cache. M is N, or more where other fresh rows come with the nodes.
  Of the cache a node sees the rows from its `start` to `prefix`: two numbers, whether a window
  slides or parts a text into chunks. Among fresh rows the window is in `tree_mask`.

  Args:
    q: [B, H, N, C].
    k_cache, v_cache: [B, K, S, C] or Quantised, H a multiple of K.
    prefix: the rows of the cache that all nodes see: the first i32[B], or any, bool[B, S].
    k_tree, v_tree: [B, K, M, C], keys and values of the fresh rows.
    tree_mask: bool[B, N, M], node i sees fresh row j.
    scale: of the scores, static; by default C ** -0.5.
    start: i32[B, N], the first row of the cache that each node sees, as p - W + 1 of a window of W
      for a node at position p; None for 0. Rows before it must hold numbers where others see them.
    cap: c of scores c tanh(s / c), static, or None.
    sinks: [H], for each head the score of a key whose value is 0, or None. It is not capped.
    before: i32[B], multiples of 64, how many rows of each text came before the cache's first; None
      for 0. On one CPU sums are rounded as if these were there.
    implementation: static; see `default_implementation` and `refusals`.
    block: cached rows that are read at once, static; see `config.block`.
    return_residuals: whether to return Served, which has the maximum and the sum, too, to merge
      the result with attention to other keys.

  Returns:
    [B, H, N, C], or Served. On a mesh with axes "data" and "model", the batch is spread over the
    one and heads over the other; an axis that does not divide B or K is not used.

  Raises:
    ValueError: shapes that do not fit, or an implementation that cannot serve them.
  """
  arguments = (q, k_cache, v_cache, prefix, k_tree, v_tree, tree_mask, start, sinks, before)
  _check(*arguments)
  if implementation is not None:
    checks.choice("implementation", implementation, get_args(Implementation))
  reasons = refusals(q, k_cache, prefix, start, sinks)
  passed_over: tuple[tuple[Implementation, str], ...] = ()
  if implementation is None:
    implementation = default_implementation(q, k_cache, prefix, start, sinks)
    unasked = f"{_rows(q, k_cache)} rows share a head's keys, fewer than {FULL}"
    passed_over = tuple((k, v or unasked) for k, v in reasons.items() if k != implementation)
  elif reason := reasons.get(implementation):
    raise ValueError(f"implementation={implementation!r}: {reason}.")
  scale = float(q.shape[-1] ** -0.5) if scale is None else scale

  def attention(
    q, k_cache, v_cache, prefix, k_tree, v_tree, tree_mask, start, sinks, before
  ) -> Result:
    shape = config.AttentionShape.of(q, k_cache)
    tree = (k_tree, v_tree, tree_mask, scale)
    seen: dict[str, Any] = {"start": start, "cap": cap, "sinks": sinks}
    size = block or config.block(implementation, shape)
    if implementation == "cpu":
      return cpu.tree_attention(q, k_cache, v_cache, prefix, *tree, cap, start, sinks, before)
    if implementation == "pallas_tpu":
      return pallas_tpu.tree_attention(q, k_cache, v_cache, prefix, *tree, block=size, **seen)
    if implementation == "pallas_gpu":
      from specjax.kernels.tree_attention import pallas_gpu  # seconds that others need not wait

      return pallas_gpu.tree_attention(q, k_cache, v_cache, prefix, *tree, **seen)
    visible = prefix
    if prefix.dtype != bool:
      visible = jnp.arange(shape.capacity, dtype=jnp.int32)[None] < prefix[:, None]
    if implementation == "reference":
      return reference.tree_attention(q, k_cache, v_cache, visible, *tree, **seen)
    return xla.tree_attention(q, k_cache, v_cache, visible, *tree, block=size, **seen)

  data, model = mesh_axis("data", k_tree.shape[0]), mesh_axis("model", k_tree.shape[1])
  if data or model:  # XLA cannot look into a kernel: each device is told its rows and its heads
    rows, heads = PartitionSpec(data), PartitionSpec(data, model)
    attention = jax.shard_map(
      attention,
      out_specs=heads,
      check_vma=False,
      in_specs=(heads, heads, heads, rows, heads, heads, rows, rows, PartitionSpec(model), rows),
    )
  result = attention(*arguments)
  return Served(result, implementation, passed_over) if return_residuals else result.out
