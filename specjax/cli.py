"""The command line: generate, bench, tune, convert, list, info.

Nothing that imports jax is imported before a command runs, so that `--help` answers at once.
"""

import dataclasses
import json
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Literal

import tyro
from rich.console import Console
from rich.table import Table


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
      as dynamic-16-5-4 (chosen) and distinct-4-2-1 (drawn), see the README.
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
class Bench:
  """Measure drafters beside plain decoding, on the same prompts, in one run.

  Attributes:
    model: zoo name or directory; by default the zoo's.
    drafters: names, or NAME:NODES for another size of draft, or with a tree NAME:FILE.json or
      NAME:dynamic-NODES-DEPTH-BEAM, or draft_model:POLICY.
    head: medusa's heads; by default the zoo's for the model.
    draft_model: the small model of the drafter draft_model.
    acceptance: directory of the acceptance head of draft_model:specdecpp.
    prompts: Spec-Bench's question file or any JSONL of prompts; by default our own questions.
    limit: how many prompts; by default all.
    max_new_tokens: budget per prompt.
    batch: prompts decoded together.
    temperature: 0 is greedy.
    seed: of the noise.
    verifier: of the drafters; by default the exact one.
    repeats: times everything is decoded; medians count.
    out: directory for results.jsonl, summary.json, table.md and the plots.
  """

  model: str | None = None
  drafters: tuple[str, ...] = ("prompt_lookup", "medusa")
  head: str | None = None
  draft_model: str | None = None
  acceptance: str | None = None
  prompts: str | None = None
  limit: int | None = None
  max_new_tokens: int = 128
  batch: int = 1
  temperature: float = 0.0
  seed: int = 0
  verifier: str | None = None
  repeats: int = 3
  out: str = "results/bench"


@dataclasses.dataclass(frozen=True)
class Tune:
  """Choose the tree of a head, a chain or no speculation by speed on this machine, and check it.

  Attributes:
    drafter: name of a head.
    model: zoo name or directory; by default the zoo's.
    head: where the head is, zoo name or directory, with hit rates; by default the zoo's.
    prompts: JSONL of prompts on which the choice is checked; by default our own questions.
    limit: how many prompts; by default all.
    max_new_tokens: budget per prompt.
    batch: prompts decoded together, for which the choice is made.
    decode: how many candidates to decode besides plain, the most promising; by default all.
    repeats: times everything is decoded; medians count.
    out: directory for tree.json (see generate --tree), summary.json and tune.png.
  """

  drafter: str
  model: str | None = None
  head: str | None = None
  prompts: str | None = None
  limit: int | None = None
  max_new_tokens: int = 128
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


# Fields of a Result in the output of `generate --json`, after the prompt.
JSON_KEYS = (
  "text", "tokens", "log_probs", "forwards", "emitted", "seconds", "prefill_seconds", "drafter", 
  "verifier", "exactness",
)  # fmt: skip


def _load(name: str | None):
  from specjax.model import load

  return load() if name is None else load(name)


def _items(args: Generate, model):
  """The prompts, all checked."""
  from specjax.eval import prompts

  if args.max_new_tokens < 1:
    raise ValueError(f"max_new_tokens={args.max_new_tokens}: accepted is 1 or more.")
  if args.prompts is not None and args.prompt is None:
    if args.chat:
      raise ValueError("--chat goes with --prompt; in a file, `question` says the same.")
    return prompts.read(args.prompts, model, args.max_new_tokens)
  if args.prompt is None or args.prompts is not None:
    raise ValueError("expected either --prompt TEXT or --prompts FILE.")
  ids = model.chat(args.prompt) if args.chat and args.prompt else model.encode(args.prompt)
  prompts.check_length(item := prompts.Item(args.prompt, ids), args.max_new_tokens, model)
  return [item]


