"""The trees that promise most of a head or a draft model, before any of them is decoded.

Trees and chains of all sizes are considered, and those are named that expect the most tokens per
second from times that are measured on this device (see `choice`):

- "best_first": by a head's held-out hit rates, by depth and rank. The trees hold its best guesses.
- "sequoia": by how often a child of each rank is accepted when children are drawn without
  replacement, measured here (`eval.sequoia`). The trees are those of Sequoia's dynamic program.

The times of some sizes are measured and those between them estimated, as each compiles a program.
The estimate leaves out the verifier and the bookkeeping of a round, about the same for every draft,
and rows of a batch that end early. Of trees that take a new shape in each round nothing is
expected; one has the size of the fixed tree that promises most.

Letters: B batch, N tree nodes, D depth, R ranks.
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax.base import Drafter, Params
from specjax.drafters.models.draft_tree import draft_tree
from specjax.eval import draft_cost, sequoia
from specjax.eval import verify_cost as verify
from specjax.eval.choice import Candidate, Paths, candidates, drawn, expected, fitted, spread
from specjax.eval.options import Tune as Config
from specjax.heads import drafting
from specjax.heads.parallel import Frames
from specjax.heads.pseudo_rows import PseudoRows
from specjax.names import grammar
from specjax.names.build.drafters import is_head, load_small
from specjax.names.build.head import load_head
from specjax.names.grammar import Part
from specjax.names.load import Model
from specjax.trees import Static, Tree, WithoutReplacement, files
from specjax.trees.sequoia import sequoia as best_drawn

DEPTH = 5  # D at most of Sequoia's trees
# Nodes of which the target's time is measured, besides those of every tree up to FEW: a product of
# few rows takes its time in steps.
PASSES = (1, 16, 32, 64)
FEW = 16
CHILDREN = 4  # of a node at least, in a tree of a new shape in each round
SHAPES: dict[str, type[Static] | type[WithoutReplacement]] = {
  "best_first": Static,
  "sequoia": WithoutReplacement,
}


class Filler(NamedTuple):
  """A head or a draft model whose trees are chosen.

  Attributes:
    part: its name.
    drafter: the drafter of a tree, with the pseudo rows of each node or ().
    params: its weights.
    hit_rates: f[D, R] held out, or None where they were not measured.
    deepest: D at most of the trees that draw its guesses, 0 if none may.
    pseudo: whether it guesses in pseudo rows of the target's pass.
  """

  part: Part
  drafter: Callable[[Tree, tuple[int, ...]], Drafter]
  params: Params
  hit_rates: Any
  deepest: int
  pseudo: bool = False


class Found(NamedTuple):
  """What is known of the trees of a filler.

  Attributes:
    figures: of each tree that was considered, by name.
    promising: names of those that promise most, the best first.
    rates: behind them, ready for JSON.
  """

  figures: dict[str, dict[str, Any]]
  promising: list[str]
  rates: dict[str, Any]


def filler(model: Model, part: Part) -> Filler | None:
  """The head or the draft model of a name without numbers and decorations, or None."""
  if part.name == "draft_model":
    small = load_small(model, part)
    return Filler(part, lambda tree, _: draft_tree(small.drafting, tree), small.params, None, DEPTH)
  if not is_head(part.name):
    return None
  loaded = load_head(model, part)[1]
  head = loaded.head
  deepest = 0 if isinstance(head, Frames) else min(head.depth, DEPTH)
  return Filler(
    part,
    lambda tree, guesses: drafting.drafter(head, tree, guesses or None),
    loaded.params,
    loaded.hit_rates,
    deepest,
    isinstance(head, PseudoRows),
  )


def _options(
  model: Model,
  filler: Filler,
  method: str,
  held_out: list[list[int]],
  config: Config,
  out: pathlib.Path,
) -> tuple[list[Candidate], dict[str, Any]]:
  """The trees of a filler, and the rates that they were made of."""
  if method == "best_first":
    rates = np.asarray(filler.hit_rates)
    return candidates(filler.part, rates, filler.pseudo), {"hit_rates": rates.tolist()}
  rates, rounds = sequoia.acceptance(
    model,
    lambda paths: filler.drafter(WithoutReplacement(paths), ()),
    filler.params,
    held_out,
    config.max_new_tokens,
    config.temperature,
  )

  def name(tree: Paths) -> str:
    file = out / f"{filler.part.name}-{len(tree) + 1}-{max(map(len, tree))}.json"
    return grammar.show([filler.part._replace(decorations=(Part("tree", (), str(file)),))])

  deep = np.tile(rates, (filler.deepest, 1))
  options = drawn(name, deep, lambda nodes: best_drawn(rates, nodes, filler.deepest))
  return options, {"acceptance": rates.tolist(), "rounds": rounds}


def costs(
  model: Model,
  filler: Filler,
  options: Sequence[Candidate],
  shape: type[Static],
  batch: int,
  context: int,
) -> tuple[list[float], list[float]]:
  """(the target's seconds, the drafter's) in a round of each tree after `context` tokens."""
  few = spread(options, 6 if filler.pseudo else 4)
  drafters = [filler.drafter(shape(c.tree), c.guesses) for c in few]
  seconds = draft_cost.measure(
    model.target, model.params, drafters, filler.params, context, batch=batch
  )
  drafts = fitted(few, seconds, options)
  if drafters[0].evaluate is not None:  # it replaces the target's, and is in `drafts`
    return [0.0] * len(options), drafts
  most = max(c.nodes for c in options)
  sizes = sorted({min(n, most) for n in PASSES} | {c.nodes for c in options if c.nodes <= FEW})
  cost = verify.measure(model.target, model.params, context, batch=batch, nodes=sizes)
  return np.interp([c.nodes for c in options], sizes, cost.seconds).tolist(), drafts


def _changing(part: Part, method: str, best: Sequence[Candidate]) -> list[str]:
  """The tree of a new shape in each round, of the size of the best that is no chain."""
  tree = next((c for c in best if c.nodes > 1 + c.depth > 2), None)
  if tree is None:
    return []
  (N, D), width = (tree.nodes, tree.depth), CHILDREN
  while 1 + width + (D - 1) * width**2 < N:
    width += 1
  name, each = ("dynamic", "beam") if method == "best_first" else ("dyspec", "children")
  shape = Part(name, (N,), labelled=(("depth", D), (each, width)))
  return [grammar.show([part._replace(decorations=(shape,))])]


def promising(
  model: Model,
  filler: Filler,
  method: str,
  held_out: list[list[int]],
  config: Config,
  context: int,
  out: pathlib.Path,
) -> Found:
  """The `config.decode` fixed trees that promise most, and one of a new shape in each round.

  Args:
    method: a key of SHAPES.
    held_out: ids of the prompts on which acceptance is measured.
    context: tokens after which times are measured.
    out: directory of the files that describe drawn trees.
  """
  shape = SHAPES[method]
  options, rates = _options(model, filler, method, held_out, config, out)
  target, draft = costs(model, filler, options, shape, config.batch, context)
  speed = [expected(c, v + d, config.batch) for c, v, d in zip(options, target, draft, strict=True)]
  best = [options[i] for i in np.argsort(-np.asarray(speed), stable=True)]
  figures: dict[str, dict[str, Any]] = {
    c.name: {
      "method": method,
      "nodes": c.nodes,
      "depth": c.depth,
      "choices": c.tree,
      "target_seconds": v,
      "draft_seconds": d,
      "expected_tau": 1 + c.accepted,
      "expected": e,
    }
    for c, v, d, e in zip(options, target, draft, speed, strict=True)
  }
  first = best[: config.decode]
  if method == "sequoia":
    for c in first:
      file = grammar.parse("drafter", c.name)[0].decorations[0].text
      files.save(str(file), shape(c.tree), {"drafter": grammar.show([filler.part])})
  changing = [] if filler.pseudo else _changing(filler.part, method, best)
  return Found(figures | {k: {} for k in changing}, [c.name for c in first] + changing, rates)
