"""Both halves side by side: what `make demo` prints.

    python examples/demo.py [PROMPTS]

An autoregressive model answers questions plainly, by prompt lookup and with Medusa; a masked
diffusion model answers others with one token per pass and with many. PROMPTS is a JSONL file or
tfds:NAME:SPLIT. Without it the questions are those of GSM8K's test set, from ../shared/data or else
from the TFDS catalogue; without that file and a network they are our own.
"""

import contextlib
import dataclasses
import pathlib
import socket
import sys

import tyro
from rich.console import Console

import specjax
from specjax import script
from specjax.decoding.model import DEFAULT_DENOISER
from specjax.eval import bench, parallelbench, prompts, report, table
from specjax.eval.plots import denoising

LOCAL = pathlib.Path(__file__).parents[2] / "shared" / "data" / "gsm8k_test.jsonl"
LISTS = parallelbench.Config(
  methods=("confidence", "threshold", "learned", "threshold-0.95/student"), count=2, batch=80,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Config:
  """What is decoded, and where the results go."""

  prompts: tyro.conf.Positional[str | None] = None  # JSONL file or tfds:NAME:SPLIT
  limit: int = 12  # questions for each method
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


def main(config: Config) -> None:
  console = Console()
  speculation(console, config)
  canvases(console, config)


if __name__ == "__main__":
  sys.exit(script.run(main, Config, __doc__))
