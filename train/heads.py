"""Trains a draft head, of any kind, for a frozen target.

    python -m specjax.train.heads --model gsm8k-7m --data questions.jsonl --out runs/my-head hydra

The target first answers the questions of `data` itself (`answers.jsonl`, written as it goes); its
hidden states over the answers are computed once (`features/`); then the head learns to draft from
them. The same command again continues a run that was killed. The last word is the head, with
options of its own (`hydra --help`), or FILE.py:FUNCTION for one of your own; medusa is the default.
"""

import dataclasses
import functools
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Union

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from jax.sharding import NamedSharding, PartitionSpec

from specjax import script
from specjax.checkpoints import heads as checkpoint
from specjax.data.packing import Rows, pack
from specjax.decoding.model import load
from specjax.drafters import HEADS, draft_vocabulary
from specjax.drafters.base import LossWeights
from specjax.drafters.medusa import MedusaConfig
from specjax.drafters.named import Named, is_file, named
from specjax.train.answers import answered, ask, given
from specjax.train.draft_positions import Batch, Source
from specjax.train.features import compute
from specjax.train.fit import adamw, fit, shuffled
from specjax.train.objective import RANKS, Objective
from specjax.train.resume import claim
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


@dataclasses.dataclass(frozen=True)
class Config:
  """A draft head for a target.

  Attributes:
    model: the target, a zoo name or directory.
    data: JSONL file or tfds:NAME:SPLIT with the questions.
    out: directory for answers, states, checkpoints, metrics and the finished head.
    head: which head, and its shape.
    field: of a record, the question.
    answer_field: of a record, an answer to learn from in place of the target's own.
    questions: how many are answered, from the start of the data; those that leave no room for an
      answer are not.
    held_out: how many of these are kept to measure hit rates.
    max_new_tokens: length of an answer, at most what the target's positions leave.
    temperature: of the target's answers.
    answers: file of answers, by default in `out`; made where it is absent. Heads may share one.
    features: directory of hidden states, by default in `out`; made where it is absent. Heads may
      share one.
    layers: layers to keep there besides those the head reads, for other heads.
    draft_vocab: W, how many of the most frequent tokens the head guesses among; 0 for all.
    init: directory of a head of the same shape to start from.
    loss: weights of hard and soft cross-entropy and of the feature term, and their decay with
      depth; by default those published for the head.
    noise: width of uniform noise on the hidden states while training.
    length: T of the rows that the target reads.
    batch: rows per step.
    points: M, positions of a row from which the head drafts.
    steps: of the optimiser.
    rate: the highest, after warm-up; it falls to a tenth along a cosine.
    warmup: steps in which the rate rises.
    nodes: of the largest tree the head will ship with.
    save_every: steps between checkpoints.
    devices: that share a batch; 0 for all.
    seed: of the weights, the data order and sampled answers.
  """

  model: str
  data: str
  out: str
  head: AnyHead = MedusaConfig()  # noqa: RUF009  frozen
  field: str = "question"
  answer_field: str | None = None
  questions: int = 4000
  held_out: int = 100
  max_new_tokens: int = 160
  temperature: float = 0.0
  answers: str | None = None
  features: str | None = None
  layers: tuple[int, ...] = ()
  draft_vocab: int = 0
  init: str | None = None
  loss: tuple[float, float, float, float] | None = None
  noise: float = 0.0
  length: int = 384
  batch: int = 8
  points: int = 128
  steps: int = 1000
  rate: float = 1e-3
  warmup: int = 50
  nodes: int = 64
  save_every: int = 100
  devices: int = 0
  seed: int = 0


def _claim(out: pathlib.Path, config: Config, name: str, content: Any) -> None:
  head = {"name": name, **dataclasses.asdict(config.head)}
  claim(out, dataclasses.asdict(config) | {"head": head}, json.dumps(content).encode())


def texts(model, config: Config, name: str, out: pathlib.Path) -> tuple[Rows, Rows]:
  """(rows to train on, held-out rows); a text of the data is in one of them."""
  if config.answer_field is None:
    prompts = ask(model, config.data, config.field, config.questions)
    _check_held_out(config, len(prompts))
    _claim(out, config, name, prompts)
    path = pathlib.Path(config.answers or out / "answers.jsonl")
    documents = answered(
      model, prompts, path, max_new_tokens=config.max_new_tokens, temperature=config.temperature,
      seed=config.seed,
    )  # fmt: skip
  else:
    fields = (config.field, config.answer_field)
    documents = given(model, config.data, fields, config.questions)
    _check_held_out(config, len(documents))
    _claim(out, config, name, [ids for ids, _ in documents])
  cut = config.held_out
  return pack(documents[cut:], config.length), pack(documents[:cut], config.length)


def _check_held_out(config: Config, count: int) -> None:
  if not 1 <= config.held_out < count:
    raise ValueError(f"held_out={config.held_out}: accepted is at least 1 and fewer than the "
                     f"{count} questions that fit the target.")  # fmt: skip


def _share(devices: int, rows: int):
  """(sharding of a batch, of everything else) over the devices that rows can be dealt to."""
  count = devices or len(jax.devices())
  if rows % count or count > len(jax.devices()):
    raise ValueError(f"devices={devices}: accepted are up to {len(jax.devices())} that divide "
                     f"batch={rows}.")  # fmt: skip
  mesh = jax.make_mesh(
    (count,), ("data",), devices=jax.devices()[:count], axis_types=(jax.sharding.AxisType.Auto,)
  )
  return (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))