def _verifier(args: Generate, model):
  """The rule's name, or the judge with its weights."""
  if (args.verifier == "judge") != (args.judge is not None):
    raise ValueError(f"verifier={args.verifier!r} and judge={args.judge!r}: --verifier judge and "
                     "--judge DIR go together.")  # fmt: skip
  if args.judge is None:
    return args.verifier
  from specjax.checkpoints import judge
  from specjax.verifiers import VERIFIERS

  return VERIFIERS["judge"](), judge.load(args.judge, model.config)


def _generate(args: Generate) -> None:
  from specjax.api import Decoder
  from specjax.parts import make_drafter
  from specjax.trees import files

  model = _load(args.model)
  items = _items(args, model)
  if args.tree and args.nodes:
    raise ValueError(f"nodes={args.nodes} and tree={args.tree!r}: accepted is one of them.")
  tree = files.parse(args.tree) if args.tree else None
  drafter = make_drafter(
    model, args.drafter, head=args.head, draft_model=args.draft_model, nodes=args.nodes, tree=tree,
    policy=args.policy, acceptance=args.acceptance,
  )  # fmt: skip
  decoder = Decoder(
    model, drafter, _verifier(args, model), temperature=args.temperature, top_k=args.top_k,
    top_p=args.top_p, min_p=args.min_p, repetition_penalty=args.repetition_penalty,
    presence_penalty=args.presence_penalty, frequency_penalty=args.frequency_penalty,
    regex=args.regex, stop_words=args.stop_words, seed=args.seed, batch=args.batch,
  )  # fmt: skip
  if len(items) == 1 and not args.json and not args.stop_words:
    _stream(decoder, items[0], args.max_new_tokens)
    return
  console = Console(highlight=False, markup=False)
  for first in range(0, len(items), args.batch):  # printed batch by batch: a failure loses no text
    part = items[first : first + args.batch]
    results = decoder([item.ids for item in part], args.max_new_tokens, first=first)
    for item, r in zip(part, results, strict=True):
      if args.json:
        fields = {key: getattr(r, key) for key in JSON_KEYS}
        print(json.dumps({"prompt": item.given, **fields}), flush=True)
      else:
        rate = f"{r.emitted / r.forwards:.2f} per forward"
        console.rule(style="dim")
        console.print(str(item.given), style="dim")
        console.print(r.text or str(r.tokens))
        console.print(f"{r.emitted} tokens, {rate}, {decoder.label}", style="cyan")


def _stream(decoder, item, max_new_tokens: int) -> None:
  """Prints a text as it comes, a round at a time."""
  ids, shown, forwards, first, begin = [], "", 0, 0, 0.0
  known = decoder.model.tokenizer is not None
  print(item.given, end="" if known else " ", flush=True)
  for (piece,) in decoder.stream([item.ids], max_new_tokens, rounds=1):
    ids += piece
    if not forwards:  # compiling ends with the first round, so the clock starts after it
      first, begin = len(ids), time.perf_counter()
    forwards += 1
    # Half a character may have come so far: it waits for its other half.
    text = decoder.model.decode(ids).rstrip("\ufffd") if known else " ".join(map(str, ids))
    print(text[len(shown) :], end="", flush=True)
    shown = text
  seconds = time.perf_counter() - begin
  rate = f", {(len(ids) - first) / seconds:.0f} tokens/s" if len(ids) > first else ""
  summary = f"{len(ids)} tokens, {len(ids) / forwards:.2f} per forward{rate}, {decoder.label}"
  print()
  Console(highlight=False, markup=False).print(summary, style="cyan")


def _bench(args: Bench) -> None:
  from specjax.eval import bench, report

  fields = dataclasses.asdict(args)
  name, out = fields.pop("model"), fields.pop("out")
  summary = bench.run(_load(name), bench.Config(**fields), out)
  console = Console()
  console.print(report.table(summary))
  console.print(f"{out}: results.jsonl, summary.json, table.md, plots", markup=False)


def _tune(args: Tune) -> None:
  from specjax.eval import tune, tune_report

  fields = dataclasses.asdict(args)
  name, out = fields.pop("model"), fields.pop("out")
  summary = tune.run(_load(name), tune.Config(**fields), out)
  console = Console(highlight=False)
  console.print(tune_report.table(summary))
  console.print(tune_report.verdict(summary), markup=False)
  console.print(f"{out}: tree.json, summary.json, tune.png", markup=False)


