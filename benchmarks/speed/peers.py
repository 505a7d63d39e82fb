"""Greedy decoding of the same weights by transformers, llama.cpp and specjax, in one run.

    python benchmarks/peers.py --out results/peers.json
    python benchmarks/peers.py --model DIR --gguf model-f32.gguf

float32, batch 1, all cores, no stop token, the same prompts (token ids) and as many new tokens for
everyone. Contenders take turns prompt by prompt, in an order that rotates, after a warm-up; the
median over repeats counts. The time of a token leaves out the prompt's own pass, and with it the
token that the others take from that pass; the whole call is reported beside it.

Without --model a random Llama of 134M parameters is made (vocabulary 32000, head not tied to the
embedding). llama.cpp takes part where its Python package is installed and --gguf gives the same
weights in its format. Needs torch and transformers.
"""

import dataclasses
import importlib
import importlib.util
import json
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
import tyro

import specjax
from specjax.checkpoints import hf
from specjax.eval.divergence import margin
from specjax.eval.environment import cores, environment
from specjax.eval.metrics import first_divergence
from specjax.eval.report import cost_lines
from specjax.eval.verify_cost import measure
from specjax.models.config import Config as ModelConfig
from specjax.models.transformer import Transformer

NODES = (1, 2, 4, 8, 16)


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured.

  Attributes:
    model: Hugging Face directory; by default a random 134M Llama.
    gguf: the same weights for llama.cpp, float32.
    prompts: how many.
    prompt_tokens: length of each, random ids that repeat halfway.
    new_tokens: decoded after each.
    draft: tokens drafted by prompt lookup, here and in transformers.
    repeats: of everything.
    seed: of weights and prompts.
    out: JSON file.
  """

  model: str | None = None
  gguf: str | None = None
  prompts: int = 3
  prompt_tokens: int = 32
  new_tokens: int = 64
  draft: int = 7
  repeats: int = 5
  seed: int = 0
  out: str = "results/peers.json"


class Run(NamedTuple):
  """One decoded prompt.

  Attributes:
    tokens: new ids.
    timed: how many of them came after the prompt's own pass.
    seconds: for those.
    forwards: target passes for those, or None where they cannot be seen.
    total: seconds of the whole call.
  """

  tokens: list[int]
  timed: int
  seconds: float
  forwards: int | None
  total: float


Contender = Callable[[list[int]], Run]


def make_model(directory: str, seed: int) -> None:
  """Writes the random Llama: 12 layers, 134.1M parameters untied (109.5M tied)."""
  config = ModelConfig(
    vocab_size=32000, width=768, layers=12, heads=12, kv_heads=12, head_dim=64, mlp_width=2048,
    tied=False,
  )  # fmt: skip
  z = jnp.zeros((1, 2), jnp.int32)
  init = jax.jit(Transformer(config).init)
  params = init(jax.random.key(seed), z, z, jnp.ones((1, 2, 2), bool))
  hf.save(directory, config, params, dtype=jnp.float32)


def ours(model: specjax.Model, drafter: str, config: Config) -> Contender:
  sized = drafter if drafter == "none" else f"{drafter}-{config.draft + 1}"
  decoder = specjax.Decoder(model, sized)

  def run(ids: list[int]) -> Run:
    (r,) = decoder([ids], config.new_tokens)
    return Run(r.tokens, r.emitted, r.seconds, r.forwards, r.prefill_seconds + r.seconds)

  return run


class Clock:
  """A streamer that notes when tokens come; the first call brings the prompt."""

  def __init__(self):
    self.times: list[float] = []
    self.counts: list[int] = []

  def put(self, value) -> None:
    self.times.append(time.perf_counter())
    self.counts.append(value.numel())

  def end(self) -> None:
    pass


def theirs(model, config: Config, **options) -> Contender:
  """transformers' generate."""

  def run(ids: list[int]) -> Run:
    tokens = torch.tensor([ids])
    clock = Clock()
    passes: list[None] = []
    hook = model.register_forward_hook(lambda *_: passes.append(None))
    begin = time.perf_counter()
    with torch.inference_mode():
      out = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=config.new_tokens,
        do_sample=False, streamer=clock, **options,
      )  # fmt: skip
    total = time.perf_counter() - begin
    hook.remove()
    new, seconds = out[0, len(ids) :].tolist(), clock.times[-1] - clock.times[1]
    return Run(new, sum(clock.counts[2:]), seconds, len(passes) - 1, total)

  return run


def llama_cpp(config: Config) -> Contender | str:
  """llama.cpp with float32 keys and values, or the reason why it is left out."""
  if config.gguf is None:
    return "no --gguf"
  if importlib.util.find_spec("llama_cpp") is None:
    return "llama_cpp is not installed"
  package = importlib.import_module("llama_cpp")

  llama = package.Llama(
    config.gguf, n_ctx=config.prompt_tokens + config.new_tokens, n_threads=cores(),
    n_threads_batch=cores(), type_k=package.GGML_TYPE_F32, type_v=package.GGML_TYPE_F32,
    verbose=False,
  )  # fmt: skip

  def run(ids: list[int]) -> Run:
    llama.reset()
    tokens, times = [], []
    begin = time.perf_counter()
    for token in llama.generate(ids, temp=0.0, repeat_penalty=1.0):
      tokens.append(token)
      times.append(time.perf_counter())
      if len(tokens) == config.new_tokens:
        break
    return Run(tokens, len(tokens) - 1, times[-1] - times[0], None, times[-1] - begin)

  return run