def main(config: Config, heads: Mapping[str, Named] = HEADS) -> None:
  """Trains the head of which `config.head` is the config, one of `heads`."""
  out = pathlib.Path(config.out)
  out.mkdir(parents=True, exist_ok=True)
  model = load(config.model)
  name = next(name for name, (_, kind) in heads.items() if kind is type(config.head))
  head = heads[name][0](model.target, config.head)
  shared_batch, copied = _share(config.devices, config.batch)

  # --- data: texts, and the target's states over them ---
  rows, held_out = texts(model, config, name, out)
  states = pathlib.Path(config.features or out / "features")
  layers = (*head.hidden_layers, *config.layers)
  features, held_out_features = (
    f._replace(hidden_layers=f.hidden_layers[: len(head.hidden_layers)])
    for f in (
      compute(model, rows, layers, states / "train"),
      compute(model, held_out, layers, states / "held_out"),
    )
  )
  source = Source(rows, features, head.depth, config.points, config.seed)
  test = Source(held_out, held_out_features, head.depth, config.points, config.seed)
  order = shuffled(len(rows.tokens), config.batch, config.seed)

  # --- head ---
  vocabulary = None
  if config.draft_vocab:
    counts = np.bincount(rows.tokens[rows.mask], minlength=model.config.vocab_size)
    vocabulary = draft_vocabulary.choose(counts, config.draft_vocab)
  objective = Objective(head, vocabulary)
  weights = LossWeights(*config.loss) if config.loss else head.loss
  optimizer = adamw(config.rate, config.steps, warmup=config.warmup, decay=0.0)

  @jax.jit
  def init(key, target_params):
    params = head.init(key, target_params, None if vocabulary is None else jnp.asarray(vocabulary))
    return {"params": params, "optimizer": optimizer.init(params["params"])}

  @functools.partial(jax.jit, donate_argnums=1)
  def step(target_params, state, batch: Batch, key):
    fixed = state["params"]

    def loss(trained):
      params = fixed | {"params": trained}
      return objective.loss(params, target_params, batch, weights, config.noise, key)

    grads, metrics = jax.grad(loss, has_aux=True)(fixed["params"])
    updates, moments = optimizer.update(grads, state["optimizer"], fixed["params"])
    metrics["gradient_norm"] = optax.tree.norm(grads)
    trained = optax.apply_updates(fixed["params"], updates)
    return {"params": fixed | {"params": trained}, "optimizer": moments}, metrics

  target_params = jax.device_put(model.params, copied)
  state = jax.device_put(init(jax.random.key(config.seed), model.params), copied)
  if config.init is not None:
    state["params"] = jax.device_put(
      checkpoint.weights_like(config.init, model.config, state["params"]), copied
    )
  size = sum(x.size for x in jax.tree.leaves(state["params"]["params"]))
  print(f"{name}: {size / 1e6:.2f}M parameters; {len(rows.tokens)} rows, "
        f"{sum(map(len, source.useful)) / 1e6:.2f}M positions")  # fmt: skip

  # --- train ---
  def batch(i: int):
    return jax.device_put(source.sample(order(i), i), shared_batch), i

  def step_of(state, numbered):
    batch, i = numbered
    key = jax.random.fold_in(jax.random.key(config.seed), i)
    return step(target_params, state, batch, key)

  state = fit(
    step_of, state, batch, steps=config.steps, directory=out, save_every=config.save_every
  )

  # --- measure on held-out answers, choose the tree, export ---
  ranks = min(RANKS, config.draft_vocab or RANKS)
  hits, counts = np.zeros((head.depth, ranks), int), np.zeros(head.depth, int)
  measure = jax.jit(objective.hits)
  for part in test.every(config.batch):
    got, of = measure(state["params"], target_params, jax.device_put(part, shared_batch))
    hits += np.asarray(got)
    counts += np.asarray(of)
  rates = hits / np.maximum(counts, 1)[:, None]
  choices = best_first(rates, config.nodes)
  report = {
    "head": name,
    "parameters": size,
    "hit_rates": rates.round(4).tolist(),
    "expected_tokens_per_forward": {
      n: round(1 + expected_length(choices[: n - 1], rates), 3)
      for n in sorted({4, 8, 16, 32, config.nodes})
      if n <= config.nodes
    },
  }
  (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
  print(json.dumps(report["expected_tokens_per_forward"]), rates[:, 0].round(3))
  checkpoint.save(
    out / "model", name, config.head, jax.device_get(state["params"]), choices, rates,
    base=config.model,
  )  # fmt: skip


def command(argv: Sequence[str] | None = None) -> int:
  """The command line; a head in a file of the user's own is a word like the others."""
  words = sys.argv[1:] if argv is None else argv
  try:
    own = {word: named(word) for word in words if is_file(word)}
  except ValueError as error:
    print(script.sentence(error), file=sys.stderr)
    return 2
  heads = HEADS | own
  config = dataclasses.make_dataclass(
    "Config", [("head", _one_of(heads), Config.head)], bases=(Config,), frozen=True,
    namespace={"__doc__": Config.__doc__},
  )  # fmt: skip
  return script.run(
    functools.partial(main, heads=heads), config if own else Config, __doc__,
    prog="python -m specjax.train.heads", argv=argv, markers=(tyro.conf.OmitSubcommandPrefixes,),
  )  # fmt: skip


if __name__ == "__main__":
  sys.exit(command())
