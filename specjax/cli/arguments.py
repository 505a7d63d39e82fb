"""What each command of the command line takes; its docstrings are the help.

A dataclass inside a command is a box of its help, whose options are typed without its name.
"""

import dataclasses
from typing import Annotated, Literal

import tyro

from specjax.eval import options
from specjax.eval.options import Numbers, Optional, Words

Dtype = Literal["float32", "bfloat16", "float16"]
Weights = Literal["float", "bfloat16", "int8", "int4", "native"]
Activations = Literal["float", "int8"]
Select = Literal["likelihood", "mbr", "vote", "first_finish"]

group = tyro.conf.configure(tyro.conf.OmitArgPrefixes)


@group
@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
  """Which model, and how it is kept in memory.

  Attributes:
    model: zoo name, directory, GGUF file, or name on Hugging Face's hub; by default the zoo's.
    revision: branch, tag or commit of a model on the hub.
    dtype: type of the arithmetic, and of weights that --weights does not change.
    weights: bfloat16 keeps matrices in 16 bits and multiplies in 16 bits; int8 keeps them in 8
      bits with a scale for each output, int4 in 4 bits with a scale and an offset for 32 inputs.
      Each of these may change the text. native keeps the few bits of a file, which changes only
      memory and time. By default native for a GGUF file on one CPU, else float.
    activations: int8 rounds the inputs of int4 and native matrices to 8 bits, which is faster and
      may change the text.
    mesh: devices over which batches and the model are spread, as data=2,model=4; by default one.
    skipping: which layers skip tokens, such as skip_decode-6,span=128; LOSSY.
    template: chat template instead of the model's own: a name such as chatml, or a Jinja file.
  """

  model: Optional = None
  revision: Optional = None
  dtype: Dtype = "float32"
  weights: Annotated[Weights | None, options.SAID] = None
  activations: Activations = "float"
  mesh: Optional = None
  skipping: Optional = None
  template: Optional = None


@group
@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt:
  """What is decoded, and how much of it.

  Attributes:
    prompt: one text.
    prompts: JSONL file, or - for the standard input; a line has prompt (text), tokens (ids),
      question, turns, messages or conversations.
    chat: put --prompt into the model's chat template, as a question.
    max_new_tokens: most new tokens per prompt, or the slots after it.
    stop: ids of tokens that end a text, besides the model's own.
    batch: prompts decoded together.
    json: print one JSON object per prompt and nothing else.
  """

  prompt: Optional = None
  prompts: Optional = None
  chat: bool = False
  max_new_tokens: int = 128
  stop: Numbers = ()
  batch: int = 1
  json: bool = False


@group
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
  """How tokens are drawn.

  Attributes:
    temperature: 0 takes the likeliest token.
    top_k: keep the k most likely tokens; 0 keeps all.
    top_p: keep the most likely tokens up to this mass; 1 keeps all.
    min_p: drop tokens below this share of the highest probability; 0 keeps all.
    typical_p: keep the tokens closest to the expected log-probability, up to this mass; 1 keeps
      all.
    seed: seed of the sampling noise.
  """

  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  typical_p: float = 1.0
  seed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate:
  """Decode prompts.

  Attributes:
    drafter: how to guess, such as medusa-16, eagle/dynamic-16,depth=5,beam=4,
      draft_model-8[PATH]/adaedl-0.7 or eagle+prompt_lookup; `specjax list` shows all names.
    verifier: which guesses are kept, such as typical-0.2 or judge-0.9[PATH]; by default greedy at
      temperature 0, else the verifier that is exact for the drafter.
    processors: what changes the logits, such as penalties-1.3,presence=0.2.
    regex: what every new text must match from end to end.
    json_schema: file of a JSON Schema that every new text must follow; needs specjax[grammar].
    stop_words: texts, or special tokens, that end a text and are removed from it.
    cache: how keys and values are kept, such as int8 or keyformer-0.6; all but dense are LOSSY.
    best_of: number of samples for each prompt, of which one is shown.
    select: which sample to show: the one with the highest probability per token (the default);
      mbr, the one that agrees most with the others; vote, one with the most frequent answer; or the
      first to end, which needs a --batch of the same size.
    hedged: the first of these samples is the greedy text.
  """

  drafter: str = "none"
  verifier: Optional = None
  cache: str = "dense"
  processors: Words = ()
  regex: Optional = None
  json_schema: Optional = None
  stop_words: Words = ()
  best_of: int = 1
  select: Annotated[Select | None, options.SAID] = None
  hedged: bool = False
  prompt: Prompt = Prompt()
  sampling: Sampling = Sampling()
  model: Model = Model()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
  """Write by a search, or by two models, in place of one loop of drafts.

  Attributes:
    name: such as beam_search-4,groups=2, adadec-0.9, cntp-8, by_bytes, navigated-20,
      switching-1.0[SMALL MODEL] or superposed-3[FILE.npz]; `specjax list searches` shows all.
    temperature: of those that sample; by default their own.
    seed: seed of the sampling noise.
  """

  name: tyro.conf.Positional[str]
  temperature: Annotated[float | None, options.SAID] = None
  seed: int = 0
  prompt: Prompt = Prompt()
  model: Model = Model()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chat:
  """Talk with a model that has a chat template, line by line; /help lists what else can be typed.

  Attributes:
    drafter: how to guess, as for `generate`.
    policy: of a denoiser: which slots to commit, as for `denoise`; by default threshold.
    temperature: 0 takes the likeliest token.
    max_new_tokens: budget of an answer.
    system: what the model is told before the first turn.
    seed: seed of the sampling noise.
    stop: ids of tokens that end an answer, besides the model's own.
    stop_words: texts that end an answer, as for `generate`.
  """

  drafter: str = "none"
  policy: Optional = None
  temperature: float = 0.0
  max_new_tokens: int = 512
  system: Optional = None
  seed: int = 0
  stop: Numbers = ()
  stop_words: Words = ()
  model: Model = Model()


