"""Tokens that the brackets of a name point to."""

import jax.numpy as jnp
from jax import Array

from specjax.names import grammar
from specjax.names.grammar import Part
from specjax.names.load import Model


def ends_of(model: Model, part: Part, batch: int) -> dict[str, Array]:
  """The tokens i32[B, M] of a part that holds back the end of a text; nothing for other parts.

  Raises:
    ValueError: a token that the tokenizer does not have, or a model without an end marker.
  """
  if part.name not in ("end_last", "end_suppressed"):
    return {}
  own = model.tokenizer.id(part.text) if model.tokenizer and part.text else None
  ids = model.stop if part.text is None else () if own is None else (own,)
  if not ids:
    wanted = "end marker" if part.text is None else f"token {part.text!r}"
    raise ValueError(f"{grammar.show([part])}: {model.name} has no {wanted}; accepted is the "
                     f"text of a token, as in {part.name}[<|endoftext|>].")  # fmt: skip
  return {"tokens": jnp.tile(jnp.asarray([ids], jnp.int32), (batch, 1))}


def delimiters(model: Model, text: str) -> Array:
  """i32[M], the ids that say the delimiter, with or without a space before it.

  Raises:
    ValueError: a model without a tokenizer, or whose tokens all say something else.
  """
  said = model.tokenizer.spoken_bytes(model.config.vocab_size) if model.tokenizer else []
  ids = [i for i, x in enumerate(said) if x.removeprefix(b" ") == text.encode()]
  if not ids:
    raise ValueError(f"blocks='adaptive[{text}]': {model.name} has no token for the delimiter "
                     f"{text!r}; name another one, as in adaptive-32[.].")  # fmt: skip
  return jnp.asarray(ids, jnp.int32)
