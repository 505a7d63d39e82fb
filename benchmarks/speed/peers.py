"""Greedy decoding of one model by transformers, llama.cpp and specjax, in one run.

    python benchmarks/speed/peers.py --model smollm2-135m --suite specbench --limit 60
    python benchmarks/speed/peers.py --drafters prompt_lookup eagle3[runs/eagle3/model]/dynamic-16
    python benchmarks/speed/peers.py --model qwen2.5-coder-0.5b --weights native native/int8
    python benchmarks/speed/peers.py --model qwen2.5-coder-0.5b --suite code --tasks edit --limit 3

All answer the same questions with the same ids of prompts, stop ids and budget, at batch 1 on all
cores. They take turns question by question, in an order that changes. The time of a token leaves
out the prompt's own pass and the token that the others take from it; the time of the whole call is
reported too. With `--weights float` all compute in float32 with the same weights, which a GGUF file
gives them dequantised. llama.cpp also decodes that file as it is, and specjax with every kind of
weights that is named. Answers are compared with those of specjax's plain decoding with the first
kind, and where they part in float32, with the margin of the two tokens in the logits. A question of
Spec-Bench is its first turn; `specjax bench --suite specbench` asks the others.

A run that was killed goes on after its last whole question. The other programs are no dependencies
of specjax, and one that is not installed is left out. The figures in benchmarks/results/peers are
those of torch 2.13.0, transformers 5.23.0 and llama-cpp-python 0.3.36, whose only draft is prompt
lookup.
"""

import collections
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

import specjax
from specjax import checks, command_line, fingerprint
from specjax.checkpoints import gguf_float32, hf
from specjax.data import resume, spec_bench
from specjax.eval import code_bench, interleaved, metrics, peers, prompts, report, specbench, table
from specjax.eval.peers import Contenders, Run
from specjax.eval.plots import peers as plots
from specjax.fingerprint import cache_dir
from specjax.names.load import resolve

OURS = "specjax"
TIE = 1e-3  # in logits; the sums of float32 programs differ by less
PACKAGES = ("torch", "transformers", "llama-cpp-python")
FOOTNOTE = (
  "ms/token: without the prompt, [95 % interval over questions]; median: of the questions, "
  "[quartiles]; over its own plain, over ours: tokens per second over those of the program's plain "
  "decoding and of specjax's; same ids: questions whose ids are those of plain decoding."
)


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  model: str = "smollm2-135m"  # as specjax.load takes it; llama.cpp needs a GGUF file
  suite: Literal["specbench", "code", "prompts"] = "specbench"  # whose questions
  tasks: tuple[str, ...] | None = None  # categories of the suite `code`; by default all
  prompts: str | None = None  # their file; by default that of the suite, or our own questions
  limit: int | None = 60  # number of questions, of a suite taken evenly from its categories
  max_new_tokens: int = 128  # budget per question
  drafters: tuple[str, ...] = ("prompt_lookup",)  # ours, such as eagle3[PATH]
  weights: tuple[Literal["float", "bfloat16", "int8", "native", "native/int8"], ...] = (
    "float",
    "native",
    "native/int8",
  )  # of specjax; after a slash, activations
  draft_model: str | None = None  # a small model that drafts for specjax and transformers
  lookup: int = (
    7  # tokens drafted by prompt lookup in the other programs; ours has its own parameter
  )
  repeats: int = 1  # times everything is decoded
  out: str = "results/peers"  # directory of the report


@dataclasses.dataclass(frozen=True)
class Question:
  """A question: its ids, its text where it is asked in the chat template, and its category."""

  ids: list[int]
  text: str | None
  kind: str = ""


def questions(model: specjax.Model, config: Config) -> list[Question]:
  if config.suite == "prompts":
    items = prompts.read(config.prompts, model, config.max_new_tokens, config.limit)
    return [Question(item.ids, None) for item in items]
  asked: Sequence[spec_bench.Asked]
  if config.suite == "code":
    asked, _ = code_bench.choose(model, config.tasks, config.max_new_tokens, config.limit)
  else:
    known = specbench.fitting(model, spec_bench.read(config.prompts), config.max_new_tokens)
    asked = spec_bench.evenly(known, config.limit)
  return [Question(model.chat(q.turns[0]), q.turns[0], q.category) for q in asked]


