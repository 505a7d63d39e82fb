"""Decode prompts with a model, a drafter and a verifier."""

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks, distributed, speculate, switches
from specjax.base import Drafter, Params, Target
from specjax.decoding.batching import (
  Result,
  Rounds,
  check_model,
  read,
  timed,
)
from specjax.decoding.method import method
from specjax.decoding.prices import ROUNDS, Prices
from specjax.decoding.texts import cut
from specjax.names.build.cache import DENSE, build_cache
from specjax.names.build.drafter import build_drafter
from specjax.names.build.processors import (
  Used,
  build_processors,
  check_budgets,
  closing,
  least_budget,
  with_penalties,
  with_schema,
)
from specjax.names.build.verifier import build_verifier
from specjax.names.load import Model, Prompt
from specjax.processors import Penalties
from specjax.sampling import GREEDY, SamplingParams, changed, request_keys


def pad_to_bucket(length: int) -> int:
  """T, to which a prompt of `length` tokens is padded, so that few shapes are compiled."""
  return max(32, 1 << (length - 1).bit_length())


@switches.hold
class Decoder:
  """A method ready to decode batches of one causal model; it compiles once per shape.

  A part is given by name, see `names.grammar` and `specjax list`, as a pair of the part and its
  weights, or as itself. A drafter that learns from one call for the next, such as
  `token_recycling-8,seeded=1,kept=1`, changes `weights`, and so what later calls cost,
  never what they say.

  Args:
    model: the target.
    drafter: a Drafter, a Head whose guesses fill `tree`, or a smaller Model that drafts.
    verifier: a Verifier; None is the verifier that is exact for the drafter.
    tree: for a head or a draft model, a tree of `specjax.trees` or a list of rank paths.
    draft_length: a DraftLength, which ends the chain of a draft model.
    processors: Processors of the target's logits.
    cache: how the target keeps the text, a CacheKind of `specjax.models.caches`; all but "dense"
      are LOSSY.
    sampling: how tokens are drawn.
    regex: what every text must match from end to end, see `processors.text.of_regex`.
    json_schema: a JSON Schema of every text, as its content, its text or the path of its file; see
      `processors.schemas`. It needs specjax[grammar].
    seed: seed of the noise; request r of a call draws the same tokens in any batch.
    stop: ids that end a text, besides the model's own.
    stop_words: texts that end a text, and are cut off it; one that is a special token ends it as a
      stop id does.
    batch: B, rows decoded together.
    changes: fields of `sampling` by name, such as temperature=0.7.

  Attributes:
    prices: what rounds cost, for a drafter of several sizes to choose by; None where it always
      drafts the largest.

  Raises:
    ValueError: a model that is not causal, a name or number that is not accepted, or parts that do
      not go together.
  """

  prices: Prices | None

  def __init__(
    self,
    model: Model,
    drafter: Any = "none",
    verifier: Any = None,
    *,
    tree: Any = None,
    draft_length: Any = None,
    processors: Sequence[Any] = (),
    cache: Any = DENSE,
    sampling: SamplingParams = GREEDY,
    regex: str | None = None,
    json_schema: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    stop: Sequence[int] = (),
    stop_words: Sequence[str] = (),
    batch: int = 1,
    **changes: Any,
  ):
    check_model(model, causal=True)
    self.sampling = changed(sampling, **changes)
    checks.whole("batch", batch, 1, checks.BATCH)
    checks.whole("seed", seed, 0, checks.SEED)
    stop = checks.ids("stop", stop, model.config.vocab_size)
    checks.sequence("processors", processors, "a list of processors")
    stop_words = checks.texts("stop_words", stop_words)
    self.model, self.batch, self.seed = model, batch, seed
    self.name, guess, weights = build_drafter(model, drafter, tree, draft_length)
    self.verifier, found, judge, target = build_verifier(
      model, verifier, guess, self.sampling.temperature
    )
    self.cache, over = build_cache(model, cache)
    if over is not model.target:
      if target is not model.target:
        raise ValueError(
          f"`cache` must be dense with a verifier that reflects, got {self.cache!r}."
        )
      target, found = over, found._replace(exactness=f"LOSSY ({self.cache})")
    self._used, self.stop_words, self.stop = build_processors(
      model, processors, regex, json_schema, (*model.stop, *stop), stop_words
    )
    self._processors = tuple(one.params for one in self._used)
    called = tuple(one.processor for one in self._used)
    self.method = method(target, guess, found, called, model.narrow_passes(guess))
    self.weights = speculate.Weights(model.params, weights, judge)
    self.prices = None
    narrow = 1 in self.method.narrow
    self._choose = guess.chooser(narrow) if guess.chooser is not None else None
    self._warm: set[tuple[int, int]] = set()

  def over(self, target: Target, drafter: Drafter) -> "Decoder":
    """This decoder with the same network and drafter over caches of another kind."""
    own = copy.copy(self)
    own.method, own._warm = self.method._replace(target=target, drafter=drafter), set()
    return own

  @property
  def label(self) -> str:
    """The verifier and its exactness."""
    return f"{self.verifier} [{self.method.verifier.exactness}]"

  def request(
    self,
    numbers: np.ndarray,
    limit: np.ndarray,
    *,
    sampling: SamplingParams | None = None,
    seed: int | None = None,
    processors: tuple[Params, ...] | None = None,
  ) -> speculate.DecodeRequest:
    """What rows ask for: row b, of number numbers[b] i[B], ends at length limit[b] i32[B].

    There are as many rows as numbers. `sampling`, `seed` and the params of `processors` stand in
    place of the decoder's own.
    """
    arrays = (self.sampling if sampling is None else sampling).rows(len(numbers))
    keys = request_keys(self.seed if seed is None else seed, numbers)
    stop = jnp.asarray([*self.stop, -1], jnp.int32)
    used = self._processors if processors is None else processors
    return speculate.DecodeRequest(arrays, keys, jnp.asarray(limit, jnp.int32), stop, used)

  def processors_with(
    self,
    json_schema: str | Mapping[str, Any] | None = None,
    penalties: Penalties | None = None,
    stop: Sequence[int] = (),
  ) -> list[Used]:
    """The processors, with this JSON Schema or these penalties in place of the decoder's.

    Args:
      stop: ids that `Penalties.min_tokens` forbids besides the decoder's.

    Raises:
      ValueError: a decoder without the processor `json_schema` or `penalties`, or a schema or a
        number that is not accepted.
    """
    used = self._used
    if json_schema is not None:
      used = with_schema(self.model, used, json_schema, self.stop)
    if penalties is not None:
      used = with_penalties(self.model, used, penalties, (*self.stop, *stop))
    return used

  def check_budgets(self, budgets: Sequence[int], used: Sequence[Used] | None = None) -> None:
    """Raises ValueError where no text that the processors allow fits into one of the budgets."""
    check_budgets(self._used if used is None else used, budgets)

  @property
  def least_budget(self) -> int:
    """The least budget that `check_budgets` accepts."""
    return least_budget(self._used)

  def closing(
    self, tokens: Sequence[int], budget: int, used: Sequence[Used] | None = None
  ) -> int | None:
    """`Result.closing` of new tokens, with the decoder's processors or others."""
    return closing(self._used if used is None else used, tokens, budget)

  def _start(self, prompts: list[list[int]], budgets: list[int], first: int):
    """(request, state, seconds) after the prefill of up to B prompts; missing rows are done."""
    B = self.batch
    T = pad_to_bucket(max(map(len, prompts)))
    capacity = self.capacity(T, max(budgets))
    tokens = np.zeros((B, T), np.int32)
    length, end = np.ones(B, np.int32), np.ones(B, np.int32)
    for b, (ids, budget) in enumerate(zip(prompts, budgets, strict=True)):
      tokens[b, : len(ids)] = ids
      length[b], end[b] = len(ids), len(ids) + budget
    request = self.request(np.arange(first, first + B), end)
    arguments = (self.method, self.weights, jnp.asarray(tokens), jnp.asarray(length), request)
    if (T, capacity) not in self._warm:  # compile outside the clock: first rounds are slow
      state = speculate.compiled_start(*arguments, capacity)
      jax.block_until_ready(self.advance(request, state, 2))
      self._warm.add((T, capacity))
    return request, *timed(speculate.compiled_start, *arguments, capacity)

  def capacity(self, length: int, budget: int) -> int:
    """S of caches for prompts of `length` tokens and `budget` new ones."""
    return -(-speculate.capacity_for(length, budget, self.method.drafter.depth) // 64) * 64

  def advance(
    self, request: speculate.DecodeRequest, state: speculate.DecodeState, rounds: int
  ) -> speculate.DecodeState:
    """`rounds` rounds at most; `state` is used up.

    With a drafter of several sizes, and prices, every few rounds are those of one size.
    """
    choose, prices = self._choose, self.prices
    if choose is None or prices is None:
      return speculate.compiled_advance(
        self.method, self.weights, request, state, jnp.int32(rounds)
      )
    B, methods = len(request.limit), self.methods
    while rounds > 0:
      (size, expected), now = choose(prices.of(B), state.drafter), min(rounds, ROUNDS)
      begin = time.perf_counter()
      state = speculate.compiled_advance(
        methods[size], self.weights, request, state, jnp.int32(now)
      )
      if np.asarray(state.done).all():  # maybe before the last of these rounds
        break
      prices.learn(B, size, (time.perf_counter() - begin) / (now * expected))
      rounds -= now
    return state

  @property
  def methods(self) -> list[speculate.Method]:
    """The methods of which rounds may be: one, or one for each size of draft."""
    own = self.method
    return [
      own._replace(drafter=x, narrow=tuple(w for w in own.narrow if w < x.nodes))
      for x in own.drafter.sizes or (own.drafter,)
    ]

  def learn(self, state: speculate.DecodeState) -> None:
    """Keeps what the drafter has learnt of requests that have ended, if it keeps anything."""
    if (keep := self.method.drafter.keep) is not None:
      left = jax.jit(keep)(self.weights.drafter, state.drafter, state.context)
      self.weights = self.weights._replace(drafter=left)

  def check_logits(self, state: speculate.DecodeState, numbers: np.ndarray) -> None:
    """Raises `failure` where a row, of number numbers[b] i[B], has failed."""
    for b in np.flatnonzero(state.failed):
      raise self.failure(state, int(b), f"prompt {numbers[b]}")

  def failure(self, state: speculate.DecodeState, b: int, what: str) -> Exception:
    """The error that says how row b, which is called `what`, has failed.

    It is a FloatingPointError where the model's logits are not finite, and a ValueError where the
    processors left no token.
    """
    after = f"after {int(state.stats.emitted[b])} new tokens"
    why = int(state.why[b])
    if why > 0:
      names = [one.shown for i, one in enumerate(self._used) if why >> i & 1]
      return ValueError(f"{what}: {' and '.join(names)} left no token to sample {after}.")
    kind = "infinite" if why == speculate.INFINITE else "NaN"
    return FloatingPointError(f"{what}: the logits of {self.model.name} became {kind} {after}.")

  def __call__(
    self,
    prompts: Sequence[Prompt],
    max_new_tokens: int | Sequence[int] = 128,
    *,
    first: int = 0,
  ) -> list[Result]:
    """Decodes prompts, B at a time; one Result each, in order.

    Args:
      prompts: texts, or lists of ids.
      max_new_tokens: a budget for all, or one per prompt.
      first: number of the first prompt among all requests, which decides its noise.
    """
    ids, budgets = read(self.model, prompts, max_new_tokens)
    self.check_budgets(budgets)
    checks.whole("first", first)
    results = []
    for begin in range(0, len(ids), self.batch):
      part = slice(begin, begin + self.batch)
      request, state, prefill = self._start(ids[part], budgets[part], first + begin)
      state, seconds = timed(self.advance, request, state, np.iinfo(np.int32).max)
      self.learn(state)
      state = distributed.fetch(state._replace(cache=None, drafter=None))
      self.check_logits(state, np.arange(first + begin, first + begin + self.batch))
      results += [
        self.result(prompt, len(row), budget, state, b, seconds, prefill)
        for b, (prompt, row, budget) in enumerate(
          zip(prompts[part], ids[part], budgets[part], strict=True)
        )
      ]
    return results

  def result(
    self,
    prompt: Prompt,
    given: int,
    budget: int,
    state: speculate.DecodeState,
    b: int,
    seconds: float,
    prefill: float,
  ) -> Result:
    """What row b of a state, on the host, says in `budget` tokens to a prompt of `given` tokens."""
    new = slice(given, int(state.context.length[b]))
    ids = state.context.tokens[b].tolist()
    tokens = ids[new]
    text = self.model.decode(tokens, ids[:given])
    return Result(
      prompt=prompt,
      text=cut(text, self.stop_words),
      tokens=tokens,
      log_probs=state.log_probs[b, new].tolist(),
      passes=int(state.stats.passes[b]),
      seconds=seconds,
      prefill_seconds=prefill,
      method=self.name,
      verifier=self.verifier,
      exactness=self.method.verifier.exactness,
      closing=self.closing(tokens, budget),
      rounds=Rounds(state.stats.accepted[b].tolist(), state.stats.offered[b].tolist()),
    )

  def stream(
    self, prompts: Sequence[Prompt], max_new_tokens: int | Sequence[int] = 128, *, rounds: int = 4
  ) -> Iterator[list[list[int]]]:
    """The same tokens in pieces: every `rounds` rounds, the new ids of each of up to B prompts."""
    ids, budgets = read(self.model, prompts, max_new_tokens)
    checks.whole("len(prompts)", len(ids), 1, self.batch, "batch is the most")
    checks.whole("rounds", rounds, 1)
    self.check_budgets(budgets)
    request, state, _ = self._start(ids, budgets, 0)
    shown = [len(x) for x in ids]
    while not bool(state.done.all()):
      state = self.advance(request, state, rounds)
      text, length = distributed.fetch((state.context.tokens, state.context.length))
      yield [text[b, shown[b] : length[b]].tolist() for b in range(len(ids))]
      shown = length.tolist()
      self.check_logits(state, np.arange(self.batch))
    self.learn(state)


def generate(
  model: Model,
  prompts: Sequence[Prompt],
  *,
  drafter: Any = "none",
  verifier: Any = None,
  max_new_tokens: int | Sequence[int] = 128,
  **settings,
) -> list[Result]:
  """Decodes prompts in one call; see `Decoder` for the arguments."""
  return Decoder(model, drafter, verifier, **settings)(prompts, max_new_tokens)
