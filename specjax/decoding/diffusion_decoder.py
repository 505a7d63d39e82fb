"""Fill texts with a diffusion model: the loop behind one object."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks, distributed, switches
from specjax.base import Params
from specjax.decoding.batching import Filling, Result, check_model, read, timed
from specjax.diffusion import denoise
from specjax.diffusion.base import Canvas
from specjax.diffusion.draws import first_noise
from specjax.diffusion.loops import Filled, resized
from specjax.names.build.denoising import build_denoising
from specjax.names.load import Model, Prompt
from specjax.sampling import GREEDY, SamplingParams, changed, request_keys

FIRST = 64  # slots after the prompts that a canvas which grows begins with


@switches.hold
class DiffusionDecoder:
  """A method ready to fill batches of texts; it compiles once per shape.

  A part is given by name, see `names.grammar` and `specjax list`, as a pair of the part and its
  params, or as itself. The name of a policy may carry all the others, as in
  `threshold-0.9/dual/sure_end/guesses-4`.

  Args:
    model: a masked diffusion model.
    policy: a Policy, which says what slots to commit.
    blocks: Blocks, or how many slots each has; by default 32, or those of the model's own blocks.
    cache: a Cache, which reuses what earlier passes found, or a function of (denoiser, window); by
      default none, or committed for a model that is causal over blocks.
    stopping: a Stopping, which says where a text ends.
    transform: a Transform of the logits.
    draws: Draws, by default one for every slot; "anew" draws in every pass, see `diffusion.draws`.
    confidence: "tempered" tells policies of the distributions that tokens are drawn from.
    guidance: weight w of classifier-free guidance.
    guesses: canvases read in a pass; more than 1 is draft and verify, see `draft_verify`.
    sampling: how tokens are drawn.
    seed: seed of the noise; request r of a call draws the same tokens in any batch.
    stop: ids that end a text, besides the model's own.
    batch: B, rows decoded together.
    changes: fields of `sampling` by name, such as temperature=0.7.

  Raises:
    ValueError: a causal model, a name or number that is not accepted, or parts that do not go
      together.
  """

  def __init__(
    self,
    model: Model,
    policy: Any = "threshold",
    *,
    blocks: Any = None,
    cache: Any = None,
    stopping: Any = None,
    transform: Any = None,
    draws: Any = None,
    confidence: str | None = None,
    guidance: float | None = None,
    guesses: int | None = None,
    sampling: SamplingParams = GREEDY,
    seed: int = 0,
    stop: Sequence[int] = (),
    batch: int = 1,
    **changes: Any,
  ):
    check_model(model, causal=False)
    self.sampling = changed(sampling, **changes)
    checks.whole("batch", batch, 1, checks.BATCH)
    checks.whole("seed", seed, 0, checks.SEED)
    if ends := checks.ids("stop", stop, model.config.vocab_size):
      model = dataclasses.replace(model, stop=(*model.stop, *ends))
    self._denoising = build_denoising(
      model,
      policy,
      blocks=blocks,
      cache=cache,
      stopping=stopping,
      transform=transform,
      draws=draws,
      confidence=confidence,
      guidance=guidance,
      guesses=guesses,
    )
    self.name, self.model, self.loop = self._denoising[:3]
    self.check_sampling(self.sampling)
    self.batch, self.seed = batch, seed
    self._warm: set[tuple[int, bool]] = set()

  @property
  def parts(self) -> denoise.Weights:
    """The weights of the method's parts, without those of the denoiser."""
    return self._denoising.weights(1)._replace(denoiser=())

  def check_sampling(self, sampling: SamplingParams) -> None:
    """Raises ValueError for a temperature at which the method does not decode."""
    own, temperature = self._denoising.temperatures, sampling.temperature
    if own is not None and (temperature not in own or (temperature > 0 and sampling.filters)):
      how = "which is greedy" if own == (0,) else "which draws at 1, without filters"
      named = " or ".join(f"{t:g}" for t in own)
      checks.refuse("temperature", temperature, f"{named} with {self.name}, {how}")

  def __call__(
    self,
    prompts: Sequence[Prompt],
    max_new_tokens: int | Sequence[int] = 128,
    *,
    first: int = 0,
    params: Params | None = None,
  ) -> list[Result]:
    """Fills prompts, B at a time; one Result each, in order.

    Args:
      prompts: texts, or lists of ids; mask tokens in them are holes, filled as well.
      max_new_tokens: slots after each prompt, one number or one per prompt; 0 fills holes only.
      first: number of the first prompt among all requests, which decides its noise.
      params: the policy's, arrays [len(prompts), ..] in place of the one setting for all, so that a
        sweep compiles nothing anew.
    """
    ids, budgets = self._read(prompts, max_new_tokens)
    checks.whole("first", first)
    results = []
    for begin in range(0, len(ids), self.batch):
      part = slice(begin, begin + self.batch)
      rows = None if params is None else jax.tree.map(lambda x, part=part: x[part], params)
      arguments = self._arguments(ids[part], budgets[part], first + begin, rows)
      longest = max(map(len, ids[part]))
      filled, seconds = self._filled(*arguments, longest, max(budgets[part]))
      results += [
        self._result(prompt, len(row), filled, b, seconds)
        for b, (prompt, row) in enumerate(zip(prompts[part], ids[part], strict=True))
      ]
    return results

  def _read(
    self, prompts: Sequence[Prompt], max_new_tokens: int | Sequence[int]
  ) -> tuple[list[list[int]], list[int]]:
    """Ids and budgets, all checked before any is decoded."""
    ids, budgets = read(self.model, prompts, max_new_tokens, least=0)
    for prompt, budget in zip(ids, budgets, strict=True):
      if budget == 0 and self.model.mask not in prompt:
        checks.refuse("max_new_tokens", 0, "at least 1 for a prompt without holes")
    return ids, budgets

  def room(self, slots: int) -> int:
    """L of canvases that hold so many slots."""
    return -(-slots // 32) * 32 + self.loop.window

  def _arguments(
    self, ids: list[list[int]], budgets: list[int], first: int, params: Params | None
  ) -> tuple[denoise.Weights, denoise.DenoiseRequest, Canvas]:
    """What the loop takes for up to B prompts; missing rows are done."""
    B = self.batch
    room = self.room(max(len(x) + budget for x, budget in zip(ids, budgets, strict=True)))
    request = self.request(range(first, first + B))
    weights, canvas = self.canvas(ids, budgets, request.key, room)
    if params is not None:
      pad = B - len(ids)
      weights = weights._replace(
        policy=jax.tree.map(lambda x: jnp.concatenate([x, jnp.repeat(x[-1:], pad, 0)]), params)
      )
    return weights, request, canvas

  def request(
    self,
    numbers: Sequence[int],
    *,
    sampling: SamplingParams | None = None,
    seed: int | None = None,
  ) -> denoise.DenoiseRequest:
    """What rows of these numbers ask for; None is the decoder's own."""
    key = request_keys(self.seed if seed is None else seed, np.asarray(numbers))
    own = self.sampling if sampling is None else sampling
    return denoise.DenoiseRequest(key, *own.rows(len(numbers)))

  def canvas(
    self, ids: Sequence[list[int]], budgets: Sequence[int], key: jax.Array, room: int
  ) -> tuple[denoise.Weights, Canvas]:
    """The weights for rows of these keys, and L = `room` slots of their canvases.

    A row without ids is done, and so are rows behind the last of `ids`.
    """
    B, mask = len(key), self.model.mask
    blank = -1 if mask is None else mask  # of uniform noise no token says that a slot is empty
    tokens, end = np.full((B, room), blank, np.int32), np.zeros(B, np.int32)
    for b, (prompt, budget) in enumerate(zip(ids, budgets, strict=True)):
      tokens[b, : len(prompt)] = prompt
      end[b] = len(prompt) + budget
    inside = np.arange(room) < end[:, None]
    masked = jnp.asarray((tokens == blank) & inside)
    canvas = Canvas(jnp.asarray(tokens), masked, jnp.asarray(end))
    if mask is None:
      canvas = first_noise(self.model.denoiser, key, canvas)
    own = self._denoising.wrap(jnp.asarray((tokens != blank) & inside), key)
    return self._denoising.weights(B)._replace(denoiser=own), canvas

  def _filled(
    self,
    weights: denoise.Weights,
    request: denoise.DenoiseRequest,
    canvas: Canvas,
    given: int,
    budget: int,
  ) -> tuple[Filled, float]:
    """(what is filled of a canvas, seconds), given the longest prompt and budget.

    Where no slot sees a block that has not begun, passes are over a canvas that grows as the texts
    do: what is asked for and not written costs nothing.
    """
    loop, W, L = self.loop, self.loop.window, canvas.tokens.shape[1]
    slots, state, seconds = max(FIRST, 2 * W), None, 0.0
    while True:
      size = min(self.room(given + min(slots, budget)), L) if loop.grows else L
      part = canvas._replace(tokens=canvas.tokens[:, :size], masked=canvas.masked[:, :size])
      begin = loop.start if state is None else functools.partial(resized, loop, state=state)
      if (size, state is None) not in self._warm:  # compile outside the clock: no round is run
        unused = loop.advance(weights, request, begin(weights, canvas=part), jnp.int32(0))
        jax.block_until_ready(unused)
        self._warm.add((size, state is None))
      state, more = timed(functools.partial(begin, weights, canvas=part))
      rounds = np.iinfo(np.int32).max
      while rounds:
        seconds += more
        if size < L:  # as many rounds as begin no block that is not there
          said = loop.filled(state)
          begun, done = distributed.fetch((said.settled, said.done))
          rounds = 0 if done.all() else max(size - W - max(given, *begun[~done]), 0) // W
        state, more = timed(loop.advance, weights, request, state, jnp.int32(rounds))
        rounds = rounds if size < L else 0
      seconds += more
      filled = distributed.fetch(loop.filled(state))
      if filled.done.all():
        return filled, seconds
      slots *= 2

  def _result(self, prompt: Prompt, given: int, filled: Filled, b: int, seconds: float) -> Result:
    end = int(filled.end[b])
    row, when = filled.tokens[b], filled.when[b]
    new = row[given:end].tolist()
    stops = [i for i, token in enumerate(new) if token in self.model.stop]
    if stops:
      new = new[: stops[0] + 1]
    said = slice(given, given + len(new)) if given < end else slice(0, end)
    useful = set(when[: given + len(new)].tolist())
    size = max(end, int((when >= 0).nonzero()[0].max(initial=0)) + 1)
    log_probs = filled.log_prob[b, :size].tolist()
    filling = Filling(
      canvas=row[:size].tolist(),
      when=when[:size].tolist(),
      log_probs=log_probs,
      filled=int((when >= 0).sum()),
      wasted=len(set(when.tolist()) - useful - {-1}),
    )
    before, tokens = row[: said.start].tolist(), row[said].tolist()
    return Result(
      prompt=prompt,
      text=self.model.decode(tokens, before),
      tokens=tokens,
      log_probs=log_probs[said],
      passes=int(filled.passes[b]),
      seconds=seconds,
      method=self.name,
      filling=filling,
    )

  def stream(
    self, prompts: Sequence[Prompt], max_new_tokens: int | Sequence[int] = 128, *, rounds: int = 1
  ) -> Iterator[list[list[int]]]:
    """The canvases as they fill: every `rounds` rounds, the ids of each of up to B prompts."""
    ids, budgets = self._read(prompts, max_new_tokens)
    checks.whole("len(prompts)", len(ids), 1, self.batch, "batch is the most")
    checks.whole("rounds", rounds, 1)
    weights, request, canvas = self._arguments(ids, budgets, 0, None)
    state = self.loop.start(weights, canvas)
    filled = self.loop.filled(state)
    while not filled.done.all():
      state = self.loop.advance(weights, request, state, jnp.int32(rounds))
      filled = distributed.fetch(self.loop.filled(state))
      yield [filled.tokens[b, : filled.end[b]].tolist() for b in range(len(ids))]