def load_torch(directory: str):
  torch.set_num_threads(cores())
  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
  model.generation_config = transformers.GenerationConfig(pad_token_id=0)  # no stop token
  return model


def summarise(runs: list[list[Run]]) -> dict:
  """Figures of one contender from its runs [repeats][prompts]."""
  per_token = [1e3 * sum(r.seconds for r in x) / sum(r.timed for r in x) for x in runs]
  emitted = sum(len(r.tokens) for r in runs[0])
  forwards = [r.forwards for r in runs[0] if r.forwards is not None]
  return {
    "ms_per_token": statistics.median(per_token),
    "ms_per_token_repeats": per_token,
    "ms_per_token_with_prompt": statistics.median(
      1e3 * sum(r.total for r in x) / emitted for x in runs
    ),
    "tokens": emitted,
    "tokens_per_forward": sum(r.timed for r in runs[0]) / sum(forwards) if forwards else None,
  }


def divergences(runs: list[Run], reference: list[Run], prompts, model: specjax.Model) -> list[dict]:
  """Prompts whose ids are not those of our plain decoding, with the margin at the first."""
  found = []
  for i, (run, plain) in enumerate(zip(runs, reference, strict=True)):
    index = first_divergence(run.tokens, plain.tokens)
    if index is not None:
      gap = margin(model, prompts[i] + plain.tokens[:index])
      found.append({"prompt": i, "index": index, "margin": gap})
  return found


def markdown(result: dict) -> str:
  lines = [
    "| | ms/token | low-high | with the prompt | tokens/forward | ids not ours |",
    "|---|---|---|---|---|---|",
  ]
  for name, r in result["contenders"].items():
    repeats = r["ms_per_token_repeats"]
    per_forward = r["tokens_per_forward"]
    lines.append(
      f"| {name} | {r['ms_per_token']:.2f} | {min(repeats):.2f}-{max(repeats):.2f} "
      f"| {r['ms_per_token_with_prompt']:.2f} "
      f"| {'' if per_forward is None else f'{per_forward:.2f}'} "
      f"| {len(r['divergences'])} of {result['config']['prompts']} |"
    )
  lines += [f"\nLeft out: {name} ({why})." for name, why in result["left_out"].items()]
  return "\n".join([*lines, "", *cost_lines(result["verify_cost"])])


def main(config: Config) -> None:
  with tempfile.TemporaryDirectory() as scratch:
    if config.model is None:
      make_model(scratch, config.seed)
    directory = config.model or scratch
    model = specjax.load(directory)
    torch_model = load_torch(directory)
  model = dataclasses.replace(model, stop=())  # nobody stops early

  # --- contenders ---
  lookup = {"prompt_lookup_num_tokens": config.draft}
  contenders = {
    "specjax": ours(model, "none", config),
    "specjax, prompt lookup": ours(model, "prompt_lookup", config),
    "transformers": theirs(torch_model, config),
    "transformers, prompt lookup": theirs(torch_model, config, **lookup),
  }
  left_out = {}
  third = llama_cpp(config)
  if isinstance(third, str):
    left_out["llama.cpp"] = third
  else:
    contenders["llama.cpp"] = third

  # --- timing ---
  half = (config.prompt_tokens + 1) // 2
  ids = np.random.default_rng(config.seed).integers(
    model.config.vocab_size, size=(config.prompts, half)
  )
  prompts = np.tile(ids, 2)[:, : config.prompt_tokens].tolist()
  for run in contenders.values():
    run(prompts[0])
  names = list(contenders)
  runs: dict[str, list[list[Run]]] = {name: [[] for _ in range(config.repeats)] for name in names}
  for repeat in range(config.repeats):
    for i, prompt in enumerate(prompts):
      first = (repeat + i) % len(names)
      for name in names[first:] + names[:first]:
        runs[name][repeat].append(contenders[name](prompt))
  context = config.prompt_tokens + config.new_tokens
  cost = measure(model.target, model.params, context, nodes=NODES)

  # --- report ---
  result = {
    "config": dataclasses.asdict(config),
    "network": dataclasses.asdict(model.config),
    "parameters": sum(x.size for x in jax.tree.leaves(model.params)),
    **environment(("torch", "transformers", "llama-cpp-python")),
    "threads": {"torch": torch.get_num_threads(), "xla": cores()},
    "contenders": {
      name: summarise(r) | {"divergences": divergences(r[0], runs["specjax"][0], prompts, model)}
      for name, r in runs.items()
    },
    "left_out": left_out,
    "verify_cost": cost._asdict() | {"relative": cost.relative},
  }
  pathlib.Path(config.out).parent.mkdir(parents=True, exist_ok=True)
  pathlib.Path(config.out).write_text(json.dumps(result, indent=2) + "\n")
  print(markdown(result))


if __name__ == "__main__":
  main(tyro.cli(Config))
