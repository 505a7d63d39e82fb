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
    repeats: how often everything is decoded; the report has medians.
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
    stop_words: texts or special tokens that end a text.
    tune: first tune drafters that are named without numbers on our own questions, as `specjax tune`
      does, and leave out those that are slower than plain decoding.
    verify_cost: also time passes over 1 to 64 nodes; --no-verify-cost does not.
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
    drafters: a name with numbers, such as prompt_lookup-8 or "prompt_lookup|eagle3-8", is tried as
      it is; a name without numbers, such as token_recycling, with 4, 8 and 16 nodes. For a head
      with hit rates, such as medusa or medusa[PATH], chains and trees of all sizes are considered.
      The method sequoia takes heads and draft_model[PATH], and skipped_layers self_speculative.
    method: best_first takes the best guesses by the head's hit rates; sequoia draws children and
      takes the trees of Sequoia's dynamic program, after it has measured on 8 more prompts how
      often a child of each rank is accepted; trees is best_first, and above temperature 0 both;
      skipped_layers searches which sublayers the target can skip when it drafts for itself.
    temperature: of the distribution; above 0 for sequoia.
    batch: prompts decoded together; the choice is for this batch.
    decode: how many fixed trees of a head each method compiles and decodes, the most promising
      first; in Python, None decodes all. A dynamic tree is decoded as well.
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
    url: address of a server that speaks OpenAI's protocol.
    key: the key that the server requires.
    model: the server's name for the model; by default the first that it lists.
    prompts: JSONL with `question`, `prompt` or `turns`; by default our own questions.
    rates: requests per second, with a run for each rate.
    clients: instead of rates, numbers of clients, with a run for each; a client sends its next
      request when the last one is answered.
    requests: number of requests in a run.
    max_new_tokens: budget of an answer.
    temperature: 0 is greedy.
    seed: of the arrivals, and of the answers' noise.
    first: a good answer begins within this many seconds.
    between: a good answer takes at most this many seconds per token.
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
