"""The options of the measurements. The command line shares them, so this file imports no jax."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Measurement:
  """What every measurement decodes, and how.

  Attributes:
    prompts: Spec-Bench's question file, any JSONL of prompts or tfds:NAME:SPLIT; by default our own
      questions.
    limit: how many prompts are decoded; by default all.
    max_new_tokens: budget per prompt.
    batch: prompts decoded together.
    temperature: 0 is greedy.
    repeats: times everything is decoded; medians count.
  """

  prompts: str | None = None
  limit: int | None = None
  max_new_tokens: int = 128
  batch: int = 1
  temperature: float = 0.0
  repeats: int = 3


@dataclasses.dataclass(frozen=True)
class Bench(_Measurement):
  """What is measured, always beside plain decoding.

  Attributes:
    drafters: names such as medusa-16, eagle/tree[FILE.json] or draft_model[PATH]/adaedl.
    seed: seed of the sampling noise.
    verifier: rule for the drafters, such as judge[PATH]; by default the exact one.
  """

  drafters: tuple[str, ...] = ("prompt_lookup", "medusa")
  seed: int = 0
  verifier: str | None = None


@dataclasses.dataclass(frozen=True)
class Tune(_Measurement):
  """For what a tree is chosen, and on what the choice is checked.

  Attributes:
    drafter: name of a head with hit rates, such as medusa or medusa[PATH]; for the method sequoia
      of any head, or draft_model[PATH]; for skipped_layers self_speculative.
    method: best_first takes the best guesses by the head's hit rates; sequoia draws children and
      takes the trees of Sequoia's dynamic program, after it has measured on 8 more prompts how
      often a child of each rank is accepted; skipped_layers searches which sublayers the target's
      own drafts leave out.
    temperature: of the distribution; 0 for best_first, more for sequoia.
    batch: prompts decoded together, for which the choice is made.
    decode: how many candidates to decode besides plain, the most promising, each of which compiles
      anew; None for all. The choice does not depend on it.
    tries: how many sets of sublayers skipped_layers tries.
  """

  drafter: str
  method: Literal["best_first", "sequoia", "skipped_layers"] = "best_first"
  decode: int | None = 3
  tries: int = 200
