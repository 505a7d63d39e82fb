"""The options that every trainer has, and the numbers that an option accepts."""

import dataclasses
import math
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import jax
import optax
import optax.contrib
import tyro
from jax.sharding import NamedSharding, PartitionSpec

from specjax import checks
from specjax.models import ring
from specjax.models.config import Experts, GatedDelta, Kind
from specjax.models.gated_memory import decoder_hybrid_decoder


class Bounds(NamedTuple):
  """The lowest and the highest number that an option accepts, as a part of its type."""

  low: float
  high: float = math.inf


Natural = Annotated[int, Bounds(0)]
Count = Annotated[int, Bounds(1)]
Length = Annotated[int, Bounds(2)]
Amount = Annotated[float, Bounds(0)]
Positive = Annotated[float, Bounds(1e-3)]
Share = Annotated[float, Bounds(0, 1)]
Seed = Annotated[int, Bounds(0, 2**32 - 1)]


def check(options: Any) -> None:
  """Raises ValueError for the first number of a dataclass outside its bounds or not finite."""
  for name, kind in get_type_hints(type(options), include_extras=True).items():
    value = getattr(options, name)
    if isinstance(value, Training | Network):
      check(value)
    for low, high in (x for x in getattr(kind, "__metadata__", ()) if isinstance(x, Bounds)):
      if value is not None and not (low <= value <= high and math.isfinite(value)):
        accepted = f"at least {low}" if high == math.inf else f"between {low} and {high}"
        raise ValueError(f"`{name}` must be {accepted}, got {value}.")


@tyro.conf.configure(tyro.conf.OmitArgPrefixes)
@dataclasses.dataclass(frozen=True)
class Network:
  """The shape of a new network.

  Attributes:
    width: width of the residual stream.
    layers: number of layers.
    heads: number of query heads.
    kv_heads: number of key and value heads, which divides `heads`.
    head_dim: width of a head.
    mlp_width: width of the MLP, or of each expert.
    experts: number of experts in every layer, 0 for a dense MLP.
    chosen: number of experts that a token is sent to by "softmax"; "relu" (BlockFFN) needs none.
    router: how experts are chosen, see `models.experts`.
    attention_every: n for a network in which every n-th layer attends, with a gate and norms on q
      and k, and the others are Gated DeltaNets with as many heads of the same width (Qwen3.5); 0
      where all attend.
    self_decoder: n for a hybrid of which the first n layers alone have states and cached rows, and
      the others read these: gated memory units and attention in turns (SambaY); 0 for all layers.
  """

  width: Count
  layers: Count
  heads: Count
  kv_heads: Count
  head_dim: Count
  mlp_width: Count
  experts: Natural = 0
  chosen: Count = 2
  router: Literal["softmax", "relu"] = "softmax"
  attention_every: Natural = 0
  self_decoder: Natural = 0

  @property
  def sizes(self) -> dict[str, Any]:
    """What a model's config says of this shape; ValueError for experts or layers that cannot be."""
    found = dataclasses.asdict(self)
    count, chosen, router = (found.pop(name) for name in ("experts", "chosen", "router"))
    every, first = found.pop("attention_every"), found.pop("self_decoder")
    if first and not every:
      checks.refuse("self_decoder", first, "0 without attention_every")
    if every:
      checks.whole("attention_every", every, 2, self.layers, note="0 where all layers attend")
      own = GatedDelta(self.kv_heads, self.heads, self.head_dim, self.head_dim)
      delta, full = Kind(recurrence=own), Kind()
      kinds = tuple(delta if i % every else full for i in range(1, self.layers + 1))
      found["kinds"] = decoder_hybrid_decoder(kinds, first) if first else kinds
      found |= {"qk_norm": True, "attention_gate": True}
    if count:
      chosen = count if router == "relu" else chosen
      found["experts"] = Experts(count, chosen, self.mlp_width, router)
    return found


_TABLES = ("embedding", "lm_head", "before", "bias")  # of tokens, which AdamW steps by usage


def _kinds(params: Any) -> Any:
  """Which weights Muon steps: matrices between states, not tables of tokens."""

  def kind(path: Any, x: Any) -> str:
    table = bool(path) and str(getattr(path[-1], "key", path[-1])) in _TABLES
    return "others" if x.ndim != 2 or table else "matrices"

  return jax.tree_util.tree_map_with_path(kind, params)


