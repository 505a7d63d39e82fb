"""A language model with its tokenizer, by name."""

import contextlib
import ctypes
import dataclasses
import functools
import gc
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike

from specjax import checks, fingerprint, switches
from specjax.base import Drafter, Params, Target
from specjax.checkpoints import families, gguf, hf, hub, quantised, templates
from specjax.checkpoints.hf import Checkpoint
from specjax.checkpoints.trained_for import Identity
from specjax.data import vocabulary
from specjax.data.chat import ChatTemplate, Turns, with_known_roles
from specjax.data.tokenizer import Tokenizer
from specjax.diffusion.any_subset import AnyOrder
from specjax.diffusion.base import Denoiser
from specjax.kernels import skinny
from specjax.kernels.platform import platform
from specjax.models import sharding
from specjax.models.adaptive import adaptive
from specjax.models.any_order import any_order
from specjax.models.config import Config
from specjax.models.denoiser import denoiser
from specjax.models.fitted import fitted
from specjax.models.groups import has_groups, with_rounding
from specjax.models.panels import laid_out
from specjax.models.skipping import Skipping
from specjax.models.weights import ACTIVATIONS, WEIGHTS, count_parameters
from specjax.names.build.skipping import skipping as named_skipping

LARGE = 2**25  # parameters
WIDTHS = (1, 4, 8, 16, 32)
ZOO = pathlib.Path(__file__).parents[1] / "zoo"
DEFAULT_MODEL = "gsm8k-7m"
DEFAULT_DENOISER = "lists-3m"

