"""Methods of masked diffusion from names: a policy, and what decorates it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import checks
from specjax.base import Params
from specjax.checkpoints import parts as trained
from specjax.checkpoints.files import read_config
from specjax.checkpoints.trained_for import checked
from specjax.diffusion import any_subset, denoise, draft_verify
from specjax.diffusion.base import Blocks, CanvasCache, Denoiser, Draws, Policy, Stopping, Transform
from specjax.diffusion.blocks import BLOCKS, check_blocks
from specjax.diffusion.caches import CACHES
from specjax.diffusion.caches.encoded import encoded
from specjax.diffusion.draws import DRAWS, tempered
from specjax.diffusion.guidance import Guided, guided
from specjax.diffusion.loops import AnySubset, Denoise, DraftVerify, Loop
from specjax.diffusion.policies import ADDED, GUIDED, POLICIES, Filter, Guide
from specjax.diffusion.reweight import (
  Energy,
  Reweighted,
  autoregressive,
  check_beside,
  reweighted,
)
from specjax.diffusion.stopping import STOPPING
from specjax.diffusion.transforms import TRANSFORMS
from specjax.models import energy
from specjax.models.denoiser import smoothed
from specjax.names import grammar
from specjax.names.build.drafters import load_small, sharing
from specjax.names.build.tokens import EachRow, tokens_of
from specjax.names.grammar import Part
from specjax.names.load import Model, companion, load, resolve


def student(model: Model, part: Part) -> tuple[str, Model]:
  """A distilled student decodes in place of the model, by default the zoo's.

  dParallel (Chen et al. 2025, arXiv 2509.26488). What it writes is its own decoding.

  Measured: 2.6 passes, 93.3 % right (denoising_lists)
  Train: python -m specjax.train.distill

  Returns:
    (the canonical name, the student, which ends texts where the model does, too).

  Raises:
    ValueError: no such student, or one of another vocabulary.
  """
  name, _ = grammar.bind("policy", part, {})
  network = load(part.text or companion(model, part.name, "train.distill"))
  network = sharing(model, network, f"student[{network.name}]")
  stop = tuple(dict.fromkeys((*network.stop, *model.stop)))
  return name, dataclasses.replace(network, stop=stop)


# What may follow the name of a policy with a slash, by kind.
DECORATIONS: dict[str, Mapping[str, Callable]] = {
  "blocks": BLOCKS, "cache": CACHES, "stopping": STOPPING, "transform": TRANSFORMS,
  "draws": DRAWS, "confidence": {"tempered": tempered},
  "guidance": {"guidance": Guided}, "reweighting": {"reweighted": reweighted},
  "smoothing": {"smoothed": smoothed},
  "guesses": {"guesses": draft_verify.advance}, "student": {"student": student},
}  # fmt: skip
ANY_SUBSET: dict[str, Callable] = {"assd": any_subset.advance}  # loops in place of a policy
OBJECTS = {
  "blocks": Blocks, "cache": CanvasCache, "stopping": Stopping, "transform": Transform,
  "draws": Draws,
}  # fmt: skip
# That of the cache depends on the model.
DEFAULTS = {"blocks": "fixed", "stopping": "after_end", "draws": "kept"}


class Denoising(NamedTuple):
  """A method of masked diffusion.

  Attributes:
    name: canonical.
    model: whose denoiser decodes; a student may have replaced it.
    weights: B -> those of the method's parts for so many rows; those of the denoiser are the
      network's own.
    wrap: (given bool[B, L], key[B]) -> the denoiser's weights for a request whose slots `given`
      hold tokens.
    temperatures: those at which it decodes, None for all.
  """

  name: str
  model: Model
  loop: Loop
  weights: Callable[[int], denoise.Weights]
  wrap: Callable[[Array, Array], Params]
  temperatures: tuple[float, ...] | None = None


def parameters(builder: Callable) -> dict[str, grammar.Number | None]:
  """Of a part: the arguments of its builder, then parameters that are traced for each row."""
  found = grammar.parameters(builder)
  if builder in GUIDED.values():
    return found | grammar.parameters(Guide)
  mine = str(getattr(builder, "__module__", "")).endswith(".py")  # a policy of the user's own
  if mine or builder in (*POLICIES.values(), *TRANSFORMS.values(), *BLOCKS.values()):
    return found | grammar.parameters(builder().parameters)
  if builder in ADDED.values():
    return found | grammar.parameters(builder(POLICIES["random"]()).parameters)
  return found


def _each(params: Params) -> Params:
  """Numbers as `EachRow`; arrays stay as they are."""

  def row(x: Any) -> Any:
    if isinstance(x, EachRow) or np.ndim(x):
      return x
    whole = jnp.issubdtype(jnp.result_type(x), jnp.integer)
    return EachRow(jnp.asarray(x, jnp.int32 if whole else jnp.float32))

  return jax.tree.map(row, params, is_leaf=lambda x: isinstance(x, EachRow))


def _rows(params: Params, batch: int) -> Params:
  """What `EachRow` stands for as arrays [B, ..], the same for all rows."""

  def rows(x: Any) -> Any:
    return jnp.repeat(x.value[None], batch, 0) if isinstance(x, EachRow) else x

  return jax.tree.map(rows, params, is_leaf=lambda x: isinstance(x, EachRow))


def _make(what: str, part: Part, builder: Callable, *fixed: Any, **traced: Any):
  """(canonical name, the part that `builder` makes from `fixed` and numbers, its params)."""
  name, numbers = grammar.bind(what, part, parameters(builder))
  grammar.check_ranges(f"{what}={name!r}", numbers, builder)
  static = [numbers.pop(k) for k in grammar.parameters(builder) if k in numbers]
  made = builder(*fixed, *static)  # by place: builders remember what they made by their arguments
  grammar.check_ranges(f"{what}={name!r}", numbers, getattr(made, "parameters", tuple))
  return name, made, _each(getattr(made, "parameters", tuple)(**traced | numbers))


def _open(what: str, given: Any, kind: type):
  """As `_make`, from an object or a pair of it and its params."""
  made, params = grammar.with_weights(what, given, kind)
  if params == () and hasattr(made, "parameters"):
    try:
      params = made.parameters()
    except TypeError:
      raise ValueError(
        f"`{what}` must be its name, or a pair of it and its weights, got {made.name!r}, of whose "
        "parameters some have no default."
      ) from None
  return made.name, made, _each(params)


def _filter(model: Model, part: Part) -> dict[str, Any]:
  """A learned filter, by default the zoo's for the model."""
  directory = resolve(part.text or companion(model, part.name, "train.filter", "filter"))
  with checked(str(directory), read_config(directory, "filter"), target=model.identity):
    return trained.load_filter(directory)._asdict()


