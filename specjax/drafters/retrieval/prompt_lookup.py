"""Prompt lookup finds the last tokens earlier in the text and guesses what followed them there."""

import functools

import jax.numpy as jnp
from jax import Array

from specjax.base import Context, Draft, Drafter, Params
from specjax.drafters.stateless import from_draft
from specjax.trees.structure import chain, gather, side_by_side


def suffix_match(tokens: Array, length: Array, limit: int) -> Array:
  """i32[B, S]: how many tokens up to each equal the last ones of the text, `limit` at most.

  The text's own end and all behind it have 0. tokens i32[B, S], length i32[B].
  """
  position = jnp.arange(tokens.shape[1])[None]
  run = position < length[:, None] - 1
  matched = jnp.zeros(tokens.shape, jnp.int32)
  for j in range(limit):
    recent = gather(tokens, jnp.maximum(length[:, None] - 1 - j, 0))
    shifted = jnp.pad(tokens, ((0, 0), (j, 0)))[:, : tokens.shape[1]]
    run = run & (position >= j) & (shifted == recent)
    matched = matched + run.astype(jnp.int32)
  return matched


def expected(tokens: Array, end: Array, matched: Array, draft: Draft) -> Array:
  """f32[B], how many tokens of a copied chain will be accepted: suffix decoding's score.

  A guess counts with the share of the longest match's occurrences that went on like the chain up to
  it (Oliaro et al. 2024, arXiv 2411.04975), times (l / (l + 1))^j for the j-th after a match of l
  tokens: a long match is likelier to go on. That factor is ours; most matches occur once, where the
  share says nothing.

  Args:
    tokens: i32[B, S], where the chain was copied from; i32[B] `end` of them are known, and what
      would follow is taken to agree.
    matched: i32[B, S], length of the match that ends at each token.
    draft: its first D nodes after the root are the chain.
  """
  length = matched.max(1, keepdims=True)
  alike = (matched == length) & (length > 0)
  many = jnp.maximum(alike.sum(1, dtype=jnp.float32), 1)
  place = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
  l = length[:, 0].astype(jnp.float32)
  weight, total = 1 / many, jnp.zeros_like(l)
  for j in range(1, draft.tokens.shape[1]):
    later = jnp.pad(tokens[:, j:], ((0, 0), (0, j)))
    alike = alike & ((later == draft.tokens[:, j, None]) | (place + j >= end[:, None]))
    weight = weight * l / (l + 1)
    total += jnp.where(draft.valid[:, j], alike.sum(1, dtype=jnp.float32) * weight, 0)
  return total


@functools.cache
def prompt_lookup(
  nodes: int = 8, longest: int = 3, shortest: int = 1, per_match: int = 0, branches: int = 1
) -> Drafter:
  """Copies what followed the newest tokens where they last occurred.

  That is behind their longest, then latest, earlier occurrence.

  This is prompt lookup decoding (Saxena 2023). A continuation that reaches the end of the text is
  repeated periodically, so loops are drafted to full depth. Without a match nothing is drafted.

  Measured: 1.91 tokens per pass, 1.31x (gsm8k)

  Args:
    nodes: the root and the tokens drafted in a branch, D = nodes - 1.
    longest: n-gram length that counts as a full match.
    shortest: matches shorter than this are not used.
    per_match: tokens drafted for each token that matched, as in suffix decoding (Oliaro et al.
      2024, arXiv 2411.04975); 0 drafts D whatever matched.
    branches: of the best occurrences that differ in the next token, how many are copied.
  """
  depth = nodes - 1
  if not 1 <= shortest <= longest or nodes < 2:
    raise ValueError(
      f"`nodes` must be at least 2 and `shortest` between 1 and `longest`, got nodes={nodes}, "
      f"shortest={shortest} and longest={longest}."
    )
  if per_match < 0:
    raise ValueError(f"`per_match` must be at least 0 tokens, got {per_match}.")
  if branches < 1:
    raise ValueError(f"`branches` must be at least 1, got {branches}.")

  def draft(params: Params, context: Context) -> Draft:
    tokens, length = context.tokens, context.length
    S = tokens.shape[1]
    matched = suffix_match(tokens, length, longest)
    step = jnp.arange(depth, dtype=jnp.int32)[None]
    chains = []
    for branch in range(branches):
      score = matched * S + jnp.arange(S, dtype=jnp.int32)[None]
      best = jnp.argmax(score, 1).astype(jnp.int32)[:, None]
      sure = gather(matched, best)
      found = sure >= shortest
      best = jnp.where(found, best, 0)
      period = jnp.maximum(length[:, None] - 1 - best, 1)
      copied = gather(tokens, best + 1 + step % period)
      valid = found & (step < (per_match * sure if per_match else depth))
      nodes = jnp.concatenate([context.root, copied], 1)
      chains.append(chain(nodes, jnp.pad(valid, ((0, 0), (1, 0)), constant_values=True)))
      if branch + 1 < branches:
        following = jnp.pad(tokens[:, 1:], ((0, 0), (0, 1)))
        matched = jnp.where(following == gather(following, best), 0, matched)
    return chains[0] if branches == 1 else side_by_side(chains)

  def expects(params: Params, context: Context, draft: Draft) -> Array:
    matched = suffix_match(context.tokens, context.length, longest)
    first = draft._replace(tokens=draft.tokens[:, : depth + 1], valid=draft.valid[:, : depth + 1])
    return expected(context.tokens, context.length, matched, first)

  drafter = from_draft("prompt_lookup", 1 + branches * depth, depth, draft)
  return drafter._replace(expects=expects)
