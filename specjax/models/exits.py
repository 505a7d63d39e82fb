"""A language model with several exits, for drafting: the first exit that is sure gives a token.

The layers behind an exit run where it is not sure, over the text that they have not read yet and
the new nodes together. So a token costs the layers that it needed, and nothing in a draft differs
from what it were if all layers had read all text.

Letters: B batch, N nodes, E width, V vocabulary, A rows of an accepted path, X exits, the last of
them behind the whole model, W rows of text that wait.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax import checks
from specjax.base import KV, Cache, Evaluation, Features, LayeredTarget, Params, Target, showing
from specjax.models.cache import cut
from specjax.trees.structure import gather

WAITING = 8  # W: the layers behind an exit read more rows than they need once for each 9 tokens


class Waiting(NamedTuple):
  """Text that has passed an exit and that the layers behind it have not read.

  Attributes:
    stream: [B, W, E] behind the exit, of the first rows that wait.
    ready: i32[B], how many rows of text the layers behind the exit have in the cache.
  """

  stream: Array
  ready: Array


class Text(NamedTuple):
  """The cache of a model with exits.

  Attributes:
    kv: of all layers; those behind an exit have their own number of rows, see `Waiting`.
    waiting: of the layers behind each exit.
    length: i32[B], rows of the layers before the first exit.
  """

  kv: KV
  waiting: tuple[Waiting, ...]
  length: Array


class Passed(NamedTuple):
  """What a pass leaves of the layers between two exits.

  Attributes:
    ran: bool[], whether they ran.
    before: [B, W + N, E], what they read, or would have: the text that waited, then the nodes.
    kv: KV of these rows, zeros where they did not run.
  """

  ran: Array
  before: Array
  kv: KV


def exits_of(layers: int, every: int) -> tuple[int, ...]:
  """The numbers of layers behind which a draft may end early, one `every` so many layers."""
  return tuple(range(every, layers, every))


def _one_after_the_other(count: Array, first: int, path: Array, size: int) -> Array:
  """i32[B, size]: rows 0..count, then the rows `first` + path, of count i32[B], path i32[B, M]."""
  i = jnp.arange(size, dtype=jnp.int32)[None]
  then = jnp.clip(i - count[:, None], 0, path.shape[1] - 1)
  return jnp.where(i < count[:, None], i, first + jnp.take_along_axis(path, then, 1))


def _run_if(ran: Array, function: Callable, *arguments: Array) -> Any:
  """What a function returns, or zeros where `ran` bool[] is false."""
  shapes = jax.eval_shape(function, *arguments)

  def nothing(*_):
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

  return lax.cond(ran, function, nothing, *arguments)


@functools.cache
def sorted_exits(model: Target, least: float = 0.5, every: int = 2) -> Target:
  """Takes the token of the first exit whose highest probability is at least `least`.

  S2D (Kavehzadeh et al. 2024, arXiv 2407.01955), for models whose exits were trained, see
  `train.draft_model --exit-every`. One such model drafts for several targets, each with a `least`
  of its own. The confidence is known before a token is drawn, at temperature 1, so that what is
  drawn has the distribution of the exit, and every verifier stays exact. A pass runs layers that
  some row of the batch needs; no row's logits depend on it.

  Measured: 2.54 tokens per pass (draft_models)
  Train: python -m specjax.train.draft_model --model gsm8k-7m --data questions.jsonl --out
  runs/sorted --keep 4 --exit-every 2

  Args:
    model: a transformer of L layers.
    least: 0 to 1 (static); with 0 the first exit gives all tokens, and later layers are left out.
    every: an exit lies behind every so many layers and behind the last (static).

  Raises:
    ValueError: a model that shows no layers, a number outside its bounds, or hidden layers that are
      asked for.
  """
  lm = showing(LayeredTarget, model, "exits")
  checks.number("least", least, 0, 1)
  if not 1 <= every < lm.layers:
    raise ValueError(
      f"`every` must be between 1 and {lm.layers - 1}, so that a model of {lm.layers} layers has "
      f"an exit before its last, got {every}."
    )
  exits = exits_of(lm.layers, every)
  # The layers behind each exit; none where the first gives all tokens.
  groups = tuple(zip(exits, (*exits[1:], lm.layers), strict=True)) if least else ()

  def check(hidden_layers) -> None:
    if hidden_layers:
      raise ValueError(
        "`hidden_layers` must be () for a model with exits, which shows no layers, got "
        f"{hidden_layers}."
      )

  def prefill(
    params: Params, tokens: Array, length: Array, capacity: int, hidden_layers=()
  ) -> tuple[Any, Features]:
    check(hidden_layers)
    cache, features = lm.prefill(params, tokens, length, capacity + WAITING)
    cache = cut(cache, cache.length)  # a recurrent one is refused
    nothing = jnp.zeros((len(length), WAITING, lm.width), features.hidden.dtype)
    waiting = (Waiting(nothing, cache.length),) * len(groups)
    kv = cache.kv if groups else _some(cache.kv, 0, exits[0])
    return Text(kv, waiting, cache.length), features

  def evaluate(
    params: Params, cache: Any, tokens: Array, depth: Array, mask: Array, hidden_layers=()
  ) -> Evaluation:
    check(hidden_layers)
    B, N = tokens.shape
    text, waiting, _ = cache
    place = jnp.broadcast_to(jnp.arange(WAITING, dtype=jnp.int32), (B, WAITING))
    position = cache.length[:, None] + depth

    def read(x: Array) -> tuple[Array, Array, Array]:
      """(hidden, logits, whether they are sure bool[B, N]) of the stream x [B, N, E]."""
      hidden = lm.norm(params, x)
      logits = lm.head(params, hidden)
      peak = logits.max(-1) - jax.nn.logsumexp(logits, -1)
      return hidden, logits, jnp.exp(peak) >= least

    def go_on(group: tuple[int, int], rows: Array, ready: Array):
      old = place < (cache.length - ready)[:, None]
      causal = jnp.tril(jnp.ones((1, WAITING, WAITING), bool)) & old[:, None]
      upper = jnp.concatenate(
        [causal | jnp.eye(WAITING, dtype=bool)[None], jnp.zeros((B, WAITING, N), bool)], 2
      )
      lower = jnp.concatenate([jnp.broadcast_to(old[:, None], (B, N, WAITING)), mask], 2)
      where = jnp.concatenate([ready[:, None] + place, position], 1)
      y, kv = lm.run_layers(
        params,
        rows,
        where,
        jnp.concatenate([upper, lower], 1),
        Cache(text, ready),
        start=group[0],
        stop=group[1],
      )
      return y, kv, *read(y[:, WAITING:])

    x, first = lm.run_layers(
      params, lm.embed(params, tokens), position, mask, Cache(text, cache.length), stop=exits[0]
    )
    hidden, logits, sure = read(x)
    if not groups:
      return Evaluation(logits, Features(hidden), (first, ()))
    # The layers behind the last exit are those that most text waits for.
    is_full = (cache.length - waiting[-1].ready + N > WAITING).any()
    ran, passed = jnp.bool_(True), []
    # Of the newest text, what the layers before this exit have read in this pass.
    read_now, since = jnp.zeros_like(waiting[0].stream), cache.length
    for group, (stream, ready) in zip(groups, waiting, strict=True):
      ready = jnp.minimum(ready, cache.length)  # a refused draft was cut off
      merged = gather(
        jnp.concatenate([stream, read_now], 1),
        _one_after_the_other(jnp.maximum(since - ready, 0), WAITING, place, WAITING),
      )
      rows = jnp.concatenate([jnp.where(ran, merged, stream), x], 1)
      ran = ran & (is_full | ~sure.all())
      y, kv, *deeper = _run_if(ran, functools.partial(go_on, group), rows, ready)
      passed.append(Passed(ran, rows, kv))
      speaks = (sure | ~ran)[..., None]
      hidden, logits = (
        jnp.where(speaks, a, b) for a, b in zip((hidden, logits), deeper, strict=False)
      )
      sure = sure | deeper[2]
      x, read_now, since = y[:, WAITING:], y[:, :WAITING], ready
    return Evaluation(logits, Features(hidden), (first, tuple(passed)))

  def commit(cache: Any, kv: tuple[KV, tuple[Passed, ...]], path: Array, rows: Array) -> Any:
    (text, waiting, _), (first, passed) = cache, kv
    written = [lm.commit(Cache(_some(text, 0, exits[0]), cache.length), first, path, rows).kv]
    length, still = cache.length + rows, []
    for (start, stop), (_, old), (ran, before, fresh) in zip(groups, waiting, passed, strict=True):
      ready = jnp.minimum(old, cache.length)
      order = _one_after_the_other(cache.length - ready, WAITING, path, WAITING + path.shape[1])
      more = jnp.where(ran, length - ready, 0)
      part = lm.commit(Cache(_some(text, start, stop), ready), fresh, order, more)
      written.append(part.kv)
      still.append(Waiting(gather(before, order[:, :WAITING]), part.length))
    whole = KV(*(tuple(x for part in parts for x in part) for parts in zip(*written, strict=True)))
    return Text(whole, tuple(still), length)

  return Target(lm.vocab_size, prefill, evaluate, commit, lm.head)


def _some(kv: KV, start: int, stop: int) -> KV:
  """The keys and values of layers start..stop."""
  return KV(kv.k[start:stop], kv.v[start:stop])
