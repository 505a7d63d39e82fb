"""Fill texts with a masked diffusion model: the loop behind one object.

Letters: B batch, L canvas length, W window.
"""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.decoding import words
from specjax.decoding.model import Model, Prompt
from specjax.diffusion import blocks, caches, denoise, draft_verify, stopping
from specjax.diffusion.base import Canvas, Params
from specjax.diffusion.credit import Credit
from specjax.diffusion.credit import credit as earning
from specjax.diffusion.guidance import Guided, guided
from specjax.diffusion.policies import Filter
from specjax.sampling import request_keys

STOPPING = {
  "whole": stopping.whole,
  "after_end": stopping.after_end,
  "end_of_text_prediction": stopping.end_of_text_prediction,
  "sure_end": stopping.sure_end,
}


@dataclasses.dataclass(frozen=True)
class Filled:
  """One decoded prompt.

  Attributes:
    prompt: as given.
    text: of `tokens`.
    tokens: the new ids up to the first stop token, it included; of a prompt with holes and no room
      for new tokens, the whole prompt filled.
    canvas: all ids, what lies past the end included; the mask's id where nothing was filled.
    when: the round that filled a slot of the canvas, -1 where none did.
    log_probs: of what was filled, in nats, when it was; 0 elsewhere.
    forwards: passes of the denoiser (NFE).
    filled: slots that were filled.
    wasted: rounds that filled nothing but slots past the stop token.
    seconds: decoding time of the prompt's batch, compilation excluded.
    policy: in words.
  """

  prompt: Prompt
  text: str
  tokens: list[int]
  canvas: list[int]
  when: list[int]
  log_probs: list[float]
  forwards: int
  filled: int
  wasted: int
  seconds: float
  policy: str


def _check(condition: bool, name: str, value, accepted: str) -> None:
  if not condition:
    raise ValueError(f"{name}={value}: accepted is {accepted}.")


