"""Makes a drafter of a head, and unrolls the head along a true text to train it.

Letters: B batch, T row length, M drafting positions of a row, W nodes of one level, D depth,
E' width of what a head reads out, G newest tokens of a text.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import KV, Cache, Context, Drafter, Params
from specjax.heads import draft_vocabulary, prefix, pseudo_rows
from specjax.heads.base import Examples, Head
from specjax.models.transformer import attention_mask
from specjax.sampling import Settings, Source
from specjax.trees.base import Guesser, Sampling, Tree, independent
from specjax.trees.folded import Folded
from specjax.trees.static import Static
from specjax.trees.structure import at


@functools.cache
def drafter(
  head: Head, tree: Tree | tuple[tuple[int, ...], ...], counts: tuple[int, ...] | None = None
) -> Drafter:
  """A head that fills `tree` in every round. Its state is what `Head.memory` keeps.

  Valid siblings of a tree that is not drawn are distinct and chosen without looking at noise, so
  "greedy" and "target_only" are exact.

  Args:
    tree: static; rank paths alone are a `Static` tree.
    counts: of a head with pseudo rows, how many each node has; see `pseudo.drafter`.

  Raises:
    ValueError: a tree that is deeper than the head guesses, impossible by itself, or drawn from
      frames.
  """
  shape = Static(tree) if isinstance(tree, tuple) else tree
  shape = Folded(shape) if head.blank else shape
  if shape.depth > head.depth:
    raise ValueError(f"tree is {shape.depth} deep: the head guesses {head.depth} tokens ahead.")
  if head.pseudo is not None:
    return pseudo_rows.drafter(head, shape, counts)

  def init(params, target_params, context, features, capacity):
    return prefix.start(head, params, target_params, context, features, capacity)

  def propose(params, target_params, state, context, settings, noise):
    asked = guesser(head, params, target_params, state, context, shape.depth, settings, noise)
    return shape.fill(context.root, asked), state

  def update(params, target_params, state, draft, evaluation, verdict, rows):
    return prefix.update(head, params, target_params, state, evaluation, verdict, rows)

  return Drafter(
    head.name, shape.proposal, shape.nodes, shape.depth, init, propose, update,
    hidden_layers=head.hidden_layers, varies=head.blank,
  )  # fmt: skip


def guesser(
  head: Head, params: Params, target_params: Params, state: Any, context: Context, depth: int,
  settings: Settings, noise: Source,
) -> Guesser:  # fmt: skip
  """The head at the root of a tree of `depth` (static), from what `Head.memory` keeps."""
  V = head.target.vocab_size
  ids, sampling = draft_vocabulary.ids(params), Sampling(settings, noise, V)
  ids = draft_vocabulary.with_blank(ids, V) if head.blank else ids
  last, first = prefix.last(state)[:, None], 0 if head.attends_root else 1
  if head.block is None:
    root = context.length[:, None] - 1
    newest = prefix.newest_tokens(context.tokens, root, root, head.newest)
    carry = head.first(params, target_params, last, newest)
  else:
    row = state.cache.length[:, None] - 1
    carry = head.block(params, target_params, last, row, cache=state.cache)
  if head.attend is None and head.step is None:
    logits = head.read(params, target_params, carry[:, 0, :depth], None)
    return Guesser(independent(logits), (), (), ids, sampling)

  def step(level, tokens, carry, rows, mask):
    if head.step is not None:
      read, carry = head.step(params, target_params, carry, tokens, level + 1)
    elif head.attend is not None and level >= first:
      # A root's row of `memory` is the newest of the cache, so `mask` loses its column.
      position = jnp.broadcast_to(state.cache.length[:, None] + level - 1, tokens.shape)
      carry, fresh = head.attend(
        params, target_params, carry, tokens, position, mask[:, :, first:], state.cache, rows
      )
      read, rows = carry, _join(rows, fresh)
    else:
      read = carry
    return head.read(params, target_params, read, level + 1), carry, rows

  return Guesser(step, carry, None, ids, sampling)


def unroll(
  head: Head, params: Params, target_params: Params, examples: Examples
) -> tuple[Array, ...]:
  """What the head reads along a true text: D states [B, M, E'].

  State d - 1 is read to guess depth d, the token at `at` + d + 1, given the true tokens before it;
  the token at `at` + 1 is the target's. Heads that attend to their guesses see the text up to `at`,
  then their own states: EAGLE-3's training-time test. The rows of the text are run once, later
  depths at the drafting positions only.
  """
  if head.pseudo is not None:
    return pseudo_rows.unroll(head, params, target_params, examples)
  mask = attention_mask(examples.segment, causal=True)
  text, kv = prefix.over_text(head, params, target_params, examples, mask)
  last = at(text, examples.at)
  if head.block is None:
    root = jnp.minimum(examples.at + 1, examples.tokens.shape[1] - 1)
    number = at(examples.position, examples.at) + 1
    newest = prefix.newest_tokens(examples.tokens, root, number, head.newest)
    carry = head.first(params, target_params, last, newest)
  else:
    position, sees = at(examples.position, examples.at), at(mask, examples.at)
    carry = head.block(params, target_params, last, position, sees, earlier=kv)
  if head.attend is not None:
    attend = functools.partial(head.attend, params, target_params)
    return _attended(attend, head, examples, mask, carry, kv)
  if head.step is None:
    return tuple(carry[:, :, d] for d in range(head.depth))
  states = []
  for d in range(1, head.depth + 1):
    state, carry = head.step(params, target_params, carry, _token_at(examples, d), d)
    states.append(state)
  return tuple(states)


def _attended(
  attend: Callable[..., tuple[Array, KV]], head: Head, examples: Examples, mask: Array,
  state: Array, kv: KV | None,
) -> tuple[Array, ...]:  # fmt: skip
  seen, position = at(mask, examples.at), at(examples.position, examples.at)
  states = [] if head.attends_root else [state]
  chain: Cache | None = None  # what each drafting position has guessed, which no other sees
  for d in range(len(states) + 1, head.depth + 1):
    place = position + d - 1
    near = seen
    if head.window is not None:
      near = seen & (place[:, :, None] - examples.position[:, None] < head.window)
    state, fresh = attend(state, _token_at(examples, d), place, near, chain, kv)
    states.append(state)
    fresh = jax.tree.map(lambda x: x[:, :, :, None], fresh)
    rows = fresh if chain is None else jax.tree.map(
      lambda a, b: jnp.concatenate([a, b], 3), chain.kv, fresh
    )  # fmt: skip
    chain = Cache(rows, jnp.full(examples.at.shape[0], rows.k[0].shape[3], jnp.int32))
  return tuple(states)


def _token_at(examples: Examples, ahead: int) -> Array:
  """i32[B, M]: the token `ahead` places after each drafting position, 0 past the row."""
  T = examples.tokens.shape[1]
  index = examples.at + ahead
  return jnp.where(index < T, at(examples.tokens, jnp.minimum(index, T - 1)), 0)


def _join(rows: KV | None, fresh: KV) -> KV:
  """The rows of both, one after the other."""
  if rows is None:
    return fresh
  return jax.tree.map(lambda a, b: jnp.concatenate([a, b], 2), rows, fresh)
