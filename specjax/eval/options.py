"""The options of the measurements. The command line shares them, so this file imports no jax."""

import dataclasses
from typing import Annotated, Literal

import tyro

# For options whose sentence says what happens without them.
SAID = tyro.conf.arg(help_behavior_hint="")
Optional = Annotated[str | None, SAID]
Words = Annotated[tuple[str, ...], SAID]
Numbers = Annotated[tuple[int, ...], SAID]


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

  prompts: Optional = None
  limit: Annotated[int | None, SAID] = None
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
    verifier: of the drafters, such as judge[PATH]; by default the exact one.
    stop: ids of tokens that end a text, besides the model's own.
    stop_words: texts that end a text; special tokens, too.
    tune: whether drafters that are named without numbers are first tuned on our own questions, as
      by `specjax tune`; a drafter that loses to plain decoding is then left out.
    verify_cost: time passes over 1 to 64 nodes, too; --no-verify-cost leaves this out.
  """

  drafters: tuple[str, ...] = ("prompt_lookup", "medusa")
  seed: int = 0
  verifier: Optional = None
  stop: Numbers = ()
  stop_words: Words = ()
  tune: bool = False
  verify_cost: Annotated[bool, SAID] = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tune(_Measurement):
  """Which drafts are tried, and on which prompts.

  Attributes:
    drafters: named whole, such as prompt_lookup-8 or "prompt_lookup|eagle3-8", each is one draft;
      without numbers, as token_recycling, it is tried with 4, 8 and 16 nodes; of a head with hit
      rates, such as medusa or medusa[PATH], chains and trees of all sizes are considered. For the
      method sequoia, heads and draft_model[PATH]; for skipped_layers self_speculative.
    method: best_first takes the best guesses by the head's hit rates; sequoia draws children and
      takes the trees of Sequoia's dynamic program, after it has measured on 8 more prompts how
      often a child of each rank is accepted; trees is best_first, and above temperature 0 both;
      skipped_layers searches which sublayers the target's own drafts leave out.
    temperature: of the distribution; more than 0 for sequoia.
    batch: prompts decoded together, for which the choice is made.
    decode: how many fixed trees of a head each method decodes, the most promising ones; each is
      compiled; in Python, None decodes all. A tree that changes in each round is decoded as well.
    tries: how many sets of sublayers skipped_layers tries.
  """

  drafters: tuple[str, ...]
  method: Literal["trees", "best_first", "sequoia", "skipped_layers"] = "trees"
  decode: int | None = 3
  tries: int = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchServe:
  """How requests arrive, and what they ask.

  Attributes:
    url: of a server that speaks OpenAI's protocol.
    key: the key that it asks for.
    model: what the server calls it; by default the first that it names.
    prompts: JSONL with `question`, `prompt` or `turns`; by default our own questions.
    rates: requests a second, one run each.
    clients: instead of rates, how many ask at a time, each again once it is answered; one run each.
    requests: of each run.
    max_new_tokens: budget of an answer.
    temperature: 0 is greedy.
    seed: of the arrivals, and of the answers' noise.
    first: the most seconds before a good answer begins.
    between: the most seconds per token of a good answer.
    seconds: time limit of an answer.
  """

  url: str = "http://127.0.0.1:8000/v1"
  key: str = "none"
  model: Optional = None
  prompts: Optional = None
  rates: tuple[float, ...] = (1.0, 2.0, 4.0)
  clients: Numbers = ()
  requests: int = 40
  max_new_tokens: int = 64
  temperature: float = 0.0
  seed: int = 0
  first: float = 1.0
  between: float = 0.1
  seconds: float = 600.0
