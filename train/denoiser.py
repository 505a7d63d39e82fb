"""Trains a masked diffusion model: pre-training on texts, or fine-tuning on answers.

    python -m specjax.train.denoiser --data my.jsonl --out runs/my-denoiser

Records with `text` fill rows from end to end and all of it is masked at times. Of records with the
two fields named by `--fields` only the answer is, which is padded to the row's end with end markers
that the model learns to say: that is how it comes to know where to stop. With `--start` a model
that there is learns on, LLaDA or Dream among them. The same command again continues a run that was
killed.
"""

import dataclasses
import functools
import itertools
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from jax import Array

from specjax.checkpoints import hf
from specjax.data.chat import TEMPLATES, encode_chat
from specjax.data.sources import open_source
from specjax.data.tokenizer import END, MASK, Tokenizer, train_bpe, train_words
from specjax.decoding.model import Model, load
from specjax.models.config import Config as ModelConfig
from specjax.models.transformer import Transformer
from specjax.train.lm import texts_of
from specjax.train.recipe.fit import adamw, batches, fit
from specjax.train.recipe.masking import context_weight, corrupt, denoising_loss, shifted
from specjax.train.recipe.resume import claim


@dataclasses.dataclass(frozen=True)
class Config:
  """A masked diffusion model from text.

  Attributes:
    data: JSONL file or tfds:NAME:SPLIT.
    out: directory for checkpoints, metrics and the finished model.
    start: a model to go on from, zoo name or directory; it brings its network, tokenizer and shift,
      so that `words` to `mlp_width` and `shift` are not read. By default random weights.
    fields: (question, answer) fields of a record; a record with `text` is used as it is.
    template: chat template of question and answer.
    words: every word is a token, for small worlds; else byte-level BPE.
    vocab_size: of the BPE tokenizer trained on the data, the mask included.
    width, layers, heads, kv_heads, head_dim, mlp_width: the network.
    length: T, tokens per row.
    shift: the state before a token predicts it, as in Dream; else its own, as in LLaDA.
    context: Dream's context-adaptive weights in place of 1 / p.
    batch: rows per step.
    steps: of the optimiser.
    rate: the highest, after warm-up; it falls to a tenth along a cosine.
    warmup: steps in which the rate rises.
    save_every: steps between checkpoints.
    seed: of the weights, the noise and the data order.
  """

  data: str
  out: str
  start: str | None = None
  fields: tuple[str, str] = ("question", "answer")
  template: str = "plain"
  words: bool = False
  vocab_size: int = 4096
  width: int = 192
  layers: int = 6
  heads: int = 6
  kv_heads: int = 6
  head_dim: int = 32
  mlp_width: int = 512
  length: int = 64
  shift: bool = False
  context: bool = False
  batch: int = 64
  steps: int = 2000
  rate: float = 2e-3
  warmup: int = 100
  save_every: int = 250
  seed: int = 0


class Rows(NamedTuple):
  """Training rows: tokens i32[R, T], maskable bool[R, T]."""

  tokens: np.ndarray
  maskable: np.ndarray


def rows_of(texts: list[tuple[str, ...]], config: Config, tokenizer: Tokenizer, end: int) -> Rows:
  """Texts in rows of T tokens, an `end` after each; questions with answers one to a row.

  Raises:
    ValueError: a question with its answer that is longer than a row.
  """
  T = config.length
  tokens: list[list[int]] = []
  maskable: list[list[bool]] = []
  stream: list[int] = []
  for i, text in enumerate(texts):
    if len(text) == 1:
      stream += [*tokenizer.encode(text[0]), end]
      continue
    turns = [{"role": r, "content": t} for r, t in zip(("user", "assistant"), text, strict=True)]
    ids, said = encode_chat(TEMPLATES[config.template], tokenizer, turns)
    if len(ids) > T:
      raise ValueError(f"length={T}: record {i} takes {len(ids)} tokens with its answer.")
    tokens.append(ids + [end] * (T - len(ids)))
    maskable.append(said + [True] * (T - len(ids)))
  for i in range(0, len(stream) - T + 1, T):
    tokens.append(stream[i : i + T])
    maskable.append([True] * T)
  if not tokens:
    raise ValueError(f"length={T}: the texts hold {len(stream)} tokens and fill no row.")
  return Rows(np.array(tokens, np.int32), np.array(maskable))


