r"""Does speculation change a single token? Every drafter against plain decoding.

    python -m specjax.train.lm --data gsm8k_train.jsonl --out runs/draft --width 128 --layers 2 \
        --heads 2 --kv-heads 1 --mlp-width 384 --steps 150    # a draft model, in two minutes
    python benchmarks/lossless.py --data gsm8k_test.jsonl --draft-model runs/draft/model

Greedy at batch 1 and 8 (rows of mixed lengths), and position-keyed sampling at temperature 0.8.
Where ids differ, the first place and the margin between the two best logits there are reported.
"""

import dataclasses
import json
import pathlib
from typing import Any

import jax
import tyro
from rich.console import Console
from rich.progress import track

import specjax
from specjax.checkpoints import formats
from specjax.decoding import catalogue
from specjax.drafters import drafting
from specjax.eval import metrics, prompts
from specjax.eval.divergence import margin
from specjax.eval.environment import environment
from specjax.trees.grow import as_tree


@dataclasses.dataclass(frozen=True)
class Config:
  """What is compared.

  Attributes:
    data: JSONL of questions.
    heads: directory with a run of each trained head; only the zoo's without it.
    draft_model: LM of the `draft_model` drafter; left out without one.
    model: the target.
    questions: how many.
    max_new_tokens: per question.
    batches: batch sizes.
    temperatures: 0 is greedy.
    out: where the report goes.
  """

  data: str
  heads: str | None = None
  draft_model: str | None = None
  model: str = "gsm8k-7m"
  questions: int = 100
  max_new_tokens: int = 128
  batches: tuple[int, ...] = (1, 8)
  temperatures: tuple[float, ...] = (0.0, 0.8)
  out: str = "results/lossless.json"


def main(config: Config) -> None:
  # No end marker: every prompt gives its full number of tokens.
  model = dataclasses.replace(specjax.load(config.model), stop=())
  items = prompts.read(config.data, model, config.max_new_tokens, config.questions)
  ids = [item.ids for item in items]
  zoo_heads = [kind.removesuffix(" head") for _, kind in catalogue.zoo() if kind.endswith(" head")]
  drafters: dict[str, Any] = {
    "none": "none",
    "prompt_lookup": "prompt_lookup",
    **{f"{name}-{nodes}": f"{name}-{nodes}" for name in zoo_heads for nodes in (8, 16)},
  }
  for path in sorted(pathlib.Path(config.heads).glob("*/model")) if config.heads else ():
    loaded = formats.load(path, model.config)
    drafter = drafting.drafter(loaded.head, as_tree(loaded.choices[:7]))
    drafters[f"{path.parent.name}, trained"] = (drafter, loaded.params)
  if config.draft_model:
    drafters["draft_model"] = f"draft_model[{config.draft_model}]"
  rows = []
  for temperature in config.temperatures:
    reference = None
    verifier = "greedy" if temperature == 0 else "target_only"
    cells = [(b, name) for b in config.batches for name in drafters]
    for batch, name in track(cells, f"temperature {temperature}", console=Console(stderr=True)):
      decode = specjax.Decoder(
        model, drafters[name], verifier, temperature=temperature, batch=batch
      )
      results = decode(ids, config.max_new_tokens)
      reference = reference or results  # plain decoding, batch 1
      different = []
      for i, (a, b) in enumerate(zip(results, reference, strict=True)):
        at = metrics.first_divergence(a.tokens, b.tokens)
        if at is not None:
          gap = margin(model, ids[i] + b.tokens[:at]) if temperature == 0 else None
          different.append({"prompt": i, "index": at, "margin": gap})
      rows.append({
        "temperature": temperature, "verifier": verifier, "batch": batch, "drafter": name,
        "prompts": len(ids), "tokens": sum(r.emitted for r in results),
        "tokens_per_forward": sum(r.emitted for r in results) / sum(r.forwards for r in results),
        "different": different,
      })  # fmt: skip
      r = rows[-1]
      print(
        f"T={r['temperature']} {r['verifier']:12} batch {r['batch']} {r['drafter']:14} "
        f"{r['tokens']} tokens, {r['tokens_per_forward']:.2f} per forward, "
        f"{len(r['different'])} of {r['prompts']} prompts differ {r['different'] or ''}",
        flush=True,
      )
      jax.clear_caches()  # a process may map 65530 pieces of memory
  out = pathlib.Path(config.out)
  out.parent.mkdir(parents=True, exist_ok=True)
  report = {"config": dataclasses.asdict(config), **environment(), "cells": rows}
  out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
  main(tyro.cli(Config, description=__doc__))
