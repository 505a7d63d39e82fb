"""PEARL's two models at work at the same time, each on a device of its own; see `search.pearl`.

A tick is two programs without data in common, `draft_block` and `read_pending`, and a small third,
`join`, that compares what they found. All are dispatched without waiting, so the devices compute
side by side; the host only looks whether the tick before the newest ended the last text.

Letters: B batch, G tokens of a block, S cache length, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import checks, speculate, switches
from specjax.base import Cache, Context, Evaluation, Params, Target
from specjax.decoding.batching import Result, read, timed
from specjax.decoding.decoder import Decoder, pad_to_bucket
from specjax.models.cache import append_one, cut
from specjax.names import grammar
from specjax.names.build.drafters import load_small
from specjax.names.load import Model, Prompt
from specjax.sampling import DRAFT, Noise, Settings, warp
from specjax.search import pearl
from specjax.speculate import INFINITE, NAN, DecodeRequest, Stats


class PearlDecoderState(NamedTuple):
  """What the target's device keeps between two ticks; see `speculate.DecodeState`."""

  context: Context
  cache: Any
  pearl: pearl.PearlState
  log_probs: Array
  done: Array
  failed: Array
  why: Array
  stats: Stats


class Ahead(NamedTuple):
  """What the draft model goes on from.

  Attributes:
    last: i32[B, 1], the last token that it wrote, or after a refusal the newest of the text.
    length: i32[B], rows of its cache that hold the tokens before `last`.
    position: i32[B], committed length, which decides the noise.
  """

  last: Array
  length: Array
  position: Array


@functools.partial(jax.jit, static_argnames=("lm", "block"), donate_argnames="cache")
def draft_block(
  lm: Target,
  params: Params,
  cache: Cache,
  ahead: Ahead,
  settings: Settings,
  key: Array,
  *,
  block: int,
) -> tuple[Cache, Array, Array]:
  """(cache, fresh tokens i32[B, G], what they were drawn from f32[B, G, V])."""
  cache, last = cut(cache, ahead.length), ahead.last
  zero, alone = jnp.zeros_like(last), jnp.ones((*last.shape, 1), bool)
  noise = Noise(key, ahead.position)
  tokens, log_probs = [], []
  for step in range(block):
    evaluation = lm.evaluate(params, cache, last, zero, alone)
    log_probs.append(warp(evaluation.logits, settings))
    cache = append_one(lm, cache, evaluation)
    last = noise.draw(DRAFT + step, log_probs[-1][:, 0])[:, None]
    tokens.append(last)
  return cache, jnp.concatenate(tokens, 1), jnp.concatenate(log_probs, 1)


@functools.partial(jax.jit, static_argnames="target")
def read_pending(target: Target, params: Params, state: PearlDecoderState) -> Evaluation:
  """The target's pass over the newest token and the pending ones, a chain of G nodes."""
  tokens = jnp.concatenate([state.context.root, state.pearl.tokens], 1)
  B, G = tokens.shape
  depth = jnp.broadcast_to(jnp.arange(G, dtype=jnp.int32), (B, G))
  mask = jnp.broadcast_to(jnp.tril(jnp.ones((G, G), bool)), (B, G, G))
  return target.evaluate(params, state.cache, tokens, depth, mask)


