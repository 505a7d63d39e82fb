"""Tokens that the brackets of a name point to."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.names import grammar
from specjax.names.grammar import Part
from specjax.names.load import Model


class EachRow(NamedTuple):
  """An array [..] of every row, where [B, ..] is to stand once B is known."""

  value: Array


def tokens_of(model: Model, part: Part) -> dict[str, Array | EachRow]:
  """The argument `tokens` of a part that takes ids from a text; nothing for other parts."""
  return {"tokens": TOKENS[part.name](model, part)} if part.name in TOKENS else {}


def _ends(model: Model, part: Part) -> EachRow:
  """i32[M] of each row: the token in the brackets, or the model's end markers.

  Raises:
    ValueError: a token that the tokenizer does not have, or a model without an end marker.
  """
  own = model.tokenizer.id(part.text) if model.tokenizer and part.text else None
  ids = model.stop if part.text is None else () if own is None else (own,)
  if not ids:
    wanted = "end marker" if part.text is None else f"token {part.text!r}"
    raise ValueError(
      f"{grammar.show([part])}: {model.name} has no {wanted}; name the text of a token, as in "
      f"{part.name}[<|endoftext|>]."
    )
  return EachRow(jnp.asarray(ids, jnp.int32))


def _delimiters(model: Model, part: Part) -> Array:
  """i32[M], the ids that say the delimiter, by default a line break, or it after a space.

  Raises:
    ValueError: a model without a tokenizer, or whose tokens all say something else.
  """
  text = part.text or "\n"
  said = model.tokenizer.spoken_bytes(model.config.vocab_size) if model.tokenizer else []
  ids = [i for i, x in enumerate(said) if x.removeprefix(b" ") == text.encode()]
  if not ids:
    raise ValueError(
      f"blocks='adaptive[{text}]': {model.name} has no token for the delimiter "
      f"{text!r}; name another one, as in adaptive-32[.]."
    )
  return jnp.asarray(ids, jnp.int32)


TOKENS: dict[str, Callable[[Model, Part], Array | EachRow]] = {
  "end_last": _ends,
  "end_suppressed": _ends,
  "adaptive": _delimiters,
}
