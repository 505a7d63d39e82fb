"""What `make demo` prints: speculative decoding, and then masked diffusion.

    python examples/demo.py [PROMPTS]

A chat model of 135M parameters, downloaded once, answers a question by plain decoding, prompt
lookup and EAGLE-3 at the same time, and then six questions of Spec-Bench. If qwen2.5-coder-1.5b is
in the cache (`specjax chat --model qwen2.5-coder-1.5b` downloads its 1.1 GB), it edits a function
instead. If neither model is available, the zoo's small model answers by plain decoding, prompt
lookup and Medusa the questions of PROMPTS, a JSONL file or tfds:NAME:SPLIT, by default GSM8K's test
set from ../shared/data or the TFDS catalogue, or else our own. A masked diffusion model answers
other questions with one token per pass and with many.
"""

import contextlib
import dataclasses
import json
import pathlib
import socket
import sys
import time
from collections.abc import Sequence
from concurrent import futures
from typing import NamedTuple

import tyro
from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

import specjax
from specjax import checks, command_line
from specjax.checkpoints import hub
from specjax.data import spec_bench
from specjax.eval import bench, parallelbench, prompts, report, table
from specjax.eval.plots import denoising
from specjax.names.load import DEFAULT_DENOISER

LOCAL = pathlib.Path(__file__).parents[2] / "shared" / "data" / "gsm8k_test.jsonl"
TEXT_DENOISER, COLOURS = "gsm8k-7m-denoiser", ("cyan", "yellow", "magenta", "green")
NEW = 64  # tokens at most
LONGEST = 64  # tokens of a prompt, so that the columns and the table run the same programs
SUM = "A farmer sells 12 eggs a day for 2 dollars each. How much does he earn in a week?"
QUESTION = (
  "Rewrite this in the past tense: The river rises in the hills. It flows past three villages, and "
  "it turns the wheel of an old mill."
)
EDIT = """Add type hints to every parameter and result, and change nothing else:

def total(prices, discount=0.0, rounded=False):
  # The sum of the prices after a discount.
  result = 0.0
  for name, price in prices.items():
    result += price * (1 - discount)
  if rounded:
    result = round(result, 2)
  return result"""
LISTS = parallelbench.Config(
  methods=("confidence", "threshold", "learned", "threshold-0.95/student"),
  count=2,
  batch=80,
)


class Shown(NamedTuple):
  """A model: how it is loaded, who drafts for it, what it is asked, and the answer's budget."""

  name: str
  options: dict[str, str]
  drafters: tuple[str, ...]
  question: str
  budget: int


SMALL = Shown("smollm2-135m", {"weights": "float"}, ("prompt_lookup-4", "eagle3-4"), QUESTION, NEW)
CODER = Shown(
  "qwen2.5-coder-1.5b",
  {"weights": "native", "activations": "int8"},
  ("prompt_lookup-4", "prompt_lookup-8"),
  EDIT,
  160,
)


@dataclasses.dataclass(frozen=True)
class Config:
  """What is decoded, and where the results go."""

  # JSONL file or tfds:NAME:SPLIT, whose questions the zoo's small model answers
  prompts: tyro.conf.Positional[str | None] = None
  limit: int = 12  # number of them, for each method
  out: str = "results/demo"  # directory for a folder of each half


def find_prompts() -> str | None:
  """A source of GSM8K's test questions, or None."""
  if LOCAL.is_file():
    return str(LOCAL)
  with contextlib.suppress(OSError):
    socket.getaddrinfo("raw.githubusercontent.com", 443)  # where TFDS fetches GSM8K from
    return "tfds:gsm8k:test"
  return None


def speculation(console: Console, config: Config) -> None:
  """Prints an answer while it is decoded, and measures every method on the same questions."""
  source = config.prompts or find_prompts()
  name = "our own questions (no GSM8K file, no network)" if source is None else source
  model = specjax.load()
  console.print(f"model [bold]{model.name}[/], greedy, float32, batch 1; prompts: {name}\n")

  settings = bench.Config(prompts=source, limit=config.limit)
  first = prompts.read(source, model, settings.max_new_tokens, config.limit)[0]
  console.print(f"[bold]Question[/]  {first.given}\n[bold]Answer  [/]  ", end="")
  said = specjax.Decoder(model, "medusa").stream([first.ids])
  console.print(model.decode([i for piece in said for i in piece[0]]).strip() + "\n", markup=False)

  out = f"{config.out}/questions"
  summary = bench.run(model, settings, out)
  console.print(table.terminal(bench.rows(summary), report.caption(summary), columns=5))
  console.print(report.contents(out), markup=False)


