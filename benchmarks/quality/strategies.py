r"""How many questions a model answers rightly by each strategy of sampling and search.

    python benchmarks/quality/strategies.py --prompts gsm8k_test.jsonl --model gsm8k-7m

Each record has a `question` and an `answer` whose last number is the right one, as in GSM8K. A text
is right where its last number is that number; of lists:SEED:COUNT, where it answers the question.
Of all runs of four tokens in the texts that a strategy returns for a question, of a search all
beams or drafts, so many are different. Tokens are those of all samples and trials, of a search
those of the best text, of switching those that `model` writes. Strategies that take one of the same
samples share them, and the first of these has the seconds. Seconds are those of all questions,
after the first one has been decoded once to compile. A run that was ended goes on with the
strategies that are left, and one that is started again with more of them adds these.
"""

import dataclasses
import functools
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

import specjax
from specjax import checks, command_line, fingerprint
from specjax.cli.arguments import Activations, Weights
from specjax.data import datastore, lists, resume
from specjax.data.datastore import Datastore
from specjax.data.sources import open_source
from specjax.decoding.batching import Result
from specjax.eval import metrics, prompts, report, table
from specjax.names.load import Model
from specjax.search.adadec_threshold import learned_threshold
from specjax.search.best_of import SELECT

NGRAM = 4  # tokens; of all such runs of a question's texts, how many are different


class Said(NamedTuple):
  """An answer: its text, how many tokens were decoded for it, and the ids of all texts returned."""

  text: str
  tokens: int
  texts: Sequence[Sequence[int]]


