"""Trains a masked diffusion model: pre-training on texts, or fine-tuning on answers.

    python -m specjax.train.denoiser --data my.jsonl --out runs/my-denoiser

Records with `text` fill whole rows, and every token of them may be masked. Of records with the two
fields named by `--fields`, and of conversations in `messages` or `conversations`, only the answers
are masked. End markers pad the last answer to the end of the row, or of its block, so that the
model learns where to stop; conversations longer than a row are left out, and counted. With
`--start` the training goes on from a finished model, such as LLaDA or Dream, or from a causal
model, which becomes a denoiser. With `--block-length` the model is causal over blocks (block
diffusion). The same command again continues a run that was killed.
"""

import dataclasses
import functools
import pathlib
import sys
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import distributed
from specjax.checkpoints import hf
from specjax.cli.arguments import Dtype
from specjax.data.chat import TEMPLATES, ChatTemplate, Turns
from specjax.data.packing import PackedRows, pack
from specjax.data.tokenizer import END, MASK, Tokenizer, train_bpe, train_words
from specjax.models.any_order import any_order
from specjax.models.transformer import Transformer
from specjax.names.load import Model, load
from specjax.train.recipe import (
  asked_slots,
  block_diffusion,
  forward,
  from_causal,
  labels,
  low_rank,
  means,
  options,
  run,
  texts,
)
from specjax.train.recipe.config import Bounds, Length, Natural, Network, Training
from specjax.train.recipe.fit import Loss, batches, fit
from specjax.train.recipe.masking import (
  context_weight,
  corrupt,
  denoising_loss,
  filling_order,
)


@dataclasses.dataclass(frozen=True)
class Config(texts.Config):
  """A masked diffusion model from text.

  Attributes:
    start: zoo name or directory of a model to go on from, by default random weights. It brings its
      tokenizer and shift, so that `words`, `vocab_size`, `network` and `shift` are not read; a
      causal model becomes a shifted one.
    template: name of a chat template, by default that of `start`, or else plain.
    words: whether every word is a token, in place of byte-level BPE.
    shift: whether the state before a token predicts it (Dream), and not its own state (LLaDA).
    context: whether Dream's context-adaptive weights replace 1 / p.
    block_length: length of the blocks that the model is causal over, by default those of `start`,
      or else none.
    rank: of low-rank updates of the matrices of `start`, which then alone are trained and are added
      to them in the end; 0 trains all weights.
    dtype: of all arithmetic and of frozen weights; trained weights and their moments are float32.
    remat: whether a gradient keeps what goes into each layer and computes the rest again, which
      takes a third more time and a fraction of the memory.
    anneal: number of steps in which a causal `start` comes to see later slots, each with a chance
      that rises from 0 to 1; with 0 it sees them from the first step on.
    any_order: whether the model learns any tokens given any others, for any-subset speculative
      decoding (the policy assd).
    masks_last: whether attention is causal in an order that has the masks last (WeDLM), in blocks
      of `block_length`, each after the clean ones before it; a causal `start` stays causal.
    noise: "mask", or "uniform": any tokens; the model, which is not told where they are, learns
      every token of an answer.
  """

  start: str | None = None
  template: str | None = None
  words: bool = False
  network: Network = Network(width=192, layers=6, heads=6, kv_heads=6, head_dim=32, mlp_width=512)
  length: Length = 64
  shift: bool = False
  context: bool = False
  block_length: Annotated[int | None, Bounds(1)] = None
  rank: Natural = 0
  dtype: Dtype = "float32"
  remat: bool = False
  anneal: Natural = 0
  any_order: bool = False
  masks_last: bool = False
  noise: Literal["mask", "uniform"] = "mask"
  training: Training = Training(
    steps=2000, batch=64, rate=2e-3, warmup=100, decay=0.1, save_every=250
  )