@functools.partial(jax.jit, static_argnames="target", donate_argnames="state")
def join(
  target: Target,
  state: PearlDecoderState,
  request: DecodeRequest,
  evaluation: Evaluation,
  tokens: Array,
  log_probs: Array,
) -> tuple[PearlDecoderState, Ahead, Array]:
  """Commits what the tick accepted, and says whether all is done bool[].

  A row ends as in `speculate.decode_round`.
  """
  context, B, G = state.context, *tokens.shape
  logits = evaluation.logits
  after, committed, count, _ = pearl.tick(
    state.pearl, warp(logits, request.settings), tokens, log_probs
  )
  live, step = ~state.done, jnp.arange(G, dtype=jnp.int32)[None]
  total = jax.nn.logsumexp(logits, -1)

  def first(flags: Array, more: int) -> Array:
    index = jnp.argmax(flags, 1).astype(jnp.int32)
    return jnp.where(flags.any(1), index + more, G + 1)

  stops = (committed[:, :, None] == request.stop[None, None]).any(-1)
  until_stop = first(stops & (step < count[:, None]), 1)
  unsound = ~jnp.isfinite(total) & (step < count[:, None])
  until_nan = first(unsound, 0)
  emitted = jnp.minimum(jnp.minimum(count, until_stop), request.limit - context.length)
  fails = live & (until_nan < emitted)
  failed = state.failed | fails
  infinite = jnp.take_along_axis(jnp.isinf(total), jnp.argmax(unsound, 1)[:, None], 1)[:, 0]
  emitted = jnp.where(live, jnp.minimum(emitted, until_nan), 0)
  length = context.length + emitted
  done = state.done | failed | (emitted == until_stop) | (length >= request.limit)

  path = jnp.broadcast_to(step, (B, G))
  cache = target.commit(state.cache, evaluation.kv, path, emitted)
  capacity = context.tokens.shape[1]
  column = jnp.where(step < emitted[:, None], context.length[:, None] + step, capacity)
  row = jnp.arange(B)[:, None]
  text = context.tokens.at[row, column].set(committed, mode="drop")
  said = jnp.take_along_axis(logits, committed[..., None], -1)[..., 0] - total
  post = after.post & ~done
  context = Context(text, length)
  stats = state.stats._replace(
    passes=state.stats.passes + live.astype(jnp.int32), emitted=state.stats.emitted + emitted
  )
  ahead = Ahead(
    jnp.where(post[:, None], tokens[:, -1:], context.root),
    length - 1 + jnp.where(post, G - 1, 0),
    length,
  )
  kept = state.log_probs.at[row, column].set(said, mode="drop")
  after = after._replace(position=length, post=post)
  why = jnp.where(fails, jnp.where(infinite, INFINITE, NAN), state.why)
  return PearlDecoderState(context, cache, after, kept, done, failed, why, stats), ahead, done.all()


def decode(
  target: Target,
  params: Params,
  lm: Target,
  draft_params: Params,
  tokens: Array,
  length: Array,
  request: DecodeRequest,
  capacity: int,
  block: int,
  devices: tuple[Any, Any],
  ticks: int,
) -> PearlDecoderState:
  """Prompts i32[B, T] of length i32[B], continued for `ticks` ticks at most.

  Args:
    params: on the first device, where the result lies.
    draft_params: on the second.
    capacity: S, the prompt, the budget and two blocks at least.
  """
  near, far = devices
  here = jax.device_put((tokens, length, request), near)
  there = jax.device_put((tokens, length, request.settings, request.key), far)
  state, ahead = _start(target, params, *here, capacity=capacity, block=block)
  cache = _prefill(lm, draft_params, *there[:2], capacity=capacity)
  ahead, over, before = jax.device_put(ahead, far), False, False
  for _ in range(ticks):
    # Of the tick before the newest: to wait for the newest would leave both devices idle.
    if bool(before):
      break
    before = over
    cache, *fresh = draft_block(lm, draft_params, cache, ahead, *there[2:], block=block)
    evaluation = read_pending(target, params, state)
    state, ahead, over = join(target, state, here[2], evaluation, *jax.device_put(fresh, near))
    ahead = jax.device_put(ahead, far)
  return state


@functools.partial(jax.jit, static_argnames=("lm", "capacity"))
def _prefill(lm: Target, params: Params, tokens: Array, length: Array, *, capacity: int) -> Cache:
  return lm.prefill(params, tokens, length, capacity)[0]


@functools.partial(jax.jit, static_argnames=("target", "capacity", "block"))
def _start(
  target: Target,
  params: Params,
  tokens: Array,
  length: Array,
  request: DecodeRequest,
  *,
  capacity: int,
  block: int,
) -> tuple[PearlDecoderState, Ahead]:
  B, T = tokens.shape
  cache = target.prefill(params, tokens, length, capacity)[0]
  context = Context(jnp.pad(tokens, ((0, 0), (0, capacity - T))), length)
  nothing, zero = jnp.zeros(B, bool), jnp.zeros(B, jnp.int32)
  state = PearlDecoderState(
    context,
    cache,
    pearl.start(request.key, length, block, target.vocab_size),
    jnp.zeros((B, capacity)),
    length >= request.limit,
    nothing,
    zero,
    Stats(zero, zero, jnp.zeros((B, 0), jnp.int32), jnp.zeros((B, 0), jnp.int32)),
  )
  return state, Ahead(context.root, length - 1, length)


