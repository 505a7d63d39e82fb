"""Processors of the target's logits from names."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from specjax import checks
from specjax.base import Params, Processor
from specjax.decoding import spec
from specjax.decoding.model import Model
from specjax.decoding.spec import Part
from specjax.processors import PROCESSORS, Momentum, Penalties, momentum, schemas, text
from specjax.processors.matchers import Matchers, matchers

GRAMMARS: dict[str, Callable[[str, Matchers], Array]] = {
  "json_schema": schemas.of_json_schema, "grammar": schemas.of_lark,
}  # fmt: skip


def knobs(name: str) -> dict[str, spec.Number | None]:
  """What the numbers of a processor's name set."""
  if name == "momentum":
    return spec.knobs(Momentum, momentum)
  return spec.knobs(Penalties) if name == "penalties" else {}


def build_processors(
  model: Model, given: Sequence[Any], regex: str | None, json_schema: str | Mapping | None,
  stop: Sequence[int], stop_words: Sequence[str],
) -> tuple[list[tuple[Processor, Params]], list[str]]:  # fmt: skip
  """The processors with their params, and the words that end a text.

  Args:
    given: names, Processors, or pairs of one and its params.
    regex, json_schema, stop_words: the texts of one more `constraint`, of one more `json_schema`
      and of more `stop_text`.
    stop: ids that end a text.

  Raises:
    ValueError: a text for a model without a tokenizer; see also `processors.text` and
      `processors.schemas`.
  """
  V = model.config.vocab_size
  used: list[tuple[Processor, Params]] = []
  parts = [Part("stop_text", text=word) for word in stop_words]
  parts += [Part("constraint", text=regex)] if regex is not None else []
  if json_schema is not None:
    schema = json_schema if isinstance(json_schema, str) else json.dumps(json_schema)
    parts.append(Part("json_schema", text=schema))
  for one in given:
    if isinstance(one, str):
      parts += spec.parse("processors", one)
    else:
      used.append(spec.with_weights("processors", one, Processor))
  words = []
  for part in parts:
    builder = spec.look_up("processors", part, PROCESSORS)
    name, numbers = spec.settle("processors", part, knobs(part.name))
    if part.name == "penalties":
      strength = Penalties(**numbers)
      if strength.repetition <= 0:
        raise ValueError(f"processors={name!r}: repetition is above 0; 1 is off.")
      used.append((builder(V), Penalties(*(jnp.full(1, x, jnp.float32) for x in strength))))
    elif part.name == "momentum":
      given_alpha = {k: numbers.pop(k) for k in Momentum._fields if k in numbers}
      for count in numbers.values():
        checks.whole(f"processors={name!r}: candidates", count, 1, V)
      alpha = Momentum(**given_alpha).alpha
      used.append((builder(**numbers), Momentum(jnp.full(1, alpha, jnp.float32))))
    elif part.name == "json_schema" and part.text is None and model.tokenizer is not None:
      # Every request of an engine brings its own.
      used.append((builder(matchers(model.tokenizer, V, tuple(stop)).masks), schemas.none()))
    elif part.text is None:
      raise ValueError(f"processors={name!r}: it needs text, {name}[TEXT].")
    elif model.tokenizer is None:
      raise ValueError(f"processors={name!r}: {model.name} has no tokenizer; use stop, which takes "
                       "ids.")  # fmt: skip
    elif part.name in GRAMMARS:
      own = matchers(model.tokenizer, V, tuple(stop))
      used.append((builder(own.masks), GRAMMARS[part.name](part.text, own)))
    elif part.name == "stop_text":
      words.append(part.text)
    else:
      used.append((builder(), text.of_regex(part.text, model.tokenizer, V, stop)))
  if words and model.tokenizer is not None:
    used.append((PROCESSORS["stop_text"](), text.of_stop_words(words, model.tokenizer, V)))
  return used, words


def with_schema(
  model: Model, used: Sequence[Processor], params: Sequence[Params],
  json_schema: str | Mapping[str, Any], stop: Sequence[int],
) -> tuple[Params, ...]:  # fmt: skip
  """The params of the processors `used`, with this schema in place of what their grammar has.

  Raises:
    ValueError: there is no grammar among them, or the schema is not accepted.
  """
  names = [p.name for p in used]
  if "grammar" not in names or model.tokenizer is None:
    raise ValueError("json_schema: accepted by a decoder with processors=['json_schema'].")
  i = names.index("grammar")
  own = matchers(model.tokenizer, model.config.vocab_size, tuple(stop))
  rules = schemas.of_json_schema(json_schema, own, params[i].size)
  return (*params[:i], rules, *params[i + 1 :])
