"""What the measurements take. The command line shares these, so this file does not import jax."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Bench:
  """What is measured, always beside plain decoding.

  Attributes:
    drafters: names such as medusa-16, eagle/tree[FILE.json] or draft_model[PATH]/adaedl.
    prompts: Spec-Bench's question file, any JSONL of prompts or tfds:NAME:SPLIT; by default our own
      questions.
    limit: how many prompts; by default all.
    max_new_tokens: budget per prompt.
    batch: prompts decoded together.
    temperature: 0 is greedy.
    seed: seed of the sampling noise.
    verifier: rule for the drafters, such as judge[PATH]; by default the exact one.
    repeats: times everything is decoded; medians count.
  """

  drafters: tuple[str, ...] = ("prompt_lookup", "medusa")
  prompts: str | None = None
  limit: int | None = None
  max_new_tokens: int = 128
  batch: int = 1
  temperature: float = 0.0
  seed: int = 0
  verifier: str | None = None
  repeats: int = 3


@dataclasses.dataclass(frozen=True)
class Tune:
  """For what a tree is chosen, and on what the choice is checked.

  Attributes:
    drafter: name of a head with hit rates, such as medusa or medusa[PATH]; for the method sequoia
      of any head, or draft_model[PATH].
    method: best_first takes the best guesses by the head's hit rates; sequoia draws children and
      takes the trees of Sequoia's dynamic program, after it has measured on 8 more prompts how
      often a child of each rank is accepted.
    prompts: JSONL of prompts, or tfds:NAME:SPLIT; by default our own questions.
    limit: how many prompts are decoded; by default all.
    max_new_tokens: budget per prompt.
    temperature: of the distribution; 0 for best_first, more for sequoia.
    batch: prompts decoded together, for which the choice is made.
    decode: how many candidates to decode besides plain, the most promising; by default all. The
      choice does not depend on it.
    repeats: times everything is decoded; medians count.
  """

  drafter: str
  method: Literal["best_first", "sequoia"] = "best_first"
  prompts: str | None = None
  limit: int | None = None
  max_new_tokens: int = 128
  temperature: float = 0.0
  batch: int = 1
  decode: int | None = None
  repeats: int = 3
