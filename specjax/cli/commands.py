"""What the commands of the command line do.

What draws pictures is imported where one is drawn: matplotlib takes longer to import than jax.
"""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from specjax import checks, serving
from specjax.checkpoints import hub, templates
from specjax.cli import search, terminal
from specjax.cli.arguments import (
  Bench,
  BenchServe,
  Chat,
  Convert,
  Corpus,
  Denoise,
  Generate,
  Info,
  List,
  Memory,
  Prompt,
  Sampling,
  Search,
  Serve,
  Tune,
)
from specjax.cli.chat import chat
from specjax.cli.convert import run_convert, run_corpus
from specjax.cli.load_model import load_model, named
from specjax.decoding.batching import Result
from specjax.decoding.conversation import Conversation
from specjax.decoding.decoder import Decoder
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.eval import prompts
from specjax.models import sharding
from specjax.names import catalogue
from specjax.names.load import resolve
from specjax.sampling import SamplingParams
from specjax.search import SEARCHES
from specjax.search.best_of import best_of

# Fields of a Result in the output of --json, after the prompt.
JSON_KEYS = (
  "text", "tokens", "log_probs", "passes", "emitted", "seconds", "prefill_seconds", "method",
)  # fmt: skip


def _items(args: Prompt, model):
  """The prompts, after their checks."""
  if args.max_new_tokens < 1:
    raise ValueError(f"`max_new_tokens` must be at least 1, got {args.max_new_tokens}.")
  if args.prompts is not None and args.prompt is None:
    if args.chat:
      raise ValueError("--chat goes with --prompt; in a file, `question` says the same.")
    return prompts.read(args.prompts, model, args.max_new_tokens)
  if args.prompt is None or args.prompts is not None:
    raise ValueError("expected either --prompt TEXT or --prompts FILE.")
  ids = model.chat(args.prompt) if args.chat and args.prompt else model.encode(args.prompt)
  prompts.check_length(item := prompts.Item(args.prompt, ids), args.max_new_tokens, model)
  return [item]


def _sampling(args: Sampling) -> SamplingParams:
  """How tokens are drawn.

  It says on stderr which options change nothing, for at temperature 0 the likeliest token wins.
  """
  own = {field.name: getattr(args, field.name) for field in dataclasses.fields(SamplingParams)}
  sampling = SamplingParams(**own)
  if args.temperature == 0 and sampling.filters:
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in sampling.filters)
    print(f"note: {flags} has no effect at temperature 0.", file=sys.stderr)
  return sampling


def run_generate(args: Generate) -> None:
  model = load_model(args.model, True)
  items = _items(args.prompt, model)
  decoder = Decoder(
    model,
    args.drafter,
    args.verifier,
    processors=args.processors,
    cache=args.cache,
    sampling=_sampling(args.sampling),
    regex=args.regex,
    json_schema=args.json_schema,
    stop=args.prompt.stop,
    stop_words=args.stop_words,
    seed=args.sampling.seed,
    batch=args.prompt.batch,
  )
  if args.best_of != 1:
    _run_best_of(args, items, decoder)
    return
  if args.select is not None:
    raise ValueError(f"--select {args.select} goes with --best-of.")
  if args.hedged:
    raise ValueError("--hedged goes with --best-of.")
  if len(items) == 1 and not args.prompt.json and model.skipping is None:
    _stream(decoder, items[0], args.prompt.max_new_tokens)
    return
  for item, r in _decoded(args.prompt, items, decoder):
    rate = f"{r.emitted / r.passes:.2f} per pass"
    used = {"verifier": r.verifier, "exactness": r.exactness}
    _print(args.prompt, item, r, used, f"{r.emitted} tokens, {rate}, {decoder.label}")


def _run_best_of(args: Generate, items: Sequence[prompts.Item], decoder: Decoder) -> None:
  n, select = args.best_of, args.select or "likelihood"
  for i, item in enumerate(items):
    (best,) = best_of(
      decoder,
      [item.ids],
      n,
      args.prompt.max_new_tokens,
      select=select,
      hedged=args.hedged,
      first=n * i,
    )
    more = {"select": select, "chosen": best.chosen, "samples": [r.text for r in best.samples],
            "scores": [x if x > -math.inf else None for x in best.scores]}  # fmt: skip
    summary = f"sample {best.chosen + 1} of {n} by {select}, {best.result.emitted} tokens"
    _print(args.prompt, item, best.result, more, f"{summary}, {decoder.label}")


def run_search(args: Search) -> None:
  model = load_model(args.model, True)
  model = dataclasses.replace(model, stop=(*model.stop, *args.prompt.stop))
  search.show(args, model, _items(args.prompt, model))


def run_chat(args: Chat) -> None:
  chat(load_model(args.model), args)


def run_serve(args: Serve) -> None:
  serving.command(args, lambda: load_model(args.model))


def _decoded(args: Prompt, items, decoder) -> Iterator[tuple[prompts.Item, Result]]:
  """Each prompt with its result as soon as its batch is done, so that a failure loses no text."""
  for first in range(0, len(items), args.batch):
    part = items[first : first + args.batch]
    results = decoder([item.ids for item in part], args.max_new_tokens, first=first)
    yield from zip(part, results, strict=True)


def _print(
  args: Prompt, item: prompts.Item, result: Result, more: dict[str, Any], summary: str
) -> None:
  """Prints a result: as one JSON object of JSON_KEYS and `more`, or for people."""
  if args.json:
    fields = {key: getattr(result, key) for key in JSON_KEYS}
    if result.closing is not None:
      fields["closing"] = result.closing
    print(json.dumps({"prompt": item.given, **fields, **more}), flush=True)
    return
  console = Console(highlight=False, markup=False)
  console.rule(style="dim")
  console.print(str(item.given), style="dim")
  console.print(result.text or str(result.tokens))
  console.print(summary, style="cyan")
  if result.closing is not None:
    console.print(_kept_short(result.closing), style="cyan")


