"""The sizes and features of a network of the Llama family."""

import dataclasses
import math
from typing import Any, Literal

from specjax import checks

EVEN = "even, for rotary embedding turns pairs"


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """Stretching of rotary frequencies, by `factor`, for contexts longer than `original_length`.

  Attributes:
    kind: "linear" divides every frequency by `factor`; "llama3" (Llama 3.1 release code) and "yarn"
      (Peng et al. 2023, arXiv 2309.00071, section 3) divide the low frequencies only, blending
      between the two limits, by turns or by the number of the pair. "none" turns nothing, it has
      `growth` alone. "proportional" turns the first `share` of the pairs only (Gemma 4). "longrope"
      (Ding et al. 2024, arXiv 2402.13753) divides each pair's frequency by its own number of
      `long`, or of `short` where the network's `max_length` is at most `original_length`.
    low, high: the limits, in full turns over `original_length` tokens.
    attention: of "yarn" and "longrope", what the cosines and sines of queries and keys are
      multiplied with.
    whole_pairs: of "yarn", whether the limits lie at pairs or between them (GPT-OSS).
    growth: b of 1 + b log(1 + floor((p + ahead) / original_length)), which multiplies the query at
      position p (Ministral 3, Llama 4).
    ahead: 1 where positions count from 1 (Llama 4).
  """

  kind: Literal["linear", "llama3", "yarn", "proportional", "longrope", "none"]
  factor: float
  low: float = 1.0
  high: float = 4.0
  original_length: int = 8192
  attention: float = 1.0
  whole_pairs: bool = True
  growth: float = 0.0
  ahead: int = 0
  share: float = 1.0
  short: tuple[float, ...] = ()
  long: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Experts:
  """The sparse MLPs of a network, see `models.experts`.

  Attributes:
    count, chosen, width: X, k and F: the experts of a layer, those of a token, and their width.
    router: how a token's experts are chosen. "relu" takes all with a positive logit, so that
      `chosen` is X, and its experts have no gate. "input" takes the largest, and multiplies what an
      expert reads, not what it says, by the logit's sigmoid (Llama 4).
    normalised: whether the weights of a token's experts sum to 1, before `scale`.
    scale: what these weights are multiplied with.
    groups, chosen_groups: of "sigmoid" and "softmax", equal groups of experts, and how many of them
      are open to a token.
    shared_width: width of the expert that every token passes, 0 for none.
    beside: whether a dense MLP is beside the experts of a layer, each with norms of its own, and
      the router reads the stream scaled by weights (Gemma 4).
    activation: of the gates of experts.
    shared_gate: whether that expert's output is weighed, by a sigmoid (Qwen2-MoE).
    biases: whether the router and the experts have biases (GPT-OSS).
    limit, slope: of the gates of GPT-OSS, see `experts.clamped`; None for SwiGLU.
    dense_layers: how many of the first layers have a dense MLP in place of experts.
    sparse_layers: the layers that have experts, where later ones than the first have none, too.
  """

  count: int
  chosen: int
  width: int
  router: Literal["softmax", "sigmoid", "relu", "input"] = "softmax"
  normalised: bool = True
  scale: float = 1.0
  groups: int = 1
  chosen_groups: int = 1
  shared_width: int = 0
  dense_layers: int = 0
  sparse_layers: tuple[int, ...] = ()
  shared_gate: bool = False
  beside: bool = False
  activation: Literal["silu", "gelu"] = "silu"
  biases: bool = False
  limit: float | None = None
  slope: float = 1.702

  def __post_init__(self):
    checks.choice("router", self.router, ("softmax", "sigmoid", "relu", "input"))
    for name in ("count", "width", "groups"):
      checks.whole(name, getattr(self, name), 1)
    least = self.count if self.router == "relu" else 1
    checks.whole("chosen", self.chosen, least, self.count, note=f"of {self.count} experts")
    checks.whole("shared_width", self.shared_width, note="0 for no shared expert")
    checks.whole("dense_layers", self.dense_layers)
    checks.number("scale", self.scale, above=0)
    in_groups = self.router in ("sigmoid", "softmax") and self.count % self.groups == 0
    if self.groups > 1 and not in_groups:
      accepted = f"1, or a divisor of count={self.count} with router='sigmoid' or 'softmax'"
      checks.refuse("groups", self.groups, accepted)
    checks.whole("chosen_groups", self.chosen_groups, 1, self.groups)
    if self.chosen > self.count // self.groups * self.chosen_groups:
      several = f"chosen_groups={self.chosen_groups} of {self.groups} groups"
      checks.refuse("chosen", self.chosen, f"at most the experts in {several}")

  def is_in(self, layer: int) -> bool:
    """Whether the layer of this number has experts."""
    return layer in self.sparse_layers if self.sparse_layers else layer >= self.dense_layers

  @property
  def gated(self) -> bool:
    """Whether an expert multiplies two products of its input, as a Llama's MLP does."""
    return self.router != "relu"


