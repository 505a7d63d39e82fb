r"""Does speculation change a single token? Every drafter is compared with plain decoding.

    python -m specjax.train.lm --data gsm8k_train.jsonl --out runs/draft --width 128 --layers 2 \
        --heads 2 --kv-heads 1 --mlp-width 384 --steps 150    # a draft model, in two minutes
    python benchmarks/claims/lossless.py --prompts gsm8k_test.jsonl --draft-model runs/draft/model

Decoding is greedy at batch 1 and 8 (rows of mixed lengths), and sampled with position-keyed noise
at temperature 0.8. Where ids differ, the report says where first and, if greedy, by what margin of
the two best logits.
"""

import dataclasses
import pathlib
import sys
from typing import Any

import jax

import specjax
from specjax import script
from specjax.checkpoints import formats
from specjax.decoding import catalogue
from specjax.drafters import drafting
from specjax.eval import metrics, prompts, report, table
from specjax.eval.divergence import divergences
from specjax.trees import Static


@dataclasses.dataclass(frozen=True)
class Config(prompts.Questions):
  """What is compared."""

  # directory with a run of each trained head; by default only the zoo's heads take part
  heads: str | None = None
  draft_model: str | None = None  # LM of the `draft_model` drafter, which by default takes no part
  limit: int | None = 100
  batches: tuple[int, ...] = (1, 8)  # batch sizes
  temperatures: tuple[float, ...] = (0.0, 0.8)  # 0 is greedy
  out: str = "results/lossless"


def drafters(model: specjax.Model, config: Config) -> dict[str, Any]:
  """The drafters by name, plain decoding first."""
  heads = [f"{name}-{nodes}" for name in catalogue.heads(model.name) for nodes in (8, 16)]
  names = ["none", "prompt_lookup", *heads]
  found: dict[str, Any] = {name: name for name in names}
  trained = sorted(pathlib.Path(config.heads).glob("*/model")) if config.heads else []
  if config.heads and not trained:
    raise ValueError(f"heads={config.heads!r}: accepted is a directory with NAME/model in it.")
  for path in trained:
    loaded = formats.load(path, model.config)
    drafter = drafting.drafter(loaded.head, Static(loaded.choices[:7]))
    found[f"{path.parent.name}, trained"] = (drafter, loaded.params)
  if config.draft_model:
    found["draft_model"] = specjax.make_drafter(model, f"draft_model[{config.draft_model}]")
  return found


def main(config: Config) -> None:
  model = dataclasses.replace(specjax.load(config.model), stop=())  # all texts are of full length
  ids = [item.ids for item in config.read(model)]
  parts = drafters(model, config)
  report.directory(config.out)
  cells = []
  for temperature in config.temperatures:
    reference = None
    verifier = "greedy" if temperature == 0 else "target_only"
    turns = [(batch, name) for batch in config.batches for name in parts]
    for batch, name in report.progress(turns, f"temperature {temperature}"):
      decode = specjax.Decoder(model, parts[name], verifier, temperature=temperature, batch=batch)
      results = decode(ids, config.max_new_tokens)
      reference = reference or results  # plain decoding at the first batch size
      cells.append({
        "temperature": temperature, "verifier": verifier, "batch": batch, "drafter": name,
        "prompts": len(ids), "tokens": sum(r.emitted for r in results), **metrics.tau(results),
        "different": divergences(model, ids, results, reference, temperature == 0),
      })  # fmt: skip
      jax.clear_caches()  # a process may map 65530 pieces of memory
  rows = [
    {
      **{key: cell[key] for key in ("temperature", "verifier", "batch", "drafter", "tokens")},
      "tokens / forward": table.estimate(cell["tau"], cell["tau_interval"]),
      "prompts that differ": f"{len(cell['different'])} of {cell['prompts']}",
    }
    for cell in cells
  ]
  report.publish(config, {"cells": cells}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(script.run(main, Config, __doc__))
