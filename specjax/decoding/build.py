"""The parts of a method by name: drafters with their weights, rules, processors."""

import pathlib
from collections.abc import Sequence

import jax.numpy as jnp

from specjax import drafters, processors, verifiers
from specjax.base import Drafter, Params, Processor, Verifier
from specjax.checkpoints import acceptance as acceptance_heads
from specjax.checkpoints import formats
from specjax.checkpoints import judge as judges
from specjax.checkpoints.heads import Loaded
from specjax.decoding.model import Model, load, resolve
from specjax.draft_length import DRAFT_LENGTHS, specdecpp
from specjax.draft_length.base import DraftLength
from specjax.processors import text
from specjax.trees import Static, Tree

DEFAULT_NODES = 8
LONGEST = 8  # draft tokens of a chain that a policy ends


def make_drafter(
  model: Model,
  name: str,
  *,
  head: str | None = None,
  draft_model: str | Model | None = None,
  nodes: int | None = None,
  tree: Tree | Sequence[Sequence[int]] | None = None,
  policy: str | None = None,
  acceptance: str | None = None,
) -> tuple[Drafter, Params]:
  """A drafter for `model`, and its weights.

  Args:
    name: of a drafter or of a head, see `specjax list`.
    head: a trained head, zoo name or directory; by default the zoo's of that name for this model.
    draft_model: the small LM of "draft_model".
    nodes: size of the draft, the root included; by default the drafter's own.
    tree: of a head, in place of the `nodes` best of the tree it came with, or of a draft model, in
      place of a chain; one without levels is no speculation.
    policy: of `policies.DRAFT_LENGTHS`, ends the chain of a draft model; `nodes` is then its most.
    acceptance: directory of the acceptance head of policy "specdecpp".

  Raises:
    ValueError: an unknown name, a missing part, or a draft that does not fit the model.
  """
  known = (*drafters.DRAFTERS, *drafters.HEADS)
  if name not in known:
    raise ValueError(f"drafter={name!r}: accepted are {', '.join(known)}.")
  if nodes is not None and nodes < 2:
    raise ValueError(f"nodes={nodes}: a draft has 2 nodes or more; for none use drafter='none'.")
  if (policy or acceptance) and (name != "draft_model" or tree is not None):
    raise ValueError(f"policy={policy!r}, acceptance={acceptance!r}: accepted only for the chain "
                     "of drafter='draft_model'.")  # fmt: skip
  if isinstance(tree, Sequence):
    tree = Static(tree)
  plain = tree is not None and tree.depth == 0
  if name in drafters.HEADS:
    return (drafters.none(), ()) if plain else _head(model, name, head, nodes, tree)
  if tree and not plain and name != "draft_model":
    raise ValueError(
      f"tree={tree}: drafter={name!r} has no distribution or head that could fill it."
    )
  if plain or name == "none":
    return drafters.none(), ()
  if name == "draft_model":
    small = _draft_model(model, draft_model)
    if tree:
      return drafters.draft_tree(small.target, tree), small.params
    if policy or acceptance:
      depth = LONGEST if nodes is None else nodes - 1
      ends, weights = _policy(policy, acceptance, small.config.width, depth)
      return drafters.adaptive_model(small.target, ends, depth), (small.params, weights)
    return drafters.draft_model(small.target, **_depth(nodes)), small.params
  return drafters.prompt_lookup(**_depth(nodes)), ()


def _depth(nodes: int | None) -> dict[str, int]:
  """The depth of a chain of `nodes` nodes, or the drafter's own."""
  return {} if nodes is None else {"depth": nodes - 1}


def _head(
  model: Model, name: str, head: str | None, nodes: int | None, tree: Tree | None
) -> tuple[Drafter, Params]:
  """A trained head with its tree, and its weights."""
  head = head or f"{pathlib.Path(model.name).name}-{name}"
  loaded = formats.load(resolve(head), model.config)
  if loaded.head.name != name:
    raise ValueError(f"head={head!r} is for drafter={loaded.head.name!r}, not {name!r}.")
  return loaded.head.drafter(tree or best_tree(loaded, nodes, head)), loaded.params


def _draft_model(model: Model, given: str | Model | None) -> Model:
  """The small LM, which must share the vocabulary of `model`."""
  if given is None:
    raise ValueError("drafter='draft_model' needs draft_model, a zoo name or directory.")
  small = load(given) if isinstance(given, str) else given
  if small.config.vocab_size != model.config.vocab_size:
    raise ValueError(
      f"draft_model={small.name!r} has a vocabulary of {small.config.vocab_size}, "
      f"{model.name} one of {model.config.vocab_size}: they must share one."
    )
  return small


