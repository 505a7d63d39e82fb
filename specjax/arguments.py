"""What each command of the command line takes; its docstrings are the help."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Generate:
  """Decode prompts.

  Attributes:
    model: zoo name or directory; by default the zoo's.
    drafter: how to guess, see `specjax list`; with --nodes, how much.
    head: medusa's heads, zoo name or directory; by default the zoo's for the model.
    draft_model: the small model of the drafter draft_model, zoo name or directory.
    prompt: one text.
    prompts: JSONL file; a line has `prompt` (text), `tokens` (ids), `question` or `turns`.
    chat: write --prompt in the model's chat template, as a question.
    max_new_tokens: budget per prompt.
    temperature: 0 is greedy.
    top_k: keep the k most likely tokens; 0 keeps all.
    top_p: keep the most likely tokens up to this mass; 1 keeps all.
    min_p: drop tokens less likely than this share of the most likely; 0 keeps all.
    repetition_penalty: weakens tokens of the prompt and the new text; 1 is off.
    presence_penalty: taken from the logits of tokens in the new text; 0 is off.
    frequency_penalty: likewise, for every time they were said.
    regex: what every new text must match from end to end.
    stop_words: texts that end a text, and are cut off it.
    seed: of the noise.
    batch: prompts decoded together.
    nodes: size of the draft, root included; by default the drafter's.
    tree: of a head or a draft model, in place of --nodes: the file of `specjax tune`, or words such
      as dynamic-16-5-4 (chosen) and without_replacement-4-2-1 (drawn), see the README.
    policy: that ends the chain of a draft model: static, heuristic, confidence, adaedl, specdecpp
      or marginal; --nodes is then the most.
    acceptance: directory of the acceptance head of --policy specdecpp.
    verifier: by default greedy at temperature 0, else the rule that is exact for the drafter.
    judge: directory of the head that --verifier judge needs, see `specjax.train.judge`.
    json: print one JSON object per prompt and nothing else.
  """

  model: str | None = None
  drafter: str = "none"
  head: str | None = None
  draft_model: str | None = None
  prompt: str | None = None
  prompts: str | None = None
  chat: bool = False
  max_new_tokens: int = 128
  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  repetition_penalty: float = 1.0
  presence_penalty: float = 0.0
  frequency_penalty: float = 0.0
  regex: str | None = None
  stop_words: tuple[str, ...] = ()
  seed: int = 0
  batch: int = 1
  nodes: int | None = None
  tree: str | None = None
  policy: str | None = None
  acceptance: str | None = None
  verifier: str | None = None
  judge: str | None = None
  json: bool = False


@dataclasses.dataclass(frozen=True)
class Denoise:
  """Fill texts with a masked diffusion model.

  Attributes:
    model: zoo name or directory; by default the zoo's.
    prompt: one text.
    prompts: JSONL file; a line has `prompt` (text), `tokens` (ids), `question` or `turns`.
    chat: write --prompt in the model's chat template, as a question.
    policy: which slots to commit: a name and its numbers, such as threshold-0.9, confidence-2,
      local_leap-0.9-0.75-4, with +r2 after it or not.
    block: slots of a block, filled before the next is begun.
    cache: what of earlier passes is used again: none, dual, vicinity, prefix, free, sliding or similar.
    stopping: where a text ends: whole, after_end, end_of_text_prediction or sure_end.
    guesses: canvases read in a pass; more than 1 changes no token (draft and verify).
    credit: tokens earn credit from round to round.
    guidance: weight of classifier-free guidance; 0 is off.
    filter: of --policy learned, zoo name or directory; by default the zoo's for the model.
    max_new_tokens: slots after each prompt.
    temperature: 0 takes the likeliest token.
    seed: of the noise.
    batch: prompts decoded together.
    picture: file for a picture of the first prompt's canvas after every pass.
    json: print one JSON object per prompt and nothing else.
  """

  model: str | None = None
  prompt: str | None = None
  prompts: str | None = None
  chat: bool = False
  policy: str = "threshold"
  block: int = 16
  cache: str = "none"
  stopping: str = "after_end"
  guesses: int = 1
  credit: bool = False
  guidance: float = 0.0
  filter: str | None = None
  max_new_tokens: int = 16
  temperature: float = 0.0
  seed: int = 0
  batch: int = 1
  picture: str | None = None
  json: bool = False


@dataclasses.dataclass(frozen=True)
class Bench:
  """Measure drafters beside plain decoding, on the same prompts, in one run.

  Attributes:
    model: zoo name or directory; by default the zoo's.
    suite: prompts, or parallelbench: operations on lists, for a masked diffusion model, by default
      the zoo's. It reads --methods, --student, --filter, --published, --tasks, --lengths and, of
      those below, --limit (questions per task and length), --max-new-tokens, --batch,
      --temperature, --seed, --repeats and --out.
    methods: of parallelbench, such as threshold-0.9, threshold/dual, confidence/guesses-4.
    student: the model of methods such as threshold/student; by default the zoo's.
    filter: of methods such as learned/end_of_text_prediction; by default the zoo's.
    published: file or directory of ParallelBench's own questions, in place of ours.
    tasks: such as copy and shuffle; by default the ten of ParallelBench's waiting line.
    lengths: of the lists.
    drafters: names, or NAME:NODES for another size of draft, or with a tree NAME:FILE.json or
      NAME:dynamic-NODES-DEPTH-BEAM, or draft_model:POLICY.
    head: medusa's heads; by default the zoo's for the model.
    draft_model: the small model of the drafter draft_model.
    acceptance: directory of the acceptance head of draft_model:specdecpp.
    prompts: Spec-Bench's question file or any JSONL of prompts; by default our own questions.
    limit: how many prompts; by default all.
    max_new_tokens: budget per prompt; by default 128, for parallelbench 16.
    batch: prompts decoded together.
    temperature: 0 is greedy.
    seed: of the noise.
    verifier: of the drafters; by default the exact one.
    judge: directory of the head that --verifier judge needs.
    repeats: times everything is decoded; medians count.
    out: directory for results.jsonl, summary.json, table.md and the plots.
  """

  model: str | None = None
  suite: Literal["prompts", "parallelbench"] = "prompts"
  methods: tuple[str, ...] = ("confidence", "threshold", "factor")
  student: str | None = None
  filter: str | None = None
  published: str | None = None
  tasks: tuple[str, ...] | None = None
  lengths: tuple[int, ...] = (3, 4, 5, 6)
  drafters: tuple[str, ...] = ("prompt_lookup", "medusa")
  head: str | None = None
  draft_model: str | None = None
  acceptance: str | None = None
  prompts: str | None = None
  limit: int | None = None
  max_new_tokens: int | None = None
  batch: int = 1
  temperature: float = 0.0
  seed: int = 0
  verifier: str | None = None
  judge: str | None = None
  repeats: int = 3
  out: str = "results/bench"


@dataclasses.dataclass(frozen=True)
class Tune:
  """Choose the tree of a head, a chain or no speculation by speed on this machine, and check it.

  Attributes:
    drafter: name of a head; for --method sequoia also draft_model.
    model: zoo name or directory; by default the zoo's.
    method: best_first takes the best guesses by the head's hit rates; sequoia draws children and
      takes the trees of Sequoia's dynamic program, after it has measured on 8 prompts how often a
      child of each rank is accepted.
    head: where the head is, zoo name or directory, with hit rates; by default the zoo's.
    draft_model: the small model of the drafter draft_model.
    prompts: JSONL of prompts on which the choice is checked; by default our own questions.
    limit: how many prompts; by default all.
    max_new_tokens: budget per prompt.
    temperature: of the distribution; 0 for best_first, more for sequoia.
    batch: prompts decoded together, for which the choice is made.
    decode: how many candidates to decode besides plain, the most promising; by default all.
    repeats: times everything is decoded; medians count.
    out: directory for tree.json (see generate --tree), summary.json, table.md and tune.png.
  """

  drafter: str
  model: str | None = None
  method: Literal["best_first", "sequoia"] = "best_first"
  head: str | None = None
  draft_model: str | None = None
  prompts: str | None = None
  limit: int | None = None
  max_new_tokens: int = 128
  temperature: float = 0.0
  batch: int = 1
  decode: int | None = None
  repeats: int = 3
  out: str = "results/tune"


@dataclasses.dataclass(frozen=True)
class Convert:
  """Write a model or a draft head in another format, in float32.

  A model becomes the Hugging Face directory that --model takes.

  Attributes:
    format: what --model is: a llama2.c checkpoint file, a Hugging Face directory or a draft head.
    model: the file or directory; of a head, ours or as it was published.
    out: directory to write.
    tokenizer: llama2.c's tokenizer file; without it the model takes ids only.
    target: the model that a head is for, zoo name or directory; by default the zoo's.
    to: format of a head: ours, or that in which heads of its method are published.
  """

  format: Literal["llama2c", "hf", "head"]
  model: str
  out: str
  tokenizer: str | None = None
  target: str | None = None
  to: Literal["specjax", "medusa", "hydra", "eagle", "eagle3", "mlp_speculator"] = "specjax"


@dataclasses.dataclass(frozen=True)
class List:
  """Show every drafter, verifier and zoo model."""


@dataclasses.dataclass(frozen=True)
class Info:
  """Describe a model.

  Attributes:
    model: zoo name or directory; by default the zoo's.
  """

  model: str | None = None
