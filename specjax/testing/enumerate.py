"""Exact enumeration through the shipped loop: the distribution of what a method emits.

Every random choice of a round is asked of a `sampling.NoiseSource`. Here the source is a script:
digits of r are the outcomes in row r of one large batch, so the batch plays all that can happen,
and the probability of a row follows from the distributions with which its choices were asked.
Summed over rows, and completed to a common length with the target's distribution, this is the joint
distribution of the emitted tokens, which equals the target's for an exact method. A proof needs
several tables: a biased verifier can be right on one of them.

Letters: B batch, N tree nodes, D maximum draft depth, V vocabulary, L length of the sequences.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import speculate, switches
from specjax.base import Context, Params
from specjax.sampling import SamplingParams, Settings, request_keys

MOST_ROWS = 300_000

Distribution = dict[tuple[int, ...], float]
"""Probability of each sequence; one that holds a stop token ends there."""


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
  """What is decoded.

  Attributes:
    logits: f32[V + 1, V, V], the target's table, see `table.random_table`.
    prompt: token ids, one at least.
    length: L.
    temperature, top_k, top_p, min_p, typical_p: see `sampling.Settings`.
    stop: tokens that end a sequence, two at most.
    budget: the most new tokens of a row; by default there is no limit.
    processors: params of the method's processors, for a batch of B rows.
    processed: the processors without JAX: (logits f[V], new tokens so far) -> logits f[V].
  """

  logits: np.ndarray
  prompt: tuple[int, ...] = (0,)
  length: int = 3
  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  typical_p: float = 1.0
  stop: tuple[int, ...] = ()
  budget: int | None = None
  processors: Callable[[int], tuple[Params, ...]] = lambda B: ()
  processed: Callable[[np.ndarray, tuple[int, ...]], np.ndarray] = lambda logits, tokens: logits

  def settings(self, B: int) -> Settings:
    """The sampling settings of B rows."""
    fields = (self.temperature, self.top_k, self.top_p, self.min_p, self.typical_p)
    return SamplingParams(*fields).rows(B)


class Chosen(NamedTuple):
  """A call of `choose`: log_probs f32[B, N, V], outcome i32[B, N]; own bool[B, N], see `Script`."""

  log_probs: Array
  outcome: Array
  own: Array


class Drawn(NamedTuple):
  """A call of `draw`: log_probs f32[B, V], not normalised, outcome i32[B]."""

  log_probs: Array
  outcome: Array


class Tossed(NamedTuple):
  """A call of `accept`: p, q f32[B, D], outcome bool[B, D]."""

  p: Array
  q: Array
  outcome: Array


class Children(NamedTuple):
  """A call of `children`: log_probs f32[B, W, V], outcome i32[B, W, R], distinct bool[B]."""

  log_probs: Array
  outcome: Array
  distinct: Array


class Script:
  """A `sampling.NoiseSource` whose outcomes are the digits of each row's number.

  In `Noise` the nodes of one depth share what they draw. A walk from the root meets one node per
  depth, so for `choose` it matters only that nodes of equal distribution, such as those below equal
  siblings, have equal outcomes: the outcome is counted as the first such node's own. Other nodes
  are independent.
  """

  def __init__(self, rows: Array):
    self.rows, self.combinations = rows, 1
    self.record: list[Chosen | Drawn | Tossed | Children] = []

  def _digits(self, count: int, radix: int) -> Array:
    """i32[B, count]."""
    places = [self.combinations * radix**i for i in range(count)]
    self.combinations *= radix**count
    if self.combinations > MOST_ROWS:
      raise ValueError(
        f"the method must turn out in at most {MOST_ROWS} ways, got {self.combinations} or more: "
        "use a smaller tree, vocabulary or rounds."
      )
    return self.rows[:, None] // jnp.asarray(places, jnp.int32)[None] % radix

  def choose(self, log_probs: Array, depth: Array) -> Array:
    equal = (log_probs[:, :, None] == log_probs[:, None]).all(-1)
    equal &= depth[:, :, None] == depth[:, None]
    first = jnp.argmax(equal, -1).astype(jnp.int32)
    outcome = jnp.take_along_axis(self._digits(log_probs.shape[1], log_probs.shape[2]), first, 1)
    own = first == jnp.arange(log_probs.shape[1], dtype=jnp.int32)[None]
    self.record.append(Chosen(log_probs, outcome, own))
    return outcome

  def draw(self, stream: int, log_probs: Array) -> Array:
    outcome = self._digits(1, log_probs.shape[1])[:, 0]
    self.record.append(Drawn(log_probs, outcome))
    return outcome

  def accept(self, stream: int, p: Array, q: Array) -> Array:
    outcome = self._digits(p.shape[1], 2) == 1
    self.record.append(Tossed(p, q, outcome))
    return outcome

  def children(self, stream: int, log_probs: Array, count: int, distinct: bool) -> Array:
    B, W, V = log_probs.shape
    outcome = self._digits(W * count, V).reshape(B, W, count)
    self.record.append(Children(log_probs, outcome, jnp.full(B, distinct)))
    return outcome

  def gumbel(self, stream: int, shape: tuple[int, ...]) -> Array:
    raise ValueError("continuous noise cannot be enumerated: test such a method by its samples.")


@functools.partial(
  jax.jit,
  static_argnames=("method", "rounds", "capacity"),
  compiler_options={"xla_backend_optimization_level": 0},  # compiling is all the time there is
)
def _play(
  method: speculate.Method,
  weights: speculate.Weights,
  request: speculate.DecodeRequest,
  prompt: Array,
  rows: Array,
  rounds: int,
  capacity: int,
) -> tuple[Context, list]:
  """Text after `rounds` rounds of row r's script, and what the script was asked."""
  script = Script(rows)

  def every_round(unfinished, body, carry):
    for _ in range(rounds):  # finished rows stay as they are; their choices sum to 1
      carry = body(carry)
    return carry

  tokens = jnp.broadcast_to(prompt[None], (rows.shape[0], prompt.shape[0]))
  length = jnp.full(rows.shape, prompt.shape[0], jnp.int32)
  state = speculate.start(method, weights, tokens, length, request, capacity)
  state = speculate.advance(
    method,
    weights,
    request,
    state,
    jnp.int32(rounds),
    while_loop=every_round,
    source=lambda key, position: script,
  )
  return state.context, script.record