Answer = Callable[[Sequence[list[int]]], list[Said]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(prompts.Questions):
  """What is decoded, and how."""

  # names of strategies; by default all, where no cache and no verifier is named
  strategies: tuple[str, ...] = ()
  weights: Weights = "float"  # how matrices lie in memory
  activations: Activations = "float"  # what they are multiplied with
  drafter: str = "none"  # of all strategies but the searches, adadec and cntp
  caches: tuple[str, ...] = ()  # each is one strategy more, greedy decoding over it
  verifiers: tuple[str, ...] = ()  # and each of these one, greedy with `drafter`
  batch: int = 1  # rows decoded together by all but the searches
  temperature: float = 0.8  # of those that sample
  samples: int = 8  # of each question, for those that take one of several; at most, for cntp
  typical_p: float = 0.9
  threshold: float = 0.9  # nats, of adadec
  learn: str | None = None  # questions with answers of which it is learned, in its place
  learn_limit: int = 200  # of these
  beams: int = 4
  store: str | None = None  # of superposed, which writes as many drafts as `samples`
  small: str | None = None  # of switching, the model that begins
  bits: float = 1.0  # from which on switching asks `model`
  window: int = 5  # tokens of whose entropies it takes the mean
  dwell: int = 10  # tokens that a model writes at least
  limit: int | None = 100
  out: str = "results/strategies"


def _decoded(decoder: specjax.Decoder, new: int, ids: Sequence[list[int]]) -> list[Said]:
  return [Said(r.text, r.emitted, [r.tokens]) for r in decoder(ids, new)]


def _chosen(select: str, samples: Sequence[Result]) -> Said:
  scores = SELECT[select](samples)
  best = samples[int(np.argmax(scores))]
  # The others are stopped where the first one ends.
  counts = [best.emitted if select == "first_finish" else r.emitted for r in samples]
  return Said(best.text, sum(counts), [best.tokens])


def _searched(
  model: Model, beams: int, groups: int, new: int, ids: Sequence[list[int]]
) -> list[Said]:
  every = specjax.search.beam_search(model, ids, beams, new, groups=groups)
  return [Said(beams[0].text, len(beams[0].tokens), [x.tokens for x in beams]) for beams in every]


def _cautious(
  model: Model, T: float, trials: int, new: int, ids: Sequence[list[int]]
) -> list[Said]:
  every = specjax.search.cntp(model, ids, new, trials=trials, temperature=T)
  return [Said(x.text, x.drawn, [x.tokens]) for x in every]


def _looking_ahead(
  model: Model, threshold: float, new: int, ids: Sequence[list[int]]
) -> list[Said]:
  every = specjax.search.adadec(model, ids, threshold, new)
  return [Said(x.text, len(x.tokens), [x.tokens]) for x in every]


def _superposed(
  model: Model, store: Datastore, drafts: int, new: int, ids: Sequence[list[int]]
) -> list[Said]:
  every = [specjax.search.superposed(model, x, store, drafts, new) for x in ids]
  return [Said(found[0].text, new, [x.tokens for x in found]) for found in every]


def _switching(small: Model, model: Model, config: Config, ids: Sequence[list[int]]) -> list[Said]:
  new, turn = config.max_new_tokens, {"window": config.window, "dwell": config.dwell}
  every = specjax.search.switching(small, model, ids, config.bits, new, **turn)
  return [Said(x.text, sum(x.large), [x.tokens]) for x in every]


def learned(model: Model, config: Config) -> float:
  """The threshold of adadec."""
  if config.learn is None:
    return config.threshold
  if model.template is None or model.tokenizer is None:
    checks.refuse("learn", config.learn, f"None for {model.name}, which has no chat template")
  source, texts = open_source(config.learn), []
  for record in (source[i] for i in range(min(config.learn_limit, len(source)))):
    said = zip(("user", "assistant"), (record["question"], record["answer"]), strict=True)
    turns = [{"role": role, "content": text} for role, text in said]
    texts.append(model.template.encode(model.tokenizer, turns))
  found = learned_threshold(model, texts)
  print(f"adadec: {found}")
  return found.nats


def answerers(model: Model, config: Config) -> dict[str, Callable[[], Answer]]:
  """What makes each strategy, by its name."""
  new, n, T = config.max_new_tokens, config.samples, config.temperature

  def decoder(**settings) -> specjax.Decoder:
    return specjax.Decoder(model, config.drafter, **settings)

  def plain(**settings) -> Answer:
    return functools.partial(_decoded, decoder(batch=config.batch, **settings), new)

  @functools.cache
  def drawn(ids: tuple[tuple[int, ...], ...], hedged: bool) -> list[list[Result]]:
    several, asked = decoder(temperature=T, batch=config.batch), list(map(list, ids))
    return [x.samples for x in specjax.search.best_of(several, asked, n, new, hedged=hedged)]

  def best(select: str, hedged: bool = False) -> Answer:
    return lambda ids: [_chosen(select, x) for x in drawn(tuple(map(tuple, ids)), hedged)]

  def search(groups: int) -> Answer:
    return functools.partial(_searched, model, config.beams, groups, new)

  def superposed() -> Answer:
    store = datastore.load(str(config.store), model.config.vocab_size, model.identity.tokens)
    return functools.partial(_superposed, model, store, n, new)

  def switching() -> Answer:
    small = specjax.load(str(config.small), weights=config.weights, activations=config.activations)
    return functools.partial(_switching, small, model, config)

  return {
    "greedy": plain,
    "sample": functools.partial(plain, temperature=T),
    "typical": functools.partial(plain, temperature=T, typical_p=config.typical_p),
    "momentum": functools.partial(plain, processors=["momentum"]),
    **{select: functools.partial(best, select) for select in SELECT},
    **{f"hedged_{select}": functools.partial(best, select, True) for select in ("vote", "mbr")},
    "adadec": lambda: functools.partial(_looking_ahead, model, learned(model, config), new),
    "cntp": lambda: functools.partial(_cautious, model, T, n, new),
    "beam": functools.partial(search, 1),
    "diverse_beam": functools.partial(search, config.beams),
    **{f"cache {x}": functools.partial(plain, cache=x) for x in config.caches},
    **{f"verifier {x}": functools.partial(plain, verifier=x) for x in config.verifiers},
    **({"superposed": superposed} if config.store else {}),
    **({"switching": switching} if config.small else {}),
  }


def asked(model: Model, config: Config) -> tuple[list[list[int]], list[Callable[[str], bool]]]:
  """(ids of each question, what says whether a text answers it)."""
  if config.prompts and config.prompts.startswith("lists:"):
    source, items = open_source(config.prompts), config.read(model)
    texts = [source[i]["question"] for i in range(len(items))]
    return [x.ids for x in items], [functools.partial(lists.is_right, text) for text in texts]
  ids, right = config.with_numbers(model)
  return ids, [functools.partial(_is_number, want) for want in right]


def _is_number(want: str, text: str) -> bool:
  return metrics.last_number(text) == want


def _share(some, every):
  return some / np.maximum(every, 1)


def main(config: Config) -> None:
  model = specjax.load(config.model, weights=config.weights, activations=config.activations)
  ids, right = asked(model, config)
  known = answerers(model, config)
  caches = (f"cache {x}" for x in config.caches)
  verifiers = (f"verifier {x}" for x in config.verifiers)
  named = (*config.strategies, *caches, *verifiers)
  chosen = [checks.choice("strategies", x, known) for x in named or known]
  out = report.directory(config.out)
  may_grow = ("strategies", "caches", "verifiers", "out")
  same = {k: v for k, v in dataclasses.asdict(config).items() if k not in may_grow}
  drafter = specjax.make_drafter(model, config.drafter)[1]
  same |= {
    "prompts": fingerprint.digest(map(str, ids)),
    "ngrams": NGRAM,
    "drafter.weights": fingerprint.of_weights(drafter),
  }
  resume.claim(out, same | model.ingredients())
  file = out / "strategies.jsonl"
  cells = resume.kept(file)
  left = [name for name in chosen if name not in {cell["strategy"] for cell in cells}]
  report.check(config, "learn_limit")
  for name in report.progress(left, "decoding"):
    answer = known[name]()
    answer(ids[:1])
    begin = time.perf_counter()
    said = answer(ids)
    seconds = time.perf_counter() - begin
    good = [is_right(x.text) for x, is_right in zip(said, right, strict=True)]
    different, every = zip(*(metrics.ngrams(x.texts, NGRAM) for x in said), strict=True)
    cells.append(
      {
        "strategy": name,
        "right": sum(good),
        "questions": len(good),
        "interval": metrics.wilson_interval(sum(good), len(good)),
        "different": float(_share(sum(different), sum(every))),
        "different_interval": metrics.bootstrap_interval(_share, different, every),
        "tokens": sum(x.tokens for x in said),
        "seconds": seconds,
      }
    )
    with file.open("a") as log:
      log.write(json.dumps(cells[-1]) + "\n")
  rows = [
    {
      "strategy": cell["strategy"],
      "right %": table.estimate(
        100 * cell["right"] / cell["questions"], [100 * x for x in cell["interval"]]
      ),
      f"different {NGRAM}-grams %": table.estimate(
        100 * cell["different"], [100 * x for x in cell["different_interval"] or ()] or None
      ),
      "tokens": f"{cell['tokens']}",
      "seconds": f"{cell['seconds']:.1f}",
    }
    for cell in cells
  ]
  report.publish(config, {"strategies": cells}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