Prompt = str | Sequence[int]


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """A loaded language model.

  Attributes:
    name: as `load` took it.
    config: its network.
    params: its weights.
    tokenizer: None for a model that takes ids only.
    stop: ids that end a text.
    start: ids before every text prompt.
    template: chat template, or None.
    mask, shift: for a masked diffusion model, see `checkpoints.hf.Checkpoint`.
    dtype: that of the arithmetic.
    weights, activations: how matrices lie in memory, and what they multiply, see `load`.
    skipping: which layers leave tokens out, or None for none.
    fit: V of the model whose tokens this one is to say, or None for its own; see `models.fitted`.
  """

  name: str
  config: Config
  params: Params
  tokenizer: Tokenizer | None
  stop: tuple[int, ...]
  start: tuple[int, ...]
  template: ChatTemplate | None
  mask: int | None = None
  shift: bool = False
  dtype: DTypeLike = jnp.float32
  weights: str = "float"
  activations: str = "float"
  skipping: Skipping | None = None
  fit: int | None = None

  @property
  def label(self) -> str:
    """The name, with the dtype, the arithmetic and the skipping where these are not the default."""
    dtype = jnp.dtype(self.dtype).name
    return ", ".join(
      [
        self.name,
        *([dtype] if dtype != "float32" else []),
        *([f"{self.weights} weights"] if self.weights != "float" else []),
        *([f"{self.activations} activations"] if self.activations != "float" else []),
        *([f"LOSSY ({self.skipping.name})"] if self.skipping is not None else []),
      ]
    )

  @property
  def size(self) -> int:
    """Parameters."""
    return count_parameters(self.params)

  @functools.cached_property
  def target(self) -> Target:
    return self._network(whole=False)

  @functools.cached_property
  def drafting(self) -> Target:
    """`target` for drafts, whose cache is cut back: it keeps what windows have left behind."""
    return self._network(whole=True)

  def _network(self, whole: bool) -> Target:
    if self.skipping is not None:
      own: Target = adaptive(self.config, self.skipping)
    else:
      own = families.target(self.config, whole=whole)
    return own if self.fit is None else fitted(own, self.fit)

  @functools.cached_property
  def identity(self) -> Identity:
    """What tells this model from others, for the parts that are trained for it."""
    tokens = None if self.tokenizer is None else vocabulary.digest(self.tokenizer)
    c = self.config
    return Identity(self.name, c.vocab_size, c.width, c.layers, tokens)

  def ingredients(self, name: str = "model") -> dict[str, Any]:
    """What tells work that was kept with this model from that of others, see `fingerprint`.

    These are its weights, its whole config, its tokenizer and its template. The dtype of the
    arithmetic is none of them: what a model says hardly depends on it.
    """
    text = None if self.tokenizer is None else self.tokenizer.inner.to_str()
    found = {f"config.{k}": v for k, v in dataclasses.asdict(self.config).items()} | {
      "weights": fingerprint.of_weights(self.params), "stored": self.weights
      if self.activations == "float" else [self.weights, self.activations],
      "tokenizer": None if text is None else fingerprint.digest([text]),
      "template": None if self.template is None else fingerprint.digest([repr(self.template)]),
      "stop": sorted(self.stop), "start": list(self.start), "mask": self.mask, "shift": self.shift,
      "skipping": None if self.skipping is None else self.skipping.name,
    }  # fmt: skip
    return {f"{name}.{key}": value for key, value in found.items()}

  def narrow_passes(self, drafter: Drafter) -> tuple[int, ...]:
    """The widths below N that pay.

    That is on a CPU, where the time of a pass grows with its nodes, and for a model whose passes
    take so long that a round's other work does not count. See `specjax.bucketing`.
    """
    if not drafter.varies or platform() != "cpu" or self.size < LARGE:
      return ()
    return tuple(w for w in WIDTHS if w < drafter.nodes)

  @property
  def denoiser(self) -> Denoiser:
    """ValueError where the model is no masked diffusion model."""
    c = self.config
    if c.causal or (self.mask is None and c.canvas is None and not c.uniform):
      raise ValueError(
        "`model` must be a masked diffusion model, with is_causal false and a mask_token_id in "
        f"config.json, got {self.name!r}."
      )
    if self.config.any_order:
      raise ValueError(
        f"`policy` must be assd for model={self.name!r}, which knows any slots given any others."
      )
    return denoiser(self.config, self.mask, self.shift)

  @property
  def any_order(self) -> AnyOrder:
    """ValueError where the model is none of any slots given any others."""
    if not self.config.any_order or self.mask is None:
      raise ValueError(
        "`model` must know any slots given any others, as `python -m specjax.train.denoiser "
        f"--any-order` makes it, got {self.name!r}."
      )
    return any_order(self.config, self.mask)

  def on(self, mesh: Mesh) -> "Model":
    """This model with its weights spread over a mesh, for use under `jax.set_mesh(mesh)`.

    A model that is too large for one device is loaded under `jax.default_device(...)` of a CPU.

    Args:
      mesh: axes "data", for rows of a batch, and "model", for heads and columns, both Auto.
    """
    return dataclasses.replace(self, params=sharding.place(self.params, mesh))

  def spread(self) -> "Model":
    """This model on the mesh that is set; itself where none is."""
    mesh = jax.sharding.get_mesh()
    return self if mesh.empty else self.on(mesh)

  def encode(self, prompt: Prompt) -> list[int]:
    """The ids of a prompt; ids that are given are only checked.

    Raises:
      ValueError: an empty prompt, an id outside the vocabulary, or text without a tokenizer.
    """
    if isinstance(prompt, str):
      if self.tokenizer is None:
        raise ValueError(
          f"prompt={checks.shown(prompt)}: {self.name} has no tokenizer; pass token ids."
        )
      ids = [*self.start, *self.tokenizer.encode(prompt)] if prompt else []
    else:
      ids = list(checks.sequence("prompt", prompt, "text or a list of token ids"))
    if not ids:
      raise ValueError("prompt is empty: it must have at least one token.")
    return checks.ids("prompt", ids, self.config.vocab_size)

  def chat(self, question: str | Turns, /, **values: Any) -> list[int]:
    """The ids of a question in the model's chat template, ready for `generate`.

    `question` is a text or a conversation: turns of `role` and `content`, the question the last.
    A developer's turn is the system's where the template has no developer. `values` are for
    variables of the template, such as tools=[..] or enable_thinking=False. ValueError is raised
    where the model has no tokenizer or no chat template, where the template refuses the turns or
    one of their roles, or would leave a turn out, and for variables that it does not read.
    """
    if self.tokenizer is None:
      raise ValueError(f"{self.name} has no chat template and no tokenizer; pass token ids.")
    if self.template is None:
      raise ValueError(
        f"{self.name} has no chat template: name one with `template` (--template), or pass a "
        "plain prompt."
      )
    turns = [{"role": "user", "content": question}] if isinstance(question, str) else question
    turns = with_known_roles(turns, self.template.roles)
    for name in values.keys() - self.template.variables:
      read = ", ".join(sorted(self.template.variables)) or "no variable"
      checks.refuse(name, values[name], f"left out: the chat template of {self.name} reads {read}")
    return self.template.prompt(self.tokenizer, turns, values)

  def decode(self, ids: Sequence[int], after: Sequence[int] = ()) -> str:
    """The text of ids, "" without a tokenizer.

    Args:
      after: the ids before them, such as a prompt's, whose text goes on: many tokenizers write the
        space before a word only where the word is not the first.
    """
    ids = checks.ids("ids", ids, self.config.vocab_size)
    return self.tokenizer.decode(ids, after) if self.tokenizer else ""


