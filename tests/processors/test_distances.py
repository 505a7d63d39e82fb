"""Ends that fit: languages against the engine, distances and laws against lists of all texts."""

import functools
import itertools
import json
import re

import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest
import tokenizers
from cut import cut

from specjax.data.json_schemas import samples
from specjax.data.tokenizer import Tokenizer
from specjax.decoding.decoder import Decoder
from specjax.decoding.method import method as pair
from specjax.drafters import none
from specjax.processors import constraint, grammar
from specjax.processors.distances import Distances, Vocabulary
from specjax.processors.grammar import unpacked
from specjax.processors.json_texts import Unknown, texts_of
from specjax.processors.languages import NOTHING, Languages
from specjax.processors.matchers import Matchers
from specjax.processors.schemas import of_json_schema
from specjax.processors.text import measured, of_regex
from specjax.testing import (
  Case,
  emitted_distribution,
  fixed_draft,
  random_table,
  table_model,
  target_distribution,
  total_variation,
)
from specjax.verifiers import target_only

MODEL = cut()
V, STOP = MODEL.config.vocab_size, MODEL.stop
CITIES = {"enum": ["Paris", "Rome", "London"]}
OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
LIST = {
  "$defs": {"node": {
    "type": "object", "additionalProperties": False, "required": ["v", "next"],
    "properties": {"v": {"type": "integer"},
                   "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
  }}, "$ref": "#/$defs/node",
}  # fmt: skip
SCHEMAS = {
  **{f"sample {i}": x.schema for i, x in enumerate(samples(30))}, "cities": CITIES, "open": OPEN,
  "list": LIST, "any": {},
  **{f"number {i}": {"type": "number", **x} for i, x in enumerate((
    {"minimum": -3}, {"maximum": 14}, {"minimum": -3, "maximum": 14}, {"exclusiveMinimum": 0},
    {"exclusiveMinimum": 0, "exclusiveMaximum": 1}, {"maximum": -3}, {"minimum": 9},
  ))},
  **{f"integer {i}": {"type": "integer", **x} for i, x in enumerate((
    {}, {"minimum": -20, "maximum": 317}, {"minimum": 88}, {"maximum": -5}, {"minimum": -5},
  ))},
  **{f"string {i}": {"type": "string", **x} for i, x in enumerate((
    {"pattern": "^[0-9]+\\.[0-9]{2}$"}, {"pattern": "^(a|b\")+$"}, {"pattern": "^.{2}x$"},
    {"format": "email"}, {"format": "date-time"}, {"format": "ipv4"}, {"maxLength": 3},
  ))},
  "list of some": {"type": "array", "minItems": 2, "items": {"type": "boolean"}},
  "fields": {"type": "object", "additionalProperties": {"type": "boolean"}, "required": ["z"]},
  "values": {"enum": [1, "a", None, True, [1, "b"], {"c": 2.5}, "caf\u00e9"]},
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_languages_are_those_of_the_engine(name):
  """Byte by byte, on random ways through a text."""
  import llguidance

  schema, languages, rng = SCHEMAS[name], Languages(), np.random.default_rng(0)
  start, bytes_alone = texts_of(schema, languages), llguidance.LLTokenizer("byte")
  given = json.dumps({"grammars": [{"json_schema": schema}]})
  for _ in range(3):
    matcher, state = llguidance.LLMatcher(bytes_alone, given, log_level=0), start
    for _ in range(48):
      words = np.frombuffer(matcher.compute_bitmask(), np.uint8)
      allowed = np.flatnonzero(np.unpackbits(words, bitorder="little")[:256])
      ours = [b for b in range(256) if languages.after(state, b) != NOTHING]
      assert ours == allowed.tolist() and languages.ends(state) == matcher.is_accepting()
      if not ours:
        break
      # Letters are many, and seldom lead further.
      others = [b for b in ours if not chr(b).isalpha()]
      byte = int(rng.choice(others if others and rng.random() < 0.8 else ours))
      state = languages.after(state, byte)
      assert matcher.consume_token(byte)


@pytest.mark.parametrize(
  "schema",
  [{"allOf": [{"type": "integer"}]}, {"type": "string", "format": "uri"},
   {"type": "number", "minimum": 0.5}, {"type": "integer", "multipleOf": 3},
   {"type": "string", "pattern": "a"}, {"enum": [2.0]}, {"$ref": "#"},
   {"type": "array", "items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"not": {}}}}],
)  # fmt: skip
def test_what_is_not_known_is_said(schema):
  with pytest.raises(Unknown):
    texts_of(schema, Languages())


def fewest(text: str, spoken) -> int:
  """Tokens of the shortest spelling of a text."""
  best = [0]
  for end in range(1, len(text) + 1):
    best.append(min(1 + best[end - len(w)] for w in spoken if w and text[:end].endswith(w)))
  return best[-1]


def test_distances_are_those_of_the_shortest_spellings():
  spoken = MODEL.tokenizer.spoken_bytes(V)
  texts = [json.dumps(city) for city in CITIES["enum"]]
  useful = [b.decode() for b in spoken if b and any(b.decode("latin1") in t for t in texts)]
  languages = Languages()
  distances = Distances(languages, texts_of(CITIES, languages), Vocabulary(spoken, STOP))
  for text in texts:
    state = distances.start
    for i, char in enumerate(text):
      rest = [t[i:] for t in texts if t.startswith(text[:i])]
      assert distances.distance(state) == 1 + min(fewest(t, useful) for t in rest)
      state = languages.after(state, ord(char))


@pytest.mark.parametrize(
  ("text", "distance"),
  [("[[[", 2), ('{"a":[{"b":[', 2), ('{"a"', 2), ('["x', 2), ("[1,", 2), ("tr", 2), ("1", 1)],
)
def test_ends_of_values_of_any_form(text, distance):
  """A vocabulary that closes three brackets at once, and says a value with what closes it."""
  words = ["]]]", "]}]}", ":1}", "1]", '"]', "ue", *map(chr, range(32, 127))]
  languages = Languages()
  distances = Distances(
    languages, texts_of({}, languages), Vocabulary([*map(str.encode, words)], [])
  )
  state = functools.reduce(languages.after, text.encode(), distances.start)
  assert distances.distance(state) == distance


def said_at_random(matchers, rules, budget, rng) -> list[int]:
  """A text whose every token is drawn from what is allowed."""
  said: list[int] = []
  one = np.zeros((1, 1), np.int32)
  while len(said) < budget and not set(said) & set(STOP):
    text = np.array([said or [0]], np.int32)
    row = matchers.masks(rules, text, [len(said)], [budget - len(said)], one, one, one == 0)
    allowed = np.flatnonzero(np.asarray(unpacked(jnp.asarray(row[0, 0]), V)))
    said.append(int(rng.choice(allowed)))
  return said


MATCHERS = Matchers(MODEL.tokenizer, V, STOP)


@pytest.mark.full(but=["0", "2", "14", "open", "list"])
@pytest.mark.parametrize("name", [*map(str, range(30)), "open", "list"])
def test_texts_are_whole_in_every_budget_that_holds_one(name):
  schema = samples(30)[int(name)].schema if name.isdigit() else SCHEMAS[name]
  rules, rng = np.asarray(of_json_schema(schema, MATCHERS)), np.random.default_rng(0)
  least = MATCHERS.too_long(rules, 1)
  assert MATCHERS.too_long(rules, least) is None and MATCHERS.too_long(rules, least - 1) == least
  for budget in {least, least + 1, least + 2, least + 9, max(64, least)}:
    said = said_at_random(MATCHERS, rules[None], budget, rng)
    jsonschema.validate(json.loads(MODEL.decode(said)), schema)
    assert said[-1] in STOP or budget == least
    assert budget > least or MATCHERS.closing(rules, said, budget) is not None


# --- Laws, enumerated through the loop


def speech(*words: str) -> Tokenizer:
  inner = tokenizers.Tokenizer(
    tokenizers.models.BPE({word: i for i, word in enumerate([*words, "<|end|>"])}, [])
  )
  inner.add_special_tokens(["<|end|>"])
  return Tokenizer(inner)


def is_json(schema, text: str) -> bool:
  try:
    return jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
  except ValueError:
    return False


TEXTS = {"type": "string", "pattern": "^a[ab]*$", "maxLength": 3}
DIGITS = {"type": "integer", "minimum": 2, "maximum": 221}
WORDS = {"enum": ["a", "bab", "bbb"]}
FORMS = {
  "words": (('"', "a", "b"), WORDS), "strings": (('"', "a", "b"), TEXTS),
  "numbers": (("1", "2", "12"), DIGITS), "regex": (("a", "b", "ab"), "(ab){2}|b"),
}  # fmt: skip
DRAFTS = {"plain": (none(), 3), "tree": (fixed_draft([[0], [1], [0, 0], [1, 2]], [2, 1, 0, 1]), 1)}


@pytest.mark.full(but=["tree-*-short"])
@pytest.mark.parametrize("more", [0, 1, 2], ids=["short", "shorter than some", "longer"])
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("draft", DRAFTS)
def test_the_law_is_that_of_what_fits(draft, name, more):
  """A token is allowed if a text within the budget goes on with it; all are tried."""
  (words, form), (drafter, rounds) = FORMS[name], DRAFTS[draft]
  size, end = len(words) + 1, len(words)
  if name == "regex":
    params = measured(of_regex(form, speech(*words), size, (end,)))
    called, matches = constraint(), functools.partial(re.fullmatch, form)
  else:
    own = Matchers(speech(*words), size, (end,))
    params, called = of_json_schema(form, own), grammar(own.masks)
    matches = functools.partial(is_json, form)
  every = (t for n in range(7) for t in itertools.product(range(end), repeat=n))
  texts = [(*t, end) for t in every if matches("".join(words[i] for i in t))]
  budget = min(map(len, texts)) + more
  texts = [t for t in texts if len(t) <= budget]

  def fitting(logits, tokens):
    allowed = [any(t[: len(tokens) + 1] == (*tokens, i) for t in texts) for i in range(size)]
    return np.where(allowed, logits, -np.inf) if any(allowed) else logits

  for seed in range(2):
    case = Case(
      np.asarray(random_table(seed, size)["logits"]), length=budget, temperature=0.8, stop=(end,),
      budget=budget, processors=lambda B: (params,), processed=fitting,
    )  # fmt: skip
    way = pair(table_model(size), drafter, target_only(), (called,))
    got = emitted_distribution(case, way, rounds=rounds)
    assert total_variation(got, target_distribution(case)) < 1e-6


# --- Texts of a model


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"json_schema": CITIES}, {"regex": "Paris|Rome|London"}])
def test_the_choice_is_the_models_own(settings):
  decoder = Decoder(MODEL, **settings)
  prompts = ["It is ", "the", "Hello", "2 + 2 = "]
  free, near = decoder(prompts, 128), decoder(prompts, 16)
  assert [r.tokens for r in near] == [r.tokens for r in free]
  if "regex" not in settings:
    assert len({r.text for r in free}) > 1
  assert all(r.closing is None for r in [*free, *near])
  for r in decoder(prompts, decoder.least_budget):
    assert r.text.strip('"') == "Rome" and r.closing is not None
  drafted = Decoder(MODEL, "prompt_lookup", **settings)
  tight = decoder.least_budget + 1
  assert [r.tokens for r in drafted(prompts, tight)] == [r.tokens for r in decoder(prompts, tight)]
