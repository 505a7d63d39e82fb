"""Processors of the target's logits from names."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import checks
from specjax.base import Params, Processor
from specjax.data.tokenizer import Tokenizer
from specjax.names import grammar as spec
from specjax.names.grammar import Part
from specjax.names.load import Model
from specjax.processors import (
  PROCESSORS,
  Momentum,
  Penalties,
  constraint,
  grammar,
  momentum,
  penalties,
  schemas,
  stop_text,
  text,
)
from specjax.processors.matchers import Matchers, matchers

BIAS = 100.0  # the most that a logit is changed, as at OpenAI


class Form(Protocol):
  """The texts that a processor allows, on the host.

  `too_long` gives the tokens of a shortest text if they are more than a budget; `closing` the first
  place of a text at which its budget forbade a token that the form allows.
  """

  def too_long(self, budget: int) -> int | None: ...
  def closing(self, tokens: Sequence[int], budget: int) -> int | None: ...


class GrammarForm(NamedTuple):
  """Of a grammar u8[G]."""

  own: Matchers
  rules: Array

  def too_long(self, budget: int) -> int | None:
    return self.own.too_long(self.rules, budget)

  def closing(self, tokens: Sequence[int], budget: int) -> int | None:
    return self.own.closing(self.rules, tokens, budget)


class Used(NamedTuple):
  """A processor of a decoder.

  Attributes:
    shown: its name with its text, as one types it.
    form: what texts it allows, if that is known.
  """

  processor: Processor
  params: Params
  shown: str
  form: Form | None = None


Builder = Callable[[Model, Sequence[Part], tuple[int, ...]], list[Used]]


def parameters(name: str) -> dict[str, spec.Number | None]:
  """What the numbers of a processor's name set."""
  return spec.parameters(*NUMBERS.get(name, ()))


def build_processors(
  model: Model,
  given: Sequence[Any],
  regex: str | None,
  json_schema: str | Mapping | None,
  stop: Sequence[int],
  stop_words: Sequence[str],
) -> tuple[list[Used], list[str], tuple[int, ...]]:
  """The processors, and the words and all the ids that end a text.

  Args:
    given: names, Processors, or pairs of one and its params.
    regex, json_schema, stop_words: the texts of one more `constraint`, of one more `json_schema`
      and of more `stop_text`.
    stop: ids that end a text; a word that is a special token, which no text shows, becomes one.

  Raises:
    ValueError: a text for a model without a tokenizer; see also `processors.text` and
      `processors.schemas`.
  """
  used: list[Used] = []
  parts = [Part("stop_text", text=word) for word in stop_words]
  parts += [Part("constraint", text=regex)] if regex is not None else []
  if json_schema is not None:
    schema = json_schema if isinstance(json_schema, str) else json.dumps(json_schema)
    parts.append(Part("json_schema", text=schema))
  for one in given:
    if isinstance(one, str):
      parts += spec.parse("processors", one)
    else:
      own_processor, params = spec.with_weights("processors", one, Processor)
      used.append(Used(own_processor, params, own_processor.name))
  of_name: dict[str, list[Part]] = {}
  for part in parts:
    spec.look_up("processors", part, PROCESSORS)
    of_name.setdefault(part.name, []).append(part)
  words = [part.text for part in of_name.get("stop_text", ()) if part.text is not None]
  if words and model.tokenizer is not None:
    stop = (*stop, *model.tokenizer.special_ids("stop_words", words))
  for name, same in of_name.items():
    used += BUILDERS[name](model, same, tuple(stop))
  return used, words, tuple(stop)


def _penalties(model: Model, part: Part, stop: tuple[int, ...]) -> Used:
  name, numbers = spec.bind("processors", part, parameters(part.name))
  bias: Any = {} if part.text is None else checks.parse_json(part.text, f"processors={name!r}")
  try:
    params = penalties_of(model, Penalties(**numbers, bias=bias), stop)
  except ValueError as error:
    raise ValueError(f"processors={name!r}: {error}") from None
  return Used(penalties(model.config.vocab_size), params, name)


def penalties_of(model: Model, given: Penalties, stop: Sequence[int]) -> Penalties:
  """The params of one row.

  Args:
    given: strengths as numbers; its `bias` maps ids, which JSON writes as text, to numbers.
    stop: the tokens that `min_tokens` forbids.

  Raises:
    ValueError: a number or an id that is not accepted.
  """
  if not given.repetition > 0:
    raise ValueError("repetition is above 0; 1 is off.")
  checks.number("presence", given.presence)
  checks.number("frequency", given.frequency)
  checks.whole("min_tokens", given.min_tokens)
  V = model.config.vocab_size
  bias, forbidden = np.zeros((1, V), np.float32), np.zeros((1, V), bool)
  named = {} if given.bias is None else given.bias
  if not isinstance(named, Mapping):
    checks.refuse("logit_bias", named, "an object of ids and numbers")
  for key, value in named.items():
    token = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key
    token = checks.whole("a token of logit_bias", token, 0, V - 1)
    bias[0, token] = checks.number(f"logit_bias[{token}]", value, -BIAS, BIAS)
  forbidden[0, list(stop)] = True
  repetition, presence, frequency = (jnp.full(1, x, jnp.float32) for x in given[:3])
  least = jnp.full(1, given.min_tokens, jnp.int32)
  return Penalties(
    repetition, presence, frequency, least, jnp.asarray(bias), jnp.asarray(forbidden)
  )


def _momentum(model: Model, part: Part, stop: tuple[int, ...]) -> Used:
  name, numbers = spec.bind("processors", part, parameters(part.name))
  given_alpha = {k: numbers.pop(k) for k in Momentum._fields if k in numbers}
  for count in numbers.values():
    checks.whole(f"processors={name!r}: candidates", count, 1, model.config.vocab_size)
  alpha = Momentum(jnp.full(1, Momentum(**given_alpha).alpha, jnp.float32))
  return Used(momentum(**numbers), alpha, name)