@switches.hold
class PearlDecoder:
  """EXACT: the draft model writes a block while the target reads the last one.

  The draft model writes `block` tokens while the target reads those of the tick before, so a tick
  takes as long as the slower of the two; see `pearl.rate` for the tokens of a tick. EXACT: the
  texts have the target's distribution, and at temperature 0 they are those of `Decoder`.

  PEARL (Liu et al. 2025, arXiv 2408.11850); it compiles once per shape.

  Measured: 2.15 tokens per tick (pearl)

  Args:
    model: the target.
    draft: a smaller Model with the same vocabulary, or its name or directory.
    block: G, best about the target's time of a pass over that of the draft model.
    devices: the target's and the draft model's; by default the first two, or the only one, on
      which they take turns.
    settings: `temperature`, `top_k`, `top_p`, `min_p`, `typical_p`, `seed`, `stop` and `batch` of
      `Decoder`.

  Raises:
    ValueError: as for `Decoder`, or a block below 1.
  """

  def __init__(
    self,
    model: Model,
    draft: Model | str,
    block: int = 4,
    *,
    devices: tuple[jax.Device, jax.Device] | None = None,
    **settings: Any,
  ):
    self.block = checks.whole("block", block, 1, 64)
    accepted = {"temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "stop",
                "batch"}  # fmt: skip
    if unknown := set(settings) - accepted:
      checks.refuse("settings", " ".join(sorted(unknown)), f"among {', '.join(sorted(accepted))}")
    self.plain = Decoder(model, **settings)
    self.batch = self.plain.batch
    part = grammar.Part("draft_model", (), draft if isinstance(draft, str) else draft.name)
    small = load_small(model, part, None if isinstance(draft, str) else draft)
    every = jax.devices()
    self.devices = devices or (every[0], every[1 % len(every)])
    self.name = f"pearl-{block}[{small.name}]"
    self._target, self._lm = model.target, small.drafting
    self._params = jax.device_put(model.params, self.devices[0])
    self._draft_params = jax.device_put(small.params, self.devices[1])
    self._warm: set[tuple[int, int]] = set()

  def __call__(
    self, prompts: Sequence[Prompt], max_new_tokens: int | Sequence[int] = 128, *, first: int = 0
  ) -> list[Result]:
    """Decodes prompts, B at a time; see `Decoder`. Times include the prefill."""
    ids, budgets = read(self.plain.model, prompts, max_new_tokens)
    checks.whole("first", first)
    results = []
    for begin in range(0, len(ids), self.batch):
      part = slice(begin, begin + self.batch)
      numbers = np.arange(first + begin, first + begin + self.batch)
      state, seconds = self._decode(ids[part], budgets[part], numbers)
      self.plain.check_logits(state, numbers)
      results += [
        dataclasses.replace(
          self.plain.result(prompt, len(row), budget, state, b, seconds, 0.0),
          method=self.name,
          verifier="pearl",
          exactness="EXACT",
        )
        for b, (prompt, row, budget) in enumerate(
          zip(prompts[part], ids[part], budgets[part], strict=True)
        )
      ]
    return results

  def _decode(
    self, ids: list[list[int]], budgets: list[int], numbers: np.ndarray
  ) -> tuple[Any, float]:
    """(state on the host, seconds) of up to B prompts; missing rows are done."""
    B, T = self.batch, pad_to_bucket(max(map(len, ids)))
    longest = speculate.capacity_for(T, max(budgets), 2 * self.block)
    capacity = -(-longest // 64) * 64
    tokens, length, end = np.zeros((B, T), np.int32), np.ones(B, np.int32), np.ones(B, np.int32)
    for b, (row, budget) in enumerate(zip(ids, budgets, strict=True)):
      tokens[b, : len(row)] = row
      length[b], end[b] = len(row), len(row) + budget
    request = self.plain.request(numbers, end)
    run = functools.partial(
      decode,
      self._target,
      self._params,
      self._lm,
      self._draft_params,
      jnp.asarray(tokens),
      jnp.asarray(length),
      request,
      capacity,
      self.block,
      self.devices,
    )
    if (T, capacity) not in self._warm:
      jax.block_until_ready(run(2))
      self._warm.add((T, capacity))
    state, seconds = timed(run, np.iinfo(np.int32).max)
    return jax.device_get(state._replace(cache=None, pearl=None)), seconds
