r"""What it costs to read long prompts sparsely: their likelihood, and the time.

    python benchmarks/claims/prompt_reading.py --model smollm2-135m --prompts help.jsonl \
        --max-new-tokens 1 --caches minference-1024 minference-512

Prompts that are long enough are cut to one length, and each is read by all caches in turn.
Perplexity is that of their tokens behind the first `behind`, which are read alike. Times are those
of the processor, so that a busy machine counts less; a speed-up is the median over the readings.
"""

import dataclasses
import functools
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

import specjax
from specjax import checks, command_line
from specjax.base import Params, Target
from specjax.cli.arguments import Weights
from specjax.eval import prompts, report, table
from specjax.names.build.cache import DENSE, build_cache

PART = 128  # tokens whose logits are there at once
TIMES = 2  # that each text is read


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(prompts.Questions):
  """What is compared."""

  weights: Weights = "float"  # how matrices lie in memory
  caches: tuple[str, ...] = ("minference-1024",)
  length: int = 7168  # tokens of a text, a multiple of 128
  behind: int = 1024  # tokens that do not count
  limit: int | None = 1
  out: str = "results/prompt_reading"


@functools.partial(jax.jit, static_argnames="target")
def read(target: Target, params: Params, tokens: Array) -> Array:
  """Hidden states [1, T, E] of tokens i32[1, T]."""
  T = tokens.shape[1]
  return target.prefill(params, tokens, jnp.full(1, T, jnp.int32), T)[1].hidden


@functools.partial(jax.jit, static_argnames="target")
def said(target: Target, params: Params, hidden: Array, tokens: Array) -> Array:
  """f32[T], the log-probability of the token that follows each."""

  def part(each: tuple[Array, Array]) -> Array:
    logits = jax.nn.log_softmax(target.head(params, each[0]))
    return jnp.take_along_axis(logits, each[1][:, None], 1)[:, 0]

  following = jnp.roll(tokens[0], -1).reshape(-1, PART)
  return lax.map(part, (hidden[0].reshape(*following.shape, -1), following)).ravel()


def main(config: Config) -> None:
  checks.whole("behind", config.behind, 0, config.length - 2)
  model = specjax.load(config.model, weights=config.weights)
  asked = dataclasses.replace(config, limit=None).read(model)
  texts = [item.ids[: config.length] for item in asked if len(item.ids) >= config.length]
  if not texts or config.length % PART:
    raise ValueError(
      f"`length` must be a multiple of {PART} and at most a prompt's tokens, got {config.length}."
    )
  kinds = dict(build_cache(model, name) for name in (DENSE, *config.caches))
  report.directory(config.out)
  seconds: dict[str, list[float]] = {name: [] for name in kinds}
  answers: dict[str, list[np.ndarray]] = {name: [] for name in kinds}
  for text in report.progress(texts[: config.limit], "reading"):
    tokens = jnp.asarray([text], jnp.int32)
    for name, target in kinds.items():
      log_probs = said(target, model.params, read(target, model.params, tokens), tokens)
      answers[name].append(np.asarray(log_probs)[config.behind : -1])
    for _ in range(TIMES):
      for name, target in kinds.items():
        started = time.process_time()
        jax.block_until_ready(read(target, model.params, tokens))
        seconds[name].append(time.process_time() - started)
  cells = [
    {
      "cache": name,
      "perplexity": round(float(np.exp(-np.mean(answers[name]))), 3),
      "seconds": round(float(np.median(seconds[name])), 2),
      "speed-up": round(float(np.median(np.divide(seconds[DENSE], seconds[name]))), 2),
    }
    for name in kinds
  ]
  report.publish(config, {"caches": cells}, table.markdown(cells))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