@dataclasses.dataclass(frozen=True)
class Latent:
  """Latent attention (MLA), see `models.latent`; a head's q and k have C = plain + rotary numbers.

  Attributes:
    rank: width of the latent that keys and values of all heads are made of.
    q_rank: that of the queries' own, 0 where they are made of the layer's input.
    plain, rotary: how many of a head's numbers, its first, do not turn, and how many do.
    value: how many numbers a head's value has.
  """

  rank: int
  q_rank: int
  plain: int
  rotary: int
  value: int

  def __post_init__(self):
    for name in ("rank", "plain", "rotary", "value"):
      checks.whole(name, getattr(self, name), 1)
    checks.whole("q_rank", self.q_rank, note="0 for none")


@dataclasses.dataclass(frozen=True)
class Streams:
  """Several streams, of which one passes a layer (AltUp), see `models.altup`.

  Attributes:
    count: A of them.
    rank: of the product beside attention (LAuReL).
  """

  count: int
  rank: int

  def __post_init__(self):
    checks.whole("count", self.count, 2)
    checks.whole("rank", self.rank, 1)


@dataclasses.dataclass(frozen=True)
class GatedDelta:
  """The sizes of a recurrent layer that is a Gated DeltaNet, see `models.delta_net`.

  Attributes:
    key_heads, value_heads: K and H, a multiple of it.
    key_dim, value_dim: C and F, the widths of a key and a value.
    kernel: how many tokens its convolution sees.
  """

  key_heads: int
  value_heads: int
  key_dim: int
  value_dim: int
  kernel: int = 4

  def __post_init__(self):
    for name in ("key_heads", "value_heads", "key_dim", "value_dim"):
      checks.whole(name, getattr(self, name), 1)
    checks.whole("kernel", self.kernel, 2)
    if self.value_heads % self.key_heads:
      checks.refuse("value_heads", self.value_heads, f"a multiple of key_heads={self.key_heads}")

  @property
  def width(self) -> int:
    """What a node reads is so wide, of all heads together."""
    return self.value_heads * self.value_dim


@dataclasses.dataclass(frozen=True)
class Mamba:
  """The sizes of a recurrent layer of Mamba-2, see `models.mamba`.

  Attributes:
    heads, head_dim: H, and F, the width of a head.
    state: C, how many numbers a head's memory has for each of the F (the paper's N).
    groups: K of heads, each with B and C, and a norm, of its own.
    kernel: how many tokens its convolution sees.
    step: the least and the largest step of time.
  """

  heads: int
  head_dim: int
  state: int
  groups: int = 1
  kernel: int = 4
  step: tuple[float, float] = (0.0, math.inf)

  def __post_init__(self):
    for name in ("heads", "head_dim", "state", "groups"):
      checks.whole(name, getattr(self, name), 1)
    checks.whole("kernel", self.kernel, 2)
    if self.heads % self.groups:
      checks.refuse("heads", self.heads, f"a multiple of groups={self.groups}")
    if not 0 <= self.step[0] < self.step[1]:
      checks.refuse("step", self.step, "two numbers, of which the first is at least 0 and smaller")

  @property
  def width(self) -> int:
    """What a node reads is so wide, of all heads together."""
    return self.heads * self.head_dim