def _combinations(record: list) -> int:
  """The number of scripts, from a record or its shapes."""
  radix = (2 if isinstance(entry, Tossed) else entry.log_probs.shape[-1] for entry in record)
  return math.prod(r ** math.prod(x.outcome.shape[1:]) for r, x in zip(radix, record, strict=True))


def probability(entry: Chosen | Drawn | Tossed | Children) -> np.ndarray:
  """f64[B], of the entry's outcomes."""
  outcome = np.asarray(entry.outcome)
  if isinstance(entry, Tossed):
    p, q = np.asarray(entry.p, np.float64), np.asarray(entry.q, np.float64)
    passing = np.where(p <= 0, 0.0, np.minimum(1.0, p / np.where(q > 0, q, p + (p <= 0))))
    return np.where(outcome, passing, 1 - passing).prod(1)
  q = np.exp(np.asarray(entry.log_probs, np.float64))
  if isinstance(entry, Children):
    weight = np.ones(len(q))
    for rank in range(outcome.shape[2]):
      token, total = outcome[:, :, rank, None], q.sum(-1)
      # Where no token is left to draw, the outcome is not read and all are equally likely.
      taken = np.take_along_axis(q, token, -1)[..., 0] / np.where(total > 0, total, 1.0)
      weight *= np.where(total > 0, taken, 1 / q.shape[-1]).prod(1)
      if np.asarray(entry.distinct).all():
        np.put_along_axis(q, token, 0.0, -1)
    return weight
  taken = np.take_along_axis(q, outcome[..., None], -1)[..., 0]
  if isinstance(entry, Chosen):  # digits that no node owns are equally likely
    return np.where(entry.own, taken, 1 / q.shape[-1]).prod(1)
  total = q.sum(-1)
  return np.where(total > 0, taken / np.where(total > 0, total, 1.0), 0.0)


