"""Distils a denoiser into itself, so that it is sure of many slots at once.

    python -m specjax.train.distill --model lists-3m --data lists:2:4000 --out runs/student

The model answers the questions of `data` one slot per pass. The student learns to predict these
answers from few slots, and to be certain where it is right: the certainty-forcing distillation of
dParallel (Chen et al. 2025, arXiv 2509.26488). Wrong answers to the questions of lists:SEED:COUNT
are left out. The policy "entropy_threshold" decodes the student. A model that is causal over blocks
learns within its own blocks, each after the finished ones before it. The same command again
continues a run that was killed.

Letters: R rows, B batch, T row length.
"""

import dataclasses
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import distributed
from specjax.checkpoints import hf
from specjax.cli.arguments import Dtype
from specjax.data import lists
from specjax.data.sources import open_source
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.models.denoiser import in_order
from specjax.models.transformer import Transformer
from specjax.names.load import Model
from specjax.train.recipe import (
  answer_file,
  answers,
  asked_slots,
  block_diffusion,
  forward,
  labels,
  losses,
  low_rank,
  means,
  options,
  run,
  texts,
)
from specjax.train.recipe.config import Amount, Bounds, Count, Natural, Positive, Training
from specjax.train.recipe.fit import batches, fit


@dataclasses.dataclass(frozen=True)
class Config(answers.Config):
  """A student.

  Attributes:
    new: number of slots of an answer.
    block: number of slots of the blocks in which answers are masked and the student is decoded, by
      default those of the model's own blocks, which it must equal, or 16.
    share: share of a block's slots that are masked, before a second pass masks the others;
      published is 0.5. None draws it for each row, so that the student sees empty blocks too.
    whole: whether masks fall anywhere in the answer, as for Dream, and not block after block.
    weight: lambda, weight of the entropy; published are 2 (LLaDA) and 1 (Dream).
    temperature: temperature of the distribution whose entropy counts; published is 0.5.
    rank: rank of the low-rank updates; 0 trains all weights.
    dtype: of the student's arithmetic and of frozen weights; trained weights are float32.
    remat: whether a gradient keeps what goes into each layer and computes the rest again.
    answer_batch: number of questions that are answered together.
  """

  new: Count = 16
  block: Annotated[int | None, Bounds(1)] = None
  share: Annotated[float | None, Bounds(0.01, 0.99)] = None
  whole: bool = False
  weight: Amount = 2.0
  temperature: Positive = 0.5
  rank: Natural = 0
  dtype: Dtype = "float32"
  remat: bool = False
  answer_batch: Count = 32
  training: Training = Training(steps=1000, batch=32, rate=3e-4, decay=0.01, save_every=200)


class StudentRows(NamedTuple):
  """Prompts with their answers: tokens i32[R, T], answer bool[R, T], used bool[R, T]."""

  tokens: np.ndarray
  answer: np.ndarray
  used: np.ndarray


def rows_of(documents: Sequence[texts.Document]) -> StudentRows:
  """Prompts with their answers, one to a row; T is the length of the longest."""
  shape = len(documents), max(len(ids) for ids, _ in documents)
  rows = StudentRows(*(np.zeros(shape, kind) for kind in (np.int32, bool, bool)))
  for i, (ids, answer) in enumerate(documents):
    rows.tokens[i, : len(ids)], rows.answer[i, : len(ids)] = ids, answer
    rows.used[i, : len(ids)] = True
  return rows


def is_right(model: Model, questions: Sequence[str], rows: StudentRows) -> np.ndarray:
  """Says which answers bool[R] to questions about lists are right."""

  def right(question: str, ids: np.ndarray) -> bool:
    before_end = itertools.takewhile(lambda token: token not in model.stop, ids.tolist())
    return lists.is_right(question, model.decode(list(before_end)))

  said = (tokens[of] for tokens, of in zip(rows.tokens, rows.answer, strict=True))
  return np.array(list(map(right, questions, said)))


class Masks(NamedTuple):
  """What the student does not see, and what it is to predict, in the first and second pass."""

  hidden: Array  # bool[2, B, T], the slots that are masked
  asked: Array  # bool[2, B, T], those of the block, each in one of the passes


def masks(
  key: Array, answer: Array, block: int, share: float | None, whole: bool, aligned: bool = False
) -> Masks:
  """Complementary masks of one block of each row's answer bool[B, T], a run of slots.

  The block is drawn uniformly, and what follows it is hidden in both passes. `share` of the block
  is hidden in the first pass, see `Config`. Blocks begin with the answer or, where they are
  `aligned`, at multiples of `block`, so that the first of them may be shorter. `block`, `whole` and
  `aligned` are static.
  """
  of_block, of_slot, of_share = jax.random.split(key, 3)
  hides = jax.random.uniform(of_share, (len(answer), 1)) if share is None else share
  first = jnp.argmax(answer, 1).astype(jnp.int32)
  first = first - first % block if aligned else first
  place = jnp.arange(answer.shape[1], dtype=jnp.int32)[None] - first[:, None]
  size = jnp.where(answer, place + 1, 0).max(1)
  blocks = -(-size // block)
  chosen = jax.random.randint(of_block, size.shape, 0, jnp.maximum(blocks, 1))
  begin, end = (chosen * block)[:, None], ((chosen + 1) * block)[:, None]
  segment = answer if whole else answer & (place >= begin) & (place < end)
  after = answer & ~segment & (place >= end)
  drawn = jax.random.uniform(of_slot, answer.shape) < hides
  asked = jnp.stack([segment & drawn, segment & ~drawn])
  return Masks(asked if whole else asked | after[None], asked)


def certainty(temperature: float) -> asked_slots.Figures:
  """(cross-entropy, entropy at the temperature, both in nats, whether it is right) of slots."""

  def figures(logits: Array, tokens: Array) -> tuple[Array, ...]:
    log_probs = jax.nn.log_softmax(logits / temperature)
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1)
    nats, right = asked_slots.cross_entropy(logits, tokens)
    return nats, entropy, right

  return figures


