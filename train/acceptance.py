"""Trains the head with which SpecDec++ ends a draft, for a frozen draft model and target.

    python -m specjax.train.acceptance --model gsm8k-7m --draft runs/draft/model \\
        --data questions.jsonl --out runs/my-acceptance

The target first answers the questions of `data` itself. At every token of an answer the draft model
then says one of its own, and the head learns with which probability the target would accept it. The
same command again continues a run that was killed. `report.json` says how far the head's
probabilities can be trusted.

Letters: B rows, T row length, P = B T tokens, E width of the draft model, V vocabulary.
"""

import dataclasses
import functools
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from jax import Array

from specjax.base import Params
from specjax.checkpoints import acceptance as checkpoint
from specjax.data.packing import Rows, pack
from specjax.decoding.model import Model, load
from specjax.draft_length.specdecpp import AcceptanceHead, labels, loss
from specjax.models.transformer import Transformer, attention_mask
from specjax.train.recipe.answers import answered, ask
from specjax.train.recipe.fit import adamw, batches, fit
from specjax.train.recipe.resume import claim

BINS = 10


@dataclasses.dataclass(frozen=True)
class Config:
  """An acceptance head for a draft model and a target.

  Attributes:
    model: the target, a zoo name or directory.
    draft: the draft model, likewise; its vocabulary must be the target's.
    data: JSONL file or tfds:NAME:SPLIT with the questions.
    out: directory for answers, checkpoints, metrics and the finished head.
    field: of a record, the question.
    questions: how many are answered, from the start of the data.
    held_out: how many of these are kept to measure the head's calibration.
    max_new_tokens: length of an answer, at most what the target's positions leave.
    answers: file of answers, by default in `out`; made where it is absent. Heads may share one.
    blocks: of the head.
    mixed: share of the target's own tokens among those that the draft model reads.
    refusal: how much a refusal counts against an acceptance.
    length: T of the rows that both models read.
    batch: rows per step.
    steps: of the optimiser.
    rate: the highest, after warm-up; it falls to a tenth along a cosine.
    warmup: steps in which the rate rises.
    save_every: steps between checkpoints.
    seed: of the weights, the data order and the draft's tokens.
  """

  model: str
  draft: str
  data: str
  out: str
  field: str = "question"
  questions: int = 4000
  held_out: int = 100
  max_new_tokens: int = 160
  answers: str | None = None
  blocks: int = 3
  mixed: float = 0.15
  refusal: float = 6.0
  length: int = 384
  batch: int = 8
  steps: int = 500
  rate: float = 1e-3
  warmup: int = 50
  save_every: int = 100
  seed: int = 0


def examples(
  models: tuple[Transformer, Transformer],
  params: tuple[Params, Params],
  rows: Rows,
  key: Array,
  mixed: float,
) -> tuple[Array, Array, Array]:
  """What the head learns from in rows of answers, [B, T] each.

  At every token of an answer the draft says another, after the target's text so far. The states
  are those of the draft model when it reads its own tokens in their places, but for a share of the
  target's, as while drafting it reads its own tokens after the target's (Huang et al. 2024, arXiv
  2405.19715, section 3.2).

  Args:
    models, params: target and draft model, and the weights of both.
    key: of the draft's tokens and their places.
    mixed: share of the target's tokens.

  Returns:
    (states [P, E] of the draft's tokens, f32[P] the probability that each is accepted, f32[P] 1
    where it counts: in an answer and not the target's).
  """
  (target, draft), (target_params, draft_params) = models, params
  drawn, kept = jax.random.split(key)
  tokens, own = jnp.asarray(rows.tokens), jnp.asarray(rows.mask)

  def hidden(model: Transformer, weights: Params, text: Array) -> Array:
    mask = attention_mask(jnp.asarray(rows.segment), model.config.causal)
    state: Any = model.apply(weights, text, rows.position, mask)
    return state[0]

  def log_probs(model: Transformer, weights: Params) -> Array:
    state = hidden(model, weights, tokens)[:, :-1]
    logits: Any = model.apply(weights, state, method="head")
    return jax.nn.log_softmax(logits.astype(jnp.float32)).reshape(-1, logits.shape[-1])

  q = log_probs(draft, draft_params)
  said = jax.random.categorical(drawn, q).astype(jnp.int32)
  chance = labels(log_probs(target, target_params), q, said).reshape(len(tokens), -1)
  guess = jnp.pad(said.reshape(chance.shape), ((0, 0), (1, 0)))
  counts = own & (jax.random.uniform(kept, tokens.shape) >= mixed)
  states = hidden(draft, draft_params, jnp.where(counts, guess, tokens))
  weight = counts.astype(jnp.float32).reshape(-1)
  return states.reshape(weight.shape[0], -1), jnp.pad(chance, ((0, 0), (1, 0))).reshape(-1), weight


