"""Several samples of every prompt, of which one is taken.

The samples are rows of a `Decoder`'s batches with noise of their own, so that every drafter and
verifier serves. One sample has the law of the verifier; the one that is taken has another one.

Khairi et al. 2025 (When Life Gives You Samples, arXiv 2506.20544) hedge the samples: one of them is
the greedy text, which a high temperature cannot spoil. How one is taken is to suit what is asked,
by vote where an answer can be compared, and by risk where it is an open text.
"""

import collections
import copy
import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from specjax import checks, distributed, switches
from specjax.data.answers import last_number
from specjax.decoding.batching import Result, read, timed
from specjax.decoding.decoder import Decoder
from specjax.names.load import Prompt
from specjax.sampling import changed

ROUNDS = 4  # between two looks at which sample has ended


@dataclasses.dataclass(frozen=True)
class Best:
  """The samples of one prompt.

  Attributes:
    samples: n of them. Where the first to finish was wanted, the others may be cut.
    scores: of each sample, the higher the better, as the function in `SELECT` says.
    chosen: the index of the highest score, the first one where several are.
  """

  samples: list[Result]
  scores: list[float]
  chosen: int

  @property
  def result(self) -> Result:
    """The sample that was taken."""
    return self.samples[self.chosen]


def likelihood(samples: Sequence[Result]) -> list[float]:
  """Mean log-probability of the tokens, in nats, under the model at temperature 1.

  Sample-and-rank, Adiwardana et al. 2020 (arXiv 2001.09977, section 3.4), per token.
  """
  return [sum(r.log_probs) / len(r.log_probs) for r in samples]


def overlap(a: Sequence, b: Sequence, longest: int = 6) -> float:
  """F1 of the n-grams that two sequences share, the mean over n up to `longest`; 1 if equal.

  Lengths n of which neither has an n-gram do not count. On characters this is chrF with equal
  weight of precision and recall.
  """
  found = []
  for n in range(1, longest + 1):
    x, y = (collections.Counter(tuple(s[i : i + n]) for i in range(len(s) - n + 1)) for s in (a, b))
    if total := x.total() + y.total():
      found.append(2 * (x & y).total() / total)
  return sum(found) / len(found) if found else 1.0


def mbr(samples: Sequence[Result]) -> list[float]:
  """The mean `overlap` with the other samples, of texts, or of ids where there are no texts.

  Minimum Bayes risk of samples, Eikema and Aziz 2020 (arXiv 2005.10283, section 6).
  """
  said: list[Sequence] = [r.text for r in samples]
  said = said if any(said) else [r.tokens for r in samples]
  others = max(len(said) - 1, 1)
  return [
    sum(overlap(a, b) for j, b in enumerate(said) if j != i) / others for i, a in enumerate(said)
  ]


def vote(samples: Sequence[Result]) -> list[float]:
  """The share of samples with the same answer: the last number, or the whole text without one.

  Self-consistency, Wang et al. 2022 (arXiv 2203.11171). Without texts ids are compared. Of answers
  with as many votes the first sample's wins, which is the greedy one where the samples are hedged.
  """
  said = [last_number(r.text) or r.text.strip() or tuple(r.tokens) for r in samples]
  votes = collections.Counter(said)
  return [votes[answer] / len(said) for answer in said]


def first_finish(samples: Sequence[Result]) -> list[float]:
  """Minus the number of tokens: the sample that is the first to end, were they decoded in step.

  First Finish Search, Agarwal et al. 2025 (arXiv 2505.18149). With drafts, too, the shortest wins.
  """
  return [-float(r.emitted) for r in samples]


SELECT: dict[str, Callable[[Sequence[Result]], list[float]]] = {
  "likelihood": likelihood,
  "mbr": mbr,
  "vote": vote,
  "first_finish": first_finish,
}


