"""Trains a masked diffusion model: pre-training on texts, or fine-tuning on answers.

    python -m specjax.train.denoiser --data my.jsonl --out runs/my-denoiser

Records with `text` fill rows from end to end and all of it is masked at times. Of records with the
two fields named by `--fields` only the answer is, which is padded to the row's end with end markers
that the model learns to say: that is how it comes to know where to stop. The same command again
continues a run that was killed.
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
from specjax.models.config import Config as ModelConfig
from specjax.models.transformer import Transformer
from specjax.train.fit import adamw, batches, fit
from specjax.train.lm import texts_of
from specjax.train.masking import context_weight, corrupt, denoising_loss, shifted
from specjax.train.resume import claim


@dataclasses.dataclass(frozen=True)
class Config:
  """A masked diffusion model from text.

  Attributes:
    data: JSONL file or tfds:NAME:SPLIT.
    out: directory for checkpoints, metrics and the finished model.
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


def rows_of(texts: list[tuple[str, ...]], config: Config, tokenizer: Tokenizer) -> Rows:
  """Texts in rows of T tokens; questions with answers one to a row.

  Raises:
    ValueError: a question with its answer that is longer than a row.
  """
  end, T = tokenizer.id(END), config.length
  assert end is not None
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


def loss_fn(
  params, model: Transformer, config: Config, mask: int, key: Array, rows: Rows
) -> tuple[Array, dict[str, Array]]:
  """See `denoising_loss`; rows' arrays are [B, T]."""
  tokens, maskable = jnp.asarray(rows.tokens), jnp.asarray(rows.maskable)
  B, T = tokens.shape
  masked, p = corrupt(key, maskable)
  everywhere = jnp.ones((B, T), bool)
  position = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (B, T))
  noisy = jnp.where(masked, mask, tokens)
  hidden, _ = model.apply(params, noisy, position, jnp.ones((B, T, T), bool))
  logits = jnp.asarray(model.apply(params, hidden, method="head"))
  logits = shifted(logits) if config.shift else logits
  weight = context_weight(masked, everywhere) if config.context else 1 / p
  return denoising_loss(logits, tokens, masked, maskable, weight)


def main(config: Config) -> None:
  out = pathlib.Path(config.out)
  out.mkdir(parents=True, exist_ok=True)
  if config.template not in TEMPLATES:
    raise ValueError(f"template={config.template!r}: accepted are {', '.join(TEMPLATES)}.")

  # --- data: the tokenizer is kept, so that a resumed run reads the same ids ---
  source = open_source(config.data)
  texts = [texts_of(source[i], config.fields, i) for i in range(len(source))]
  tokenizer_file = out / "tokenizer.json"
  if tokenizer_file.exists():
    tokenizer = Tokenizer.load(tokenizer_file)
  else:
    flat = itertools.chain.from_iterable(texts)
    tokenizer = train_words(flat) if config.words else train_bpe(flat, config.vocab_size - 1)
    tokenizer.inner.add_special_tokens([END, MASK])
  rows = rows_of(texts, config, tokenizer)
  batch = batches(rows, config.batch, config.seed)
  claim(out, dataclasses.asdict(config), b"".join(x.tobytes() for x in rows))
  if not tokenizer_file.exists():
    tokenizer.save(out / "tokenizer.tmp")
    (out / "tokenizer.tmp").replace(tokenizer_file)
  mask = tokenizer.id(MASK)
  assert mask is not None

  # --- model ---
  model_config = ModelConfig(
    vocab_size=tokenizer.vocab_size, width=config.width, layers=config.layers,
    heads=config.heads, kv_heads=config.kv_heads, head_dim=config.head_dim,
    mlp_width=config.mlp_width, max_length=4 * config.length, causal=False,
  )  # fmt: skip
  model = Transformer(model_config)
  optimizer = adamw(config.rate, config.steps, warmup=config.warmup)

  @jax.jit
  def init(key):
    z = jnp.zeros((1, 2), jnp.int32)
    params = model.init(key, z, z, jnp.ones((1, 2, 2), bool))
    return {"params": params, "optimizer": optimizer.init(params)}

  @functools.partial(jax.jit, donate_argnums=0)
  def step(state, numbered):
    number, rows = numbered
    key = jax.random.fold_in(jax.random.key(config.seed), number)
    grads, metrics = jax.grad(loss_fn, has_aux=True)(
      state["params"], model, config, mask, key, rows
    )
    updates, moments = optimizer.update(grads, state["optimizer"], state["params"])
    metrics["gradient_norm"] = optax.tree.norm(grads)
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "optimizer": moments}, metrics

  state = init(jax.random.key(config.seed))
  size = sum(x.size for x in jax.tree.leaves(state["params"]))
  print(f"{size / 1e6:.2f}M parameters; {len(rows.tokens)} rows of {config.length} tokens")

  # --- train ---
  state = fit(
    step, state, lambda i: (jnp.int32(i), batch(i)),
    steps=config.steps, directory=out, save_every=config.save_every,
  )  # fmt: skip

  # --- export ---
  template = config.template if any(len(t) == 2 for t in texts) else None
  hf.save(out / "model", model_config, state["params"], tokenizer, template=template, mask=mask,
          shift=config.shift)  # fmt: skip


if __name__ == "__main__":
  main(tyro.cli(Config, description=__doc__))