def race(
  console: Console, model: specjax.Model, drafters: Sequence[str], question: str, budget: int
) -> None:
  """Streams one answer by several drafters, each in a column.

  The next round is that of the drafter that has used the least time, so that the columns stand at
  any moment as they would if each had the machine to itself.
  """
  ids = model.chat(question)
  streams = {d: specjax.Decoder(model, d).stream([ids], budget, rounds=1) for d in drafters}
  with futures.ThreadPoolExecutor() as pool:  # compiles them at the same time
    first = pool.map(next, streams.values())
    said = {d: list(piece[0]) for d, piece in zip(streams, first, strict=True)}
  passes, seconds = dict.fromkeys(drafters, 1), dict.fromkeys(drafters, 0.0)

  def columns() -> Columns:
    panels = []
    for d in drafters:
      rate = len(said[d]) / seconds[d] if seconds[d] else 0
      title = f"{'plain' if d == 'none' else d}, {rate:.0f}/s"
      note = f"{len(said[d])} tokens, {passes[d]} passes"
      text = Text(model.decode(said[d]).rstrip("\ufffd"))
      panels.append(Panel(text, title=title, subtitle=note))
    return Columns(panels, equal=True, expand=True, width=console.width // len(panels) - 1)

  with Live(columns(), console=console, auto_refresh=False) as live:
    while streams:
      d = min(streams, key=lambda d: seconds[d])
      begin = time.perf_counter()
      piece = next(streams[d], None)
      if piece is None:
        del streams[d]
        continue
      seconds[d] += time.perf_counter() - begin
      said[d] += piece[0]
      passes[d] += 1
      live.update(columns(), refresh=True)


def some_questions(model: specjax.Model, file: pathlib.Path) -> str | None:
  """A file of six questions of Spec-Bench whose prompts compile alike; None without Spec-Bench."""
  if not spec_bench.LOCAL.is_file():
    return None
  known = spec_bench.read(None)
  alike = [q for q in known if LONGEST // 2 < len(model.chat(q.turns[0])) <= LONGEST]
  chosen = [{"turns": q.turns, "category": q.category} for q in spec_bench.evenly(alike, 6)]
  file.parent.mkdir(parents=True, exist_ok=True)
  file.write_text("".join(json.dumps(record) + "\n" for record in chosen))
  return str(file)


def chat(console: Console, config: Config) -> bool:
  """Shows the coder where its file is there, else the chat model; False where there is neither."""
  shown = CODER if hub.path(CODER.name).is_file() else SMALL
  try:
    model = specjax.load(shown.name, **shown.options)
  except ValueError as error:
    console.print(f"{command_line.sentence(error)}\n", markup=False)
    return False
  options = ", ".join(f"{value} {key}" for key, value in shown.options.items())
  console.print(f"model [bold]{model.name}[/], {options}, greedy, batch 1\n")
  console.print(f"{shown.question}\n", markup=False, highlight=False)
  race(console, model, ("none", *shown.drafters), shown.question, shown.budget)
  out = f"{config.out}/chat"
  source = some_questions(model, pathlib.Path(out) / "questions.jsonl")
  settings = bench.Config(
    prompts=source,
    limit=6,
    max_new_tokens=NEW,
    repeats=1,
    drafters=shown.drafters,
    verify_cost=False,
  )
  summary = bench.run(model, settings, out)
  console.print(table.terminal(bench.rows(summary), report.caption(summary), columns=5))
  console.print(report.contents(out), markup=False)
  return True


def canvases(console: Console, config: Config) -> None:
  """Prints a canvas pass by pass, and measures every method on the same questions."""
  model = specjax.load(DEFAULT_DENOISER)
  question = "shuffle : Ada Bob Kim Leo Tim ="
  console.print(f"\nmodel [bold]{model.name}[/], masked diffusion, greedy, {question!r}\n")
  shown = {
    label: parallelbench.make_decoder(model, label, LISTS)([model.chat(question)], 16)[0]
    for label in ("confidence", "threshold", "threshold-0.95/student")
  }
  filled = shown["threshold"].filling
  for number in sorted({when for when in filled.when if when >= 0}):
    said = [
      (model.decode([token]).strip() or ".") if when <= number else "_"
      for token, when in zip(filled.canvas, filled.when, strict=True)
      if when >= 0
    ]
    console.print(f"pass {number + 1}  " + " ".join(said), markup=False, highlight=False)

  out = f"{config.out}/lists"
  summary = parallelbench.run(model, LISTS, out)
  denoising.canvas(model, shown).savefig(f"{out}/canvas.png")
  caption = f"{summary['prompts']} questions about lists, 16 slots each, and two of their tasks"
  console.print(table.terminal(parallelbench.rows(summary), caption, columns=7))
  console.print(report.contents(out), markup=False)


def blocks(console: Console) -> None:
  """Prints a text that is written block by block; a pass's tokens have one colour."""
  model = specjax.load(TEXT_DENOISER)
  prompt = model.chat(SUM)
  size = model.config.block_length
  console.print(f"\nmodel [bold]{model.name}[/], blocks of {size} tokens, greedy, {SUM!r}\n")
  for policy in ("confidence", "confidence/guesses-4"):  # the same text in half of the passes
    (said,) = specjax.DiffusionDecoder(model, policy)([prompt], NEW)
    console.print(f"{policy}, {len(said.tokens)} tokens in {said.passes} passes", style="bold")
    text = Text()
    for token, when in zip(said.tokens, said.filling.when[len(prompt) :], strict=False):
      text.append(model.decode([token]), style=COLOURS[when % len(COLOURS)])
    console.print(text, "\n")


def main(config: Config) -> None:
  checks.whole("limit", config.limit, 1)
  console = Console()
  if config.prompts is not None or not chat(console, config):
    speculation(console, config)
  canvases(console, config)
  blocks(console)


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
