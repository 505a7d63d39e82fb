"""Trains a draft head, of any kind, for a frozen target.

    python -m specjax.train.heads --model gsm8k-7m --data questions.jsonl --out runs/my-head hydra

The target first answers the questions of `data` itself (`answers.jsonl`, written as it goes); its
hidden states over the answers are computed once (`features/`), in every step (`--online`), or by
another process (`--states-from`); then the head learns to draft from them. The same command again
continues a run that was killed. The last word is the head, with options of its own
(`hydra --help`), or FILE.py:FUNCTION for one of your own; medusa is the default.
"""

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Union

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from flax.traverse_util import flatten_dict
from jax import Array

from specjax import checks, command_line, distributed, fingerprint
from specjax.base import Params
from specjax.checkpoints import heads as checkpoint
from specjax.cli.arguments import Dtype
from specjax.data.packing import PackedRows
from specjax.heads import HEADS, draft_vocabulary
from specjax.heads.base import Head
from specjax.heads.medusa import MedusaConfig
from specjax.heads.named import Named, built, named
from specjax.heads.parallel import Frames
from specjax.models import ring, sharding
from specjax.models.transformer import Transformer
from specjax.names.load import resolve
from specjax.sampling import new_key
from specjax.train.recipe import (
  answers,
  draft_positions,
  labels,
  losses,
  low_rank,
  means,
  options,
  run,
)
from specjax.train.recipe.config import Amount, Count, Length, Natural
from specjax.train.recipe.draft_positions import Batch, Objective, PositionSource
from specjax.train.recipe.features import compute
from specjax.train.recipe.fit import fit, shuffled
from specjax.train.recipe.head_loss import in_use, loss_and_judge, whole
from specjax.train.recipe.log import waited
from specjax.train.recipe.remote_states import Remote, RemoteSource
from specjax.train.recipe.texts import Document
from specjax.trees.static import best_first, expected_length


def _one_of(heads: Mapping[str, Named]) -> Any:
  """The type of a head's config on the command line: a word for each head."""
  return Union[  # noqa: UP007  the members come from a dict
    tuple(
      Annotated[c, tyro.conf.subcommand(name, description=(build.__doc__ or "").split("\n")[0])]
      for name, (build, c) in heads.items()
    )
  ]


if TYPE_CHECKING:
  AnyHead = Any
else:
  AnyHead = _one_of(HEADS)


_LOSS = (
  f"weights of the terms of the loss ({', '.join(losses.TERMS)}), such as tv=1 hard=0.1; decay=0.8 "
  "is their decay with depth, dpace=0.5 weighs depths by D-PACE instead, and within=10 trains a "
  "guess only where the tokens before it are among the 10 best guesses, units=0.9 only where the "
  "target gives it and the tokens before it more than this probability. Numbers without names are "
  "the terms in this order (the last may be left out), then the decay. By default as published."
)


@dataclasses.dataclass(frozen=True)
class Config(answers.AnswersConfig):
  """A draft head for a target.

  Attributes:
    head: the head and its shape.
    answer_field: name of the answer in a record, which is used instead of the target's own.
    temperature: temperature of the target's answers.
    dtype: of the target, its states and all arithmetic; the head's own weights and their moments
      are float32.
    features: directory of hidden states, which is made if it does not exist; runs may share one.
      By default in `out`.
    layers: layers that are stored there for other heads, besides those that this head reads.
    online: compute the states in every step and store none, for data whose states fit no disk.
    states_from: HOST:PORT of `specjax.train.states`, which computes the states before each step.
    draft_vocab: W, the head guesses only the W most frequent tokens; 0 for all. With `init` it has
      the vocabulary of that head.
    init: zoo name or directory of a head of the same shape, from which training starts.
    lora: rank of low-rank updates of the matrices of `init`, which then alone are trained and are
      added to it in the end; 0 trains all weights.
    noise: width of uniform noise on the hidden states while training.
    points: M, number of positions of a row from which the head drafts.
    nodes: size of the largest tree with which the head will ship.
    judge_every: number of steps between evaluations on held-out answers, by the target's passes per
      token with a chain of best guesses; the weights that need fewest passes are kept.
  """

  head: AnyHead = MedusaConfig()  # noqa: RUF009  frozen
  answer_field: str | None = None
  temperature: Amount = 0.0
  dtype: Dtype = "float32"
  features: str | None = None
  layers: tuple[int, ...] = ()
  online: bool = False
  states_from: str | None = None
  draft_vocab: Natural = 8192
  init: str | None = None
  lora: Natural = 0
  loss: Annotated[tuple[float | str, ...] | None, tyro.conf.arg(help=_LOSS)] = None
  noise: Amount = 0.0
  points: Count = 128
  nodes: Length = 64
  judge_every: Count = 50


