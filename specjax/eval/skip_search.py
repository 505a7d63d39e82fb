"""Which sublayers a draft can do without: the search of a set for `self_speculative`.

Draft & Verify (Zhang et al. 2023, arXiv 2309.08168) looks for the set with the most measured tokens
per second by Bayesian optimisation. Here sublayers are left out one by one, and the set wins that
gives most expected tokens per weight that a round reads, which no clock disturbs. How often a set
drafts the right token is measured in one pass over answers of the target.

Letters: B prompts, D depth, L layers, W tokens of a window.
"""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from specjax import checks
from specjax.base import Context, LayeredTarget, showing
from specjax.decoding.decoder import Decoder
from specjax.drafters.layers import skipped_layers
from specjax.drafters.layers.own_layers import agreement
from specjax.eval import prompts, report
from specjax.eval.options import Tune as Config
from specjax.names import grammar
from specjax.names.build.drafters import bind
from specjax.names.load import Model

WINDOW = 32  # W, the last tokens of an answer
CANDIDATES = 8  # sublayers of which one is left out
OF_MLP = ("mlp_norm", "mlp_out_norm", "gate_up", "gate", "up", "down", "experts")


def weights_read(model: Model) -> tuple[np.ndarray, int]:
  """(numbers i[L, 2] that a token reads of each attention and each MLP, those of the LM head)."""
  target = showing(LayeredTarget, model.target, "skipping")
  sizes, experts = np.zeros((model.config.layers, 2), np.int64), model.config.experts
  for i in range(model.config.layers):
    for path, part in flatten_dict(model.params["params"][f"layer_{i}"]).items():
      size = sum(x.size for x in jax.tree.leaves(part))
      if experts is not None and path[-1].startswith("expert_"):
        size = size * experts.chosen // experts.count
      sizes[i, int(path[0] in OF_MLP)] += size
  return sizes, sum(x.size for x in jax.tree.leaves(target.lm_head(model.params)))


def worth(rate: float, share: float, depth: int) -> tuple[float, int]:
  """(expected tokens of a round over the passes that it costs, the best length d = 1..D).

  A round of d tokens, each of which is right at `rate`, emits 1 + a + ... + a^d tokens. Each of
  them costs `share` of a pass, and the verification costs one.
  """
  each = [(sum(rate**j for j in range(d + 1)) / (d * share + 1), d) for d in range(1, depth + 1)]
  return max(each)


def search(
  value: Callable[[np.ndarray], float], layers: int, tries: int, seed: int
) -> tuple[np.ndarray, float]:
  """The best set bool[L, 2] on a path that leaves out one sublayer after the other, and its value.

  In each step the one among CANDIDATES random sublayers goes whose absence costs least. The path
  goes on through sets that are worse than the one before; a set that skips nothing is not taken.
  """
  noise = np.random.default_rng(seed)
  run, best, most = np.ones((layers, 2), bool), np.ones((layers, 2), bool), -np.inf

  def without(i: int) -> np.ndarray:
    return np.where(np.arange(run.size).reshape(run.shape) == i, False, run)

  for _ in report.progress(range(min(tries // CANDIDATES, run.size)), "sublayers"):
    left = np.flatnonzero(run)
    some = noise.choice(left, min(CANDIDATES, len(left)), replace=False)
    values = [value(without(i)) for i in some]
    run = without(some[int(np.argmax(values))])
    if max(values) > most:
      best, most = run, max(values)
  return best, most


def run(model: Model, config: Config, out: str | pathlib.Path) -> dict[str, Any]:
  """Searches a set, and writes skipped.json, summary.json and table.md.

  Raises:
    ValueError: another drafter than self_speculative, a temperature, or prompts that cannot be
      decoded.
  """
  drafter = " ".join(config.drafters)
  part = grammar.parse_one("drafter", config.drafters[0])
  if part.name != "self_speculative" or config.temperature or len(config.drafters) > 1:
    raise ValueError(
      "`drafters` must be self_speculative and `temperature` 0 for method='skipped_layers', got "
      f"{drafter!r} and {config.temperature:g}."
    )
  checks.whole("tries", config.tries, CANDIDATES)
  checks.whole("max_new_tokens", config.max_new_tokens, WINDOW + 1)
  depth = bind(part)[1].get("nodes", 8) - 1
  ids = [x.ids for x in prompts.read(config.prompts, model, config.max_new_tokens, config.limit)]
  directory = report.directory(out)
  answers = Decoder(model, batch=min(config.batch, len(ids)))(ids, config.max_new_tokens)
  pairs = zip(ids, answers, strict=True)
  texts = [[*x, *r.tokens] for x, r in pairs if len(r.tokens) > WINDOW]
  if not texts:
    raise ValueError(f"prompts={config.prompts!r}: no answer has more than {WINDOW} tokens.")

  own = showing(LayeredTarget, model.target, "skipping")
  length = jnp.asarray([len(x) for x in texts], jnp.int32)
  T = max(map(len, texts))
  tokens = jnp.asarray([[*x, *[0] * (T - len(x))] for x in texts], jnp.int32)
  cache, _ = jax.jit(own.prefill, static_argnums=3)(model.params, tokens, length, T)
  scored = jax.jit(functools.partial(agreement, own), static_argnames="width")
  sizes, head = weights_read(model)

  def rate(run: np.ndarray) -> float:
    context = Context(tokens, length, cache)
    found = scored(model.params, context, length, width=WINDOW, run=jnp.asarray(run))
    return float(found.mean())

  def share(run: np.ndarray) -> float:
    return float((sizes[run].sum() + head) / (sizes.sum() + head))

  def value(run: np.ndarray) -> float:
    return worth(rate(run), share(run), depth)[0]

  best, most = search(value, model.config.layers, config.tries, seed=0)
  chosen = {"rate": rate(best), "share": share(best)}
  found = {
    "model": model.label, "drafter": drafter, "prompts": len(texts), **chosen,
    "tokens_per_pass": most, "length": worth(**chosen, depth=depth)[1],
    "attention": np.flatnonzero(~best[:, 0]).tolist(), "mlp": np.flatnonzero(~best[:, 1]).tolist(),
  }  # fmt: skip
  skipped_layers.save(directory / "skipped.json", best, found)
  summary = report.summary(config, found)
  report.save(directory, summary, verdict(summary))
  return summary


def verdict(summary: dict[str, Any]) -> str:
  """The set in a few sentences."""
  s = summary
  return (
    f"{len(s['attention'])} attentions and {len(s['mlp'])} MLPs of {s['model']} are skipped. A "
    f"draft reads {s['share']:.2f} of the weights and is right in {s['rate']:.2f} of the last "
    f"{WINDOW} tokens of {s['prompts']} answers. Rounds of {s['length']} tokens should give "
    f"{s['tokens_per_pass']:.2f} tokens for the cost of a pass."
  )