@group
@dataclasses.dataclass(frozen=True, kw_only=True)
class Http:
  """Where the server listens, and who may use it. It does not encrypt: use a proxy for that.

  Attributes:
    host: address to listen at; 0.0.0.0 means all addresses of this machine.
    port: port to listen at; 0 takes any free port.
    key: key that clients must send; by default none is required.
    origins: web pages that may send requests from a browser, such as https://example.org; * is all.
  """

  host: str = "127.0.0.1"
  port: int = 8000
  key: Optional = None
  origins: Words = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Serve:
  """Answer OpenAI's protocol over HTTP, for chats and completions; needs specjax[serve].

  Attributes:
    drafter: how to guess, as for `generate`; auto, or auto-8[NAME], chooses the size of the draft
      by the number of running requests.
    verifier: which guesses are kept; with target_only the text of a seed is that of plain
      sampling, and at temperature 0 that of greedy decoding.
    policy: of a denoiser: which slots to commit, as for `denoise`; by default threshold.
    stop: ids of tokens that end every answer, besides the model's own and a request's.
    stop_words: texts that end every answer, as for `generate`.
    batch: requests decoded together.
    max_length: most tokens of a prompt and its answer together; by default the positions of the
      model, but at most 4096.
    prefixes: memory in MB (1e6 bytes) for the beginnings of prompts, so that a system prompt is
      read only once; with 0 every prompt is read as a whole.
    pages: number of pages of 64 tokens that hold all texts, so that a text takes only what it
      needs, and a common beginning is held once; with 0 each row has room for --max-length tokens.
    queue: number of requests that may wait; more are refused.
    seconds: time limit of an answer, including waiting.
  """

  drafter: str = "none"
  verifier: str = "target_only"
  policy: Optional = None
  stop: Numbers = ()
  stop_words: Words = ()
  batch: int = 8
  max_length: Annotated[int | None, options.SAID] = None
  prefixes: float = 0.0
  pages: int = 0
  queue: int = 64
  seconds: float = 300.0
  http: Http = Http()
  model: Model = Model()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Denoise:
  """Fill texts with a masked diffusion model.

  Attributes:
    policy: which slots to commit, and how: a name with its decorations, such as confidence-2+r2,
      threshold-0.9/dual/sure_end, threshold/adaptive-32[.], learned[PATH]/fixed-16/guesses-4 or,
      as Dream samples, entropy-1,heat=0.2/anew/tempered; `specjax list` shows all.
    picture: file for a picture of the first prompt's canvas after every pass.
  """

  policy: str = "threshold"
  picture: Optional = None
  prompt: Prompt = Prompt(max_new_tokens=16)
  sampling: Sampling = Sampling()
  model: Model = Model()


@group
@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure(options.Bench):
  """What is decoded, beside plain decoding.

  Attributes:
    max_new_tokens: budget per prompt; by default 128, for code 256, for parallelbench 16.
  """

  max_new_tokens: Annotated[int | None, options.SAID] = None  # type: ignore[assignment]  # the suite decides


