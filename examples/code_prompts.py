"""Writes prompts to train a head for code: functions of Python's library to write and change.

python examples/code_prompts.py
"""

import ast
import dataclasses
import json
import pathlib
import random
import sys
import sysconfig
import textwrap

from specjax import command_line

LIBRARY = pathlib.Path(sysconfig.get_paths()["stdlib"])
ASKS = (
  "Add type annotations to this function and return the whole function.",
  "Add a one-line docstring to this function. Return the whole function.",
  "Rename the first argument of this function to `value` and return the whole function.",
  "Rename this function to `run` and return it unchanged otherwise.",
  "Add a comment above each branch and return the whole function.",
)


@dataclasses.dataclass(frozen=True)
class Config:
  """What is written."""

  out: str = "code_prompts.jsonl"  # file of the prompts
  count: int = 200  # of functions to write, and of functions to change


def functions():
  for path in sorted([*LIBRARY.glob("*.py"), *LIBRARY.glob("*/*.py")], key=str):
    if not any(part in str(path) for part in ("/test", "site-packages", "idlelib")):
      lines = (text := path.read_text("utf8")).split("\n")
      for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
          yield node, textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))


def main(config: Config) -> None:
  rng, found, write, change = random.Random(0), list(functions()), [], []
  rng.shuffle(found)
  for node, source in found:
    says, names = ast.get_docstring(node) or "", [arg.arg for arg in node.args.args]
    given = ", ".join(name for name in names if name not in ("self", "cls"))
    if 40 < len(says) < 260 and len(names) <= 4:
      write.append(f"Write a Python function `{node.name}({given})`. {' '.join(says.split())}")
    if 120 < len(source) < 480 and 4 <= source.count("\n") <= 13 and "self" not in names:
      change.append(f"{rng.choice(ASKS)}\n\n```python\n{source.strip()}\n```")
  pairs = list(zip(write, change, strict=False))[: config.count]
  lines = [json.dumps({"question": question}) for pair in pairs for question in pair]
  pathlib.Path(config.out).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
