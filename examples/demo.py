"""Both halves side by side: what `make demo` prints.

    python benchmarks/demo.py [PROMPTS]

An autoregressive model answers questions plainly, by prompt lookup and with Medusa; a masked
diffusion model answers others with one token per pass and with many. PROMPTS is a JSONL file or
tfds:NAME:SPLIT. Without it: GSM8K's test questions from ../shared/data where they lie there, else
from the TFDS catalogue where there is a network, else questions of our own.
"""

import dataclasses
import pathlib
import socket
import sys

from rich.console import Console
from rich.table import Table

import specjax
from specjax.decoding.model import DEFAULT_DENOISER
from specjax.eval import bench, canvas, parallelbench, prompts

LOCAL = pathlib.Path(__file__).parents[2] / "shared" / "data" / "gsm8k_test.jsonl"
CONFIG = bench.Config(limit=12, max_new_tokens=128, repeats=3)
LISTS = parallelbench.Config(
  methods=("confidence", "threshold", "learned", "threshold-0.95/student"), count=2, batch=80,
)  # fmt: skip


def find_prompts() -> str | None:
  """Where GSM8K's test questions are to be had, None for nowhere."""
  if len(sys.argv) > 1:
    return sys.argv[1]
  if LOCAL.is_file():
    return str(LOCAL)
  try:
    socket.getaddrinfo("raw.githubusercontent.com", 443)  # where TFDS fetches GSM8K from
  except OSError:
    return None
  return "tfds:gsm8k:test"


def main() -> None:
  console = Console()
  source = find_prompts()
  name = "our own questions (no GSM8K file, no network)" if source is None else source
  model = specjax.load()
  console.print(f"model [bold]{model.name}[/], greedy, float32, batch 1; prompts: {name}\n")

  items = (
    prompts.of_questions(prompts.OUR_QUESTIONS[:1], model, 128)
    if source is None
    else prompts.read(source, model, 128, 1)
  )
  console.print(f"[bold]Question[/]  {items[0].given}\n[bold]Answer  [/]  ", end="")
  said = specjax.Decoder(model, "medusa").stream([items[0].ids])
  console.print(model.decode([i for piece in said for i in piece[0]]).strip() + "\n", markup=False)

  out = pathlib.Path("results") / "demo"
  summary = bench.run(model, dataclasses.replace(CONFIG, prompts=source), out)
  table = Table(title=f"{summary['prompts']} questions, up to {CONFIG.max_new_tokens} tokens")
  for heading in (
    "method",
    "tokens",
    "same as plain",
    "tokens / forward",
    "tokens / s",
    "speed-up",
  ):
    table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
  for label, m in summary["methods"].items():
    different = len(m["divergences"])
    table.add_row(
      "plain" if label == bench.PLAIN else label,
      str(m["tokens"]),
      "yes" if not different else f"{different} differ",
      f"{m['tau']:.2f}",
      f"{m['tokens_per_second']:.0f}",
      f"{m['speed_up']:.2f}x",
    )
  console.print(table)
  console.print(f"Every id, the settings and three plots are in {out}/.")
  denoising(console)


def denoising(console: Console) -> None:
  """The other half: a canvas that fills in."""
  model = specjax.load(DEFAULT_DENOISER)
  question = "shuffle : Ada Bob Kim Leo Tim ="
  console.print(f"\nmodel [bold]{model.name}[/], masked diffusion, greedy, {question!r}\n")
  shown = {
    label: parallelbench.make_decoder(model, label, LISTS)(
      [model.chat(question)], LISTS.max_new_tokens
    )[0]
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

  out = pathlib.Path("results") / "demo-lists"
  summary = parallelbench.run(model, LISTS, str(out))
  canvas.picture(model, shown).savefig(out / "canvas.png")
  table = Table(title=f"{summary['prompts']} questions about lists, 16 slots each")
  for heading in ("method", "right", "passes", "shuffle alone"):
    table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
  for label, m in summary["methods"].items():
    table.add_row(label, f"{100 * m['accuracy']:.0f} %", f"{m['forwards']:.1f}",
                  f"{100 * m['tasks']['shuffle']['accuracy']:.0f} %")  # fmt: skip
  console.print(table)
  console.print(f"Every answer is in {out}/, and canvas.png: the canvas after every pass.")


if __name__ == "__main__":
  main()
