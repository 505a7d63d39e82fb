r"""The tasks of lm-evaluation-harness, answered by any method.

    pip install .[harness]
    python benchmarks/quality/harness.py --tasks gsm8k --limit 200 --model smollm2-135m --chat \
        --methods none prompt_lookup-8 --batch 8
    python benchmarks/quality/harness.py --tasks my_task --include folder/of/my_task.yaml \
        --model lists-3m --methods confidence threshold-0.9

A method is a drafter, or a policy where the model is a denoiser. `--include` is a directory with
task files of your own, whose questions may be a JSONL on this machine. The harness downloads its
own tasks' questions.
"""

import dataclasses
import sys
import time
from typing import Any

import specjax
from specjax import checks, command_line
from specjax.eval import report, table
from specjax.names.load import Model


@dataclasses.dataclass(frozen=True)
class Config:
  """What is asked, and how it is answered."""

  tasks: tuple[str, ...] = ()  # names of tasks of the harness, or of files in `include`
  include: str | None = None  # directory of task files
  model: str = "smollm2-135m"
  methods: tuple[str, ...] = ()  # by default plain decoding, or `confidence`
  batch: int = 8
  limit: int | None = None  # questions of each task
  chat: bool = False  # whether questions are written in the model's chat template
  shots: int | None = None  # answered questions before each; by default the task's
  samples: int = 128  # passes of a denoiser for each likelihood
  max_new_tokens: int = 256  # of tasks that do not say it
  out: str = "results/harness"


def decoder(model: Model, method: str, batch: int) -> Any:
  """What answers by a method."""
  if model.config.causal:
    return specjax.Decoder(model, method, batch=batch)
  return specjax.DiffusionDecoder(model, method, batch=batch)


def main(config: Config) -> None:
  try:
    import lm_eval
    from lm_eval.tasks import TaskManager

    from specjax.eval.harness import Harness
  except ModuleNotFoundError as error:
    raise ValueError(f"tasks need {error.name}: pip install specjax[harness].") from None
  report.check(config, "batch", "samples", "max_new_tokens")
  if not config.tasks:
    checks.refuse("tasks", (), "one or more names of tasks")
  manager = TaskManager(include_path=config.include)
  for task in config.tasks:
    if not manager.match_tasks([task]):
      checks.refuse("tasks", task, "a task of lm-evaluation-harness, or of a file in --include")
  model = specjax.load(config.model, weights="float")
  methods = config.methods or (("none",) if model.config.causal else ("confidence",))
  harnesses = {
    method: Harness(
      decoder(model, method, config.batch),
      samples=config.samples,
      max_new_tokens=config.max_new_tokens,
    )
    for method in methods
  }
  report.directory(config.out)
  cells = []
  for method, harness in harnesses.items():
    begin = time.perf_counter()
    found = lm_eval.simple_evaluate(
      harness,
      tasks=list(config.tasks),
      num_fewshot=config.shots,
      limit=config.limit,
      apply_chat_template=config.chat,
      task_manager=manager,
      log_samples=False,
    )
    cells.append(
      {
        "method": method,
        "seconds": time.perf_counter() - begin,
        "tasks": found["results"],
        "tokens_per_pass": harness.emitted / harness.passes if harness.passes else None,
      }
    )
  rows = [
    {
      "method": cell["method"],
      "task": task,
      "metric": metric,
      "value": f"{value:.4f}",
      "standard error": figures.get(_error(metric), ""),
      "tokens / pass": table.estimate(cell["tokens_per_pass"] or 1.0),
      "seconds": f"{cell['seconds']:.0f}",
    }
    for cell in cells
    for task, figures in cell["tasks"].items()
    for metric, value in figures.items()
    if isinstance(value, float) and "_stderr" not in metric
  ]
  report.publish(config, {"methods": cells}, table.markdown(rows), packages=("lm_eval",))


def _error(metric: str) -> str:
  """The key of a metric's standard error: `acc,none` has `acc_stderr,none`."""
  name, _, filtered = metric.partition(",")
  return f"{name}_stderr,{filtered}"


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