# Parameters of policies that are trained.
TRAINED: dict[str, Callable[[Model, Part], dict[str, Any]]] = {"learned": _filter}


def _own(name: str) -> Any:
  """The policy FILE.py:NAME: a Policy, or a function whose numbers make one."""
  found = checks.own_part("policy", name)
  made = found() if callable(found) else found
  if not isinstance(made, Policy):
    checks.refuse("policy", made, "a Policy, or a function that returns one")
  return found


def _policy(model: Model, given: Any) -> tuple[str, Policy, Params]:
  """(canonical name, policy, params) of a policy with what is added to it."""
  if not isinstance(given, str):
    return _open("policy", given, Policy)
  first, *added = grammar.parse("policy", given)
  mine = {first.name: _own(first.name)} if checks.is_own_file(first.name) else {}
  builder = grammar.look_up("policy", first, POLICIES, GUIDED, mine)
  own = TRAINED.get(first.name, lambda *_: {})(model, first)
  fixed: tuple[Any, ...] = ()
  if first.name in GUIDED:
    if added:
      raise ValueError(
        f"`policy` must have no addition with + after {first.name}, which commits from left to "
        f"right what its model approves, got {given!r}."
      )
    guide = load_small(model, first, alike=True)
    fixed, own = (guide.target, model.mask), {"model": guide.params}
  if isinstance(builder, Policy):
    _, policy, params = _open("policy", builder, Policy)
    name = grammar.bind("policy", first, {})[0]
  else:
    name, policy, params = _make("policy", first, builder, *fixed, **own)
  for part in added:
    builder = grammar.look_up("policy", part, ADDED)
    if policy.rounds is not None and builder is not ADDED["settled"]:
      raise ValueError(
        f"`policy` must have no addition but settled after {policy.name}, which may replace "
        f"committed tokens, got {part.name!r}."
      )
    ends = tokens_of(model, part)
    label, policy, params = _make("policy", part, builder, policy, base=params, **ends)
    name = f"{name}+{label}"
  return name, policy, params


def _window(params: Params) -> int | None:
  """The window that a filter among the params was trained for."""
  leaves = jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, Filter))
  return next((x.into.shape[1] for x in leaves if isinstance(x, Filter)), None)


