"""What reading a prompt byte by byte gains where it ends inside a word, for one model or several.

    python benchmarks/quality/by_bytes.py --prompts gsm8k_test.jsonl

An answer of each record is cut inside a word. Its model goes on greedily, once from the tokens that
its tokenizer makes of the cut prompt and once from the exact law of the next byte; right is what
writes the rest of the word and then ends it. Bits are what the law gives the true text. With
--beside, the models' laws of each byte are also mixed. With --holes, lines of our own code tasks
are cut inside a name, what is behind the line stands behind a hole, and right is the rest of the
line; the model must have tokens for holes, as qwen2.5-coder-0.5b has.
"""

import dataclasses
import re
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

import specjax
from specjax import checks, command_line
from specjax.data.sources import open_source
from specjax.eval import code_tasks, metrics, prompts, report, table
from specjax.names.load import Model
from specjax.search.by_bytes import before, by_bytes, mixed, opened, vocabulary
from specjax.search.covers import Covers

TOKENS = 16  # that are written from tokens; the rest of a word or line has fewer


class Cut(NamedTuple):
  """A text that is cut: what is before the cut, the rest of a word or line, and what follows it."""

  first: str
  rest: str
  behind: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(prompts.Questions):
  """What is cut, and who reads it."""

  beside: tuple[str, ...] = ()  # models that are mixed with the first
  holes: bool = False  # cut our own code tasks, in place of the records' answers
  covers: int = 16
  ahead: int = 16  # bytes whose bits are counted
  seed: int = 0
  limit: int | None = 100
  out: str = "results/by_bytes"


def of_answers(config: Config, rng: np.random.Generator) -> list[Cut]:
  """An answer of each record, cut inside a word of four letters or more."""
  if config.prompts is None:
    checks.refuse("prompts", None, "a file or dataset of questions with answers, such as GSM8K's")
  found: list[Cut] = []
  source = open_source(config.prompts)
  for record in (source[i] for i in range(len(source))):
    asked, said = f"Question: {record['question']}\nAnswer: ", str(record["answer"])
    words = [*re.finditer("[A-Za-z]{4,}", said)]
    if words and len(found) != config.limit:
      word = words[rng.integers(len(words))]
      at = word.start() + int(rng.integers(1, len(word[0])))
      found.append(Cut(asked + said[:at], said[at : word.end()], said[word.end() :]))
  return found


def of_code(config: Config, rng: np.random.Generator) -> list[Cut]:
  """Solutions of our code tasks, each cut inside a name of a line that goes on behind it."""
  found: list[Cut] = []
  for task in code_tasks.read():
    code = task.solution
    names = [x for x in re.finditer(r"[a-z_]{4,}(?=[^\n]{3,40}\n)", code) if x.start() > 40]
    if task.category == "describe" and names and len(found) != config.limit:
      name = names[rng.integers(len(names))]
      at = name.start() + int(rng.integers(1, len(name[0])))
      end = code.index("\n", at)
      found.append(Cut(code[:at], code[at:end], code[end:]))
  return found


def bits(each: Sequence[Covers], said: bytes) -> list[float]:
  """Of each byte of a text that the covers then have read."""
  found = []
  for byte in said:
    found.append(-float(mixed([own.law() for own in each], [1.0] * len(each))[byte]) / np.log(2))
    for own in each:
      own.read(byte)
  return found


class Cell(NamedTuple):
  """What a way of reading gave.

  Attributes:
    right, cuts: how many continuations were right, of how many.
    next: bits of the next byte, in the mean.
    ahead: bits of each byte of those ahead.
    lost: see `Covers.lost`, in the mean.
  """

  right: int
  cuts: int
  next: float
  ahead: float
  lost: float

  @property
  def interval(self) -> tuple[float, float]:
    return metrics.wilson_interval(self.right, self.cuts)


class Reader(NamedTuple):
  """What reads a cut text.

  Attributes:
    writes: what it writes, and whether that ended, of a cut.
    covers: those of the text before a cut.
  """

  writes: Callable[[Cut], tuple[str, bool]]
  covers: Callable[[Cut], list[Covers]]


def readers(models: Sequence[Model], config: Config) -> dict[str, Reader]:
  """What is compared, by its name."""
  words = [vocabulary(model) for model in models]

  def behind(cut: Cut) -> str | None:
    return cut.behind if config.holes else None

  def by_tokens(i: int) -> Reader:
    decoder = specjax.Decoder(models[i], stop=words[i].ends.tolist())

    def ids(cut: Cut) -> list[int]:
      return before(models[i], cut.first, behind(cut))

    def writes(cut: Cut) -> tuple[str, bool]:
      (said,) = decoder([ids(cut)], TOKENS)
      return said.text, said.emitted < TOKENS

    def covers(cut: Cut) -> list[Covers]:
      own = models[i]
      return [Covers(own.target, own.params, words[i], ids(cut), config.covers, config.ahead)]

    return Reader(writes, covers)

  def bytewise(group: Sequence[int]) -> Reader:
    def writes(cut: Cut) -> tuple[str, bool]:
      (said,) = by_bytes(
        [models[i] for i in group],
        [cut.first],
        len(cut.rest.encode()) + 1,
        behind=[cut.behind] if config.holes else None,
        covers=config.covers,
      )
      return said.text, said.ended

    def covers(cut: Cut) -> list[Covers]:
      found = []
      for i in group:
        own, word = opened(models[i], words[i], cut.first, behind(cut), config.ahead, config.covers)
        for byte in word:
          own.read(byte)
        found.append(own)
      return found

    return Reader(writes, covers)

  found: dict[str, Reader] = {}
  for i, model in enumerate(models):
    found |= {f"{model.name}, tokens": by_tokens(i), f"{model.name}, bytes": bytewise([i])}
  if len(models) > 1:
    found["together, bytes"] = bytewise(range(len(models)))
  return found


def main(config: Config) -> None:
  report.check(config, "covers", "ahead")
  rng = np.random.default_rng(checks.whole("seed", config.seed))
  cuts = (of_code if config.holes else of_answers)(config, rng)
  models = [specjax.load(name) for name in (config.model, *config.beside)]
  ends = "\n" if config.holes else r"[^A-Za-z]"
  every = readers(models, config)
  report.directory(config.out)
  cells: dict[str, Cell] = {}
  for name, reader in every.items():
    right, each, lost = 0, [], []
    for cut in report.progress(cuts, name):
      text, ended = reader.writes(cut)
      goes_on = text.removeprefix(cut.rest)
      whole = text.startswith(cut.rest) and (re.match(ends, goes_on) or (ended and not goes_on))
      right += bool(whole)
      own = reader.covers(cut)
      each.append(bits(own, (cut.rest + cut.behind).encode()[: config.ahead]))
      lost.append(max(x.lost for x in own))
    cells[name] = Cell(
      right,
      len(cuts),
      float(np.mean([x[0] for x in each])),
      float(np.mean([b for x in each for b in x])),
      float(np.mean(lost)),
    )
  rows = [
    {
      "reading": name,
      "right %": table.estimate(100 * cell.right / cell.cuts, [100 * x for x in cell.interval]),
      "bits of the next byte": f"{cell.next:.2f}",
      f"bits a byte of {config.ahead}": f"{cell.ahead:.2f}",
      "lost": f"{cell.lost:.1g}",
    }
    for name, cell in cells.items()
  ]
  report.publish(
    config, {"readings": {k: v._asdict() for k, v in cells.items()}}, table.markdown(rows)
  )


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