def resolve(name: str, revision: str | None = None) -> pathlib.Path:
  """The directory or GGUF file of a name: of the zoo, a path, in `hub.MODELS`, or of the hub.

  Args:
    name: a path that exists wins over the hub.
    revision: of a repository of the hub, see `hub.snapshot`.

  Raises:
    ValueError: nothing has this name, or it cannot be downloaded.
  """
  checks.text("name", name)
  if revision is not None and not hub.is_repository(checks.text("revision", revision) and name):
    checks.refuse(
      "revision", revision, f"left out for {name!r}, which is no model ORG/NAME of the hub"
    )
  for path in (ZOO / name, pathlib.Path(name)):
    if name and os.path.isfile(path / "config.json"):  # pathlib's raises for a name too long
      return path
  if name.endswith(".gguf") and os.path.isfile(name):
    return pathlib.Path(name)
  if name in hub.MODELS:
    return hub.fetch(name)
  if hub.is_repository(name):
    return hub.snapshot(name, revision)
  known = ", ".join(sorted(p.parent.name for p in ZOO.glob("*/config.json")) + list(hub.MODELS))
  raise ValueError(
    f"{checks.shown(name)} is no directory with a config.json, no GGUF file, and no known model "
    f"({known})."
  )


def has_few_bits(name: str) -> bool:
  """Whether "native" weights may be asked for of a name: of a GGUF file, or of a directory that
  says how its weights are quantised."""
  path = resolve(name)
  return path.suffix == ".gguf" or quantised.KEY in checks.read_json(path / "config.json")


def is_companion(model: Model, part: str) -> bool:
  """Whether something of this name ships for a model."""
  name = f"{pathlib.Path(model.name).name}-{part}"
  return any(os.path.isfile(path / "config.json") for path in (ZOO / name, pathlib.Path(name)))


def companion(model: Model, part: str, trainer: str, kind: str = "") -> str:
  """The name of what ships for a model as the weights of a part, by default of the part's name.

  Raises:
    ValueError: there is nothing; it says what trains it.
  """
  name = f"{pathlib.Path(model.name).name}-{kind or part}"
  if not is_companion(model, kind or part):
    raise ValueError(
      f"no {part} is known for {model.name} ({checks.shown(name)} is not in the zoo): train one "
      f"with `python -m specjax.{trainer}`, or give {part}[DIRECTORY]."
    )
  return name


def _template(model: Model, given: str) -> ChatTemplate:
  """The template that is named, with the model's own first and last token."""
  if model.tokenizer is None:
    raise ValueError(f"`template` needs a tokenizer, which {model.name} lacks, got {given!r}.")
  bos, eos = (
    model.tokenizer.inner.id_to_token(ids[0]) or "" if ids else ""
    for ids in (model.start, model.stop)
  )
  return templates.named(checks.text("template", given), bos, eos)


def _read(
  path: pathlib.Path, dtype: DTypeLike, weights: str | None, mesh: Mesh | None
) -> tuple[Checkpoint, str]:
  """A checkpoint, and how its matrices lie in memory; None is what is best here, see `load`."""
  if path.suffix != ".gguf":
    weights = weights or "float"
    return hf.load(path, dtype, weights, mesh), weights
  quick = mesh is None and jnp.dtype(dtype) == jnp.float32 and skinny.available()
  if weights is None and not quick:
    weights = "float"
  found = gguf.load(path, dtype, weights, mesh)
  return found, weights or ("native" if has_groups(found.params) else "float")


def _give_back() -> None:
  """Gives back what was freed while matrices were read and laid out; glibc keeps half a model."""
  gc.collect()
  with contextlib.suppress(AttributeError, OSError, TypeError):  # of other C libraries
    ctypes.CDLL(None).malloc_trim(0)