def _stream(decoder: Decoder, item: prompts.Item, max_new_tokens: int) -> None:
  """Prints a text as it comes, a round at a time."""
  print(item.given, end="" if decoder.model.tokenizer else " ", flush=True)
  pieces = Conversation(decoder).ask(item.ids, max_new_tokens)
  answer = terminal.show(decoder.model, pieces, item.ids, decoder.stop_words)
  console = Console(highlight=False, markup=False)
  console.print(terminal.summary(answer, decoder.label), style="cyan")
  if (closing := decoder.closing(answer.tokens, max_new_tokens)) is not None:
    console.print(_kept_short(closing), style="cyan")


def _kept_short(closing: int) -> str:
  return f"from token {closing} on the budget left room for a shorter text only"


def _check_picture(file: str) -> None:
  """Raises ValueError for a picture that could not be written once the text is there."""
  from matplotlib.figure import Figure

  path, kinds = pathlib.Path(file), Figure().canvas.get_supported_filetypes()
  possible = path.name and "\0" not in file and not path.is_dir() and path.parent.is_dir()
  if not possible or path.suffix[1:] not in kinds or not os.access(path.parent, os.W_OK):
    checks.refuse(
      "picture", file, f"a file in a directory that is there, of type {', '.join(kinds)}"
    )


def run_denoise(args: Denoise) -> None:
  if args.picture is not None:
    _check_picture(args.picture)
  model = load_model(args.model, False)
  items = _items(args.prompt, model)
  decoder = DiffusionDecoder(
    model,
    args.policy,
    sampling=_sampling(args.sampling),
    seed=args.sampling.seed,
    stop=args.prompt.stop,
    batch=args.prompt.batch,
  )
  for i, (item, r) in enumerate(_decoded(args.prompt, items, decoder)):
    slots = {key: getattr(r.filling, key) for key in ("when", "filled", "wasted")}
    _print(
      args.prompt, item, r, slots, f"{r.filling.filled} slots in {r.passes} passes, {r.method}"
    )
    if args.picture and i == 0:
      from specjax.eval.plots import denoising

      denoising.canvas(model, {r.method: r}).savefig(args.picture)


def _grid(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
  table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
  for i, column in enumerate(columns):
    table.add_column(column, no_wrap=i == 0, overflow="fold")
  for row in rows:
    table.add_row(*row)
  return table


def run_list(args: List) -> None:
  zoo = [*catalogue.zoo(), *hub.rows()]
  every = catalogue.parts() | catalogue.searches(SEARCHES)
  found = catalogue.only(every, " ".join(args.what), [name for name, _ in zoo])
  console = Console(highlight=False, markup=False)
  for title, rows in found.items():
    said = []
    for row in rows:
      about = (row.label, f"arXiv {row.source}" if row.source else "", row.parameters)
      measured = "; ".join(figure for figure, _ in row.figures)
      lines = row.sentence, "; ".join(filter(None, about)), measured and f"measured: {measured}"
      said.append((row.name, "\n".join(filter(None, lines))))
    console.print(_grid(title, ("name", ""), said), "")
  if not args.what or args.what == ("zoo",):
    console.print(_grid("zoo", ("name", "kind"), zoo))


def run_info(args: Info) -> None:
  model = named(args.model, revision=args.revision)
  rows = [("parameters", f"{model.size:,}"), *((k, str(v)) for k, v in vars(model.config).items())]
  own = "none" if model.template is None else "its own, in Jinja"
  rows += [("template", templates.known(model.template) or own)]
  rows += [(k, str(getattr(model, k))) for k in ("stop", "start")]
  rows += [("tokenizer", "yes" if model.tokenizer else "none")]
  console = Console(highlight=False, markup=False)
  console.print(_grid(model.name, ("field", "value"), rows))
  for card in sorted(resolve(model.name, args.revision).glob("*.md")):
    console.print("", card.read_text(), sep="\n")


def _measure(args: Bench | BenchServe | Tune | Memory) -> None:
  from specjax.cli import measure

  measure.COMMANDS[type(args)](args)


COMMANDS: dict[type, Callable] = {
  Generate: run_generate, Search: run_search, Chat: run_chat, Serve: run_serve,
  Denoise: run_denoise,
  Bench: _measure, BenchServe: _measure, Tune: _measure, Memory: _measure,
  Convert: run_convert, Corpus: run_corpus, List: run_list, Info: run_info,
}  # fmt: skip


def check_processes(command: str, mesh: str | None) -> None:
  """Raises ValueError for a command or a mesh that several processes cannot run together."""
  if jax.process_count() == 1:
    return
  if command not in ("generate", "denoise"):
    raise ValueError(
      f"{command} runs in one process: only generate, denoise and the training scripts run in "
      "several."
    )
  there = jax.device_count()
  if mesh is None or sharding.named_mesh(mesh).size < there:
    raise ValueError(f"`mesh` must hold all the {there} devices of the processes, got {mesh!r}.")


def run(args: Any) -> None:
  """Runs the command whose arguments these are."""
  text = getattr(getattr(args, "model", None), "mesh", None)
  check_processes(type(args).__name__.lower(), text)
  with contextlib.nullcontext() if text is None else jax.set_mesh(sharding.named_mesh(text)):
    COMMANDS[type(args)](args)