def rows_of(
  records: list[texts.Text],
  T: int,
  template: ChatTemplate,
  tokenizer: Tokenizer,
  end: int,
  D: int | None = None,
) -> PackedRows:
  """Texts end to end in rows of T tokens, which the mask of a row says may be masked.

  A conversation has its own row, which end markers fill. With blocks of D they fill its last block,
  which is all that a text needs to end, and a row has as many conversations as fit. One that is
  longer than a row is left out, since a cut answer does not show where to stop.

  Raises:
    ValueError: a conversation does not end with an answer, or is refused by the template; or the
      texts fill no row.
  """
  stream: list[int] = []
  documents: list[texts.Document] = []
  longer: list[int] = []
  chats: list[tuple[int, Turns]] = []
  for i, text in enumerate(records):
    if isinstance(text, str):
      stream += [*tokenizer.encode(text), end]
      continue
    if text[-1]["role"] != "assistant":
      raise ValueError(f"record {i + 1} does not end with an answer of the assistant.")
    chats.append((i, text))
  for ids, said in texts.encoded(template, tokenizer, chats):
    if len(ids) > T:
      longer.append(len(ids))
      continue
    rest = min(-len(ids) % (D or T), T - len(ids))
    documents.append((ids + [end] * rest, said + [True] * rest))
  documents += [(stream[i : i + T], [True] * T) for i in range(0, len(stream) - T + 1, T)]
  if not documents and longer:
    raise ValueError(
      f"`length` must be at least {min(longer)}, the tokens of the shortest record with its "
      f"answer, got {T}."
    )
  if not documents:
    raise ValueError(
      f"`length` must be at most {len(stream)}, the tokens of all texts, to fill a row, got {T}."
    )
  if longer:
    print(f"{len(longer)} of {len(records)} records take more than {T} tokens and are left out.")
  if len(stream) % T:
    print(
      f"The last {len(stream) % T} of the texts' {len(stream)} tokens fill no row of {T} and "
      "are left out."
    )
  return pack(documents, T, first=True)


def new_model(config: Config, out: pathlib.Path, records: list[texts.Text]) -> Model:
  """A model with random weights that reads the records."""

  def train() -> Tokenizer:
    flat = texts.contents(records)
    tokenizer = train_words(flat) if config.words else train_bpe(flat, config.vocab_size - 1)
    tokenizer.inner.add_special_tokens([END, *([MASK] if config.noise == "mask" else [])])
    return tokenizer

  tokenizer = texts.kept_tokenizer(out, train)
  end, mask = tokenizer.id(END), tokenizer.id(MASK)
  assert end is not None
  network, params = texts.new_network(config, tokenizer, max_length=4 * config.length, causal=False)
  return Model(config.out, network, params, tokenizer, (end,), (), None, mask, config.shift)


def begun(name: str, anneal: int, masks_last: bool = False) -> Model:
  """The model to go on from, a denoiser; ValueError where there is none to go on from so."""
  model = load(name, weights="float")
  if anneal and not model.config.causal:
    raise ValueError(f"`anneal` must be 0 where start={name!r} is not causal, got {anneal}.")
  model = from_causal.as_denoiser(model) if model.config.causal else model
  return dataclasses.replace(model, shift=False) if masks_last else model


def blocks_of(config: Config, model: Model) -> int | None:
  """The length of the blocks that the loss is over; a model that reads masks last has them in
  training alone, by default the published 32."""
  if model.config.masks_last:
    return config.block_length or 32
  return model.config.block_length


class Noisy(NamedTuple):
  """Rows with what is drawn for a step."""

  rows: PackedRows
  share: np.ndarray  # f32[B], the chance that a later slot is seen, the same for all
  masked: Array  # bool[B, T], the tokens that are noise
  tokens: Array  # i32[B, T], with the noise
  p: Array  # f32[B, 1] or f32[B, T], the share of the slots that is masked
  key: Array  # [B], the same for all: what slots see of each other


def drawn(
  batch: tuple[PackedRows, np.ndarray], key: Array, D: int | None, mask: int | None, V: int
) -> Noisy:
  """The noise of a batch, with blocks of D slots; without a mask it is any of V tokens."""
  maskable = jnp.asarray(batch[0].mask)
  masked, p = corrupt(key, maskable) if D is None else block_diffusion.corrupt(key, maskable, D)
  noise: Array | int = jax.random.randint(jax.random.fold_in(key, 1), masked.shape, 0, V)
  tokens = jnp.where(masked, noise if mask is None else mask, jnp.asarray(batch[0].tokens))
  of_step = jnp.broadcast_to(jax.random.fold_in(key, 0), len(maskable))
  return Noisy(*batch, masked, tokens, p, of_step)


