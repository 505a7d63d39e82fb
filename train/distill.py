"""Distils a denoiser into itself, so that it is sure of many slots at once.

    python -m specjax.train.distill --model lists-3m --data lists:2:4000 --out runs/student

The model answers the questions of `data` one slot per pass. On these answers it learns two things:
to say them from few slots, and to be certain where it is right. Certainty-forcing distillation,
dParallel (Chen et al. 2025, arXiv 2509.26488). The student is decoded with the policy
"entropy_threshold". The same command again continues a run that was killed.

Letters: B batch, T row length, V vocabulary.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from jax import Array
from rich.progress import track

from specjax.checkpoints import hf
from specjax.data import lists
from specjax.data.sources import open_source
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.decoding.model import Model, load
from specjax.models.transformer import Transformer
from specjax.train import lora
from specjax.train.answers import ask
from specjax.train.fit import adamw, batches, fit
from specjax.train.masking import shifted
from specjax.train.resume import claim, count_lines, keep_lines


@dataclasses.dataclass(frozen=True)
class Config:
  """A student.

  Attributes:
    model: the denoiser, a zoo name or directory; teacher, and start of the student.
    data: JSONL file, tfds:NAME:SPLIT or lists:SEED:COUNT with questions; of the last it is known
      which answers are right, and the others are left out.
    out: directory for the answers, checkpoints, metrics and the student, in `model`.
    field: of a record, the question.
    questions: how many, from the start of the data.
    new: slots of an answer.
    block: of the blocks in which answers are masked; the block that the student is decoded with.
    share: of a block's slots that are masked, the others are masked in the row's second pass; None
      draws it for each row, so that the student also learns from an empty block, which it meets
      first in decoding. Published .5.
    whole: masks anywhere in the answer in place of one block after the other, as for Dream.
    weight: lambda, of the entropy; published 2 (LLaDA), 1 (Dream).
    temperature: of the distribution whose entropy counts; published 0.5.
    rank: of the low-rank updates; 0 trains all weights.
    answer_batch: questions answered together.
    batch: rows per step.
    steps: of the optimiser.
    rate: the highest, after warm-up; it falls to a tenth along a cosine.
    warmup: steps in which the rate rises.
    save_every: steps between checkpoints.
    seed: of the masks, the updates and the data order.
  """

  model: str
  data: str
  out: str
  field: str = "question"
  questions: int = 4000
  new: int = 16
  block: int = 16
  share: float | None = None
  whole: bool = False
  weight: float = 2.0
  temperature: float = 0.5
  rank: int = 0
  answer_batch: int = 32
  batch: int = 32
  steps: int = 1000
  rate: float = 3e-4
  warmup: int = 50
  save_every: int = 200
  seed: int = 0


class Rows(NamedTuple):
  """Prompts with their answers: tokens i32[R, T], answer bool[R, T], used bool[R, T]."""

  tokens: np.ndarray
  answer: np.ndarray
  used: np.ndarray


class Masks(NamedTuple):
  """What the student does not see, and what it is to say.

  Attributes:
    hidden: bool[2, B, T], masked in the first and in the second pass.
    asked: bool[2, B, T], those of them that count: each asked slot does so in one of the passes.
  """

  hidden: Array
  asked: Array


def masks(key: Array, answer: Array, block: int, share: float | None, whole: bool) -> Masks:
  """Complementary masks of one block, drawn for each row; later blocks are hidden and not asked.

  The block is uniform among those that the answer has.

  Args:
    answer: bool[B, T], a run of slots in each row.
    block: slots of a block (static).
    share: of the block that the first pass hides; None draws it for each row, uniformly.
    whole: the block is the whole answer (static).
  """
  of_block, of_slot, of_share = jax.random.split(key, 3)
  hides = jax.random.uniform(of_share, (len(answer), 1)) if share is None else share
  place = jnp.cumsum(answer, 1, dtype=jnp.int32) - 1
  size = answer.sum(1, dtype=jnp.int32)
  blocks = -(-size // block)
  chosen = jax.random.randint(of_block, size.shape, 0, jnp.maximum(blocks, 1))
  begin, end = (chosen * block)[:, None], ((chosen + 1) * block)[:, None]
  segment = answer if whole else answer & (place >= begin) & (place < end)
  after = answer & ~segment & (place >= end)
  drawn = jax.random.uniform(of_slot, answer.shape) < hides
  asked = jnp.stack([segment & drawn, segment & ~drawn])
  return Masks(asked if whole else asked | after[None], asked)


def certainty_loss(
  logits: Array, tokens: Array, asked: Array, weight: float, temperature: float
) -> tuple[Array, dict[str, Array]]:
  """Cross-entropy of the asked slots, and entropy of those that are right, in nats.

  dParallel (arXiv 2509.26488, section 3.2).

  Args:
    logits: f32[B, T, V].
    tokens: i32[B, T], the answers.
    asked: bool[B, T].
    weight: of the entropy.
    temperature: of the distribution that is to be certain.
  """
  nll = optax.softmax_cross_entropy_with_integer_labels(logits, tokens)
  log_probs = jax.nn.log_softmax(logits / temperature)
  entropy = -(jnp.exp(log_probs) * log_probs).sum(-1)
  right = asked & (logits.argmax(-1) == tokens)

  def mean(x: Array, of: Array) -> Array:
    return jnp.where(of, x, 0.0).sum() / jnp.maximum(of.sum(), 1).astype(jnp.float32)

  said, sure = mean(nll, asked), mean(entropy, right)
  accuracy = right.sum() / jnp.maximum(asked.sum(), 1)
  return said + weight * sure, {"cross_entropy": said, "entropy": sure, "accuracy": accuracy}


def answers(model: Model, prompts: Sequence[list[int]], file: pathlib.Path, config: Config) -> Rows:
  """The teacher's answers, one slot per pass, a JSON line each; what `file` holds is kept."""
  done, B = count_lines(file), config.answer_batch
  done -= done % B
  keep_lines(file, done)
  decoder = DiffusionDecoder(
    model, "confidence", blocks=config.block, stopping="whole", batch=B, seed=config.seed
  )
  with file.open("a") as sink:
    for first in track(range(done, len(prompts), B), description="answers"):
      part = prompts[first : first + B]
      for ids, filled in zip(part, decoder(part, config.new, first=first), strict=True):
        sink.write(json.dumps({"prompt": len(ids), "tokens": filled.filling.canvas}) + "\n")
      sink.flush()
  records = [json.loads(line) for line in file.read_text().splitlines()]
  T = max(len(r["tokens"]) for r in records)
  rows = Rows(*(np.zeros((len(records), T), kind) for kind in (np.int32, bool, bool)))
  for i, r in enumerate(records):
    size = len(r["tokens"])
    rows.tokens[i, :size] = r["tokens"]
    rows.answer[i, r["prompt"] : size] = True
    rows.used[i, :size] = True
  return rows


