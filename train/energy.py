"""Trains the energy network that weighs a denoiser's guesses, in minutes on a CPU.

    python -m specjax.train.energy --model lists-3m --data my.jsonl --out runs/energy

Some slots of an answer of `data` are masked, and the frozen denoiser draws them, each by itself.
The network learns to tell the answer from what was drawn, by noise contrastive estimation with one
drawn text for each true one: EDLM (Xu et al. 2024, arXiv 2410.21357). `random/reweighted[..]`
decodes with it. The held-out answers decide which step's weights are kept. The same command again
continues a run that was killed.
"""

import dataclasses
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import checks, distributed
from specjax.checkpoints import parts
from specjax.diffusion.reweight import guesses, slot_log_probs
from specjax.models.energy import EnergyNetwork, begin, learned
from specjax.names.load import Model
from specjax.sampling import Noise, new_key
from specjax.train.distill import StudentRows, rows_of
from specjax.train.recipe import answers, labels, options, run
from specjax.train.recipe.config import Count, Training
from specjax.train.recipe.fit import Loss, batches, fit
from specjax.train.recipe.masking import corrupt
from specjax.train.recipe.texts import Document


@dataclasses.dataclass(frozen=True)
class Config(answers.Config):
  """An energy network for a denoiser.

  Attributes:
    answer_field: name of the right answer in a record.
    held_out: number of answers, the first, that choose and measure.
    new: number of slots after each question; longer answers are left out.
    hidden: hidden width of the MLP that reads the states.
  """

  answer_field: str = "answer"
  held_out: Count = 128
  new: Count = 16
  hidden: Count = 256
  training: Training = Training(steps=1000, batch=32, rate=6e-4, decay=0.01, save_every=100)


class Noisy(NamedTuple):
  """Rows [B, T] with what is drawn for a step: masked bool[B, T] and key[B]."""

  rows: StudentRows
  masked: Array
  key: Array


def drawn(rows: StudentRows, key: Array) -> Noisy:
  """The masks of a batch, and a key for the guesses of each row."""
  masked, _ = corrupt(key, jnp.asarray(rows.answer))
  return Noisy(rows, masked, jax.random.split(jax.random.fold_in(key, 0), len(masked)))


def nce(true: Array, guessed: Array) -> Array:
  """-log sigmoid(-E) of true texts, and -log sigmoid(E) of guesses: f32[B] each, and so the sum.

  Its least mean over x ~ p and x ~ q is where E(x) = log q(x) - log p(x).
  """
  return jax.nn.softplus(true) + jax.nn.softplus(-guessed)


def loss_of(model: Model) -> Loss:
  """The loss of a step, whose batch is `Noisy`; the frozen params are the denoiser's."""
  denoiser, energy = model.denoiser, learned(model.config)
  mask = denoiser.mask
  assert mask is not None  # see `main`

  def loss(trained: EnergyNetwork, frozen, batch: Noisy, _):
    tokens, used = jnp.asarray(batch.rows.tokens), jnp.asarray(batch.rows.used)
    noise = Noise(batch.key, batch.masked.sum(1, dtype=jnp.int32))
    noisy = jnp.where(batch.masked, mask, tokens)
    position = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    log_q = slot_log_probs(denoiser, frozen, noisy, position, used)
    guess = guesses(noise, log_q, tokens, batch.masked, used, 1)
    true, said = (energy(trained, guess._replace(tokens=x)) for x in (tokens, guess.tokens))
    differs = (guess.tokens != tokens).any(1)
    figures = {"guesses_differ": differs.mean(), "told_apart": ((true < said) & differs).mean()}
    return nce(true, said).mean(), figures

  return loss


def documents_of(documents: list[Document], new: int, end: int) -> list[Document]:
  """The answers with end markers after them, up to `new` slots; ValueError where all are longer."""
  short = [(ids, said) for ids, said in documents if sum(said) <= new]
  if not short:
    least = min(sum(said) for _, said in documents)
    checks.refuse("new", new, f"at least {least}, the tokens of the shortest answer")
  if len(short) < len(documents):
    print(f"{len(documents) - len(short)} answers take more than {new} slots and are left out.")
  rest = (new - sum(said) for _, said in short)
  return [(ids + [end] * n, said + [True] * n) for (ids, said), n in zip(short, rest, strict=True)]


@run.on_mesh
def main(config: Config) -> None:
  out = run.begin(config)
  model = answers.teacher(config.model, causal=False, template=config.template)
  if model.mask is None or not model.stop:
    checks.refuse("model", config.model, "a denoiser with a mask token and an end of text")
  given = answers.given(model, config, config.answer_field)
  documents = documents_of(given, config.new, model.stop[0])
  cut = config.held_out
  answers.check_held_out(cut, len(documents))
  rows = rows_of(documents)
  labels.check_length(rows.tokens.shape[1], model)
  run.claim(out, config, rows, model.ingredients())
  held_out, train = (StudentRows(*(x[part] for x in rows)) for part in np.s_[:cut, cut:])
  labels.counted(labels.TRAIN, train.answer)

  key = new_key(config.training.seed)
  network = jax.tree.map(lambda x: x.astype(jnp.float32), model.params)
  loss, judged = loss_of(model), drawn(held_out, key)
  best = fit(
    loss,
    begin(key, network, model.config.width, config.hidden),
    batches(train, config.training, again=True),
    config.training,
    out,
    frozen=model.params,
    held_out=judged,
    judge_every=config.training.save_every,
    draw=drawn,
  )
  nats, figures = jax.jit(loss)(best, model.params, judged, key)
  run.report(
    out, {"held_out": {k: round(float(x), 4) for k, x in ({"loss": nats} | figures).items()}}
  )
  if distributed.first():
    parts.save(out / "model", best, base=model.identity)


if __name__ == "__main__":
  sys.exit(options.command(main, Config, __doc__, prog="python -m specjax.train.energy"))