def _rounding(model: Model, mesh: Mesh | None = None) -> Model:
  """The model, loaded with few bits, as `load(..., activations="int8")` has it; it is used up."""
  if not (params := with_rounding(model.params)):
    checks.refuse("activations", "int8", f"float for {model.name}, whose file has no few bits")
  return dataclasses.replace(model, params=params if mesh else laid_out(params), activations="int8")


@switches.hold
def load_quick(name: str, dtype: DTypeLike, mesh: Mesh | None) -> Model:
  """A model for drafts alone: few bits of a GGUF file, with activations of 8 bits, where these are
  quick here, see `load`, and else floats. A line on stderr says so."""
  found, weights = _read(resolve(name), dtype, None, mesh)
  model = Model(name, **found._asdict(), dtype=dtype, weights=weights)
  del found
  if weights == "native":
    model = _rounding(model, mesh)
    _give_back()
    said = "drafts in the few bits of its file, with activations of 8 bits: this is quicker here"
    print(f"{name}: {said}, and no exact text changes.", file=sys.stderr)
  return model


@switches.hold
def load(
  name: str = DEFAULT_MODEL,
  dtype: DTypeLike = jnp.float32,
  *,
  revision: str | None = None,
  weights: str | None = None,
  activations: str = "float",
  mesh: Mesh | None = None,
  skipping: str | None = None,
  template: str | None = None,
) -> Model:
  """Loads a model by name, from a Hugging Face directory or from a GGUF file.

  Args:
    name: for example "gsm8k-7m" of the zoo, "smollm2-135m" or "ORG/NAME" of the hub, which are
      downloaded once, "path/to/llama" or "model.gguf"; `specjax convert` makes a directory of other
      formats.
    dtype: that of the arithmetic, and of weights that `weights` leaves as they are.
    revision: branch, tag or commit of a repository of the hub.
    weights: "float"; "bfloat16" for matrices in 16 bits, which are multiplied in them and summed
      in float32; "int8" for 8 bits with a scale for each output; or "int4" for 4 bits with a scale
      and an offset for 32 inputs. These change the model's distribution; speculation follows that
      of the model as it is loaded. "native" keeps the few bits that a GGUF file or a directory
      has, and their values, see `checkpoints.few_bits`. None is "float", but "native" for a GGUF
      file of few bits where products of them are quick: in float32, on one CPU with a C++ compiler.
      A line on stderr says so.
    activations: "int8" rounds what matrices of "int4" or "native" multiply to 8 bits, each 32
      numbers of a row by their largest, whose products are quicker. It changes the model's
      distribution, as `weights` may.
    mesh: spreads the weights while they are read, as `Model.on` does afterwards, so that no process
      holds more than its own; for use under `jax.set_mesh(mesh)`.
    skipping: which layers leave tokens out, such as "skip_decode-6,span=128". It is LOSSY:
      this changes the model's distribution; speculation follows that of the model as it is loaded.
    template: chat template in place of the model's own: a name such as "chatml", or a Jinja file.

  Raises:
    ValueError: no such model, a checkpoint with missing, extra or misshapen tensors, or a skipping
      or a template that is not accepted.
  """
  try:
    floating = jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
  except TypeError:
    floating = False
  if dtype is None or not floating:
    checks.refuse("dtype", dtype, "a floating dtype such as jnp.bfloat16")
  if weights is not None:
    checks.choice("weights", weights, WEIGHTS)
  checks.choice("activations", activations, ACTIVATIONS)
  path, asked = resolve(name, revision), weights
  few = weights or ("native" if path.suffix == ".gguf" else "float")
  if activations == "int8":
    if few not in ("int4", "native"):
      checks.refuse("activations", activations, "float, or int8 with weights int4 or native")
    weights = few
  found, weights = _read(path, dtype, weights, mesh)
  if asked is None and weights == "native":
    print(
      f"{name}: matrices keep the few bits of their file, which is quicker here (weights native; "
      "weights float widens them).",
      file=sys.stderr,
    )
  model = Model(name, **found._asdict(), dtype=dtype, weights=weights)
  del found
  if activations == "int8":
    model = _rounding(model, mesh)
  if weights == "native":
    _give_back()
  if template is not None:
    model = dataclasses.replace(model, template=_template(model, template))
  if skipping is None:
    return model
  chosen, params = named_skipping(skipping, model.config, model.params, model.identity)
  adaptive(model.config, chosen)  # which refuses some models
  return dataclasses.replace(model, params=params, skipping=chosen)