def _policy(
  name: str | None, acceptance: str | None, width: int, depth: int
) -> tuple[DraftLength, Params]:
  """A policy for drafts of up to `depth` tokens by a model of `width` E, and its weights."""
  if name not in DRAFT_LENGTHS:
    raise ValueError(f"policy={name!r}: accepted are {', '.join(DRAFT_LENGTHS)}.")
  if (acceptance is not None) != (name == "specdecpp"):
    raise ValueError(f"policy={name!r}, acceptance={acceptance!r}: an acceptance head goes with "
                     "policy='specdecpp', which needs one.")  # fmt: skip
  if acceptance is not None:
    loaded = acceptance_heads.load(acceptance, width)
    return specdecpp(loaded.blocks), loaded.params
  bounds = {
    "static": {"length": depth}, "heuristic": {"length": min(5, depth), "longest": depth},
    "marginal": {},
  }.get(name, {"longest": depth})  # fmt: skip
  return DRAFT_LENGTHS[name](**bounds), ()


def best_tree(loaded: Loaded, nodes: int | None, name: str) -> Tree:
  """The best tree of `nodes` nodes (by default DEFAULT_NODES) that came with a head.

  A head without a tree, as published formats have it, gets a chain of its whole depth.

  Raises:
    ValueError: the tree it came with is smaller.
  """
  depth = loaded.head.depth
  choices = loaded.choices or tuple((0,) * d for d in range(1, depth + 1))
  if nodes is not None and nodes > len(choices) + 1:
    raise ValueError(f"nodes={nodes}: {name} has a tree of {len(choices) + 1} nodes at most.")
  return Static(choices[: (nodes or min(len(choices) + 1, DEFAULT_NODES)) - 1])


def make_verifier(name: str | None, drafter: Drafter, temperature: float) -> Verifier:
  """The verifier `name`; by default greedy at temperature 0, else the rule exact for the drafter.

  Raises:
    ValueError: an unknown name, or greedy verification above temperature 0.
  """
  if name is None:
    rules = {"deterministic": "target_only", "chain": "block", "truncated": "block"}
    rule = rules.get(drafter.proposal, "recursive") if drafter.depth else "target_only"
    name = "greedy" if temperature == 0 else rule
  if name not in verifiers.VERIFIERS:
    raise ValueError(f"verifier={name!r}: accepted are {', '.join(verifiers.VERIFIERS)}.")
  verifier = verifiers.VERIFIERS[name]()
  if verifier.temperature == "zero" and temperature > 0:
    raise ValueError(f"verifier={name!r} is for temperature 0, not {temperature}: use "
                     "target_only, exact at any temperature.")  # fmt: skip
  return verifier


def with_weights(
  model: Model, verifier: str | None, judge: str | None
) -> str | tuple[Verifier, Params] | None:
  """What `Decoder` takes as verifier: the name itself, or the judge with its weights.

  Args:
    model: the target.
    verifier: a name, or None for the exact default.
    judge: directory of the head of verifier "judge".

  Raises:
    ValueError: one of "judge" and its directory without the other.
  """
  if (verifier == "judge") != (judge is not None):
    raise ValueError(f"verifier={verifier!r} and judge={judge!r}: --verifier judge and "
                     "--judge DIR go together.")  # fmt: skip
  if judge is None:
    return verifier
  return verifiers.VERIFIERS["judge"](), judges.load(judge, model.config)


def make_processors(
  model: Model,
  penalties: tuple[float, float, float],
  batch: int,
  regex: str | None,
  stop: Sequence[int],
  stop_words: Sequence[str],
) -> list[tuple[Processor, Params]]:
  """The processors that these settings of `Decoder` need, with their params.

  Args:
    penalties: repetition, presence, frequency.

  Raises:
    ValueError: text is asked of a model without a tokenizer; see also `processors.text`.
  """
  V = model.config.vocab_size
  used: list[tuple[Processor, Params]] = []
  if penalties != (1.0, 0.0, 0.0):
    strength = processors.Penalties(*(jnp.full(batch, x, jnp.float32) for x in penalties))
    used.append((processors.penalties(V), strength))
  if regex is None and not stop_words:
    return used
  if model.tokenizer is None:
    raise ValueError(f"regex={regex!r}, stop_words={list(stop_words)}: {model.name} has no "
                     "tokenizer; use stop, which takes ids.")  # fmt: skip
  if regex is not None:
    form = text.of_regex(regex, model.tokenizer, V, stop)
    used.append((processors.constraint(), form))
  if stop_words:
    words = text.of_stop_words(stop_words, model.tokenizer, V)
    used.append((processors.stop_text(), words))
  return used
