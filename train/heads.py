"""Trains Medusa-1 heads: a frozen target, its own answers, one loss per head.

    python -m specjax.train.heads --model gsm8k-7m --data questions.jsonl --out runs/my-heads

The target first answers the questions of `data` itself (`answers.jsonl`, written as it goes), then
the heads learn to guess those answers from its hidden states. Cai et al. 2024, arXiv 2401.10774,
sections 2.2 and 2.3. The same command again continues a run that was killed; `answers.jsonl`,
copied into another directory, saves a run with other heads the answering.
"""

import dataclasses
import functools
import json
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from jax import Array
from rich.progress import track

from specjax.api import Decoder, Model, load
from specjax.checkpoints import medusa as checkpoint
from specjax.data.packing import Rows, pack
from specjax.data.sources import JsonlSource, open_source, text_of
from specjax.drafters.medusa import MedusaConfig, MedusaHeads
from specjax.models.transformer import Transformer, attention_mask
from specjax.train.fit import adamw, batches, fit
from specjax.train.resume import claim, count_lines, keep_lines
from specjax.trees.static import best_first, expected_length

Tensor = Array | np.ndarray  # inside and outside of jit


@dataclasses.dataclass(frozen=True)
class Config:
  """Medusa-1 heads for a target.

  Attributes:
    model: the target, a zoo name or directory.
    data: JSONL file or tfds:NAME:SPLIT with the questions.
    out: directory for answers, checkpoints, metrics and the finished heads.
    field: of a record, the question.
    questions: how many are answered, from the start of the data; those that leave no room for an
      answer are not.
    held_out: how many of these are kept to measure hit rates.
    max_new_tokens: length of an answer, at most what the target's positions leave.
    temperature: of the target's answers.
    heads, blocks, shared: see `MedusaConfig`.
    length: T of the rows that the target reads.
    batch: positions per step.
    steps, rate, warmup: optimisation.
    decay: head d weighs decay ** d in the loss, d from 1.
    nodes: of the largest tree the heads will ship with.
    save_every: steps between checkpoints.
    seed: of the data order and of sampled answers.
  """

  model: str
  data: str
  out: str
  field: str = "question"
  questions: int = 4000
  held_out: int = 100
  max_new_tokens: int = 160
  temperature: float = 0.0
  heads: int = 4
  blocks: int = 1
  shared: bool = False
  length: int = 384
  batch: int = 1024
  steps: int = 1000
  rate: float = 1e-3
  warmup: int = 50
  decay: float = 0.8
  nodes: int = 64
  save_every: int = 100
  seed: int = 0


def ask(model: Model, config: Config) -> list[list[int]]:
  """The questions as prompts.

  Raises:
    ValueError: the target has no chat template, or the data cannot be used.
  """
  if model.template is None or model.tokenizer is None:
    raise ValueError(f"model={model.name!r} has no chat template: it cannot be asked questions.")
  source = open_source(config.data)
  total = min(config.questions, len(source))
  prompts = [model.chat(text_of(source[i], config.field, i)) for i in range(total)]
  prompts = [p for p in prompts if len(p) < model.config.max_length]
  if not 1 <= config.held_out < len(prompts):
    raise ValueError(f"held_out={config.held_out}: accepted is at least 1 and fewer than the "
                     f"{len(prompts)} questions that fit the target.")  # fmt: skip
  return prompts


def answer(
  model: Model, prompts: list[list[int]], config: Config, path: pathlib.Path, batch: int = 16
) -> None:
  """Lets the target answer; what `path` already holds is kept."""
  done = count_lines(path)
  done -= done % batch  # so that the batches are those of an uninterrupted run
  keep_lines(path, done)
  decoder = Decoder(model, temperature=config.temperature, seed=config.seed, batch=batch)
  with path.open("a") as sink:
    for first in track(range(done, len(prompts), batch), description="answers"):
      part = prompts[first : first + batch]
      budgets = [min(config.max_new_tokens, model.config.max_length - len(p)) for p in part]
      for prompt, result in zip(part, decoder(part, budgets, first=first), strict=True):
        sink.write(json.dumps({"prompt": prompt, "answer": result.tokens}) + "\n")
      sink.flush()