def in_float32(name: str) -> tuple[pathlib.Path, pathlib.Path | None]:
  """A model in float32: its Hugging Face directory, and its GGUF file where it came as one.

  What is not there is written into the cache, whole.
  """
  source = resolve(name)
  if source.is_dir():
    return source, None
  with source.open("rb") as file:
    digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
  cache = cache_dir() / "peers" / f"{source.stem}-{digest}"
  cache.mkdir(parents=True, exist_ok=True)
  directory, float32 = cache / "hf", cache / "float32.gguf"
  if not float32.exists():
    gguf_float32.write(source, float32)
  if not directory.exists():
    model = specjax.load(name, weights="float")
    unfinished = cache / "hf.part"
    shutil.rmtree(unfinished, ignore_errors=True)
    hf.save(
      unfinished,
      model.config,
      model.params,
      model.tokenizer,
      template=model.template,
      stop=model.stop,
      start=model.start,
      dtype=jnp.float32,
    )
    os.replace(unfinished, directory)
  return directory, float32


def loaded(name: str, weights: str) -> specjax.Model:
  """A model with weights as `Config.weights` names them."""
  kind, _, activations = weights.partition("/")
  return specjax.load(name, weights=kind, activations=activations or "float")


def label(weights: str) -> str:
  """What plain decoding with these weights is called."""
  return OURS if weights == "float" else f"{OURS} {weights}"


def gather(
  model: specjax.Model, config: Config, positions: int
) -> tuple[Contenders, dict[str, str]]:
  """Who takes part, and why others do not.

  Args:
    model: with the first kind of weights.
    positions: those of the longest prompt with its answer.
  """
  drafters, left_out = config.drafters, {}
  if config.draft_model is not None:
    drafters += (f"draft_model[{config.draft_model}]",)
  first, *others = config.weights
  found = peers.specjax(model, drafters, label(first))
  for weights in others:
    found |= peers.specjax(loaded(config.model, weights), drafters, label(weights))
  own, ggufs = resolve(config.model), list[tuple[pathlib.Path, str, bool]]()
  if own.is_file():
    ggufs.append((own, f"llama.cpp {gguf_float32.main_type(own)}", False))
  else:
    left_out["llama.cpp"] = f"it reads GGUF files, and {config.model} is none"
  if "float" in config.weights:
    directory, gguf = in_float32(config.model)
    draft = str(in_float32(config.draft_model)[0]) if config.draft_model is not None else None
    if gguf is not None:
      ggufs.insert(0, (gguf, "llama.cpp", True))
    try:
      found |= peers.transformers(directory, model.stop, config.lookup, draft)
    except ImportError:
      left_out["transformers"] = "pip install torch transformers"
  else:
    left_out["transformers"] = "it decodes in float32, and --weights has no float"
  try:
    for file, name, float32 in ggufs:
      found |= peers.llama_cpp(file, model.stop, config.lookup, positions, name, float32)
  except ImportError:
    left_out["llama.cpp"] = "pip install llama-cpp-python"
  return found, left_out


def measure(
  contenders: Contenders, asked: Sequence[Question], config: Config, file: pathlib.Path
) -> dict[str, list[list[Run]]]:
  """Runs [repeats][questions] by contender, of which those not yet in the file are added to it."""
  done = resume.count_lines(file) // len(contenders)
  resume.keep_lines(file, done * len(contenders))
  if done < config.repeats * len(asked):
    for contender in contenders.values():
      contender.run(min((q.ids for q in asked), key=len), min(4, config.max_new_tokens))
  with file.open("a") as sink:
    for repeat, i, name in interleaved.turns(list(contenders), len(asked), config.repeats, done):
      run = contenders[name].run(asked[i].ids, config.max_new_tokens)
      where = {"name": name, "repeat": repeat, "question": i}
      sink.write(json.dumps(where | run._asdict()) + "\n")
      sink.flush()
  runs: dict[str, list[list[Run]]] = {k: [[] for _ in range(config.repeats)] for k in contenders}
  for line in file.read_text().splitlines():
    record = json.loads(line)
    name, repeat, _ = (record.pop(key) for key in ("name", "repeat", "question"))
    runs[name][repeat].append(Run(**record))
  return runs