def reliability(predicted: np.ndarray, chance: np.ndarray) -> dict[str, Any]:
  """How far predicted probabilities f[P] are from the true ones f[P], by the predicted tenth.

  `ece` is the mean over tokens of |mean predicted - mean true| in their bin, expected calibration
  error; `bins` are (tokens, mean predicted, mean true), from 0 upwards, empty ones left out.
  """
  place = np.minimum((predicted * BINS).astype(int), BINS - 1)
  bins = [
    (int(here.sum()), float(predicted[here].mean()), float(chance[here].mean()))
    for here in (place == i for i in range(BINS))
    if here.any()
  ]
  ece = sum(n * abs(p - y) for n, p, y in bins) / len(predicted)
  return {"ece": round(ece, 4), "bins": [(n, round(p, 4), round(y, 4)) for n, p, y in bins]}


def without_weight(predicted: np.ndarray, refusal: float) -> np.ndarray:
  """The probability f[P] of acceptance that is behind a prediction f[P].

  Where refusals count `refusal` times, the least loss is at y / (y + refusal (1 - y)) (derived).
  """
  return refusal * predicted / (refusal * predicted + 1 - predicted)


def texts(config: Config, model: Model, out: pathlib.Path) -> tuple[Rows, Rows]:
  """(rows to train on, held-out rows)."""
  prompts = ask(model, config.data, config.field, config.questions)
  cut = config.held_out
  if not 1 <= cut < len(prompts):
    raise ValueError(f"held_out={cut}: accepted is at least 1 and fewer than the {len(prompts)} "
                     "questions that fit the target.")  # fmt: skip
  claim(out, dataclasses.asdict(config), json.dumps(prompts).encode())
  path = pathlib.Path(config.answers or out / "answers.jsonl")
  documents = answered(model, prompts, path, max_new_tokens=config.max_new_tokens)
  return pack(documents[cut:], config.length), pack(documents[:cut], config.length)


def main(config: Config) -> None:
  out = pathlib.Path(config.out)
  model, small = load(config.model), load(config.draft)
  if small.config.vocab_size != model.config.vocab_size:
    raise ValueError(f"draft={config.draft!r} has a vocabulary of {small.config.vocab_size}, "
                     f"{model.name} one of {model.config.vocab_size}: they must share "
                     "one.")  # fmt: skip
  out.mkdir(parents=True, exist_ok=True)
  rows, held_out = texts(config, model, out)
  networks = Transformer(model.config), Transformer(small.config)
  frozen = model.params, small.params
  head = AcceptanceHead(config.blocks)
  optimizer = adamw(config.rate, config.steps, warmup=config.warmup, decay=0.0)

  @jax.jit
  def init(key):
    params = head.init(key, jnp.zeros((1, small.config.width)))
    return {"params": params, "optimizer": optimizer.init(params)}

  @functools.partial(jax.jit, donate_argnums=1)
  def step(frozen, state, rows: Rows, key):
    batch = examples(networks, frozen, rows, key, config.mixed)
    value, grads = jax.value_and_grad(loss)(state["params"], head, *batch, config.refusal)
    updates, moments = optimizer.update(grads, state["optimizer"], state["params"])
    metrics = {"loss": value, "gradient_norm": optax.tree.norm(grads)}
    return {"params": optax.apply_updates(state["params"], updates), "optimizer": moments}, metrics

  @jax.jit
  def measure(frozen, params, rows: Rows, key):
    states, chance, weight = examples(networks, frozen, rows, key, config.mixed)
    logits: Any = head.apply(params, states)
    return jax.nn.softmax(logits)[:, 1], chance, weight > 0

  key, batch = jax.random.key(config.seed), batches(rows, config.batch, config.seed)
  state = fit(
    lambda state, numbered: step(frozen, state, *numbered), init(key),
    lambda i: (batch(i), jax.random.fold_in(key, i)),
    steps=config.steps, directory=out, save_every=config.save_every,
  )  # fmt: skip

  # --- calibration on held-out answers, export ---
  found = []
  for r in range(len(held_out.tokens)):  # keys beyond those of the steps
    row = Rows(*(x[r : r + 1] for x in held_out))
    part = measure(frozen, state["params"], row, jax.random.fold_in(key, config.steps + r))
    predicted, chance, counts = map(np.asarray, part)
    found.append((predicted[counts], chance[counts]))
  predicted, chance = (np.concatenate(x).astype(np.float64) for x in zip(*found, strict=True))
  report: dict[str, Any] = {
    "tokens": len(predicted),
    "accepted": round(float(chance.mean()), 4),
    "predicted": reliability(predicted, chance),
    "without_weight": reliability(without_weight(predicted, config.refusal), chance),
  }
  (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
  errors = (report[name]["ece"] for name in ("predicted", "without_weight"))
  print("accepted {}; calibration error {}, {} without the refusals' weight".format(
    report["accepted"], *errors
  ))  # fmt: skip
  checkpoint.save(
    out / "model", config.blocks, jax.device_get(state["params"]),
    target=config.model, draft=config.draft,
  )  # fmt: skip


if __name__ == "__main__":
  main(tyro.cli(Config, prog="python -m specjax.train.acceptance", description=__doc__))