def new_model(config: Config, texts: list[tuple[str, ...]]) -> Model:
  """Random weights; the tokenizer in `out` if there is one, so that a resumed run reads the same
  ids, else one trained on the texts."""
  file = pathlib.Path(config.out) / "tokenizer.json"
  if file.exists():
    tokenizer = Tokenizer.load(file)
  else:
    flat = itertools.chain.from_iterable(texts)
    tokenizer = train_words(flat) if config.words else train_bpe(flat, config.vocab_size - 1)
    tokenizer.inner.add_special_tokens([END, MASK])
  end, mask = tokenizer.id(END), tokenizer.id(MASK)
  assert end is not None
  network = ModelConfig(
    vocab_size=tokenizer.vocab_size, width=config.width, layers=config.layers,
    heads=config.heads, kv_heads=config.kv_heads, head_dim=config.head_dim,
    mlp_width=config.mlp_width, max_length=4 * config.length, causal=False,
  )  # fmt: skip
  z = jnp.zeros((1, 2), jnp.int32)
  init = jax.jit(Transformer(network).init)
  params = init(jax.random.key(config.seed), z, z, jnp.ones((1, 2, 2), bool))
  template = config.template if any(len(t) == 2 for t in texts) else None
  return Model(config.out, network, params, tokenizer, (end,), (), template, mask, config.shift)


def loss_fn(params, model: Model, config: Config, key: Array, rows: Rows):
  """See `denoising_loss`; rows' arrays are [B, T]."""
  network = Transformer(model.config)
  tokens, maskable = jnp.asarray(rows.tokens), jnp.asarray(rows.maskable)
  B, T = tokens.shape
  masked, p = corrupt(key, maskable)
  everywhere = jnp.ones((B, T), bool)
  position = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (B, T))
  noisy = jnp.where(masked, model.denoiser.mask, tokens)
  hidden, _ = network.apply(params, noisy, position, jnp.ones((B, T, T), bool))
  logits = jnp.asarray(network.apply(params, hidden, method="head"))
  logits = shifted(logits) if model.shift else logits
  weight = context_weight(masked, everywhere) if config.context else 1 / p
  return denoising_loss(logits, tokens, masked, maskable, weight)


def main(config: Config) -> None:
  out = pathlib.Path(config.out)
  out.mkdir(parents=True, exist_ok=True)
  if config.template not in TEMPLATES:
    raise ValueError(f"template={config.template!r}: accepted are {', '.join(TEMPLATES)}.")
  source = open_source(config.data)
  texts = [texts_of(source[i], config.fields, i) for i in range(len(source))]
  model = load(config.start) if config.start else new_model(config, texts)
  tokenizer, mask = model.tokenizer, model.denoiser.mask
  if tokenizer is None or not model.stop:
    raise ValueError(f"start={config.start!r}: it needs a tokenizer and an end of text.")
  rows = rows_of(texts, config, tokenizer, model.stop[0])
  batch = batches(rows, config.batch, config.seed)
  claim(out, dataclasses.asdict(config), b"".join(x.tobytes() for x in rows))
  if not (out / "tokenizer.json").exists():
    tokenizer.save(out / "tokenizer.tmp")
    (out / "tokenizer.tmp").replace(out / "tokenizer.json")
  optimizer = adamw(config.rate, config.steps, warmup=config.warmup)

  @functools.partial(jax.jit, donate_argnums=0)
  def step(state, numbered):
    number, rows = numbered
    key = jax.random.fold_in(jax.random.key(config.seed), number)
    grads, metrics = jax.grad(loss_fn, has_aux=True)(state["params"], model, config, key, rows)
    updates, moments = optimizer.update(grads, state["optimizer"], state["params"])
    metrics["gradient_norm"] = optax.tree.norm(grads)
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "optimizer": moments}, metrics

  state = {"params": model.params, "optimizer": jax.jit(optimizer.init)(model.params)}
  size = sum(x.size for x in jax.tree.leaves(state["params"]))
  print(f"{size / 1e6:.2f}M parameters; {len(rows.tokens)} rows of {config.length} tokens")

  # --- train ---
  state = fit(
    step, state, lambda i: (jnp.int32(i), batch(i)),
    steps=config.steps, directory=out, save_every=config.save_every,
  )  # fmt: skip

  # --- export ---
  template = config.template if any(len(t) == 2 for t in texts) else model.template
  hf.save(out / "model", model.config, state["params"], tokenizer, template=template, mask=mask,
          stop=model.stop, start=model.start, shift=model.shift)  # fmt: skip


if __name__ == "__main__":
  main(tyro.cli(Config, description=__doc__))