def _blocks(part: Any, model: Model, denoiser: Denoiser, policy: Policy, params: Params):
  """(canonical name, blocks, params) of what was asked for.

  By default a filter decides the window, or the blocks that the denoiser is causal over; a policy
  that has a use for it looks a block ahead.
  """
  if not isinstance(part, Part):
    return _open("blocks", part, Blocks)
  label, given = grammar.bind("blocks", part, parameters(BLOCKS[part.name]))
  window = _window(params)
  if "ahead" in (known := parameters(BLOCKS[part.name])):
    own_size = denoiser.block or denoiser.length or int(known["size"] or 0)
    size = given.get("size", window or own_size)
    looks_ahead = policy.ahead and denoiser.block is None and denoiser.encode is None
    own = {"size": size} | ({"ahead": size} if looks_ahead else {}) | given
    part = part._replace(numbers=(), labelled=tuple(own.items()))
  ids = tokens_of(model, part)
  _, blocks, sizes = _make("blocks", part, BLOCKS[part.name], **ids)
  if window not in (None, blocks.window):
    raise ValueError(f"`blocks` must be the filter's window, {window}, got {label!r}.")
  return label, blocks, sizes


def _any_subset(model: Model, parts: Sequence[Part], decorations: Mapping[str, Any]) -> Denoising:
  """The loop of a model of any slots given any others, which `whole` alone decorates."""
  part, *others = parts
  given = [k for k, x in decorations.items() if x is not None]
  whole = [one.name for one in part.decorations] == ["whole"]
  if others or (part.decorations and not whole) or given:
    raise ValueError(
      f"`policy` must be {', '.join(ANY_SUBSET)} alone, or with whole, without blocks, cache or "
      f"other decorations, since it is a loop of its own, got {grammar.show(parts)!r}."
    )
  known = parameters(ANY_SUBSET[part.name])
  name, numbers = grammar.bind("policy", part, known)
  guesses = checks.whole("guesses", (known | numbers)["guesses"], 1, 4096)
  loop = AnySubset(model.any_order, guesses)
  stop = () if whole else model.stop
  weights = denoise.Weights(model.params, stopping=jnp.asarray([*stop, -1], jnp.int32))
  name = f"{name}/whole" if whole else name
  return Denoising(name, model, loop, lambda B: weights, lambda _, key: model.params)


def build_denoising(model: Model, given: Any, **decorations: Any) -> Denoising:
  """A method of masked diffusion.

  Args:
    given: a name with its decorations, a Policy, or a pair of it and its params.
    decorations: by kind of `DECORATIONS` a name, an object, a pair, or the first number of the
      first part of that kind; None where the name or a default decides.

  Raises:
    ValueError: a name that is not known, or parts that do not go together.
  """
  parts = grammar.parse("policy", given) if isinstance(given, str) else ()
  if any(part.name in ANY_SUBSET for part in parts):
    return _any_subset(model, parts, decorations)
  named = grammar.decorations(
    Part("policy", decorations=tuple(d for part in parts for d in part.decorations)), DECORATIONS
  )
  chosen: dict[str, Any] = {}
  for kind, table in DECORATIONS.items():
    value = decorations.get(kind)
    if value is not None and kind in named:
      raise ValueError(
        f"policy={given!r} has its own {kind}: `{kind}` must be given in one of the two places, "
        f"got {value!r:.40} in the other."
      )
    value = named.get(kind, DEFAULTS.get(kind) if value is None else value)
    if isinstance(value, int | float):
      value = Part(next(iter(table)), (value,))
    if isinstance(value, str):
      value = grammar.parse_one(kind, value)
    if isinstance(value, Part):
      grammar.look_up(kind, value, table)
    elif value is not None and kind not in OBJECTS:
      raise ValueError(f"`{kind}` must be names with {', '.join(table)}, got {value!r:.40}.")
    chosen[kind] = value

  labels: dict[str, str] = {}
  if chosen["student"]:
    labels["student"], model = student(model, chosen["student"])
  name, policy, params = _policy(model, given)
  if chosen["reweighting"] is not None:
    check_beside(policy, chosen)
  denoiser, wrap = _denoiser(model, chosen, labels)
  labels["blocks"], blocks, sizes = _blocks(chosen["blocks"], model, denoiser, policy, params)
  checks.whole("blocks", blocks.window, 1, 2**16, note="slots of a block")
  check_blocks(denoiser, blocks, policy)
  own_cache = "none" if denoiser.block is None else "committed"
  defaults = DEFAULTS | {"cache": "streamed" if denoiser.masks_last else own_cache}
  if denoiser.encode is not None:
    if (given_cache := chosen["cache"]) is not None:
      name = getattr(given_cache, "name", given_cache)
      checks.refuse("cache", name, f"left out for {model.name!r}, whose encoder writes its own")
    chosen["cache"], defaults["cache"] = encoded, "encoded"
  elif chosen["cache"] is None:
    chosen["cache"] = Part(defaults["cache"])

  def plain(kind: str, *fixed: Any):
    value = chosen[kind]
    if isinstance(value, Part):
      builder, ends = DECORATIONS[kind][value.name], tokens_of(model, value)
      labels[kind], made, params = _make(kind, value, builder, *fixed, **ends)
    else:
      value = value(*fixed) if fixed and callable(value) else value
      labels[kind], made, params = _open(kind, value, OBJECTS[kind])
    return made, params

  cache, _ = plain("cache", denoiser, blocks.window)
  rule, _ = plain("stopping")
  draws, _ = plain("draws")
  transforms = [plain("transform")] if chosen["transform"] is not None else []
  if chosen["confidence"] is not None:
    labels["confidence"], _ = grammar.bind("confidence", chosen["confidence"], {})
  guesses = 1
  if chosen["guesses"] is not None:
    known = parameters(draft_verify.advance)
    labels["guesses"], numbers = grammar.bind("guesses", chosen["guesses"], known)
    guesses = numbers.get("guesses", 4)
    checks.whole("guesses", guesses, 1, 4096, note="1 is off")
    if guesses > 1:
      draft_verify.check_cache(cache)
    if guesses > 1 and chosen["guidance"] is not None:
      raise ValueError(f"`guesses` must be 1 with guidance, got {guesses}.")
    if guesses > 1 and denoiser.soften is not None:
      raise ValueError(
        f"`guesses` must be 1 for a denoiser that reads what its last pass said, got {guesses}."
      )
  shown = [labels[k] for k in DECORATIONS if k in labels and labels[k] != defaults.get(k)]
  stop = jnp.asarray([*model.stop, -1], jnp.int32)
  method = denoise.DenoiseMethod(
    denoiser,
    cache,
    policy,
    blocks,
    rule,
    tuple(t for t, _ in transforms),
    draws,
    tempered=chosen["confidence"] is not None,
  )
  own_params = params, sizes, tuple(own for _, own in transforms)

  def weights(B: int) -> denoise.Weights:
    policy, blocks, transforms = _rows(own_params, B)
    return denoise.Weights(model.params, policy, blocks, stop, transforms)

  loop = Denoise(method) if guesses == 1 else DraftVerify(method, guesses)
  temperatures: tuple[float, ...] | None = (0.0,) if policy.temperature == "zero" else None
  if chosen["reweighting"] is not None:
    temperatures = (0.0, 1.0)  # at both it draws at 1
  return Denoising("/".join((name, *shown)), model, loop, weights, wrap, temperatures)


