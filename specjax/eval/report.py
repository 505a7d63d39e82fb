"""What a measurement leaves behind: one directory, written in one way.

summary.json holds the figures with their configuration and what they depend on besides, table.md
what a reader wants of them, results.jsonl what was decoded, and pictures lie beside them.
"""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from specjax import checks
from specjax.eval.environment import environment


def check(config: Any, *names: str) -> None:
  """Raises ValueError where a number of a config, or one of a tuple of them, is below 1."""
  for name in names:
    value = getattr(config, name)
    for each in value if isinstance(value, tuple) else (value,):
      checks.whole(name, each, 1)


def directory(out: str | pathlib.Path) -> pathlib.Path:
  """The directory, made before anything is measured, so that no result is lost for want of it."""
  path = pathlib.Path(out)
  path.mkdir(parents=True, exist_ok=True)
  return path


def summary(config: Any, found: Mapping[str, Any], packages: Sequence[str] = ()) -> dict[str, Any]:
  """Figures with the configuration, the commit, the versions and the machine, ready for JSON."""
  return {"config": dataclasses.asdict(config), **environment(packages), **found}


def save(
  out: pathlib.Path, summary: Mapping[str, Any], text: str,
  plots: Mapping[str, Figure] | None = None, records: Iterable[Mapping[str, Any]] | None = None,
) -> None:  # fmt: skip
  """Writes summary.json, `text` as table.md, the plots by name, and records as results.jsonl."""
  (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
  (out / "table.md").write_text(text + "\n")
  if records is not None:
    with (out / "results.jsonl").open("w") as file:
      file.writelines(json.dumps(record) + "\n" for record in records)
  for name, figure in (plots or {}).items():
    figure.savefig(out / f"{name}.png")


def publish(
  config: Any, found: Mapping[str, Any], text: str, plots: Mapping[str, Figure] | None = None,
  packages: Sequence[str] = (),
) -> None:  # fmt: skip
  """Saves to `config.out`, prints the table and says where the rest is: how a script ends."""
  save(directory(config.out), summary(config, found, packages), text, plots)
  print(text)
  print(contents(config.out))


def contents(out: str | pathlib.Path) -> str:
  """A line that names the files of a directory."""
  return f"{out}: {', '.join(sorted(p.name for p in pathlib.Path(out).iterdir()))}"


def decoding(summary: Mapping[str, Any]) -> str:
  """What was decoded and how, in few words."""
  config = summary["config"]
  temperature = config.get("temperature", 0)
  how = "greedy" if temperature == 0 else f"temperature {temperature:g}"
  model = pathlib.Path(summary["model"]).name
  return f"{model}, {summary['prompts']} prompts, {how}, batch {config['batch']}"


def machine(summary: Mapping[str, Any]) -> str:
  """Where a measurement ran, in few words."""
  m = summary["machine"]
  return f"{m['cpu'] if m['backend'] == 'cpu' else m['device']}, {m['cores']} cores"


def caption(summary: Mapping[str, Any]) -> str:
  """What was decoded, how and where, in a sentence below a table."""
  c = summary["config"]
  source = pathlib.Path(c["prompts"]).name if c["prompts"] else "our own questions"
  return (
    f"{decoding(summary)}; {summary['parameters'] / 1e6:.1f}M parameters, prompts of {source}, up "
    f"to {c['max_new_tokens']} new tokens, median of {c['repeats']}; {machine(summary)}; jax "
    f"{summary['versions']['jax']}."
  )