@switches.hold
def emitted_distribution(
  case: Case, method: speculate.Method, drafter_params: Params = (), *, rounds: int = 1
) -> Distribution:
  """The distribution of the first L tokens: `rounds` rounds by `method`, then the target.

  One round proves a verifier, since rounds start from committed text only; two rounds also prove
  the state that the first leaves.

  Args:
    case: what is decoded; its table is the target's params.
    method: of a `table_model`.

  Raises:
    ValueError: more than MOST_ROWS combinations of outcomes.
  """
  P, depth = len(case.prompt), method.drafter.depth
  most = rounds * (depth + 1)
  weights = speculate.Weights({"logits": jnp.asarray(case.logits, jnp.float32)}, drafter_params)
  prompt = jnp.asarray(case.prompt, jnp.int32)

  def arguments(B: int):
    request = speculate.DecodeRequest(
      settings=case.settings(B),
      key=request_keys(0, np.zeros(B, np.uint32)),
      limit=jnp.full(B, P + (most if case.budget is None else case.budget), jnp.int32),
      stop=jnp.asarray((*case.stop, -1, -1)[:2], jnp.int32),
      processors=case.processors(B),
    )
    capacity = speculate.capacity_for(P, most, depth)
    return method, weights, request, prompt, jnp.arange(B, dtype=jnp.int32), rounds, capacity

  _, shapes = _play.eval_shape(*arguments(1))
  context, record = jax.device_get(_play(*arguments(_combinations(shapes))))
  weight = np.prod([np.ones(len(context.length)), *map(probability, record)], axis=0)

  shown = np.pad(context.tokens, ((0, 0), (0, case.length)))[:, P : P + case.length]
  shown = np.where(np.arange(case.length) < context.length[:, None] - P, shown, -1)
  code = (shown + 1) @ (method.target.vocab_size + 1) ** np.arange(case.length)
  _, first, group = np.unique(code, return_index=True, return_inverse=True)
  found: Distribution = {}
  for prefix, mass in zip(shown[first], np.bincount(group, weight), strict=True):
    for sequence, p in _completions(case, tuple(int(t) for t in prefix if t >= 0)):
      found[sequence] = found.get(sequence, 0.0) + float(mass) * p
  return found


def next_distribution(
  logits: np.ndarray,
  temperature: float,
  top_k: int = 0,
  top_p: float = 1.0,
  min_p: float = 0.0,
  typical_p: float = 1.0,
) -> np.ndarray:
  """f64[V] from logits [V]: the settings one after the other, in plain numpy.

  Written apart from `sampling.warp`, which it checks.
  """
  logits = np.asarray(logits, np.float64)
  likeliest = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
  if temperature == 0:
    return np.eye(len(logits))[likeliest[0]]
  p = np.exp((logits - logits.max()) / temperature)
  if top_k:
    p[likeliest[top_k:]] = 0
  p /= p.sum()
  if top_p < 1:
    mass = 0.0
    for i in likeliest:
      if mass >= top_p:
        p[i] = 0
      mass += p[i]
    p /= p.sum()
  p[p < min_p * p.max()] = 0
  p /= p.sum()
  if typical_p < 1:
    nats = -np.log(p, where=p > 0, out=np.full(len(p), -np.inf))
    entropy = (p[p > 0] * nats[p > 0]).sum()
    mass = 0.0
    for i in sorted(range(len(p)), key=lambda i: (abs(nats[i] - entropy), i)):
      if mass >= typical_p:
        p[i] = 0
      mass += p[i]
  return p / p.sum()


def _completions(case: Case, tokens: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], float]]:
  """Every sequence that begins with `tokens`, with its probability given them."""
  if len(tokens) >= case.length or set(tokens) & set(case.stop):
    yield tokens, 1.0
    return
  *rest, own = case.prompt + tokens
  row = case.processed(case.logits[rest[-1] if rest else -1, own], tokens)
  p = next_distribution(row, case.temperature, case.top_k, case.top_p, case.min_p, case.typical_p)
  for token in np.flatnonzero(p):
    for sequence, rest_of_it in _completions(case, (*tokens, int(token))):
      yield sequence, float(p[token]) * rest_of_it


def target_distribution(case: Case) -> Distribution:
  """The target's own distribution over sequences of length L, in float64 and without JAX."""
  return dict(_completions(case, ()))


def total_variation(a: Distribution, b: Distribution) -> float:
  """Half the sum of |a - b|: 0 for equal distributions, 1 where they have nothing in common."""
  return 0.5 * math.fsum(abs(a.get(x, 0.0) - b.get(x, 0.0)) for x in a.keys() | b.keys())
