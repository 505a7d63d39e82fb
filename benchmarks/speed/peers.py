"""Greedy decoding of the same weights by transformers, llama.cpp and specjax, in one run.

    python benchmarks/speed/peers.py
    python benchmarks/speed/peers.py --model DIR --gguf model-f32.gguf

All decode as many new tokens of the same prompts (token ids) in float32, at batch 1, on all cores,
without a stop token. After a warm-up they take turns prompt by prompt, in an order that rotates;
the median over repeats counts. The time of a token leaves out the prompt's own pass and the token
that the others take from it; the time of the whole call is reported too.

Without --model the script makes a random Llama of 134M parameters (vocabulary 32000, untied head).
llama.cpp takes part where its Python package is installed and --gguf gives the same weights in its
format. The script needs torch and transformers.
"""

import dataclasses
import sys
import tempfile
import time
import types
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import specjax
from specjax import checks, script
from specjax.checkpoints import hf
from specjax.eval import interleaved, report, table
from specjax.eval.divergence import divergences
from specjax.eval.verify_cost import measure
from specjax.models import transformer
from specjax.models.config import Config as ModelConfig

try:
  import torch
  import transformers
except ImportError:
  torch = None  # type: ignore[assignment]

NODES = (1, 2, 4, 8, 16)


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  model: str | None = None  # Hugging Face directory; by default a random 134M Llama
  gguf: str | None = None  # the same weights for llama.cpp, float32
  prompts: int = 3  # number of prompts
  # length of each prompt, whose second half repeats the random ids of the first
  prompt_tokens: int = 32
  new_tokens: int = 64  # number of new tokens of each
  draft: int = 7  # number of tokens drafted by prompt lookup, here and in transformers
  repeats: int = 5  # times everything is decoded
  seed: int = 0  # seed of weights and prompts
  out: str = "results/peers"  # directory of the report


class Run(NamedTuple):
  """One decoded prompt."""

  tokens: list[int]  # new ids
  timed: int  # number of those that came after the prompt's own pass
  seconds: float  # time of these
  forwards: int | None  # target passes of these, None where they are not known
  total: float  # seconds of the whole call


RANDOM = ModelConfig(
  vocab_size=32000, width=768, layers=12, heads=12, kv_heads=12, head_dim=64, mlp_width=2048,
  tied=False,
)  # fmt: skip
Contender = Callable[[list[int]], Run]


def ours(model: specjax.Model, drafter: str, config: Config) -> Contender:
  decoder = specjax.Decoder(model, drafter)

  def run(ids: list[int]) -> Run:
    (r,) = decoder([ids], config.new_tokens)
    return Run(r.tokens, r.emitted, r.seconds, r.forwards, r.prefill_seconds + r.seconds)

  return run


def theirs(model, config: Config, **options) -> Contender:
  """The `generate` of transformers."""

  def run(ids: list[int]) -> Run:
    tokens = torch.tensor([ids])
    came: list[tuple[float, int]] = []  # when, and how many tokens; the prompt comes first
    clock = types.SimpleNamespace(
      put=lambda ids: came.append((time.perf_counter(), ids.numel())), end=lambda: None
    )
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
    new, timed = out[0, len(ids) :].tolist(), sum(count for _, count in came[2:])
    return Run(new, timed, came[-1][0] - came[1][0], len(passes) - 1, total)

  return run


