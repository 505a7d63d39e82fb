"""Decode prompts with a model, a drafter and a verifier.

Letters: B batch, T padded prompt length.
"""

import dataclasses
import time
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax import speculate
from specjax.base import Drafter, Params, Verifier
from specjax.decoding.build import make_drafter, make_processors, make_verifier
from specjax.decoding.method import method as pair
from specjax.decoding.model import Model, Prompt
from specjax.sampling import Settings, request_keys


@dataclasses.dataclass(frozen=True)
class Result:
  """One decoded prompt.

  Attributes:
    prompt: as given.
    text: the new text, up to the first stop word.
    tokens: the new ids, the stop token included.
    log_probs: of each new token under the model itself, in nats.
    forwards: target evaluations, prefill excluded.
    emitted: len(tokens).
    seconds: decoding time of the prompt's batch, compilation excluded.
    prefill_seconds: likewise, for the prompt's own processing.
    drafter, verifier: names.
    exactness: the verifier's label, LOSSY with its knob where it is.
    accepted: entry d counts the rounds that accepted d draft tokens.
    offered: entry d counts the rounds whose draft was d deep.
  """

  prompt: Prompt
  text: str
  tokens: list[int]
  log_probs: list[float]
  forwards: int
  emitted: int
  seconds: float
  prefill_seconds: float
  drafter: str
  verifier: str
  exactness: str
  accepted: list[int]
  offered: list[int]


def cut(text: str, words: Sequence[str]) -> str:
  """The text before the first of the words."""
  return text[: min((text.find(w) for w in words if w in text), default=len(text))]


def _check(condition: bool, name: str, value, accepted: str) -> None:
  if not condition:
    raise ValueError(f"{name}={value}: accepted is {accepted}.")