def certainty_terms(
  nats: Array, entropy: Array, right: Array, asked: Array, weight: float
) -> tuple[list[means.Mean], dict[str, means.Mean]]:
  """Cross-entropy of the asked slots, and entropy of those that are right, in nats (section 3.2).

  The first three are figures of `certainty` [B, T], and `asked` is bool[B, T].
  """
  counts, correct = asked.astype(jnp.float32), (asked & right).astype(jnp.float32)
  said, accuracy = means.over(counts, (losses.mean(nats, counts), losses.mean(correct, counts)))
  sure = means.over(correct, losses.mean(entropy, correct))
  figures = {"cross_entropy": said, "entropy": sure, "accuracy": accuracy}
  return [said, sure._replace(value=weight * sure.value)], figures


def certainty_loss(
  nats: Array, entropy: Array, right: Array, asked: Array, weight: float
) -> tuple[Array, dict[str, Array]]:
  """The sum of `certainty_terms` and their figures."""
  terms, figures = certainty_terms(nats, entropy, right, asked, weight)
  return means.added(means.values(terms)), means.values(figures)


@run.on_mesh
def main(config: Config) -> None:
  out = run.begin(config)
  model = answers.teacher(config.model, causal=False, template=config.template)
  D = model.config.block_length
  block = config.block or D or 16
  if D is not None and (block != D or config.whole):
    raise ValueError(
      f"`block` and `whole` must be {D} and False, since {config.model!r} is causal over blocks of "
      f"{D}, got {block} and {config.whole}."
    )

  prompts = answers.ask(model, config, config.new)
  answers.check_batch(config.training.batch, len(prompts))
  run.claim(out, config, prompts, model.ingredients())
  decoder = DiffusionDecoder(
    model,
    "confidence",
    blocks=block,
    stopping="whole",
    batch=config.answer_batch,
    seed=config.training.seed,
  )

  def reply(left: list[int]) -> Iterator[tuple[int, list[int]]]:
    for i in range(0, len(left), decoder.batch):
      part = left[i : i + decoder.batch]
      results = decoder([prompts[k] for k in part], config.new, first=part[0])
      for k, r in zip(part, results, strict=True):
        yield k, r.filling.canvas[len(prompts[k]) :]

  asked = dict(enumerate(prompts))
  rows = rows_of(answer_file.written(out / "answers.jsonl", asked, reply, config.answer_batch))
  if config.data.startswith("lists:"):
    source = open_source(config.data)
    right = is_right(model, [source[i][config.field] for i in range(len(prompts))], rows)
    print(f"{right.mean():.1%} of the answers are right.")
    rows = StudentRows(*(x[right] for x in rows))
  batch = batches(rows, config.training, again=True)
  labels.counted(labels.TRAIN, rows.answer)

  network, mask = Transformer(model.config, remat=config.remat), model.denoiser.mask
  figures, groups = certainty(config.temperature), config.training.groups()

  def drawn(rows: StudentRows, key: Array) -> tuple[StudentRows, Masks]:
    found = masks(key, jnp.asarray(rows.answer), block, config.share, config.whole, D is not None)
    return rows, Masks(*(x.swapaxes(0, 1) for x in found))  # rows first

  def loss(trained, frozen, batch: tuple[StudentRows, Masks], _):
    tokens, used = jnp.asarray(batch[0].tokens), jnp.asarray(batch[0].used)
    drawn = Masks(*(x.swapaxes(0, 1) for x in batch[1]))
    B, T = tokens.shape
    # Both passes are one: the second half of a batch of twice the size.
    both, seen = jnp.where(drawn.hidden, mask, tokens[None]), jnp.tile(used, (2, 1))
    params = low_rank.weights(trained, frozen, config.dtype)
    rows, order = both.reshape(2 * B, T), None if D is None else block_diffusion.causal_mask(T, D)
    if model.config.masks_last:
      order = in_order(jnp.equal(rows, mask), jnp.arange(T, dtype=jnp.int32)[None])
    states = forward.states(network, params, rows, seen, model.shift, order)

    def head(x: Array) -> Array:
      logits = jnp.asarray(network.apply(params, x, method="head"))
      # Not minus infinity, whose entropy has no gradient.
      return logits.at[..., mask].set(-1e9)

    def half(states: Array, asked: Array) -> tuple[list[means.Mean], dict[str, means.Mean]]:
      nats, entropy, right = asked_slots.of_asked(figures, head, states, tokens, asked, groups)
      return certainty_terms(nats, entropy, right, asked, config.weight)

    (first, one), (second, other) = map(half, jnp.split(states, 2), drawn.asked)
    of_halves = jax.tree.map(lambda *x: jnp.stack(x), one, other)
    return [*first, *second], means.merged(of_halves)

  start, frozen = low_rank.begin(model.params, config.rank, config.training.seed)
  trained = fit(
    loss, start, batch, config.training, out, frozen=low_rank.cast(frozen, config.dtype), draw=drawn
  )

  if distributed.first():
    params = low_rank.merged(trained, frozen)
    hf.save(
      out / "model",
      model.config,
      params,
      model.tokenizer,
      template=model.template,
      mask=mask,
      shift=model.shift,
    )


if __name__ == "__main__":
  sys.exit(options.command(main, Config, __doc__, prog="python -m specjax.train.distill"))