class DiffusionDecoder:
  """A method ready to fill batches of texts; compiles once per shape.

  Args:
    model: a masked diffusion model.
    policy: which slots to commit, see `words.policy`.
    block: slots of a block, filled before the next is begun.
    delimiters: ids that end a block before that where they are likely (AdaBlock).
    cache: what of earlier passes is used again, a name of `caches.CACHES`.
    stopping: where a text ends, a name of `STOPPING`.
    guesses: canvases read in a pass; more than 1 is draft and verify, see `draft_verify`.
    credit: whether tokens earn credit from round to round, see `diffusion.credit`.
    guidance: weight w of classifier-free guidance; 0 is off.
    temperature: 0 takes the likeliest token.
    trained: the filter of the policy "learned".
    seed: of the noise; request r of a call draws the same tokens in any batch.
    batch: B, rows decoded together.

  Raises:
    ValueError: a name or number that is not accepted, or parts that do not go together.
  """

  def __init__(
    self,
    model: Model,
    policy: str = "threshold",
    *,
    block: int = 32,
    delimiters: Sequence[int] = (),
    cache: str = "none",
    stopping: str = "after_end",
    guesses: int = 1,
    credit: bool = False,
    guidance: float = 0.0,
    temperature: float = 0.0,
    trained: Filter | None = None,
    seed: int = 0,
    batch: int = 1,
  ):
    _check(block >= 1, "block", block, "1 or more")
    _check(cache in caches.CACHES, "cache", repr(cache), ", ".join(caches.CACHES))
    _check(stopping in STOPPING, "stopping", repr(stopping), ", ".join(STOPPING))
    _check(guesses >= 1, "guesses", guesses, "1 (off) or more")
    _check(guidance >= 0, "guidance", guidance, "0 (off) or more")
    _check(guesses == 1 or not guidance, "guidance", guidance, "0 with guesses above 1")
    _check(temperature >= 0, "temperature", temperature, "0 or more")
    _check(batch >= 1, "batch", batch, "1 or more")
    self.model, self.batch, self.seed, self.words = model, batch, seed, policy
    self.guesses, self.guidance = guesses, guidance
    chosen, params = words.policy(policy, batch, trained)
    if trained is not None:
      _check(
        trained.into.shape[1] == block, "block", block, f"the filter's {trained.into.shape[1]}"
      )
    denoiser = guided(model.denoiser) if guidance else model.denoiser
    ahead = block if chosen.name == "explore" else 0
    if delimiters:
      chosen_blocks = blocks.adaptive(block)
      sizes: Params = blocks.Delimiters(
        jnp.asarray(delimiters, jnp.int32), jnp.full(batch, 0.3), jnp.full(batch, block, jnp.int32),
        jnp.full(batch, block, jnp.int32),
      )  # fmt: skip
    else:
      chosen_blocks, sizes = blocks.fixed(block, ahead), ()
    earned = Credit(jnp.full(batch, 0.7), jnp.full(batch, 0.8), jnp.full(batch, 0.2))
    self.method = denoise.Method(
      denoiser, caches.CACHES[cache](denoiser, chosen_blocks.window), chosen, chosen_blocks, STOPPING[stopping](),
      (earning(),) if credit else (),
    )  # fmt: skip
    stop = jnp.asarray([*model.stop, -1], jnp.int32)
    self.weights = denoise.Weights(model.params, params, sizes, stop, (earned,) if credit else ())
    self._temperature = jnp.full(batch, temperature, jnp.float32)
    self._warm: set[int] = set()

  def __call__(
    self,
    prompts: Sequence[Prompt],
    max_new_tokens: int = 128,
    *,
    first: int = 0,
    params: Params | None = None,
  ) -> list[Filled]:
    """Fills prompts, B at a time; one Filled each, in order.

    Args:
      prompts: texts, or lists of ids; mask tokens in them are holes, filled as well.
      max_new_tokens: slots after each prompt; 0 fills holes only.
      first: number of the first prompt among all requests; decides its noise.
      params: of the policy, arrays [len(prompts), ..] in place of the one setting for all: a sweep
        compiles nothing anew.
    """
    if isinstance(prompts, str) or not len(prompts):
      raise ValueError(f"prompts={prompts!r:.40}: expected a list of one prompt or more.")
    _check(max_new_tokens >= 0, "max_new_tokens", max_new_tokens, "0 or more")
    ids = [self.model.encode(p) for p in prompts]
    for prompt in ids:
      _check(max_new_tokens > 0 or self.model.mask in prompt, "max_new_tokens", 0,
             "1 or more for a prompt without holes")  # fmt: skip
      _check(len(prompt) + max_new_tokens <= self.model.config.max_length, "max_new_tokens",
             max_new_tokens, f"{self.model.config.max_length - len(prompt)} at most, the positions "
             f"of {self.model.name} less the prompt")  # fmt: skip
    room = -(-(max(map(len, ids)) + max_new_tokens) // 32) * 32 + self.method.blocks.window
    results = []
    for i in range(0, len(ids), self.batch):
      part = slice(i, i + self.batch)
      rows = None if params is None else jax.tree.map(lambda x, part=part: x[part], params)
      results += self._fill(prompts[part], ids[part], max_new_tokens, first + i, room, rows)
    return results

  def _fill(
    self, prompts: Sequence[Prompt], ids: list[list[int]], new: int, first: int, room: int,
    params: Params | None,
  ) -> list[Filled]:  # fmt: skip
    B, mask = self.batch, self.model.mask
    assert mask is not None
    tokens, end = np.full((B, room), mask, np.int32), np.zeros(B, np.int32)
    for b, prompt in enumerate(ids):
      tokens[b, : len(prompt)] = prompt
      end[b] = len(prompt) + new
    inside = np.arange(room) < end[:, None]
    canvas = Canvas(jnp.asarray(tokens), jnp.asarray((tokens == mask) & inside), jnp.asarray(end))
    weights = self.weights
    if self.guidance:
      given = jnp.asarray((tokens != mask) & inside)
      weights = weights._replace(
        denoiser=Guided(weights.denoiser, given, jnp.full(B, self.guidance, jnp.float32))
      )
    if params is not None:
      pad = B - len(ids)
      weights = weights._replace(
        policy=jax.tree.map(lambda x: jnp.concatenate([x, jnp.repeat(x[-1:], pad, 0)]), params)
      )
    request = denoise.Request(
      request_keys(self.seed, np.arange(first, first + B)), self._temperature
    )
    if room not in self._warm:  # compile outside the clock: no round is run
      jax.block_until_ready(self._run(weights, request, canvas, 0))
      self._warm.add(room)
    begin = time.perf_counter()
    state, passes = jax.block_until_ready(
      self._run(weights, request, canvas, np.iinfo(np.int32).max)
    )
    seconds = time.perf_counter() - begin
    state, passes = jax.device_get((state._replace(cache=(), memory=(), transforms=()), passes))
    return [
      self._result(prompt, len(row), state, b, int(passes[b]), seconds)
      for b, (prompt, row) in enumerate(zip(prompts, ids, strict=True))
    ]

  def _run(self, weights: Any, request: denoise.Request, canvas: Canvas, rounds: int):
    """(state, passes i32[B])."""
    if self.guesses == 1:
      state = denoise.compiled_start(self.method, weights, canvas)
      state = denoise.compiled_advance(self.method, weights, request, state, jnp.int32(rounds))
      return state, state.forwards
    drafting = draft_verify.compiled_start(self.method, weights, canvas)
    drafting = draft_verify.compiled_advance(
      self.method, weights, request, drafting, jnp.int32(rounds), guesses=self.guesses
    )
    return drafting.state, drafting.passes

  def _result(
    self, prompt: Prompt, given: int, state: denoise.State, b: int, passes: int, seconds: float
  ) -> Filled:
    end = int(state.canvas.end[b])
    row = state.canvas.tokens[b]
    new = row[given:end].tolist()
    stops = [i for i, token in enumerate(new) if token in self.model.stop]
    if stops:
      new = new[: stops[0] + 1]
    when = state.when[b]
    useful = set(when[: given + len(new)].tolist()) - {-1}
    tokens = new if given < end else row[:end].tolist()
    size = max(end, int((when >= 0).nonzero()[0].max(initial=0)) + 1)
    return Filled(
      prompt=prompt, text=self.model.decode(tokens), tokens=tokens, canvas=row[:size].tolist(),
      when=when[:size].tolist(), log_probs=state.log_prob[b, :size].tolist(), forwards=passes,
      filled=int((when >= 0).sum()), wasted=int(when.max(initial=-1)) + 1 - len(useful),
      seconds=seconds, policy=self.words,
    )  # fmt: skip