def _json_schema(model: Model, part: Part, stop: tuple[int, ...]) -> Used:
  """Without a schema, every request of an engine brings its own."""
  if part.text is not None or model.tokenizer is None:
    return _of_grammar(model, part, stop, schemas.of_json_schema)
  name, _ = spec.bind("processors", part, parameters(part.name))
  own = matchers(model.tokenizer, model.config.vocab_size, stop)
  return Used(grammar(own.masks), schemas.none(), name)


def _lark(model: Model, part: Part, stop: tuple[int, ...]) -> Used:
  return _of_grammar(model, part, stop, schemas.of_lark)


def _of_grammar(
  model: Model, part: Part, stop: tuple[int, ...], read: Callable[[str, Matchers], Array]
) -> Used:
  name, given, tokenizer = _text_of(model, part)
  own = matchers(tokenizer, model.config.vocab_size, stop)
  rules = read(given, own)
  return Used(grammar(own.masks), rules, name, GrammarForm(own, rules))


def _constraint(model: Model, part: Part, stop: tuple[int, ...]) -> Used:
  name, regex, tokenizer = _text_of(model, part)
  regular = text.measured(text.of_regex(regex, tokenizer, model.config.vocab_size, stop))
  return Used(constraint(), regular, name, text.RegexForm(regular))


def _stop_text(model: Model, parts: Sequence[Part], stop: tuple[int, ...]) -> list[Used]:
  """One processor for all words."""
  read = [_text_of(model, part) for part in parts]
  words, tokenizer = [word for _, word, _ in read], read[0][2]
  ending = text.of_stop_words(words, tokenizer, model.config.vocab_size)
  return [Used(stop_text(), ending, "stop_text")]


def _text_of(model: Model, part: Part) -> tuple[str, str, Tokenizer]:
  """(canonical name, the text in the brackets, the model's tokenizer)."""
  name, _ = spec.bind("processors", part, parameters(part.name))
  if part.text is None:
    raise ValueError(f"processors={name!r}: it needs text, {name}[TEXT].")
  if model.tokenizer is None:
    raise ValueError(
      f"processors={name!r}: {model.name} has no tokenizer; use stop, which takes ids."
    )
  return name, part.text, model.tokenizer


def _each(build: Callable[[Model, Part, tuple[int, ...]], Used]) -> Builder:
  return lambda model, parts, stop: [build(model, part, stop) for part in parts]


# How the processors are built from all parts of a name, and what the numbers of the name set.
BUILDERS: dict[str, Builder] = {
  "penalties": _each(_penalties), "momentum": _each(_momentum), "constraint": _each(_constraint),
  "json_schema": _each(_json_schema), "grammar": _each(_lark), "stop_text": _stop_text,
}  # fmt: skip
NUMBERS: dict[str, tuple[Callable, ...]] = {
  "penalties": (Penalties,),
  "momentum": (Momentum, momentum),
}


def with_schema(
  model: Model, used: Sequence[Used], json_schema: str | Mapping[str, Any], stop: Sequence[int]
) -> list[Used]:
  """The processors `used`, with this schema in place of what their grammar has.

  Raises:
    ValueError: there is no grammar among them, or the schema is not accepted.
  """
  names = [one.processor.name for one in used]
  if "grammar" not in names or model.tokenizer is None:
    raise ValueError("json_schema: accepted by a decoder with processors=['json_schema'].")
  i = names.index("grammar")
  own = matchers(model.tokenizer, model.config.vocab_size, tuple(stop))
  rules = schemas.of_json_schema(json_schema, own, used[i].params.size)
  mine = used[i]._replace(params=rules, form=GrammarForm(own, rules))
  return [*used[:i], mine, *used[i + 1 :]]


def with_penalties(
  model: Model, used: Sequence[Used], given: Penalties, stop: Sequence[int]
) -> list[Used]:
  """The processors `used`, with these numbers in place of what their penalties have.

  Args:
    given, stop: see `penalties_of`.

  Raises:
    ValueError: there are no penalties among them, stop words may end a text before `min_tokens`,
      or a number is not accepted.
  """
  names = [one.processor.name for one in used]
  if "penalties" not in names:
    raise ValueError("penalties: accepted by a decoder with processors=['penalties'].")
  if given.min_tokens and "stop_text" in names:
    checks.refuse("min_tokens", given.min_tokens, "only 0 beside stop words of the decoder's own")
  i = names.index("penalties")
  mine = used[i]._replace(params=penalties_of(model, given, stop))
  return [*used[:i], mine, *used[i + 1 :]]


def least_budget(used: Sequence[Used]) -> int:
  """The fewest tokens, at least one, into which a text of each form fits."""
  return max((one.form.too_long(1) or 1 for one in used if one.form is not None), default=1)


def check_budgets(used: Sequence[Used], budgets: Sequence[int]) -> None:
  """Raises ValueError for a budget of tokens into which no text of a form fits."""
  for budget, one in itertools.product(budgets, used):
    if one.form is not None and (least := one.form.too_long(budget)) is not None:
      raise ValueError(
        f"max_new_tokens={budget}: accepted with {one.shown} is {least} or more, "
        "the tokens of its shortest text."
      )


def closing(used: Sequence[Used], tokens: Sequence[int], budget: int) -> int | None:
  """The first of new tokens before which the budget forbade what a form allows, if any."""
  forms = [one.form for one in used if one.form is not None]
  places = [form.closing(tokens, budget) for form in forms]
  return min((place for place in places if place is not None), default=None)