def document(record: dict) -> tuple[list[int], list[bool]]:
  """Ids of question and answer; only the answer is trained."""
  prompt, said = record["prompt"], record["answer"]
  return prompt + said, [False] * len(prompt) + [True] * len(said)


def head_targets(rows: Rows, ahead: int) -> tuple[Array, Array]:
  """What the head `ahead` tokens beyond the LM head should say at each position.

  Returns:
    (labels i32[B, T], weight bool[B, T]): position t wants token t + 1 + ahead, where that is a
    trained token of the same document.
  """
  shift = 1 + ahead

  def later(x: Tensor, fill) -> Array:
    return jnp.pad(jnp.asarray(x)[:, shift:], ((0, 0), (0, shift)), constant_values=fill)

  same = later(rows.segment, -2) == rows.segment
  return later(rows.tokens, 0), later(rows.mask, False) & same


class Examples(NamedTuple):
  """What heads are trained on, one row per position of P.

  Attributes:
    hidden: f16[P, E], the frozen target's state.
    labels: i32[P, D], what head d + 1 should say there.
    weight: bool[P, D], whether that is trained.
  """

  hidden: Tensor
  labels: Tensor
  weight: Tensor


def collect(model: Model, rows: Rows, heads: int, batch: int = 16) -> Examples:
  """The frozen target's hidden states over rows, at the positions that are trained."""
  target = Transformer(model.config)

  @jax.jit
  def run(params, rows: Rows):
    mask = attention_mask(jnp.asarray(rows.segment), model.config.causal)
    hidden, _ = target.apply(params, rows.tokens, rows.position, mask)
    labels, weight = zip(*(head_targets(rows, d) for d in range(1, heads + 1)), strict=True)
    return hidden.astype(jnp.float16), jnp.stack(labels, -1), jnp.stack(weight, -1)

  parts = []
  for i in track(range(0, len(rows.tokens), batch), description="hidden states"):
    short = max(0, i + batch - len(rows.tokens))  # one shape, one compilation
    part = Rows(*(np.pad(x[i : i + batch], ((0, short), (0, 0))) for x in rows))
    hidden, labels, weight = map(np.asarray, run(model.params, part))
    kept = weight.any(-1)
    parts.append((hidden[kept], labels[kept], weight[kept]))
  return Examples(*(np.concatenate(x) for x in zip(*parts, strict=True)))


def loss_fn(
  logits: list[Array], labels: Tensor, weight: Tensor, decay: float
) -> tuple[Array, dict[str, Array]]:
  """Sum over heads of the mean cross-entropy in nats, head d weighing decay ** d.

  Args:
    logits: f32[P, V] of each head.
    labels: i32[P, D].
    weight: bool[P, D].
  """
  metrics, loss = {}, jnp.zeros(())
  for d, x in enumerate(logits, 1):
    label, kept = labels[:, d - 1], weight[:, d - 1].astype(jnp.float32)
    total = jnp.maximum(kept.sum(), 1.0)
    nll = optax.softmax_cross_entropy_with_integer_labels(x, label)
    loss = loss + decay**d * (nll * kept).sum() / total
    right = (x.argmax(-1) == label).astype(jnp.float32)
    metrics[f"accuracy_{d}"] = (right * kept).sum() / total
  return loss, {"loss": loss, **metrics}


def count_hits(logits: list[Array], labels: Tensor, weight: Tensor, ranks: int = 10) -> Array:
  """f[D, R], how many labels each head guessed at each rank; shapes as in `loss_fn`."""
  hits = []
  for d, x in enumerate(logits):
    right = jax.lax.top_k(x, ranks)[1] == labels[:, d, None]
    hits.append((right & weight[:, d, None]).sum(0))
  return jnp.stack(hits)


