"""What the commands that measure do."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

from rich.console import Console

from specjax import checks
from specjax.cli.arguments import Bench, BenchServe, Denoising, Memory, Tune
from specjax.cli.load_model import load_model
from specjax.decoding.decoder import Decoder
from specjax.eval import (
  bench,
  code_bench,
  memory,
  parallelbench,
  report,
  serve_load,
  skip_search,
  specbench,
  specbench_report,
  table,
  tune,
)


def _parallelbench(args: Bench) -> None:
  if args.measure.limit is not None:
    checks.whole("limit", args.measure.limit, 1, 10**5)
  own = args.denoising
  if own.published is not None and (own.tasks is not None or own.lengths != Denoising.lengths):
    raise ValueError(
      "`published` must be left out beside --tasks and --lengths, which choose among the "
      f"questions that ship, got {own.published!r}."
    )
  fields = _fields(args, parallelbench.Config, {"limit": "count"})
  config = parallelbench.Config(**{k: v for k, v in fields.items() if v is not None})
  summary = parallelbench.run(load_model(args.model, False), config, args.out)
  print(table.markdown(parallelbench.rows(summary)), report.contents(args.out), sep="\n")


def _fields(args: Bench, config: type, names: dict[str, str]) -> dict[str, Any]:
  """The options that the config of a suite holds, some under other names.

  Raises:
    ValueError: an option was given that the suite does not read.
  """
  known = {field.name for field in dataclasses.fields(config)}
  found = {}
  for group in (args.measure, args.denoising):
    for field in dataclasses.fields(group):
      value, name = getattr(group, field.name), names.get(field.name, field.name)
      if name in known:
        found[name] = value
      elif value != field.default:
        flag = field.name.replace("_", "-")
        raise ValueError(f"--{flag} {value!r}: --suite {args.suite} does not read this option.")
  return found


def run_bench(args: Bench) -> None:
  if args.suite == "parallelbench":
    _parallelbench(args)
    return
  if args.suite != "prompts" and not args.measure.verify_cost:
    raise ValueError(f"--no-verify-cost: --suite {args.suite} does not measure this.")
  kind = code_bench.Config if args.suite == "code" else bench.Config
  fields = _fields(args, kind, {})
  if args.suite == "code" and fields["prompts"] is not None:
    raise ValueError(f"--prompts {fields['prompts']!r}: --suite code asks its own tasks.")
  if args.measure.max_new_tokens is None:
    fields["max_new_tokens"] = kind.max_new_tokens
  model, config = load_model(args.model, True), kind(**fields)
  if config.tune:
    config = tune.tuned(model, config, pathlib.Path(args.out))
  console = Console(highlight=False)
  if args.suite == "specbench":
    for shown in specbench_report.terminal(specbench.run(model, config, args.out)):
      console.print(shown)
  elif isinstance(config, code_bench.Config):
    for shown in code_bench.terminal(code_bench.run(model, config, args.out)):
      console.print(shown)
  else:
    summary = bench.run(model, config, args.out)
    console.print(table.terminal(bench.rows(summary), report.caption(summary), columns=5))
  console.print(report.contents(args.out), markup=False)


def run_tune(args: Tune) -> None:
  model, config, console = load_model(args.model, True), args.measure, Console(highlight=False)
  if config.method == "skipped_layers":
    found = skip_search.run(model, config, args.out)
    console.print(skip_search.verdict(found), report.contents(args.out), sep="\n", markup=False)
    return
  summary = tune.run(model, config, args.out)
  decoded = [row for row in tune.rows(summary) if row["tokens/s"]]
  console.print(table.terminal(decoded, report.caption(summary), columns=5, bold=summary["chosen"]))
  console.print(tune.verdict(summary), markup=False)
  console.print(report.contents(args.out), markup=False)


def run_memory(args: Memory) -> None:
  model = load_model(args.model, True)
  held = round(1e6 * checks.number("prefixes", args.prefixes, 0))
  lengths = args.prompt_tokens, args.max_new_tokens, held, args.pages

  def decoder(batch: int) -> Decoder:
    return Decoder(
      model,
      args.drafter,
      args.verifier,
      cache=args.cache,
      temperature=args.temperature,
      batch=batch,
    )

  console = Console(highlight=False, markup=False)
  if args.budget is None:
    batch, found = args.batch, memory.measure(decoder(args.batch), *lengths)
  else:
    checks.number("budget", args.budget, above=0)
    if args.batch != 1:
      raise ValueError(f"--batch {args.batch}: --budget {args.budget:g} finds the batch itself.")
    batch, found = memory.largest_batch(decoder, int(args.budget * 1e9), *lengths)
  caption = f"{model.label}, {args.drafter}, batch {max(batch, 1)}, on each device"
  console.print(table.terminal(found.rows, caption))
  if args.budget is not None and not batch:
    raise ValueError(f"--budget {args.budget:g}: batch 1 needs {found.total / 1e9:.3g} GB.")
  if args.budget is not None:
    console.print(f"The largest batch that fits {args.budget:g} GB is {batch}.")


def run_bench_serve(args: BenchServe) -> None:
  out, console = report.directory(args.out), Console(highlight=False)
  found = serve_load.run(args)
  rows = serve_load.rows(found)
  report.save(out, report.summary(args, {"runs": found}), table.markdown(rows))
  caption = f"{args.url}; median / 99th percentile; gaps are between pieces of text"
  console.print(table.terminal(rows, caption))
  for sentence in sorted({error for each in found for error in each["errors"]}):
    console.print(sentence, markup=False)
  console.print(report.contents(args.out), markup=False)


COMMANDS: dict[type, Callable] = {
  Bench: run_bench,
  BenchServe: run_bench_serve,
  Tune: run_tune,
  Memory: run_memory,
}