@tyro.conf.configure(tyro.conf.OmitArgPrefixes)  # typed --steps, not --training.steps
@dataclasses.dataclass(frozen=True)
class Training:
  """An optimiser with a linear warm-up, then a cosine down to a tenth of the rate; matrices decay.

  Attributes:
    steps: number of steps of the optimiser.
    batch: number of examples per step.
    rate: learning rate after the warm-up, the highest.
    warmup: number of steps in which the rate rises from 0.
    optimizer: adamw, or muon: its steps for matrices are orthogonal ones, and have the size of
      AdamW's, which all other weights take.
    decay: weight decay.
    clip: largest norm of the whole gradient; a longer one is shortened to it.
    parts: of a batch, one after another, whose gradients are averaged; each takes its own memory.
    save_every: number of steps between checkpoints.
    devices: number of devices that share a batch; 0 for as many as divide it.
    fsdp: whether each device holds a part of the trained weights and their moments, which are
      gathered where they are used (ZeRO), and not all of them.
    mesh: devices that share the rows of a batch and the weights of a frozen target, as
      data=2,model=4, in place of `devices`; for heads also the tokens of a row, as sequence=4.
    log_to: where the metrics go besides metrics.jsonl: tensorboard (events in tensorboard/ of the
      run), wandb or trackio, each by a package that is to be installed.
    profile: number of steps, from the third on, of which jax.profiler keeps a trace in profile/.
    seed: seed of the weights, the order of the data and all noise.
  """

  steps: Count = 1000
  batch: Count = 8
  rate: Amount = 1e-3
  warmup: Natural = 50
  optimizer: Literal["adamw", "muon"] = "adamw"
  decay: Amount = 0.0
  clip: Amount = 1.0
  parts: Count = 1
  save_every: Count = 100
  devices: Natural = 0
  fsdp: bool = False
  mesh: str | None = None
  log_to: Literal["tensorboard", "wandb", "trackio"] | None = None
  profile: Natural = 0
  seed: Seed = 0

  def shardings(self) -> tuple[NamedSharding, NamedSharding]:
    """(the sharding of a batch, whose rows are split over the devices; that of everything else).

    Where a mesh is set, its axis "data" splits the rows, and "sequence", if it has one, the tokens
    of arrays [B, T, ..].

    Raises:
      ValueError: there are too few devices, or the batch cannot be dealt to them.
    """
    if self.batch % self.parts:
      raise ValueError(f"`parts` must divide batch={self.batch}, got {self.parts}.")
    mesh, together = jax.sharding.get_mesh(), self.batch // self.parts
    if not mesh.empty:
      if together % mesh.shape["data"]:
        raise ValueError(
          f"`batch` must be a multiple of data={mesh.shape['data']} times parts={self.parts} with "
          f"mesh={self.mesh!r}, got {self.batch}."
        )
      axes = [axis for axis in ("data", ring.AXIS) if axis in mesh.axis_names]
      return NamedSharding(mesh, PartitionSpec(*axes)), NamedSharding(mesh, PartitionSpec())
    there = len(jax.devices())
    count = self.devices or max(n for n in range(1, there + 1) if together % n == 0)
    if count > there or together % count:
      raise ValueError(
        f"`devices` must be at most {there} and divide batch={self.batch}, got {self.devices}."
      )
    if jax.process_count() > 1 and count < there:
      raise ValueError(
        f"`batch` must be shared evenly by all {there} devices in several processes, got "
        f"batch={self.batch} and devices={self.devices}."
      )
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((count,), ("data",), auto, devices=jax.devices()[:count])
    return NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())

  def groups(self) -> int:
    """The number of devices, or groups of devices, that share the rows of a batch."""
    return self.shardings()[0].mesh.shape["data"]

  def place_of(self, x: Any) -> NamedSharding:
    """Where a weight or a moment lies: on every device, or with `fsdp` a part of it on each.

    It is cut along the first axis that the devices divide, if there is one.
    """
    _, copied = self.shardings()
    mesh = copied.mesh
    cut = next((i for i, n in enumerate(x.shape) if n % mesh.size == 0 and self.fsdp), None)
    if cut is None:
      return copied
    return NamedSharding(mesh, PartitionSpec(*[None] * cut, mesh.axis_names))

  def transformation(self) -> optax.GradientTransformation:
    """The optimiser, whose rate is a function of the step."""
    schedule = optax.warmup_cosine_decay_schedule(
      0.0, self.rate, self.warmup, max(self.steps, self.warmup + 1), self.rate / 10
    )

    def decays(params):
      return jax.tree.map(lambda p: p.ndim > 1, params)

    stepped = optax.adamw(schedule, b1=0.9, b2=0.95, weight_decay=self.decay, mask=decays)
    if self.optimizer == "muon":
      # Its steps are as long as AdamW's usually are.
      matrices = optax.contrib.muon(schedule, weight_decay=self.decay, consistent_rms=0.2)
      stepped = optax.partition({"matrices": matrices, "others": stepped}, _kinds)
    chain = optax.chain(optax.clip_by_global_norm(self.clip), stepped)

    def update(grads, state, params=None):
      with jax.numpy_dtype_promotion("standard"):  # optax mixes float and int scalars
        return chain.update(grads, state, params)

    return optax.GradientTransformation(chain.init, update)
