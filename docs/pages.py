"""Writes the pages of methods, `docs/methods/KIND.md`, from the docstrings: `python docs/pages.py`.

A row is a method: its name, its docstring's first sentence, its paper, how exact it is or how it
drafts, and its figure. Links stand below the tables, so that rows stay short.
"""

import pathlib
from collections.abc import Mapping, Sequence

from specjax.names import catalogue
from specjax.names.build.denoising import DECORATIONS
from specjax.names.catalogue import Row
from specjax.search import SEARCHES

FOLDER = pathlib.Path(__file__).parent / "methods"

# By page: its title, the kinds that it shows, and its page of the reference.
PAGES: dict[str, tuple[str, tuple[str, ...], str]] = {
  "drafters": (
    "Drafters",
    (
      "drafters", "drafters by load", "ensembles", "exits", "prompts", "passes", "bridges",
      "sources",
    ),
    "drafters",
  ),
  "heads": ("Heads", ("heads", "rescoring", "pseudo rows", "vocabularies"), "drafters"),
  "trees": ("Trees", ("trees",), "trees"),
  "draft_lengths": ("Draft lengths", ("draft lengths",), "draft_length"),
  "verifiers": ("Verifiers", ("verifiers", "reflection"), "verifiers"),
  "caches": ("Caches and skipping", ("caches", "skipping"), "models"),
  "processors": ("Processors", ("processors",), "processors"),
  "policies": (
    "Denoising policies", ("denoising policies", "additions to a policy", "any-subset decoding"),
    "diffusion",
  ),
  "decorations": ("Decorations of a policy", (*DECORATIONS,), "diffusion"),
  "searches": ("Searches", ("searches",), "decoding"),
}  # fmt: skip
DRAFTING = ("drafters", "trees", "draft lengths")


def listed() -> dict[str, list[Row]]:
  """The rows of every kind, by its title in the list."""
  return catalogue.parts() | catalogue.searches(SEARCHES)


def typed(row: Row) -> str:
  """The name with N for every number that has no default."""
  if row.parameters.startswith("children"):
    return f"{row.name}-4-2-1"
  needed = [key for key in row.parameters.split(", ") if key and "=" not in key]
  first = [f"{row.name}-N"] if needed else [row.name]
  return ",".join([*first, *(f"{key}=N" for key in needed[1:])])


def table(kind: str, rows: Sequence[Row], links: Mapping[str, int]) -> list[str]:
  """The lines of a kind's table; a column that no row fills is left out."""
  label = "proposal" if kind in DRAFTING else "exactness"
  filled = [("name", "what it is", "paper", label, "measured")]
  for row in rows:
    said = "; ".join(f"[{figure}][{links[folder]}]" for figure, folder in row.figures)
    paper = f"[{row.source}]" if row.source else ""
    sentence = row.sentence.replace("|", r"\|")
    filled.append((f"`{typed(row)}`", sentence, paper, row.label.split(" (")[0], said))
  columns = [c for c in zip(*filled, strict=True) if any(c[1:])]
  first, *others = zip(*columns, strict=True)
  lines = [first, ("---",) * len(first), *([cell or "-" for cell in row] for row in others)]
  return [f"| {' | '.join(cells)} |" for cells in lines]


def page(name: str) -> str:
  """The text of a page."""
  title, kinds, reference = PAGES[name]
  found = listed()
  shown = {t: found[t] for kind in kinds for t in found if t.split(",")[0] == kind}
  every = [row for rows in shown.values() for row in rows]
  folders = sorted({folder for row in every for _, folder in row.figures})
  links = {folder: i for i, folder in enumerate(folders, 1)}
  lines = [
    f"# {title}", "",
    "[Methods](../methods.md) says how names are put together, [the reference]"
    f"(../api/{reference}.md) more of each method, and",
    "`specjax list` has the parameters. This page is written by `python docs/pages.py`.",
  ]  # fmt: skip
  for kind, rows in shown.items():
    lines += ["", f"## {kind[0].upper()}{kind[1:]}", "", *table(kind.split(",")[0], rows, links)]
  if trained := [row for row in every if row.train]:
    lines += ["", "## Training", ""]
    lines += [f"- `{typed(row)}`: `{row.train}`" for row in trained]
  papers = sorted({row.source for row in every} - {""})
  lines += ["", *(f"[{number}]: https://arxiv.org/abs/{number}" for number in papers)]
  lines += [f"[{i}]: ../../benchmarks/results/{folder}/README.md" for folder, i in links.items()]
  return "\n".join(lines) + "\n"


if __name__ == "__main__":
  FOLDER.mkdir(exist_ok=True)
  for name in PAGES:
    (FOLDER / f"{name}.md").write_text(page(name))