@dataclasses.dataclass(frozen=True)
class GatedMemory:
  """The size of a layer that gates what an earlier recurrent one read, see `models.gated_memory`.

  Attributes:
    width: M, of all heads of that layer together.
  """

  width: int

  def __post_init__(self):
    checks.whole("width", self.width, 1)


@dataclasses.dataclass(frozen=True)
class Kind:
  """What layers of one network may have each of its own; the fields are those of `Config`.

  `head_dim`, `kv_heads` and `mlp_width` are 0 where they are the network's.
  """

  window: int | None = None
  rope_theta: float = 10000.0
  rope_scaling: RopeScaling | None = None
  rotary_dim: int | None = None
  chunk: int | None = None
  head_dim: int = 0
  kv_heads: int = 0
  mlp_width: int = 0
  keys_as_values: bool = False
  source: int | None = None
  recurrence: GatedDelta | Mamba | GatedMemory | None = None
  sparsity: float = 0.0

  @property
  def fields(self) -> dict[str, Any]:
    """Its fields, without sizes that are the network's."""
    sizes = ("head_dim", "kv_heads", "mlp_width")
    return {name: x for name, x in vars(self).items() if x or name not in sizes}


@dataclasses.dataclass(frozen=True)
class Config:
  """One transformer for the families of `checkpoints.families`; the defaults are Llama's.

  Attributes:
    vocab_size, width, layers, heads, kv_heads, head_dim, mlp_width: V, E, L, H, K, C and the width
      of the MLP.
    max_length: positions that the model was trained for.
    tied: whether the LM head is the embedding.
    qkv_bias: whether q, k and v have biases (Qwen2).
    qk_norm: whether RMSNorm is applied to each head's q and k (Qwen3).
    wide_qk_norm: whether that norm is over all heads of q, and of k, together (OLMo 2).
    unit_qk: whether each head's q and k, where they turn, have a root mean square of 1 (Llama 4).
    window: how many of the last positions a token sees (Mistral v0.1), or None for all.
    chunk: the length of the chunks of positions of which a token sees its own (Llama 4), or None.
    causal: False lets every position see every other (masked diffusion).
    block_length: where causal is False, the length of the blocks that it is causal over (block
      diffusion): a position sees its own block and those before it. None for no blocks.
    any_order: whether the weights are those of a model of any slots given any others, with two
      rows for every slot, see `models.any_order`.
    masks_last: where causal is False, whether attention is causal in an order that has the filled
      slots first and the masked ones behind them (WeDLM).
    uniform: where causal is False, whether noise is any token, so that no mask shows an empty slot.
    canvas: where causal is False, the length of the canvases of a decoder that reads what a causal
      encoder of the same weights wrote, and what its own last pass said (DiffusionGemma); or None.
    rotary_dim: how many of a head's C numbers, its first, are rotated (LLaDA2); None for all, 0 for
      none (SmolLM3).
    experts: the sparse MLPs, or None where every layer has a dense one.
    kinds: one for each layer where layers differ, in place of the fields that it has; () where all
      are alike.
    recurrence: of a layer that is recurrent, in attention's place; never of all (Qwen3-Next,
      Granite 4). Or of one that gates what the recurrent layer `source` read (SambaY).
    attention_gate: whether attention's output is weighed by a sigmoid of its input (Qwen3-Next).
    norms: where attention and MLP have a norm: before them, on what they add (OLMo 2), "both"
      (Gemma 2 and later), or a "shared" one before both, which are then beside each other (Cohere).
    centred: whether norms, but those of q and k, subtract the mean first: LayerNorm (Cohere).
    sinks: whether each head has a score that takes part in the softmax and has no value (GPT-OSS).
    neighbours: whether the pairs that turn are neighbouring numbers of a head, not one of each half
      (GLM-4, Cohere).
    activation: of the gates of dense MLPs; "gelu" is its approximation by tanh (Gemma).
    out_bias: whether attention's output has a bias (Seed-OSS).
    unit_v: whether each head's v has a root mean square of 1 (Gemma 4).
    keys_as_values: whether v is k, before its norm and rotary embedding (Gemma 4).
    source: the earlier layer whose k and v attention reads in place of its own (Gemma 4), or None.
    layer_scale: whether a number multiplies the stream behind the layer (Gemma 4).
    layer_embedding: P: width of the embedding that a token has in each layer, of which a gated MLP
      behind the layer makes what it adds (Gemma 4); 0 for none.
    layer_vocab: how many tokens, the first, have such an embedding of their own; the others have
      that of token 0 (Gemma 3n). None for all.
    streams: where there are several of them (Gemma 3n), or None.
    sparsity: the share of a dense MLP's gates that are to be 0, see `altup.largest` (Gemma 3n).
    latent: of latent attention, whose cache has one key head (DeepSeek-V3); None for the usual one.
    attention_scale: what scores are multiplied with, None for C ** -0.5.
    attention_cap, logit_cap: c of c tanh(x / c) over scores and logits (Gemma 2), None for none.
    embedding_scale, residual_scale, logit_scale: what embeddings, what a sublayer adds, and logits
      are multiplied with (Granite).
  """

  vocab_size: int
  width: int
  layers: int
  heads: int
  kv_heads: int
  head_dim: int
  mlp_width: int
  max_length: int = 2048
  rope_theta: float = 10000.0
  rope_scaling: RopeScaling | None = None
  norm_epsilon: float = 1e-5
  tied: bool = True
  qkv_bias: bool = False
  qk_norm: bool = False
  window: int | None = None
  causal: bool = True
  block_length: int | None = None
  any_order: bool = False
  uniform: bool = False
  rotary_dim: int | None = None
  experts: Experts | None = None
  wide_qk_norm: bool = False
  kinds: tuple[Kind, ...] = ()
  norms: Literal["before", "after", "both", "shared"] = "before"
  centred: bool = False
  neighbours: bool = False
  sinks: bool = False
  activation: Literal["silu", "gelu"] = "silu"
  out_bias: bool = False
  unit_qk: bool = False
  chunk: int | None = None
  unit_v: bool = False
  keys_as_values: bool = False
  source: int | None = None
  layer_scale: bool = False
  layer_embedding: int = 0
  latent: Latent | None = None
  attention_scale: float | None = None
  attention_cap: float | None = None
  logit_cap: float | None = None
  embedding_scale: float = 1.0
  residual_scale: float = 1.0
  logit_scale: float = 1.0
  recurrence: GatedDelta | Mamba | GatedMemory | None = None
  attention_gate: bool = False
  canvas: int | None = None
  layer_vocab: int | None = None
  streams: Streams | None = None
  sparsity: float = 0.0
  masks_last: bool = False

  def __post_init__(self):
    checks.choice("norms", self.norms, ("before", "after", "both", "shared"))
    checks.choice("activation", self.activation, ("silu", "gelu"))
    for field in dataclasses.fields(self):
      if field.type is int:
        checks.whole(field.name, getattr(self, field.name), int(field.name != "layer_embedding"))
    if self.heads % self.kv_heads:
      checks.refuse("heads", self.heads, f"a multiple of kv_heads={self.kv_heads}")
    if self.head_dim % 2:
      checks.refuse("head_dim", self.head_dim, EVEN)
    if self.block_length is not None:
      checks.whole("block_length", self.block_length, 1, note="positions")
      if self.causal:
        checks.refuse("block_length", self.block_length, "None with causal=True")
    if self.canvas is not None:
      checks.whole("canvas", self.canvas, 1, note="slots")
      if self.causal or not self.layer_scale:
        checks.refuse("canvas", self.canvas, "None with causal=True or without layer_scale")
    checks.number("sparsity", self.sparsity, 0, below=1)
    if self.layer_vocab is not None:
      checks.whole("layer_vocab", self.layer_vocab, 1, self.vocab_size)
    if self.streams is not None and (self.norms != "both" or not self.layer_embedding):
      checks.refuse("streams", self.streams, "None without norms='both' and layer_embedding")
    if self.any_order and (self.causal or self.block_length is not None):
      checks.refuse("any_order", True, "False with causal=True, or with blocks")
    if self.uniform and self.causal:
      checks.refuse("uniform", True, "False with causal=True")
    if self.masks_last and (
      self.causal or self.block_length is not None or self.any_order or self.uniform
    ):
      checks.refuse(
        "masks_last", True, "False with causal=True, blocks, any_order or uniform noise"
      )
    rotary = self.rotary_dim
    if rotary and (checks.whole("rotary_dim", rotary, 2, self.head_dim) % 2):
      checks.refuse("rotary_dim", rotary, EVEN)
    if (latent := self.latent) is not None:
      own = {"kv_heads": 1, "head_dim": latent.plain + latent.rotary, "rotary_dim": latent.rotary}
      for name, value in own.items():
        if getattr(self, name) != value:
          checks.refuse(name, getattr(self, name), f"{value} with latent attention")
    if self.kinds and len(self.kinds) != self.layers:
      raise ValueError(f"`kinds` must be of {self.layers} layers, got {len(self.kinds)}.")
    if self.recurrent and (self.windows or not self.causal):
      raise ValueError("`kinds` must have no recurrent layer with a window, or causal=False.")
    if self.recurrent and all(kind.recurrence for kind in self.kinds):
      raise ValueError("`kinds` must have a layer of attention beside the recurrent ones.")
    for number, kind in enumerate(self.kinds):
      if isinstance(kind.recurrence, GatedMemory):
        self._check_memory(number, kind.recurrence.width, kind.source)
    if self.experts is not None:
      checks.whole("dense_layers", self.experts.dense_layers, most=self.layers - 1)
      for number in self.experts.sparse_layers:
        checks.whole("sparse_layers", number, most=self.layers - 1)

  def _check_memory(self, number: int, width: int, source: int | None) -> None:
    """Raises ValueError for a layer of `GatedMemory` whose source is no recurrent one of its width
    before it."""
    kind = None if source is None else dict(enumerate(self.kinds[:number])).get(source)
    read = None if kind is None else kind.recurrence
    if not isinstance(read, GatedDelta | Mamba) or read.width != width:
      checks.refuse(f"kinds[{number}].source", source, f"a recurrent layer before it, {width} wide")

  def of_layer(self, number: int) -> "Config":
    """That of a layer: it has the layer's kind, and a layer with a dense MLP has no experts."""
    own: dict[str, Any] = {**self.kinds[number].fields, "kinds": ()} if self.kinds else {}
    if self.experts is not None and not self.experts.is_in(number):
      own["experts"] = None
    return dataclasses.replace(self, **own) if own else self

  @property
  def unlike_llama(self) -> dict[str, Any]:
    """The fields, with their values, that no Llama, Mistral or Qwen has."""
    return {
      field.name: getattr(self, field.name)
      for field in dataclasses.fields(self)
      if field.name in _NEWER and getattr(self, field.name) != field.default
    }

  @property
  def recurrent(self) -> bool:
    """Whether some of its layers are."""
    return any(kind.recurrence for kind in self.kinds)

  @property
  def last_attention(self) -> int:
    """The number of the last layer that attends."""
    return max(i for i in range(self.layers) if self.of_layer(i).recurrence is None)

  @property
  def windows(self) -> tuple[int, ...]:
    """The sliding windows of its layers, or their chunks, each once; () where every layer sees
    everything."""
    layers = self.kinds or (self,)
    found = {kind.window for kind in layers} | {kind.chunk for kind in layers}
    return tuple(sorted(length for length in found if length is not None))

  @property
  def apart(self) -> bool:
    """Whether each sublayer can run alone over any kind of cache: none has a window or latents,
    shares a norm, or has something behind it."""
    behind = self.layer_scale or self.layer_embedding
    return not (self.windows or self.latent or self.norms == "shared" or behind)


_NEWER = (
  "wide_qk_norm", "kinds", "norms", "centred", "neighbours", "sinks", "activation", "out_bias",
  "unit_qk", "chunk", "unit_v", "keys_as_values", "source", "layer_scale", "layer_embedding",
  "latent", "attention_scale", "attention_cap", "logit_cap",
  "embedding_scale", "residual_scale", "logit_scale", "attention_gate",
  "canvas", "layer_vocab", "streams", "sparsity",
)  # fmt: skip
