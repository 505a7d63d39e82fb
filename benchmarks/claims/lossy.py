r"""What the lossy rules give and what they cost: tokens per forward beside texts that change.

    python -m specjax.train.judge --model gsm8k-7m --data gsm8k_train.jsonl --out runs/judge
    python benchmarks/lossy.py --prompts gsm8k_test.jsonl --judge runs/judge/model

Every rule decodes the same questions with the same noise as the exact rule, whose tokens are those
of plain decoding. A text is other where one id is; a number where the last one of the text is, or
only one of them has any.
"""

import dataclasses
import json
import pathlib
import re

import tyro
from rich.console import Console
from rich.progress import track

import specjax
from specjax.checkpoints import judge as checkpoint
from specjax.decoding.decoder import Result
from specjax.eval import metrics, prompts
from specjax.eval.environment import environment
from specjax.verifiers import judge, target_only, typical


@dataclasses.dataclass(frozen=True)
class Config:
  """What is compared.

  Attributes:
    prompts: JSONL of questions.
    judge: directory of a trained judge.
    model: the target.
    drafter: name of a drafter, such as "eagle-16" or "draft_model-8[PATH]".
    thresholds: of the judge.
    epsilons: of typical acceptance, with delta its square root.
    temperatures: of the distribution; at 0 typical acceptance is greedy.
    limit: questions.
    max_new_tokens: per question.
    out: where the report goes.
  """

  prompts: str
  judge: str
  model: str = "gsm8k-7m"
  drafter: str = "eagle"
  thresholds: tuple[float, ...] = (0.9, 0.5)
  epsilons: tuple[float, ...] = (0.09, 0.3)
  temperatures: tuple[float, ...] = (0.0, 0.8)
  limit: int = 20
  max_new_tokens: int = 128
  out: str = "results/lossy"


def last_number(text: str) -> str | None:
  """The last number of a text, without commas between its digits."""
  found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
  return found[-1].replace(",", "") if found else None


def row(name: str, results: list[Result], plain: list[Result]) -> dict:
  """Figures of a rule beside those of the exact one."""
  emitted, forwards = [r.emitted for r in results], [r.forwards for r in results]
  pairs = list(zip(results, plain, strict=True))
  return {
    "rule": name, "tokens_per_forward": sum(emitted) / sum(forwards),
    "interval": metrics.bootstrap_interval(metrics.block_efficiency, emitted, forwards),
    "other_text": sum(a.tokens != b.tokens for a, b in pairs),
    "other_number": sum(last_number(a.text) != last_number(b.text) for a, b in pairs),
    "questions": len(pairs),
  }  # fmt: skip


def main(config: Config) -> None:
  model = specjax.load(config.model)
  items = prompts.read(config.prompts, model, config.max_new_tokens, config.limit)
  ids = [item.ids for item in items]
  head = checkpoint.load(config.judge, model.config)
  rules = [
    (target_only(), ()),
    *((typical(e, e**0.5), ()) for e in config.epsilons),
    *((judge(t), head) for t in config.thresholds),
  ]
  rows = []
  cells = [(t, rule) for t in config.temperatures for rule in rules]
  plain: list[Result] = []
  for temperature, (rule, params) in track(cells, console=Console(stderr=True)):
    decode = specjax.Decoder(model, config.drafter, (rule, params), temperature=temperature)
    results = decode(ids, config.max_new_tokens)
    plain = results if rule is target_only() else plain
    rows.append({
      "temperature": temperature, **row(f"{rule.name} {rule.exactness}", results, plain),
    })  # fmt: skip
  table = [
    "| T | rule | tokens / forward | other text | other number |",
    "|---|---|---|---|---|",
  ]
  for r in rows:
    low, high = r["interval"] or (float("nan"),) * 2
    table.append(
      f"| {r['temperature']:g} | {r['rule']} | {r['tokens_per_forward']:.2f} "
      f"[{low:.2f}, {high:.2f}] | {r['other_text']} of {r['questions']} "
      f"| {r['other_number']} of {r['questions']} |"
    )
  out = pathlib.Path(config.out)
  out.mkdir(parents=True, exist_ok=True)
  report = {"config": dataclasses.asdict(config), **environment(), "rules": rows}
  (out / "summary.json").write_text(json.dumps(report, indent=2) + "\n")
  (out / "table.md").write_text("\n".join(table) + "\n")
  print("\n".join(table))


if __name__ == "__main__":
  main(tyro.cli(Config, description=__doc__))