def is_right(model: Model, questions: Sequence[str], rows: Rows) -> np.ndarray:
  """bool[R]: which answers to questions about lists are right."""

  def said(row: np.ndarray) -> str:
    ids = row.tolist()
    return model.decode(ids[: next((i for i, t in enumerate(ids) if t in model.stop), None)])

  texts = (said(tokens[of]) for tokens, of in zip(rows.tokens, rows.answer, strict=True))
  return np.array([lists.is_right(*pair) for pair in zip(questions, texts, strict=True)])


def main(config: Config) -> None:
  out = pathlib.Path(config.out)
  out.mkdir(parents=True, exist_ok=True)
  if config.share is not None and not 0 < config.share < 1:
    raise ValueError(f"share={config.share}: accepted is above 0, below 1, or None.")
  model = load(config.model)
  prompts = ask(model, config.data, config.field, config.questions)
  claim(out, dataclasses.asdict(config), json.dumps(prompts).encode())
  rows = answers(model, prompts, out / "answers.jsonl", config)
  if config.data.startswith("lists:"):
    source = open_source(config.data)
    right = is_right(model, [source[i][config.field] for i in range(len(prompts))], rows)
    print(f"{right.mean():.1%} of the answers are right.")
    rows = Rows(*(x[right] for x in rows))
  network, mask = Transformer(model.config), model.denoiser.mask
  frozen = model.params

  def weights(trained):
    return lora.merge(frozen, trained) if config.rank else trained

  def loss_fn(trained, key: Array, rows: Rows):
    tokens, answer, used = (jnp.asarray(x) for x in rows)
    B, T = tokens.shape
    drawn = masks(key, answer, config.block, config.share, config.whole)
    # Both passes are one: the second half of a batch of twice the size.
    both = jnp.where(drawn.hidden, mask, tokens[None]).reshape(2 * B, T)
    position = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (2 * B, T))
    who = jnp.broadcast_to(jnp.tile(used, (2, 1))[:, None], (2 * B, T, T))
    params = weights(trained)
    hidden, _ = network.apply(params, both, position, who)
    logits = jnp.asarray(network.apply(params, hidden, method="head"))
    logits = shifted(logits) if model.shift else logits
    # Not minus infinity, whose entropy has no gradient.
    logits = jnp.where(jnp.arange(logits.shape[-1])[None, None] == mask, -1e9, logits)
    halves = [
      certainty_loss(part, tokens, asked, config.weight, config.temperature)
      for part, asked in zip(jnp.split(logits, 2), drawn.asked, strict=True)
    ]
    loss = halves[0][0] + halves[1][0]
    metrics = jax.tree.map(lambda a, b: (a + b) / 2, halves[0][1], halves[1][1])
    return loss, {"loss": loss, **metrics}

  optimizer = adamw(config.rate, config.steps, warmup=config.warmup, decay=0.01)

  @functools.partial(jax.jit, donate_argnums=0)
  def step(state, numbered):
    number, rows = numbered
    key = jax.random.fold_in(jax.random.key(config.seed), number)
    grads, metrics = jax.grad(loss_fn, has_aux=True)(state["params"], key, rows)
    updates, moments = optimizer.update(grads, state["optimizer"], state["params"])
    metrics["gradient_norm"] = optax.tree.norm(grads)
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "optimizer": moments}, metrics

  start = jax.tree.map(jnp.copy, frozen)  # the step gives its state away
  if config.rank:
    start = lora.start(jax.random.key(config.seed), frozen, config.rank)
  batch = batches(rows, config.batch, config.seed)
  state = fit(
    step, {"params": start, "optimizer": optimizer.init(start)},
    lambda i: (jnp.int32(i), batch(i)),
    steps=config.steps, directory=out, save_every=config.save_every,
  )  # fmt: skip
  hf.save(out / "model", model.config, weights(state["params"]), model.tokenizer,
          template=model.template, mask=mask, shift=model.shift)  # fmt: skip


if __name__ == "__main__":
  main(tyro.cli(Config, prog="python -m specjax.train.distill", description=__doc__))