def texts(model, config: Config, name: str, out: pathlib.Path) -> tuple[PackedRows, PackedRows]:
  """(rows to train on, held-out rows), which have no text in common."""
  head = {"name": name, **dataclasses.asdict(config.head)}
  field, cut = config.answer_field, config.held_out
  if field is None:
    found = answers.asked(model, config)
    content = answers.content(found)
  else:
    labels.check_length(config.length, model)
    documents = answers.given(model, config, field)
    content = [ids for ids, _ in documents]
    answers.check_held_out(cut, len(content))
    rows = packed(answers.parts([[x] for x in documents], cut), config)
    shuffled(len(rows[0].tokens), config.training)  # which refuses a batch of more rows
  key = model.ingredients()
  if config.init is not None:
    key["init.files"] = fingerprint.of_files(resolve(config.init))
  # Which remote it is does not change the states; options that came later are absent in older runs.
  own = {"states_from": config.states_from is not None or None, "lora": config.lora or None}
  run.claim(out, config, content, key, head=head, **own)
  if distributed.first():
    print(f"{len(content) - cut} questions to train on, {cut} held out (--held-out).")
  if field is not None:
    return rows
  return packed(
    answers.parts(answers.answered(model, found, config, config.temperature), cut), config
  )


def packed(
  documents: Mapping[str, list[Document]], config: Config
) -> tuple[PackedRows, PackedRows]:
  """(rows to train on, held-out rows) of the documents of both parts."""
  rows, held_out = (
    labels.packed(part, some, config.length, labels=draft_positions.first)
    for part, some in documents.items()
  )
  return rows, held_out


def _size(tree: Params) -> int:
  return sum(x.size for x in jax.tree.leaves(tree))


def sizes(head: Head, params: Params, rank: int = 0) -> str:
  """What the training of a head will hold, before anything is computed; params may be abstract.

  With a rank low-rank updates are trained beside the weights.
  """
  parts = {"/".join(path): x.size for path, x in flatten_dict(params["params"]).items()}
  largest = max(parts, key=lambda name: parts[name])
  total = sum(parts.values())
  held = 16 * total
  if rank:
    made = functools.partial(low_rank.of_head, rank=rank)
    held = 4 * total + 16 * _size(jax.eval_shape(made, new_key(0), params["params"]))
  return (
    f"{head.name}: {total / 1e6:.2f}M parameters, {parts[largest] / 1e6:.2f}M of them in "
    f"{largest}; {held / 1e6:.0f} MB with gradient and moments."
  )