def _until_first(
  decoder: Decoder, prompt: Prompt, ids: list[int], budget: int, n: int, first: int
) -> Best:
  """n samples side by side, until no other can become shorter than the shortest that has ended."""
  request, state, prefill = decoder._start([ids] * n, [budget] * n, first)
  seconds = 0.0
  while True:
    state, more = timed(decoder.advance, request, state, ROUNDS)
    seconds += more
    done, emitted = (x[:n] for x in distributed.fetch((state.done, state.stats.emitted)))
    shortest = emitted[done].min(initial=budget + 1)
    if (done | (emitted >= shortest)).all():
      break
  state = distributed.fetch(state._replace(cache=None, drafter=None))
  decoder.check_logits(state, np.arange(first, first + decoder.batch))
  samples = [decoder.result(prompt, len(ids), budget, state, b, seconds, prefill) for b in range(n)]
  own = zip(first_finish(samples), done, strict=True)
  scores = [score if ended else -math.inf for score, ended in own]
  return Best(samples, scores, int(np.argmax(scores)))


def _drawn(
  decoder: Decoder, prompts: Sequence[Prompt], budgets: Sequence[int], n: int, first: int
) -> list[list[Result]]:
  """n samples of each prompt."""
  every = decoder(
    [p for p in prompts for _ in range(n)], [b for b in budgets for _ in range(n)], first=first
  )
  return [every[begin : begin + n] for begin in range(0, len(every), n)]


@switches.hold
def best_of(
  decoder: Decoder,
  prompts: Sequence[Prompt],
  n: int = 8,
  max_new_tokens: int | Sequence[int] = 128,
  *,
  select: str = "likelihood",
  hedged: bool = False,
  first: int = 0,
) -> list[Best]:
  """Of several samples of a prompt one is taken: the likeliest, the most agreed with, the first.

  Sample j of prompt i is request first + n i + j of the decoder's seed, in whatever batch. Hedged,
  the greedy text comes before n - 1 samples, the requests first + (n - 1) i + j.

  One Best for each prompt, in order.

  Measured: 36.0 % right, likeliest (strategies)

  Args:
    decoder: its temperature is above 0, or all samples would be the same.
    prompts: texts, or lists of ids.
    max_new_tokens: a budget for all, or one per prompt.
    select: a name in `SELECT`: "likelihood" takes the most likely sample per token, "mbr" the one
      that agrees most with the others, "vote" one with the answer that most of them have,
      "first_finish" the shortest, and stops the others.
    hedged: whether the first sample is the greedy text.
    first: number of the first sample among all requests, which decides its noise.

  Raises:
    ValueError: a number or name that is not accepted, or more samples for first_finish than the
      decoder's batch has rows.
  """
  checks.whole("n", n, 1, checks.BATCH)
  checks.whole("first", first)
  checks.choice("select", select, tuple(SELECT))
  checks.boolean("hedged", hedged)
  if decoder.sampling.temperature == 0 and n > 1:
    checks.refuse("temperature", 0, "above 0 for several samples")
  ids, budgets = read(decoder.model, prompts, max_new_tokens)
  decoder.check_budgets(budgets)
  if select == "first_finish":
    if hedged:
      checks.refuse("hedged", hedged, "false for first_finish, whose samples run side by side")
    checks.whole("n", n, 1, decoder.batch, "batch is the most for first_finish")
    rows = zip(prompts, ids, budgets, strict=True)
    return [_until_first(decoder, *one, n, first + n * i) for i, one in enumerate(rows)]
  each: list[list[Result]] = [[] for _ in prompts]
  if hedged:
    greedy = copy.copy(decoder)
    greedy.sampling = changed(decoder.sampling, temperature=0.0)
    each = _drawn(greedy, prompts, budgets, 1, first)
  if n > hedged:
    drawn = _drawn(decoder, prompts, budgets, n - hedged, first)
    each = [[*a, *b] for a, b in zip(each, drawn, strict=True)]
  found = []
  for samples in each:
    scores = SELECT[select](samples)
    found.append(Best(samples, scores, int(np.argmax(scores))))
  return found
