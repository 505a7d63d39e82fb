"""What each command of the command line takes; its docstrings are the help."""

import dataclasses
from typing import Literal

import tyro

from specjax.eval import options

Dtype = Literal["float32", "bfloat16", "float16"]
Weights = Literal["float", "bfloat16", "int8", "int4", "native"]
Activations = Literal["float", "int8"]
Select = Literal["likelihood", "mbr", "first_finish"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions:
  """Which model, and how it lies in memory.

  Attributes:
    model: zoo name, directory, GGUF file, or name on Hugging Face's hub; by default the zoo's.
    revision: branch, tag or commit of a model on the hub.
    dtype: of the arithmetic, and of weights that --weights leaves as they are.
    weights: bfloat16 keeps matrices in 16 bits and multiplies in them; int8 keeps them in 8 bits
      with a scale for each output, int4 in 4 with a scale and an offset for 32 inputs. Each has its
      own texts. native keeps the few bits of a GGUF file, which changes nothing but memory and
      time.
    activations: int8 rounds what matrices of int4 or native multiply to 8 bits: quicker, with
      texts of its own.
    mesh: devices that share the rows of batches and the heads, as data=2,model=4; default: one.
    skipping: layers that leave tokens out, such as skip_decode-6,span=128; LOSSY, with its own
      texts.
    template: chat template in place of the model's own: a name such as chatml, or a file in Jinja.
  """

  model: str | None = None
  revision: str | None = None
  dtype: Dtype = "float32"
  weights: Weights = "float"
  activations: Activations = "float"
  mesh: str | None = None
  skipping: str | None = None
  template: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decode(ModelOptions):
  """What both ways to decode prompts take.

  Attributes:
    prompt: one text.
    prompts: JSONL file, or - for the standard input; a line has `prompt` (text), `tokens` (ids),
      `question`, `turns`, `messages` or `conversations`.
    chat: write --prompt in the model's chat template, as a question.
    max_new_tokens: budget per prompt: new tokens, or slots after it.
    temperature: 0 takes the likeliest token.
    top_k: keep the k most likely tokens; 0 keeps all.
    top_p: keep the most likely tokens up to this mass; 1 keeps all.
    min_p: drop tokens less likely than this share of the most likely; 0 keeps all.
    typical_p: keep the tokens of typical surprise up to this mass; 1 keeps all.
    seed: seed of the sampling noise.
    stop: ids of tokens that end a text, besides the model's own.
    batch: prompts decoded together.
    json: print one JSON object per prompt and nothing else.
  """

  prompt: str | None = None
  prompts: str | None = None
  chat: bool = False
  max_new_tokens: int = 128
  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  typical_p: float = 1.0
  seed: int = 0
  stop: tuple[int, ...] = ()
  batch: int = 1
  json: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate(Decode):
  """Decode prompts.

  Attributes:
    drafter: how to guess, such as medusa-16, eagle/dynamic-16,depth=5,beam=4,
      draft_model-8[PATH]/adaedl-0.7 or eagle+prompt_lookup; `specjax list` shows all names.
    verifier: which guesses are kept, such as typical-0.2 or judge-0.9[PATH]; by default greedy at
      temperature 0, else the verifier that is exact for the drafter.
    processors: what changes the logits, such as penalties-1.3,presence=0.2.
    regex: what every new text must match from end to end.
    json_schema: file of a JSON Schema that every new text must follow; needs specjax[grammar].
    stop_words: texts that end a text, and are cut off it; special tokens, too.
    cache: how the text is kept, such as int8 or keyformer-0.6; all but dense are LOSSY.
    best_of: samples of each prompt, of which one is shown.
    select: the sample that is likeliest per token (the default), that agrees most with the others
      (mbr), or that is the first to end, which needs --batch of as many.
  """

  drafter: str = "none"
  verifier: str | None = None
  cache: str = "dense"
  processors: tuple[str, ...] = ()
  regex: str | None = None
  json_schema: str | None = None
  stop_words: tuple[str, ...] = ()
  best_of: int = 1
  select: Select | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chat(ModelOptions):
  """Talk with a model that has a chat template, line by line; /help lists what else can be typed.

  Attributes:
    drafter: how to guess, as for `generate`.
    temperature: 0 takes the likeliest token.
    max_new_tokens: budget of an answer.
    system: what the model is told before the first turn.
    seed: seed of the sampling noise.
    stop: ids of tokens that end an answer, besides the model's own.
    stop_words: texts that end an answer, as for `generate`.
  """

  drafter: str = "none"
  temperature: float = 0.0
  max_new_tokens: int = 512
  system: str | None = None
  seed: int = 0
  stop: tuple[int, ...] = ()
  stop_words: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Serve(ModelOptions):
  """Answer OpenAI's protocol over HTTP, for chats and completions; needs specjax[serve].

  There is no encryption: beyond this machine, put a proxy before it.

  Attributes:
    drafter: how to guess, as for `generate`.
    verifier: which guesses are kept; target_only says at a seed what plain sampling says, and at
      temperature 0 what greedy decoding says.
    stop: ids of tokens that end every answer, besides the model's own and a request's.
    stop_words: texts that end every answer, as for `generate`.
    batch: requests decoded together.
    max_length: the most tokens of a prompt and its answer together; by default all positions of the
      model, but not more than 4096.
    prefixes: MB (1e6 bytes) in which the beginnings of prompts are kept, so that a system prompt is
      read once; with 0 every prompt is read as a whole.
    queue: requests that may wait; more are refused.
    seconds: time limit of an answer, waiting included.
    host: address to listen at; 0.0.0.0 is every one of this machine.
    port: 0 takes any that is free.
    key: what clients must send as their key; by default none is asked for.
    origins: web pages that may ask from a browser, such as https://example.org; * is all.
  """

  drafter: str = "none"
  verifier: str = "target_only"
  stop: tuple[int, ...] = ()
  stop_words: tuple[str, ...] = ()
  batch: int = 8
  max_length: int | None = None
  prefixes: float = 0.0
  queue: int = 64
  seconds: float = 300.0
  host: str = "127.0.0.1"
  port: int = 8000
  key: str | None = None
  origins: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Denoise(Decode):
  """Fill texts with a masked diffusion model.

  Attributes:
    policy: which slots to commit, and how: a name with its decorations, such as confidence-2+r2,
      threshold-0.9/dual/sure_end, threshold/adaptive-32[.], learned[PATH]/fixed-16/guesses-4 or,
      as Dream samples, entropy-1,heat=0.2/anew/tempered; `specjax list` shows all.
    picture: file for a picture of the first prompt's canvas after every pass.
  """

  policy: str = "threshold"
  max_new_tokens: int = 16
  picture: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench(options.Bench, ModelOptions):
  """Measure methods beside plain decoding, on the same prompts, in one run.

  An option that the suite does not read is refused.

  Attributes:
    suite: prompts or specbench, for an autoregressive model; or parallelbench: operations on lists,
      for a masked diffusion model, by default the zoo's. specbench asks Spec-Bench's questions with
      their turns: --prompts is their file, by default ../shared/data/spec_bench.jsonl beside the
      checkout, --limit takes evenly from categories, and a run that was killed goes on.
      parallelbench does not read --drafters, --prompts and --verifier, and its --limit counts
      questions per task and length.
    methods: denoising policies for parallelbench, such as threshold-0.9/dual or
      learned/end_of_text_prediction.
    published: file or directory of questions in ParallelBench's layout, in place of ours.
    tasks: names such as copy and shuffle; by default the ten of ParallelBench's waiting line.
    lengths: how long the lists are.
    max_new_tokens: budget per prompt; by default 128, for parallelbench 16.
    out: directory for results.jsonl, summary.json, table.md and the plots.
  """

  max_new_tokens: int | None = None  # type: ignore[assignment]  # the suite decides
  suite: Literal["prompts", "specbench", "parallelbench"] = "prompts"
  methods: tuple[str, ...] = ("confidence", "threshold", "factor")
  published: str | None = None
  tasks: tuple[str, ...] | None = None
  lengths: tuple[int, ...] = (3, 4, 5, 6)
  out: str = "results/bench"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchServe(options.BenchServe):
  """Measure any server of OpenAI's protocol under load: chats that arrive at a rate, as streams.

  Attributes:
    out: directory for summary.json and table.md.
  """

  out: str = "results/bench_serve"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tune(options.Tune, ModelOptions):
  """Choose among drafters, and the size of their drafts, by speed on this machine.

  Attributes:
    out: directory for summary.json, table.md, the plots and tree.json (the chosen tree, named as in
      medusa/tree[FILE]); of skipped_layers for skipped.json (as in self_speculative[FILE]).
  """

  out: str = "results/tune"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory(ModelOptions):
  """Say how much of a device's memory a decoder needs, and which batch fits, before it runs.

  Attributes:
    drafter: how to guess, as for `generate`.
    verifier: which guesses are kept, as for `generate`.
    cache: how the text is kept, as for `generate`.
    temperature: of the distribution; it decides the verifier where none is given.
    batch: prompts decoded together.
    prompt_tokens: length of the longest prompt.
    max_new_tokens: budget per prompt.
    budget: memory of the device in GB (1e9 bytes); the largest batch that fits is found.
  """

  drafter: str = "none"
  verifier: str | None = None
  cache: str = "dense"
  temperature: float = 0.0
  batch: int = 1
  prompt_tokens: int = 128
  max_new_tokens: int = 128
  budget: float | None = None


@dataclasses.dataclass(frozen=True)
class Convert:
  """Write a model or a draft head in another format, in float32 or 8 bits.

  A model becomes the Hugging Face directory that --model takes.

  Attributes:
    format: what --model is: a llama2.c checkpoint, a GGUF file, a Hugging Face directory or a draft
      head.
    model: the file or directory; of a head, ours or as it was published.
    out: directory to write, in which no model or head is yet.
    tokenizer: llama2.c's tokenizer file; without it the model takes ids only.
    target: the model that a head is for, zoo name or directory; by default the zoo's.
    to: format of a head: ours, or that in which heads of its method are published.
    weights: int8 writes the large matrices of a model or a head in our format in 8 bits, which we
      read and others do not.
    torch: writes a head's weights as the .pt file that the programs of Medusa and Hydra load, and
      not as safetensors; needs torch.
  """

  format: Literal["llama2c", "gguf", "hf", "head"]
  model: str
  out: str
  tokenizer: str | None = None
  target: str | None = None
  to: Literal[
    "specjax", "medusa", "hydra", "eagle", "eagle3", "mlp_speculator", "dflash", "mtp", "peagle"
  ] = "specjax"
  weights: Literal["float", "int8"] = "float"
  torch: bool = False


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Write the datastore in which the drafter rest[FILE.npz] searches.

  Attributes:
    data: a JSONL file, tfds:NAME:SPLIT or lists:SEED:COUNT, whose records have a text in `field`;
      of the answers that `specjax.train` decodes, which are ids, the prompts and answers are taken.
    out: FILE.npz to write.
    model: zoo name, directory, GGUF file, or name on Hugging Face's hub; by default the zoo's.
    field: the field that has the text.
    limit: take the first this many records.
  """

  data: str
  out: str
  model: str | None = None
  field: str = "text"
  limit: int | None = None


@dataclasses.dataclass(frozen=True)
class List:
  """Show every part that has a name, with its parameters, exactness and source, and the zoo.

  Attributes:
    what: one kind, such as heads, or one name; by default all.
  """

  what: tyro.conf.Positional[tuple[str, ...]] = ()


@dataclasses.dataclass(frozen=True)
class Info:
  """Describe a model.

  Attributes:
    model: zoo name, directory, GGUF file, or name on Hugging Face's hub; by default the zoo's.
    revision: branch, tag or commit of a model on the hub.
  """

  model: str | None = None
  revision: str | None = None