@functools.partial(run.on_mesh, axes=sharding.AXES | {ring.AXIS: "TOKENS"})
def main(config: Config, heads: Mapping[str, Named] = HEADS) -> None:
  """Trains the head of which `config.head` is the config, one of `heads`."""
  training = config.training
  if config.answer_field and (config.answers_from or config.every_turn):
    raise ValueError(
      "`answers_from` and `every_turn` must be left out with answer_field="
      f"{config.answer_field!r}, whose answers are taken."
    )
  if config.lora and config.init is None:
    raise ValueError(
      f"`init` must name the head that is updated with lora={config.lora}, got None."
    )
  if config.loss:
    losses.chosen(config.loss)
  unkept = {"online": config.online, "states_from": config.states_from}
  given = [f"{option}={value!r}" for option, value in unkept.items() if value]
  if given and (config.features or config.layers or len(given) > 1):
    others = "`features` and `layers`" if len(given) == 1 else "`online`"
    raise ValueError(f"{others} must be left out with {given[-1]}, which keeps no states.")
  out = run.begin(config)
  model = answers.teacher(config.model, causal=True, dtype=config.dtype, template=config.template)
  name = next(name for name, (_, kind) in heads.items() if kind is type(config.head))
  head = built(heads[name][0], model.target, config.head)
  if config.loss and isinstance(head, Frames):
    raise ValueError(
      f"loss={' '.join(map(str, config.loss))}: {name} is trained by CTC over all "
      "depths together, without other terms."
    )
  weights = losses.chosen(config.loss, head.loss) if config.loss else head.loss
  if weights.terms.get("confidence") and head.log_odds is None:
    raise ValueError(f"loss: confidence must be 0 for {name}, which says none.")
  V = model.config.vocab_size
  W = config.draft_vocab if 0 < config.draft_vocab < V else None
  if config.init is not None:
    begun = checkpoint.load(resolve(config.init), model.config, called=name).params
    ids = draft_vocabulary.ids(begun)
    W = None if ids is None else len(ids)
  print(sizes(head, checkpoint.abstract(head, model.config, W), config.lora))
  remote = config.states_from and Remote(config.states_from, model, head.hidden_layers)

  rows, held_out = texts(model, config, name, out)
  states = pathlib.Path(config.features or out / "features")
  layers = (*head.hidden_layers, *config.layers)

  def examples(rows: PackedRows, part: str) -> PositionSource:
    if remote:
      return RemoteSource(rows, remote, head.depth, config.points, training.seed)
    if config.online:
      return PositionSource(rows, None, head.depth, config.points, training.seed)
    features = compute(model, rows, layers, states / part)
    own = features._replace(hidden_layers=features.hidden_layers[: len(head.hidden_layers)])
    return PositionSource(rows, own, head.depth, config.points, training.seed)

  source, test = examples(rows, "train"), examples(held_out, "held_out")
  order = shuffled(len(rows.tokens), training, again=config.answer_field is None)

  vocabulary = None
  if W is not None:
    counts = np.bincount(rows.tokens[rows.mask], minlength=V)
    vocabulary = draft_vocabulary.choose(counts, W) if config.init is None else np.asarray(ids)
    share = counts[vocabulary].sum() / counts.sum()
    print(f"The draft vocabulary is {W} of {V} tokens, {share:.2%} of the answers.")
  objective = Objective(head, vocabulary, Transformer(model.config) if config.online else None)
  params = jax.jit(head.init)(new_key(training.seed), model.params, vocabulary)
  if config.init is not None:
    params = checkpoint.weights_like(resolve(config.init), model.config, params, name)
  fixed = {name: x for name, x in params.items() if name != "params"}
  own = jax.tree.map(lambda x: x.astype(jnp.float32), params["params"])
  if config.lora:
    fixed["params"], own = own, low_rank.of_head(new_key(training.seed), own, config.lora)

  loss, passes = loss_and_judge(objective, model.dtype, weights, config.noise)

  def drawn(batch: Batch, key: Array) -> tuple[Batch, Array]:
    return batch, means.row_keys(key, training.batch)

  spread = model.spread()
  trained = fit(
    loss,
    own,
    source.stepped(order, training.steps),
    training,
    out,
    frozen=(spread.params, fixed),
    judge_every=config.judge_every,
    judge=None if isinstance(head, Frames) else passes,  # best guesses of frames may say nothing
    draw=drawn if config.noise else None,
    held_out=jax.device_put(test.judged(training.batch), training.shardings()[0]),
  )

  rates = objective.rates(in_use(trained, fixed, model.dtype), spread.params, test, training)
  params = fixed | {"params": whole(trained, fixed)}
  choices = best_first(rates, config.nodes)
  expected = {
    n: round(1 + expected_length(choices[: n - 1], rates), 3)
    for n in sorted({4, 8, 16, 32, config.nodes})
    if n <= config.nodes
  }
  run.report(
    out,
    {
      "head": name,
      "parameters": _size(params["params"]),
      **({"of updates": _size(trained)} if config.lora else {}),
      "hit_rates": rates.round(4).tolist(),
      "waited": round(waited(out), 4),
      # Frames that are right may say nothing.
      **({} if isinstance(head, Frames) else {"expected_tokens_per_pass": expected}),
    },
  )
  if distributed.first():
    checkpoint.save(out / "model", name, config.head, params, choices, rates, base=model.identity)
    drafter = f"{name}-{config.nodes}[{out / 'model'}]"
    print(f"specjax generate --model {config.model} --drafter {drafter!r} --chat --prompt TEXT")


def command(argv: Sequence[str] | None = None) -> int:
  """The command line; a head in a file of the user's own is a word like the others."""
  words = sys.argv[1:] if argv is None else argv
  try:
    own = {x: named(x) for x in [*words, *options.parts(words)] if checks.is_own_file(x)}
  except command_line.USER_ERRORS as error:
    print(command_line.sentence(error), file=sys.stderr)
    return 2
  heads = HEADS | own
  config = dataclasses.make_dataclass(
    "Config",
    [("head", _one_of(heads), Config.head)],
    bases=(Config,),
    frozen=True,
    namespace={"__doc__": Config.__doc__},
  )
  return options.command(
    functools.partial(main, heads=heads),
    config if own else Config,
    __doc__,
    prog="python -m specjax.train.heads",
    argv=argv,
    markers=(tyro.conf.OmitSubcommandPrefixes,),
  )


if __name__ == "__main__":
  sys.exit(command())