def main(config: Config) -> None:
  out = pathlib.Path(config.out)
  out.mkdir(parents=True, exist_ok=True)
  model = load(config.model)

  # --- data: the target's own answers ---
  prompts = ask(model, config)
  claim(out, dataclasses.asdict(config), json.dumps(prompts).encode())
  answer(model, prompts, config, out / "answers.jsonl")
  answers = JsonlSource(out / "answers.jsonl")
  documents = [document(answers[i]) for i in range(len(answers))]
  rows = pack(documents[config.held_out :], config.length)
  examples = collect(model, rows, config.heads)
  held_out = collect(model, pack(documents[: config.held_out], config.length), config.heads)
  batch = batches(examples, config.batch, config.seed)

  # --- heads: identity blocks, vocabulary matrices copied from the LM head ---
  head_config = MedusaConfig(
    model.config.vocab_size, model.config.width, config.heads, config.blocks, config.shared
  )
  heads, target = MedusaHeads(head_config), Transformer(model.config)
  optimizer = adamw(config.rate, config.steps, warmup=config.warmup, decay=0.0)

  @jax.jit
  def init(key):
    x = jnp.zeros((1, model.config.width))
    params = heads.init(key, x, lambda z: target.apply(model.params, z, method="head"))
    if not config.shared:
      leaves = model.params["params"]
      lm_head = leaves["embedding" if model.config.tied else "lm_head"]
      copies = jnp.broadcast_to(lm_head, params["params"]["vocabulary"].shape)
      params = {"params": params["params"] | {"vocabulary": copies}}
    return {"params": params, "optimizer": optimizer.init(params)}

  def logits_of(params, target_params, hidden: Tensor):
    x = hidden.astype(jax.tree.leaves(target_params)[0].dtype)
    return heads.apply(params, x, lambda z: target.apply(target_params, z, method="head"))

  @functools.partial(jax.jit, donate_argnums=1)
  def step(target_params, state, e: Examples):
    def loss(params):
      return loss_fn(logits_of(params, target_params, e.hidden), e.labels, e.weight, config.decay)

    grads, metrics = jax.grad(loss, has_aux=True)(state["params"])
    updates, moments = optimizer.update(grads, state["optimizer"], state["params"])
    metrics["gradient_norm"] = optax.tree.norm(grads)
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "optimizer": moments}, metrics

  @jax.jit
  def count(target_params, params, e: Examples):
    return count_hits(logits_of(params, target_params, e.hidden), e.labels, e.weight)

  state = init(jax.random.key(config.seed))
  size = sum(x.size for x in jax.tree.leaves(state["params"]))
  print(f"{size / 1e6:.2f}M parameters; {len(examples.hidden) / 1e6:.2f}M positions")

  # --- train ---
  state = fit(
    functools.partial(step, model.params), state, batch, steps=config.steps, directory=out,
    save_every=config.save_every,
  )  # fmt: skip

  # --- measure on held-out answers, choose the tree, export ---
  hits = np.zeros((config.heads, 10))
  for i in range(0, len(held_out.hidden), config.batch):
    part = Examples(*(x[i : i + config.batch] for x in held_out))
    hits += np.asarray(count(model.params, state["params"], part))
  rates = hits / np.maximum(held_out.weight.sum(0), 1)[:, None]
  choices = best_first(rates, config.nodes)
  report = {
    "hit_rates": rates.round(4).tolist(),
    "expected_tokens_per_forward": {
      n: round(1 + expected_length(choices[: n - 1], rates), 3)
      for n in sorted({4, 8, 16, 32, config.nodes})
      if n <= config.nodes
    },
  }
  (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
  print(json.dumps(report["expected_tokens_per_forward"]), rates[:, 0].round(3))
  checkpoint.save(out / "model", head_config, state["params"], choices, base=config.model)


if __name__ == "__main__":
  main(tyro.cli(Config, description=__doc__))