def divergences(
  contenders: Contenders,
  name: str,
  asked: Sequence[Question],
  mine: Sequence[Run],
  ours: Sequence[Run],
) -> list[dict[str, Any]]:
  """Where answers part from ours; in float32 with the margin of the tokens in both logits.

  A margin is what a program gives its own token more than the other's.
  """
  reference, found = next(iter(contenders)), []
  for i, (a, b) in enumerate(zip(mine, ours, strict=True)):
    index = metrics.first_divergence(a.tokens, b.tokens)
    if index is None:
      continue
    here: dict[str, Any] = {"question": i, "index": index}
    if (
      contenders[name].float32
      and contenders[reference].float32
      and index < min(len(a.tokens), len(b.tokens))
    ):
      theirs, own = a.tokens[index], b.tokens[index]
      text = asked[i].ids + b.tokens[:index]
      x, y = contenders[reference].logits(text), contenders[name].logits(text)
      here |= {"ours": own, "theirs": theirs, "margin": float(x[own] - x[theirs]),
               "their_margin": float(y[theirs] - y[own])}  # fmt: skip
    found.append(here)
  return found


def figures(runs: Mapping[str, list[list[Run]]], name: str) -> dict[str, Any]:
  """The figures of one contender, ready for JSON."""

  def columns(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    repeats = [[(r.seconds, r.total) for r in x] for x in runs[name]]
    return np.array([r.timed for r in runs[name][0]]), *np.median(repeats, 0).T

  def milliseconds(tokens, seconds):
    return 1e3 * seconds / tokens

  timed, seconds, total = columns(name)
  plain = name.partition(",")[0]
  first, before = runs[name][0], runs[plain][0]
  emitted = sum(len(r.tokens) for r in first)
  each = milliseconds(timed[timed > 0], seconds[timed > 0])
  found: dict[str, Any] = {
    "ms_per_token": float(milliseconds(timed.sum(), seconds.sum())),
    "ms_per_token_interval": metrics.bootstrap_interval(milliseconds, timed, seconds),
    "ms_per_token_quartiles": np.percentile(each, (25, 50, 75)).tolist(),
    "ms_per_token_with_prompt": float(milliseconds(emitted, total.sum())),
    "tokens": emitted, "tau": float(timed.sum() / sum(r.passes for r in first)),
    "same_as_own_plain": sum(a.tokens == b.tokens for a, b in zip(first, before, strict=True)),
    "unstable": sum(len({tuple(x[i].tokens) for x in runs[name]}) > 1 for i in range(len(first))),
  }  # fmt: skip
  for key, other in (("over_own_plain", plain), ("over_ours", next(iter(runs)))):
    paired = (timed, seconds, *columns(other)[:2])
    found[key] = float(metrics.speed_up(*(x.sum() for x in paired)))
    found[f"{key}_interval"] = metrics.bootstrap_interval(metrics.speed_up, *paired)
  return found


def by_kind(
  runs: Mapping[str, list[list[Run]]], kinds: Sequence[str]
) -> dict[str, dict[str, float]]:
  """Milliseconds per token of every contender, by the category of each question."""
  found = {}
  for name, repeats in runs.items():
    timed = np.array([r.timed for r in repeats[0]])
    seconds = np.median([[r.seconds for r in x] for x in repeats], 0)
    chosen = {kind: np.array(kinds) == kind for kind in dict.fromkeys(kinds)}
    found[name] = {k: float(1e3 * seconds[x].sum() / timed[x].sum()) for k, x in chosen.items()}
  return found


def rows(summary: Mapping[str, Any]) -> table.Rows:
  """The table, plain decoding first of every program."""
  ours, found = next(iter(summary["contenders"])), []
  for name, m in summary["contenders"].items():
    margins = [d["margin"] for d in m["divergences"] if "margin" in d]
    low, middle, high = m["ms_per_token_quartiles"]
    cells = {k: table.estimate(m[k], m[f"{k}_interval"]) for k in ("over_own_plain", "over_ours")}
    found.append(
      {
        "": name,
        "ms/token": table.estimate(m["ms_per_token"], m["ms_per_token_interval"]),
        "median": table.estimate(middle, (low, high)),
        "with the prompt": f"{m['ms_per_token_with_prompt']:.2f}",
        "tokens/pass": f"{m['tau']:.2f}",
        "over its own plain": cells["over_own_plain"] if "," in name else "",
        "over ours": cells["over_ours"] if name != ours else "",
        "same ids as its plain": m["same_as_own_plain"] if "," in name else "",
        "same ids as ours": summary["prompts"] - len(m["divergences"]),
        "largest margin": f"{max(margins):.1e}" if margins else "",
      }
    )
  return found


def text(summary: Mapping[str, Any]) -> str:
  """The report in Markdown."""
  config = summary["config"]
  parts = [
    f"{report.decoding(summary)}, up to {config['max_new_tokens']} new tokens, median of "
    f"{config['repeats']}; {report.machine(summary)}.",
    table.markdown(rows(summary)),
    FOOTNOTE,
  ]
  if len(next(iter(summary["by_kind"].values()))) > 1:
    shown = [
      {"ms/token": name} | {kind: f"{ms:.1f}" for kind, ms in each.items()}
      for name, each in summary["by_kind"].items()
    ]
    parts.append(table.markdown(shown))
  parts += [
    f"{k} reads {n} of {summary['prompts']} questions as the same ids."
    for k, n in summary["same_prompts"].items()
  ]
  for name, m in summary["contenders"].items():
    far = [d for d in m["divergences"] if m["float32"] and d.get("margin", np.inf) > TIE]
    if far:
      parts.append(f"{name} parts from specjax by more than a tie in {len(far)} answers.")
  return "\n\n".join(parts + [f"Left out: {k} ({why})." for k, why in summary["left_out"].items()])


def main(config: Config) -> None:
  report.check(config, "max_new_tokens", "lookup", "repeats")
  if config.limit is not None:
    checks.whole("limit", config.limit, 1)
  if not config.weights:
    checks.refuse("weights", config.weights, "at least one kind of weights")
  if config.tasks is not None and config.suite != "code":
    checks.refuse("tasks", " ".join(config.tasks), f"none with the suite {config.suite}")
  if config.prompts is not None and config.suite == "code":
    checks.refuse("prompts", config.prompts, "none with the suite code, whose texts ship")
  model = loaded(config.model, config.weights[0])
  asked = questions(model, config)
  positions = max(len(q.ids) for q in asked) + config.max_new_tokens
  contenders, left_out = gather(model, config, positions)
  directory = report.directory(config.out)
  options = dataclasses.asdict(config)
  machine = {k: v for k, v in report.environment()["machine"].items() if k != "load"}
  resume.claim(
    directory,
    {
      **options,
      "machine": machine,
      "contenders": list(contenders),
      "data_digest": fingerprint.digest([json.dumps([q.ids for q in asked])]),
      **model.ingredients(),
    },
    free=("prompts", "out"),
  )

  runs = measure(contenders, asked, config, directory / "answers.jsonl")
  same = collections.Counter[str]()
  for name, contender in contenders.items():
    texts = any(q.text is not None for q in asked)
    if (
      texts
      and not name.startswith(OURS)
      and "," not in name
      and (read := contender.read) is not None
    ):
      same[name] += sum(q.text is not None and read(q.text) == q.ids for q in asked)
  found = {
    name: figures(runs, name)
    | {
      "float32": contenders[name].float32,
      "divergences": divergences(
        contenders, name, asked, runs[name][0], next(iter(runs.values()))[0]
      ),
    }
    for name in runs
  }
  summary = {
    "config": options | {"batch": 1, "temperature": 0.0}, "model": config.model,
    "prompts": len(asked), "network": dataclasses.asdict(model.config),
    "parameters": model.size, "threads": report.cores(), "contenders": found,
    "by_kind": by_kind(runs, [q.kind for q in asked]),
    "same_prompts": dict(same), "left_out": left_out,
  }  # fmt: skip
  whole = report.summary(config, summary, PACKAGES)
  report.publish(config, summary, text(whole), {"peers": plots.bars(whole)}, PACKAGES)


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