def llama_cpp(config: Config) -> Contender | str:
  """llama.cpp with float32 keys and values, or the reason why it takes no part."""
  if config.gguf is None:
    return "no --gguf"
  try:
    import llama_cpp as package
  except ImportError:
    return "llama_cpp is not installed"
  llama = package.Llama(
    config.gguf, n_ctx=config.prompt_tokens + config.new_tokens, n_threads=report.cores(),
    n_threads_batch=report.cores(), type_k=package.GGML_TYPE_F32, type_v=package.GGML_TYPE_F32,
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


def summarise(runs: list[list[Run]]) -> dict:
  """Figures of one contender from its runs [repeats][prompts]."""
  per_token = [1e3 * sum(r.seconds for r in x) / sum(r.timed for r in x) for x in runs]
  emitted = sum(len(r.tokens) for r in runs[0])
  forwards = [r.forwards for r in runs[0] if r.forwards is not None]
  whole = [1e3 * sum(r.total for r in x) / emitted for x in runs]
  return {
    "ms_per_token": float(np.median(per_token)), "ms_per_token_repeats": per_token,
    "ms_per_token_with_prompt": float(np.median(whole)), "tokens": emitted,
    "tokens_per_forward": sum(r.timed for r in runs[0]) / sum(forwards) if forwards else None,
  }  # fmt: skip


def main(config: Config) -> None:
  if torch is None:
    raise ValueError("torch or transformers is not installed: pip install torch transformers.")
  report.check(config, "prompts", "prompt_tokens", "draft", "repeats")
  checks.whole("new_tokens", config.new_tokens, 2)
  report.directory(config.out)
  with tempfile.TemporaryDirectory() as scratch:
    if config.model is None:
      params = jax.jit(transformer.init, static_argnums=0)(RANDOM, jax.random.key(config.seed))
      hf.save(scratch, RANDOM, params, dtype=jnp.float32)
    directory = config.model or scratch
    model = specjax.load(directory)
    torch.set_num_threads(report.cores())
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    kind = transformers.AutoModelForCausalLM
    torch_model = kind.from_pretrained(directory, dtype=torch.float32).eval()
  torch_model.generation_config = transformers.GenerationConfig(pad_token_id=0)  # no stop token
  model = dataclasses.replace(model, stop=())  # nobody stops early

  contenders = {
    "specjax": ours(model, "none", config),
    "specjax, prompt lookup": ours(model, f"prompt_lookup-{config.draft + 1}", config),
    "transformers": theirs(torch_model, config),
    "transformers, prompt lookup":
      theirs(torch_model, config, prompt_lookup_num_tokens=config.draft),
  }  # fmt: skip
  third = llama_cpp(config)
  left_out = {"llama.cpp": third} if isinstance(third, str) else {}
  if not isinstance(third, str):
    contenders["llama.cpp"] = third

  shape = (config.prompts, (config.prompt_tokens + 1) // 2)
  ids = np.random.default_rng(config.seed).integers(model.config.vocab_size, size=shape)
  prompts = np.tile(ids, 2)[:, : config.prompt_tokens].tolist()
  for run in contenders.values():
    run(prompts[0])
  runs: dict[str, list[list[Run]]] = {k: [[] for _ in range(config.repeats)] for k in contenders}
  for repeat, i, name in interleaved.turns(list(contenders), len(prompts), config.repeats):
    runs[name][repeat].append(contenders[name](prompts[i]))
  context = config.prompt_tokens + config.new_tokens
  cost = measure(model.target, model.params, context, nodes=NODES)
  plain = runs["specjax"][0]
  found = {
    name: summarise(r) | {"divergences": divergences(model, prompts, r[0], plain, True)}
    for name, r in runs.items()
  }
  rows = [
    {
      "": name, "ms/token": f"{r['ms_per_token']:.2f}",
      "low-high": "{:.2f}-{:.2f}".format(*np.percentile(r["ms_per_token_repeats"], (0, 100))),
      "with the prompt": f"{r['ms_per_token_with_prompt']:.2f}",
      "tokens/forward": f"{tau:.2f}" if (tau := r["tokens_per_forward"]) else "",
      "ids not ours": f"{len(r['divergences'])} of {config.prompts}",
    }
    for name, r in found.items()
  ]  # fmt: skip
  texts = [table.markdown(rows)]
  texts += [f"Left out: {name} ({why})." for name, why in left_out.items()]
  report.publish(config, {
    "network": dataclasses.asdict(model.config), "parameters": optax.tree.size(model.params),
    "threads": {"torch": torch.get_num_threads(), "xla": report.cores()}, "contenders": found,
    "left_out": left_out, "verify_cost": cost._asdict(),
  }, "\n\n".join([*texts, cost.markdown]),
    packages=("torch", "transformers", "llama-cpp-python"))  # fmt: skip


if __name__ == "__main__":
  sys.exit(script.run(main, Config, __doc__))