def _convert(args: Convert) -> None:
  import jax.numpy as jnp

  from specjax.checkpoints import hf, llama2c

  if args.format != "head" and (args.target is not None or args.to != "specjax"):
    raise ValueError(f"target={args.target!r} and to={args.to!r} are for --format head.")
  if args.format == "llama2c":
    c = llama2c.load(args.model, args.tokenizer)
  elif args.tokenizer is not None:
    raise ValueError(f"tokenizer={args.tokenizer!r}: a Hugging Face directory brings its own.")
  elif pathlib.Path(args.out).resolve() == pathlib.Path(args.model).resolve():
    raise ValueError(f"out={args.out!r} is the model itself; choose another directory.")
  elif args.format == "head":
    _convert_head(args)
    return
  else:
    c = hf.load(args.model)
  # float32 holds every accepted dtype, so the converted model decodes as the original does.
  hf.save(args.out, c.config, c.params, c.tokenizer, template=c.template, stop=c.stop,
          start=c.start, dtype=jnp.float32)  # fmt: skip
  back = hf.load(args.out)
  if c.tokenizer is not None and back.start != c.start:
    raise ValueError(f"{args.out}: prompts started with the ids {list(c.start)} and now with "
                     f"{list(back.start)}; tokenizer.json needs a post-processor.")  # fmt: skip
  print(f"wrote {args.out}")


def _convert_head(args: Convert) -> None:
  import jax.numpy as jnp

  from specjax.checkpoints import bridge
  from specjax.model import resolve

  target = _load(args.target)
  loaded = bridge.load(resolve(args.model), target.config)
  bridge.save(args.out, args.to, loaded, target.config, target.params, base=target.name,
              dtype=jnp.float32)  # fmt: skip
  print(f"wrote {args.out}: {loaded.head.name}, {loaded.head.depth} deep, as {args.to}")


def _grid(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
  table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
  for i, column in enumerate(columns):
    table.add_column(column, no_wrap=i == 0)
  for row in rows:
    table.add_row(*row)
  return table


def _list(args: List) -> None:
  from specjax import catalogue

  console = Console(highlight=False)
  for title, columns, rows in (
    ("drafters", ("name", "proposal", "nodes", ""), catalogue.drafters()),
    ("verifiers", ("name", "exactness", "proposals"), catalogue.verifiers()),
  ):
    console.print(_grid(title, columns, rows), "")
  console.print(_grid("zoo", ("name", "kind"), catalogue.zoo()))


def _info(args: Info) -> None:
  import jax

  from specjax.model import resolve

  model = _load(args.model)
  size = sum(x.size for x in jax.tree.leaves(model.params))
  rows = [("parameters", f"{size:,}"), *((k, str(v)) for k, v in vars(model.config).items())]
  rows += [(k, str(getattr(model, k))) for k in ("template", "stop", "start")]
  rows += [("tokenizer", "yes" if model.tokenizer else "none")]
  console = Console(highlight=False, markup=False)
  console.print(_grid(model.name, ("field", "value"), rows))
  for card in sorted(resolve(model.name).glob("*.md")):
    console.print("", card.read_text(), sep="\n")


COMMANDS: dict[type, Callable] = {
  Generate: _generate,
  Bench: _bench,
  Tune: _tune,
  Convert: _convert,
  List: _list,
  Info: _info,
}


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a command; 0, or 2 after printing what was wrong with the request on stderr."""
  args = tyro.cli(
    Generate | Bench | Tune | Convert | List | Info,
    prog="specjax",
    description="Parallel decoding of language models in JAX.",
    args=argv,
    config=(tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone),
  )
  try:
    COMMANDS[type(args)](args)
  except (ValueError, FloatingPointError, OSError) as error:
    print("error:", " ".join(str(error).split()), file=sys.stderr)
    return 2
  return 0


if __name__ == "__main__":
  sys.exit(main())