class Decoder:
  """A method ready to decode batches of one model; compiles once per shape.

  Args:
    model: the target.
    drafter: a name, or a (Drafter, weights) pair such as `make_drafter` gives.
    verifier: a name, a (Verifier, weights) pair for rules that are trained, or None for the exact
      default.
    temperature, top_k, top_p, min_p: sampling, see `sampling.Settings`.
    repetition_penalty, presence_penalty, frequency_penalty: see `processors.Penalties`.
    regex: what every text must match from end to end, see `processors.text.of_regex`.
    seed: of the noise; request r of a call draws the same tokens in any batch.
    stop: ids that end a text, besides the model's own.
    stop_words: texts that end a text, and are cut off it.
    batch: B, rows decoded together.
  """

  def __init__(
    self,
    model: Model,
    drafter: str | tuple[Drafter, Params] = "none",
    verifier: str | tuple[Verifier, Params] | None = None,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    regex: str | None = None,
    seed: int = 0,
    stop: Sequence[int] = (),
    stop_words: Sequence[str] = (),
    batch: int = 1,
  ):
    _check(temperature >= 0, "temperature", temperature, "0 or more")
    _check(top_k >= 0, "top_k", top_k, "0 (off) or more")
    _check(0 < top_p <= 1, "top_p", top_p, "above 0, at most 1 (off)")
    _check(0 <= min_p < 1, "min_p", min_p, "0 (off) or more, below 1")
    _check(repetition_penalty > 0, "repetition_penalty", repetition_penalty, "above 0; 1 is off")
    _check(batch >= 1, "batch", batch, "1 or more")
    self.model, self.batch, self.seed = model, batch, seed
    guess, weights = make_drafter(model, drafter) if isinstance(drafter, str) else drafter
    if verifier is None or isinstance(verifier, str):
      verifier = make_verifier(verifier, guess, temperature), ()
    rule, head = verifier
    self._stop = jnp.asarray([*model.stop, *stop, -1], jnp.int32)
    self._stop_words = tuple(stop_words)
    used = make_processors(
      model, (repetition_penalty, presence_penalty, frequency_penalty), batch, regex,
      [*model.stop, *stop], self._stop_words,
    )  # fmt: skip
    self._processors = tuple(params for _, params in used)
    self.method = pair(model.target, guess, rule, tuple(p for p, _ in used))
    self.weights = speculate.Weights(model.params, weights, head)
    self._settings = Settings(
      temperature=jnp.full(batch, temperature, jnp.float32),
      top_k=jnp.full(batch, top_k, jnp.int32),
      top_p=jnp.full(batch, top_p, jnp.float32),
      min_p=jnp.full(batch, min_p, jnp.float32),
    )
    self._warm: set[tuple[int, int]] = set()

  @property
  def label(self) -> str:
    """The verifier and its exactness."""
    return f"{self.method.verifier.name} [{self.method.verifier.exactness}]"

  def _start(self, prompts: list[list[int]], budgets: list[int], first: int):
    """Prefills up to B prompts; (request, state, seconds). Missing rows are born done."""
    B = self.batch
    T = max(32, 1 << (max(map(len, prompts)) - 1).bit_length())
    capacity = speculate.capacity_for(T, max(budgets), self.method.drafter.depth)
    capacity = -(-capacity // 64) * 64
    tokens = np.zeros((B, T), np.int32)
    length, end = np.ones(B, np.int32), np.ones(B, np.int32)
    for b, (ids, budget) in enumerate(zip(prompts, budgets, strict=True)):
      tokens[b, : len(ids)] = ids
      length[b], end[b] = len(ids), len(ids) + budget
    request = speculate.Request(
      self._settings, request_keys(self.seed, np.arange(first, first + B)), jnp.asarray(end),
      self._stop, self._processors,
    )  # fmt: skip
    arguments = (self.method, self.weights, jnp.asarray(tokens), jnp.asarray(length), request)
    if (T, capacity) not in self._warm:  # compile outside the clock: no round is run
      state = speculate.compiled_start(*arguments, capacity)
      jax.block_until_ready(self._advance(request, state, 0))
      self._warm.add((T, capacity))
    begin = time.perf_counter()
    state = jax.block_until_ready(speculate.compiled_start(*arguments, capacity))
    return request, state, time.perf_counter() - begin

  def _advance(self, request, state, rounds: int):
    return speculate.compiled_advance(self.method, self.weights, request, state, jnp.int32(rounds))

  def _check_logits(self, state, first: int) -> None:
    for b in np.flatnonzero(state.failed):
      raise FloatingPointError(
        f"prompt {first + b}: the logits of {self.model.name} became NaN after "
        f"{int(state.stats.emitted[b])} new tokens."
      )

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
      first: number of the first prompt among all requests; decides its noise.
    """
    ids, budgets = self._read(prompts, max_new_tokens)
    results = []
    for i in range(0, len(ids), self.batch):
      part = slice(i, i + self.batch)
      request, state, prefill_seconds = self._start(ids[part], budgets[part], first + i)
      begin = time.perf_counter()
      state = jax.block_until_ready(self._advance(request, state, np.iinfo(np.int32).max))
      seconds = time.perf_counter() - begin
      state = jax.device_get(state._replace(cache=None, drafter=None))
      self._check_logits(state, first + i)
      for b, prompt_ids in enumerate(ids[part]):
        new = slice(len(prompt_ids), state.context.length[b])
        tokens = state.context.tokens[b, new].tolist()
        result = Result(
          prompt=prompts[i + b],
          text=cut(self.model.decode(tokens), self._stop_words),
          tokens=tokens,
          log_probs=state.log_probs[b, new].tolist(),
          forwards=int(state.stats.forwards[b]),
          emitted=len(tokens),
          seconds=seconds,
          prefill_seconds=prefill_seconds,
          drafter=self.method.drafter.name,
          verifier=self.method.verifier.name,
          exactness=self.method.verifier.exactness,
          accepted=state.stats.accepted[b].tolist(),
          offered=state.stats.offered[b].tolist(),
        )
        results.append(result)
    return results

  def stream(
    self, prompts: Sequence[Prompt], max_new_tokens: int | Sequence[int] = 128, *, rounds: int = 4
  ) -> Iterator[list[list[int]]]:
    """The same tokens in pieces: every `rounds` rounds, the new ids of each of up to B prompts."""
    ids, budgets = self._read(prompts, max_new_tokens)
    _check(len(ids) <= self.batch, "len(prompts)", len(ids), f"at most batch={self.batch}")
    request, state, _ = self._start(ids, budgets, 0)
    shown = [len(x) for x in ids]
    while not bool(state.done.all()):
      state = self._advance(request, state, rounds)
      length = np.asarray(state.context.length)
      text = np.asarray(state.context.tokens)
      yield [text[b, shown[b] : length[b]].tolist() for b in range(len(ids))]
      shown = length.tolist()
      self._check_logits(state, 0)

  def _read(self, prompts, max_new_tokens) -> tuple[list[list[int]], list[int]]:
    """Ids and budgets, all checked before any is decoded."""
    if isinstance(prompts, str) or not len(prompts):
      raise ValueError(f"prompts={prompts!r:.40}: expected a list of one prompt or more.")
    ids = [self.model.encode(p) for p in prompts]
    if isinstance(max_new_tokens, int):
      budgets = [max_new_tokens] * len(ids)
    else:
      budgets = list(max_new_tokens)
      _check(len(budgets) == len(ids), "len(max_new_tokens)", len(budgets),
             f"one number, or one per prompt ({len(ids)})")  # fmt: skip
    limit = self.model.config.max_length
    for prompt, budget in zip(ids, budgets, strict=True):
      _check(budget >= 1, "max_new_tokens", budget, "1 or more")
      if len(prompt) + budget > limit:
        raise ValueError(
          f"prompt has {len(prompt)} tokens and max_new_tokens={budget}: "
          f"together at most {limit}, the positions of {self.model.name}."
        )
    return ids, budgets


def generate(
  model: Model,
  prompts: Sequence[Prompt],
  *,
  drafter: str | tuple[Drafter, Params] = "none",
  verifier: str | tuple[Verifier, Params] | None = None,
  max_new_tokens: int | Sequence[int] = 128,
  **settings,
) -> list[Result]:
  """Decodes prompts in one call; see `Decoder` for the settings.

  Args:
    prompts: texts, or lists of ids.
    max_new_tokens: a budget for all, or one per prompt.

  Returns:
    One Result per prompt, in order.
  """
  return Decoder(model, drafter, verifier, **settings)(prompts, max_new_tokens)