def _energy(model: Model, part: Part) -> tuple[Energy, Params]:
  """The energy of whole texts: a network that was trained for the model, or a causal model's."""
  path = resolve(grammar.text_of(part, "a model", hint=", a zoo name or directory"))
  raw = read_config(path, "energy network") if path.is_dir() else {}
  if trained.ENERGY not in raw:
    text = load_small(model, part, alike=True)
    return autoregressive(text.target), text.params
  with checked(str(path), raw, target=model.identity):
    return energy.learned(model.config), trained.load_energy(path, model.config)


def _denoiser(
  model: Model, chosen: Mapping[str, Any], labels: dict[str, str]
) -> tuple[Denoiser, Callable[[Array, Array], Params]]:
  """The denoiser, guided, reweighted or smoothed where that is asked for, and its weights for a
  request."""
  denoiser: Denoiser = model.denoiser
  other = [kind for kind in ("reweighting", "guidance", "smoothing") if chosen[kind] is not None]
  for kind in other:
    if denoiser.mask is None:
      raise ValueError(
        f"`{kind}` needs a mask token, which {model.name!r}, of uniform noise, lacks."
      )
  if "smoothing" in other and len(other) > 1:
    checks.refuse("smoothing", "smoothed", f"left out beside {other[0]}")
  if (part := chosen["reweighting"]) is not None:
    weighs, text = _energy(model, part)
    labels["reweighting"], numbers = grammar.bind("policy", part, parameters(reweighted))
    weighed = reweighted(denoiser, weighs, **numbers)
    fold = jax.vmap(jax.random.fold_in, (0, None))
    return weighed, lambda given, key: Reweighted(model.params, text, fold(key, 1))
  if (part := chosen["guidance"]) is not None:
    labels["guidance"], numbers = grammar.bind("guidance", part, parameters(Guided))
    number = checks.number("guidance", numbers.get("weight", 1.0), 0, 1e6)

    def wrapped(given: Array, key: Array) -> Guided:
      return Guided(model.params, given, jnp.full(len(key), number, jnp.float32))

    return guided(denoiser), wrapped
  if (part := chosen["smoothing"]) is not None and model.mask is not None:
    labels["smoothing"], numbers = grammar.bind("smoothing", part, parameters(smoothed))
    own = smoothed(model.config, model.mask, model.shift, **numbers)
    return own, lambda given, key: model.params
  return denoiser, lambda given, key: model.params
