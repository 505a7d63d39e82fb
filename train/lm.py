"""Trains a small causal LM from text: tokenizer, packing, AdamW, and an export that `load` reads.

    python -m specjax.train.lm --data my.jsonl --out runs/my-lm

`data` is a JSONL file (or tfds:NAME:SPLIT) whose records hold either `text`, or the two fields
named by `--fields`, a question and its answer, which are written in the chat template. The same
command again continues a run that was killed.
"""

import dataclasses
import functools
import itertools
import pathlib

import jax
import jax.numpy as jnp
import optax
import tyro
from jax import Array

from specjax.checkpoints import hf
from specjax.data.chat import TEMPLATES, encode_chat
from specjax.data.packing import Rows, pack
from specjax.data.sources import open_source, text_of
from specjax.data.tokenizer import END, Tokenizer, train_bpe
from specjax.models.config import Config as ModelConfig
from specjax.models.transformer import Transformer, attention_mask
from specjax.train.recipe.fit import adamw, batches, fit
from specjax.train.recipe.resume import claim


@dataclasses.dataclass(frozen=True)
class Config:
  """A causal LM from text.

  Attributes:
    data: JSONL file or tfds:NAME:SPLIT.
    out: directory for checkpoints, metrics and the finished model.
    fields: (question, answer) fields of a record; a record with `text` is used as it is.
    template: chat template of question and answer.
    vocab_size: of the BPE tokenizer trained on the data.
    width, layers, heads, kv_heads, head_dim, mlp_width: the network.
    length: T, tokens per row.
    batch: rows per step.
    steps: of the optimiser.
    rate: the highest, after warm-up; it falls to a tenth along a cosine.
    warmup: steps in which the rate rises.
    save_every: steps between checkpoints.
    seed: of the weights and of the data order.
  """

  data: str
  out: str
  fields: tuple[str, str] = ("question", "answer")
  template: str = "qa"
  vocab_size: int = 4096
  width: int = 256
  layers: int = 8
  heads: int = 4
  kv_heads: int = 2
  head_dim: int = 64
  mlp_width: int = 768
  length: int = 384
  batch: int = 16
  steps: int = 1000
  rate: float = 3e-3
  warmup: int = 50
  save_every: int = 100
  seed: int = 0


def texts_of(record: dict, fields: tuple[str, str], index: int) -> tuple[str, ...]:
  """(text,) or (question, answer) of record `index`."""
  return tuple(text_of(record, f, index) for f in (("text",) if "text" in record else fields))


def documents(
  texts: tuple[str, ...], config: Config, tokenizer: Tokenizer
) -> list[tuple[list[int], list[bool]]]:
  """Ids of a record and what to train on: everything, the question too. Long texts are split."""
  if len(texts) == 1:
    ids, size = tokenizer.encode(texts[0] + END), config.length
    parts = [ids[i : i + size] for i in range(0, len(ids), size)]
  else:
    roles = zip(("user", "assistant"), texts, strict=True)
    turns = [{"role": role, "content": text} for role, text in roles]
    parts = [encode_chat(TEMPLATES[config.template], tokenizer, turns)[0]]
  return [(ids, [True] * len(ids)) for ids in parts]


def loss_fn(params, model: Transformer, rows: Rows) -> tuple[Array, dict[str, Array]]:
  """Mean cross-entropy in nats over the trained positions; rows' arrays are [B, T]."""
  mask = attention_mask(jnp.asarray(rows.segment), model.config.causal)
  hidden, _ = model.apply(params, rows.tokens, rows.position, mask)
  logits = jnp.asarray(model.apply(params, hidden[:, :-1], method="head"))
  nll = optax.softmax_cross_entropy_with_integer_labels(logits, rows.tokens[:, 1:])
  weight = rows.mask[:, 1:].astype(jnp.float32)
  right = (logits.argmax(-1) == rows.tokens[:, 1:]).astype(jnp.float32) * weight
  loss = (nll * weight).sum() / weight.sum()
  return loss, {"loss": loss, "accuracy": right.sum() / weight.sum()}


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
    tokenizer = train_bpe(itertools.chain.from_iterable(texts), config.vocab_size)
  rows = pack([d for t in texts for d in documents(t, config, tokenizer)], config.length)
  batch = batches(rows, config.batch, config.seed)
  claim(out, dataclasses.asdict(config), b"".join(x.tobytes() for x in rows))
  if not tokenizer_file.exists():
    tokenizer.save(out / "tokenizer.tmp")
    (out / "tokenizer.tmp").replace(tokenizer_file)

  # --- model ---
  model_config = ModelConfig(
    vocab_size=tokenizer.vocab_size, width=config.width, layers=config.layers,
    heads=config.heads, kv_heads=config.kv_heads, head_dim=config.head_dim,
    mlp_width=config.mlp_width, max_length=config.length,
  )  # fmt: skip
  model = Transformer(model_config)
  optimizer = adamw(config.rate, config.steps, warmup=config.warmup)

  @jax.jit
  def init(key):
    z = jnp.zeros((1, 2), jnp.int32)
    params = model.init(key, z, z, jnp.ones((1, 2, 2), bool))
    return {"params": params, "optimizer": optimizer.init(params)}

  @functools.partial(jax.jit, donate_argnums=0)
  def step(state, rows):
    grads, metrics = jax.grad(loss_fn, has_aux=True)(state["params"], model, rows)
    updates, moments = optimizer.update(grads, state["optimizer"], state["params"])
    metrics["gradient_norm"] = optax.tree.norm(grads)
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "optimizer": moments}, metrics

  state = init(jax.random.key(config.seed))
  size = sum(x.size for x in jax.tree.leaves(state["params"]))
  print(
    f"{size / 1e6:.2f}M parameters; {rows.mask.sum() / 1e6:.2f}M tokens in {len(rows.tokens)} rows"
  )

  # --- train ---
  state = fit(step, state, batch, steps=config.steps, directory=out, save_every=config.save_every)

  # --- export; a model of plain text has no chat template ---
  template = config.template if any(len(t) == 2 for t in texts) else None
  hf.save(out / "model", model_config, state["params"], tokenizer, template=template)


if __name__ == "__main__":
  main(tyro.cli(Config, description=__doc__))
