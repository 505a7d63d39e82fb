r"""Everything that is to be known of an accelerator, in less than 25 minutes and without a network.

    python benchmarks/accelerator.py

Each part is a script of this directory in a process of its own, so that neither a fault on the
device nor a part that hangs takes the others along. A part that is stopped leaves what it had
measured, and the report is written again after each part. With `--size small` the same parts run
on a CPU with a tiny model, to see that they run.
"""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from typing import Any, Literal, NamedTuple

from specjax import checks, command_line
from specjax.eval import report, table

HERE = pathlib.Path(__file__).parent
FILES = "summary.json", "table.md"
ENVIRONMENT = "commit", "versions", "machine"  # those of the first part; this process has no device


class Part(NamedTuple):
  """A measurement.

  Attributes:
    title: what is measured, and the goal where there is one.
    script: its file, from this directory.
    options: of both sizes.
    small, large: options of the sizes "small" and "8b".
    minutes: after so many it is stopped.
  """

  title: str
  script: str
  options: str
  small: str
  large: str
  minutes: float


_TINY = "--size small --dtype float32 --repeats 1"
_LARGE = "--size 8b --dtype bfloat16"
_STREAM = "Plain decoding against the reading of the weights, at least 80 %; v(64) at most 1.10"
_SHORT = "--nodes 1 4 --tokens 4 --context 64"
_PASSES = "--nodes 1 16 64 256 --context 1024"
_FEW = "--heads 4 --kv-heads 2 --width 16 --dtype float32 --lengths 64 --batch 1 --nodes 1 4"
_MANY = (
  "--heads 32 --kv-heads 8 --width 128 --dtype bfloat16 --lengths 512 8192 65536 --batch 1 8 64 "
  "--nodes 1 16 64 256 --calls 16 --repeats 5"
)
PARTS = {
  "attention": Part(
    "Tree attention by every implementation against its definition", "claims/attention.py", "",
    "--nodes 1 4 --widths 64 --groups 4 --capacity 100 --dtypes float32 --int8 False", "", 5,
  ),
  "speed_xla": Part(
    "XLA's attention against the memory's bandwidth", "speed/kernels.py",
    "--capacity 0 --ways dense dot_product_attention", f"{_FEW} --calls 1 --repeats 1", _MANY, 3.5,
  ),
  "speed_kernel": Part(
    "The Pallas kernel, else XLA in blocks, against the memory's bandwidth", "speed/kernels.py",
    "--capacity 0 --ways kernel", f"{_FEW} --calls 1 --repeats 1", _MANY, 2.5,
  ),
  "stream_float": Part(
    f"{_STREAM}; float weights", "speed/streaming.py", "",
    f"{_TINY} {_SHORT}", f"{_LARGE} {_PASSES}", 3,
  ),
  "stream_int8": Part(
    f"{_STREAM}; int8 weights", "speed/streaming.py", "--weights int8",
    f"{_TINY} {_SHORT}", f"{_LARGE} {_PASSES}", 3,
  ),
  "head_round": Part(
    "A round of an EAGLE-3 head: pass, draft and commit", "speed/head_round.py", "",
    f"{_TINY} --nodes 7 --depth 2 --beam 2 --context 64",
    f"{_LARGE} --context 1024 --nodes 64", 2.5,
  ),
  "denoising": Part(
    "Passes of masked diffusion over a canvas of 1024, and with the dual cache",
    "speed/denoising_pass.py", "", f"{_TINY} --canvas 64 --block 8",
    f"{_LARGE} --canvas 1024", 2,
  ),
  "training": Part(
    "The training of an EAGLE-3 head", "speed/head_training.py", "",
    f"{_TINY} --depth 2 --batch 1 --length 32 --points 8", _LARGE, 2.5,
  ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  size: Literal["small", "8b"] = "8b"  # of the models
  parts: tuple[str, ...] = tuple(PARTS)  # names, in this order
  out: str = "results/accelerator"  # directory of the report, with a directory for each part


def backend() -> str:
  """What jax computes on, asked in a process that gives the device back."""
  asked = [sys.executable, "-c", "import jax; print(jax.default_backend())"]
  ran = subprocess.run(asked, capture_output=True, text=True, check=False)
  return ran.stdout.strip() or "nothing: " + ran.stderr.strip().rpartition("\n")[2]


def command(part: Part, size: str, out: pathlib.Path) -> list[str]:
  """How a part is started."""
  options = f"{part.options} {part.small if size == 'small' else part.large}".split()
  return [sys.executable, str(HERE / part.script), *options, "--out", str(out)]


def reason(log: str, code: int) -> str:
  """The last line that names an error, else the last; a traceback of jax ends with advice."""
  said = [line.strip() for line in log.split("\n") if line.strip()]
  errors = [line for line in said if re.match(r"(error|[\w.]+(Error|Exception)): ", line)]
  if code < 0:  # a fault, of which no traceback tells
    return " ".join([f"signal {-code};", *said[-1:]])[:300]
  return (errors or said or [f"ended with {code}"])[-1][:300]


def run(part: Part, size: str, out: pathlib.Path) -> dict[str, Any]:
  """Runs a part in a process of its own, with its output in `out`/log.txt.

  Returns:
    seconds, problem (one line, or None), and the part's summary and table, as far as it has come.
  """
  report.directory(out)
  for name in FILES:  # of an earlier run
    (out / name).unlink(missing_ok=True)
  # What one part has compiled, the others and the next run need not.
  environment = {"JAX_COMPILATION_CACHE_DIR": str(HERE.parent / ".jax_cache")} | os.environ
  problem, start = None, time.perf_counter()
  with (out / "log.txt").open("w") as log:
    try:
      ended = subprocess.run(
        command(part, size, out),
        stdout=log,
        stderr=log,
        env=environment,
        timeout=60 * part.minutes,
        check=False,
      ).returncode
    except subprocess.TimeoutExpired:
      ended, problem = 0, f"stopped after {part.minutes:g} minutes"
  if ended:
    problem = reason((out / "log.txt").read_text(errors="replace"), ended)
  # The process may have been killed in the middle of a line.
  summary, text = ((out / name).read_text() if (out / name).exists() else "" for name in FILES)
  try:
    found = json.loads(summary or "{}")
  except ValueError:
    found = {}
  seconds = time.perf_counter() - start
  return {"seconds": seconds, "problem": problem, "summary": found, "table": text.strip()}


def text(found: dict[str, dict[str, Any]]) -> str:
  """A row for each part, then the table of each."""
  rows = [
    {"part": name, "minutes": f"{part['seconds'] / 60:.1f}", "problem": part["problem"] or ""}
    for name, part in found.items()
  ]
  known = next((part["summary"] for part in found.values() if part["summary"]), None)
  lines = [] if known is None else [f"{report.machine(known)}; jax {known['versions']['jax']}."]
  for name, part in found.items():
    heading = f"## {PARTS[name].title}"
    lines += [heading, f"Failed: {part['problem']}"] if part["problem"] else [heading]
    lines += [part["table"]] if part["table"] else []
  return "\n\n".join([table.markdown(rows), *lines])


def main(config: Config) -> None:
  for name in config.parts:
    checks.choice("parts", name, PARTS)
  if config.size == "8b" and (here := backend()) not in ("gpu", "tpu"):
    checks.refuse("size", config.size, f"small where jax computes on {here}")
  out = report.directory(config.out)
  found: dict[str, dict[str, Any]] = {}
  for i, name in enumerate(config.parts, 1):
    print(f"[{i}/{len(config.parts)}] {name}: {PARTS[name].title}", flush=True)
    found[name] = run(PARTS[name], config.size, out / name)
    problem, seconds = found[name]["problem"], found[name]["seconds"]
    print(f"  {seconds:.0f} s{'' if problem is None else f', FAILED: {problem}'}", flush=True)
    known: dict = next((part["summary"] for part in found.values() if part["summary"]), {})
    about = {"config": dataclasses.asdict(config), **{k: known.get(k) for k in ENVIRONMENT}}
    report.save(out, about | {"parts": found}, text(found))
  print(text(found), report.contents(config.out), sep="\n")
  failed = [name for name, part in found.items() if part["problem"]]
  if failed:
    raise ValueError(f"{len(failed)} of {len(found)} parts failed: {', '.join(failed)}.")


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