def loss_of(config: Config, model: Model) -> Loss:
  """The loss of a step, whose batch is `Noisy`."""
  network = Transformer(model.config, remat=config.remat)
  D, mask, uniform = blocks_of(config, model), model.mask, model.config.uniform
  groups = config.training.groups()

  def loss(trained, frozen, batch: Noisy, _):
    params = low_rank.weights(trained, frozen, config.dtype)
    rows, share, masked, noisy, p, key = batch
    maskable = jnp.asarray(rows.mask)
    asked = maskable if uniform else masked
    said = figures(params, rows, noisy, masked, asked, key[0], share[0])
    weight = context_weight(masked) if config.context else 1 / p
    weight = jnp.ones_like(p) if uniform else weight
    nats, right = denoising_loss(*said, asked, maskable, weight)
    return nats, means.over(asked, right)  # the loss is a mean over rows

  def figures(params, rows: PackedRows, noisy, masked, asked: Array, key: Array, share: Array):
    """Nats of every slot asked for and whether its likeliest token is the right one, [B, T]."""
    tokens = jnp.asarray(rows.tokens)
    if model.config.any_order:
      assert mask is not None
      joint = any_order(model.config, mask).joint
      logits = joint(params, tokens, ~asked, filling_order(asked))
      return asked_slots.cross_entropy(logits, tokens)
    seen = from_causal.seen(key, share, tokens.shape[1]) if config.anneal else None
    if D is None:
      everywhere = jnp.ones(tokens.shape, bool)
      states = forward.states(network, params, noisy, everywhere, model.shift, seen)
    else:
      last = masked if model.config.masks_last else None
      states = block_diffusion.states(
        network, params, noisy, rows, model.shift, seen, D=D, masked=last
      )
    head = functools.partial(network.apply, params, method="head")
    return asked_slots.of_asked(asked_slots.cross_entropy, head, states, tokens, asked, groups)

  return loss


@run.on_mesh
def main(config: Config) -> None:
  out = run.begin(config)
  for name in ("rank", "anneal"):
    if getattr(config, name) and config.start is None:
      raise ValueError(f"`{name}` must be 0 without start, got {getattr(config, name)}.")

  records = texts.read(config)
  begin = functools.partial(begun, anneal=config.anneal, masks_last=config.masks_last)
  model = begin(config.start) if config.start else new_model(config, out, records)
  labels.check_length(config.length, model)
  last = config.masks_last or model.config.masks_last
  shape = dataclasses.replace(
    model.config,
    block_length=None if last else config.block_length or model.config.block_length,
    any_order=config.any_order or model.config.any_order,
    uniform=config.noise == "uniform" or model.config.uniform,
    masks_last=last,
  )
  any_subset = shape.any_order
  D = blocks_of(config, dataclasses.replace(model, config=shape))
  if last and (config.anneal or model.shift):
    raise ValueError(
      "`masks_last` needs anneal=0 and a model that is not shifted, got "
      f"anneal={config.anneal} and shift={model.shift}."
    )
  if shape.uniform and (any_subset or config.context or D is not None):
    raise ValueError(
      "`noise` must be mask with any_order, with context or with blocks, got 'uniform'."
    )
  model = dataclasses.replace(model, config=shape, mask=None if shape.uniform else model.mask)
  if any_subset and (config.context or model.shift):
    raise ValueError(
      "`any_order` needs context=False and a model that is not shifted, got "
      f"context={config.context} and shift={model.shift}."
    )
  if any_subset and config.remat:
    raise ValueError("`remat` must be False for a model of any tokens given any others, got True.")
  if config.context and D is not None:
    raise ValueError(f"`context` must be False with block_length={D}, got True.")
  tokenizer, mask = model.tokenizer, model.mask
  if tokenizer is None or (mask is None and not shape.uniform) or not model.stop:
    raise ValueError(
      f"`start` must have a tokenizer, a mask and an end of text, got {config.start!r}."
    )
  named = None if config.template is None else TEMPLATES[config.template]
  template = named or model.template or TEMPLATES["plain"]
  rows = rows_of(records, config.length, template, tokenizer, model.stop[0], D)
  labels.counted(labels.TRAIN, rows.mask)
  dealt = batches(rows, config.training)

  def batch(step: int) -> tuple[PackedRows, np.ndarray]:
    share = step / max(config.anneal, 1)
    return dealt(step), np.full(config.training.batch, share, np.float32)

  run.claim(out, config, rows, model.ingredients("start") if config.start else None)
  texts.keep_tokenizer(out, tokenizer)
  print(f"There are {len(rows.tokens)} rows of {config.length} tokens.")

  start, frozen = low_rank.begin(model.params, config.rank, config.training.seed)
  read = low_rank.cast(frozen, config.dtype)
  trained = fit(
    loss_of(config, model),
    start,
    batch,
    config.training,
    out,
    frozen=read,
    draw=functools.partial(drawn, D=D, mask=mask, V=shape.vocab_size),
  )
  params = low_rank.merged(trained, frozen)

  plain = all(isinstance(record, str) for record in records)
  if distributed.first():
    hf.save(
      out / "model",
      model.config,
      params,
      tokenizer,
      template=model.template if plain else template,
      mask=mask,
      stop=model.stop,
      start=model.start,
      shift=model.shift,
    )


if __name__ == "__main__":
  sys.exit(options.command(main, Config, __doc__, prog="python -m specjax.train.denoiser"))