@group
@dataclasses.dataclass(frozen=True, kw_only=True)
class Denoising:
  """For --suite parallelbench, which does not use --drafters, --prompts and --verifier.

  Attributes:
    methods: denoising policies, such as threshold-0.9/dual or learned/end_of_text_prediction.
    published: file or directory of questions in ParallelBench's layout, instead of ours.
    tasks: names such as copy and shuffle; by default the ten tasks of ParallelBench's waiting
      line. For --suite code: categories, by default all.
    lengths: lengths of the lists.
  """

  methods: tuple[str, ...] = ("confidence", "threshold", "factor")
  published: Optional = None
  tasks: Annotated[
    tuple[str, ...] | None, tyro.conf.arg(metavar="[STR [STR ...]]", help_behavior_hint="")
  ] = None
  lengths: tuple[int, ...] = (3, 4, 5, 6)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
  """Measure methods beside plain decoding, on the same prompts, in one run.

  An option that the suite does not read is refused.

  Attributes:
    suite: prompts, specbench or code, for an autoregressive model; or parallelbench, operations
      on lists for a masked diffusion model, by default the zoo's. specbench asks Spec-Bench's
      questions with their turns: --prompts is their file, by default
      ../shared/data/spec_bench.jsonl beside the checkout, --limit takes equally many of each
      category, and a stopped run continues. code asks our own programming tasks (describe, edit,
      summarise, json, chat; --tasks selects some) in the same way, and tests the answers, which
      are programs that a model wrote, in a child process with limits. For parallelbench --limit
      counts questions per task and length.
    out: directory for results.jsonl, summary.json, table.md and the plots.
  """

  suite: Literal["prompts", "specbench", "code", "parallelbench"] = "prompts"
  out: str = "results/bench"
  measure: Measure = Measure()
  denoising: Denoising = Denoising()
  model: Model = Model()


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchServe(options.BenchServe):
  """Measure a server that speaks OpenAI's protocol, with chats that arrive at a given rate.

  Attributes:
    out: directory for summary.json and table.md.
  """

  out: str = "results/bench_serve"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tune:
  """Choose among drafters, and the size of their drafts, by speed on this machine.

  Attributes:
    out: directory for summary.json, table.md, the plots and tree.json (the chosen tree, named as in
      medusa/tree[FILE]); of skipped_layers for skipped.json (as in self_speculative[FILE]).
  """

  measure: Annotated[options.Tune, tyro.conf.OmitArgPrefixes]
  out: str = "results/tune"
  model: Model = Model()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
  """Predict how much of a device's memory a decoder needs, and the largest batch that fits.

  Attributes:
    drafter: how to guess, as for `generate`.
    verifier: which guesses are kept, as for `generate`.
    cache: how the text is kept, as for `generate`.
    temperature: of the distribution; it decides the verifier where none is given.
    batch: prompts decoded together.
    prompt_tokens: length of the longest prompt.
    max_new_tokens: budget per prompt.
    prefixes: memory in MB for the beginnings of prompts in a server, as for `serve`.
    pages: number of pages in which a server holds all texts, as for `serve`.
    budget: memory of the device in GB (1e9 bytes), for which the largest batch is found.
  """

  drafter: str = "none"
  verifier: Optional = None
  cache: str = "dense"
  temperature: float = 0.0
  batch: int = 1
  prompt_tokens: int = 128
  max_new_tokens: int = 128
  prefixes: float = 0.0
  pages: int = 0
  budget: Annotated[float | None, options.SAID] = None
  model: Model = Model()


@dataclasses.dataclass(frozen=True)
class Convert:
  """Write a model or a draft head in another format, in float32 or 8 bits.

  A model becomes the Hugging Face directory that --model takes.

  Attributes:
    format: what --model is: a llama2.c checkpoint, a GGUF file, a Hugging Face directory or a draft
      head.
    model: the file or directory; of a head, ours or as it was published.
    out: directory to write, which must not hold a model or head.
    tokenizer: llama2.c's tokenizer file; without it the model takes only ids.
    target: the model of a head, zoo name or directory; by default the zoo's.
    to: format of a head: ours, the published format of its method, that of speculators, which
      `vllm serve` loads, or of SpecForge for DSpark.
    weights: bfloat16 writes a head in 16 bits; int8 writes the large matrices of a model, or of a
      head in our format, in 8 bits, which only specjax reads.
    torch: write a head's weights as the .pt file that the programs of Medusa and Hydra load,
      instead of safetensors; needs torch.
  """

  format: Literal["llama2c", "gguf", "hf", "head"]
  model: str
  out: str
  tokenizer: Optional = None
  target: Optional = None
  to: Literal[
    "specjax",
    "medusa",
    "hydra",
    "eagle",
    "eagle3",
    "mlp_speculator",
    "dflash",
    "mtp",
    "peagle",
    "dspark",
    "domino",
    "gemma4_assistant",
    "speculators",
    "specforge",
  ] = "specjax"
  weights: Literal["float", "bfloat16", "int8"] = "float"
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
  model: Optional = None
  field: str = "text"
  limit: Annotated[int | None, options.SAID] = None


@dataclasses.dataclass(frozen=True)
class List:
  """Show every part that has a name, with its parameters, exactness and source, and the zoo.

  Attributes:
    what: a kind, such as heads, or a name; by default all.
  """

  what: tyro.conf.Positional[Words] = ()


@dataclasses.dataclass(frozen=True)
class Info:
  """Describe a model.

  Attributes:
    model: zoo name, directory, GGUF file, or name on Hugging Face's hub; by default the zoo's.
    revision: branch, tag or commit of a model on the hub.
  """

  model: Optional = None
  revision: Optional = None
