"""JSON Schemas and grammars: masks of every node, the same texts with drafts, and bad ones."""

import dataclasses
import datetime
import json
import re
import sys

import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest
import tokenizers
from cut import cut

from specjax.data.json_schemas import samples
from specjax.data.tokenizer import Tokenizer
from specjax.decoding.decoder import Decoder
from specjax.processors.grammar import Said, say, unpacked
from specjax.processors.matchers import Matchers
from specjax.processors.schemas import OWN, of_json_schema, of_lark
from specjax.serving.engine import Engine

MODEL = cut()
QUESTIONS = [
  MODEL.chat("A baker sells 12 loaves a day at 3 dollars each. How much does he earn in 5 days?"),
  MODEL.chat("Tom has 7 apples and buys 4 more. How many does he have?"),
]
COMPACT = {"whitespace_flexible": False}
SCHEMA = {
  "type": "object", "x-guidance": COMPACT, "additionalProperties": False,
  "properties": {
    "unit": {"enum": ["dollars", "apples"]}, "count": {"type": "integer", "maximum": 99},
    "sure": {"type": "boolean"},
  },
  "required": ["unit", "count", "sure"],
}  # fmt: skip

WORDY = {
  **SCHEMA, "required": ["why", *SCHEMA["required"]],
  "properties": {"why": {"type": "string", "maxLength": 60}, **SCHEMA["properties"]},
}  # fmt: skip

# --- Masks, against a language that is a list

TEXTS = ("ab", "abba", "bb", "abbab", "b")
PIECES = ("a", "b", "ab", "bb", "ba", "c")
STOP, SPARE, V = 6, 8, 40  # a second id that ends; the vocabulary is larger than the tokenizer's


def letters() -> Tokenizer:
  inner = tokenizers.Tokenizer(
    tokenizers.models.BPE({x: i for i, x in enumerate((*PIECES, "<|end|>", "<|other|>"))}, [])
  )
  inner.add_special_tokens(["<|end|>", "<|other|>"])
  return Tokenizer(inner)


MATCHERS = Matchers(letters(), V, (STOP, SPARE))


@pytest.fixture
def lark(tmp_path):
  path = tmp_path / "texts.lark"
  path.write_text("start: " + " | ".join(f'"{text}"' for text in TEXTS))
  return str(path)


def allowed(ids) -> set[int]:
  """What may follow ids: anything behind the end, only the end where they begin no text."""
  if STOP in ids:
    return set(range(V))
  said = "".join(PIECES[i] for i in ids)
  if not any(text.startswith(said) for text in TEXTS):
    return {STOP, SPARE}
  pieces = {i for i, x in enumerate(PIECES) if any(t.startswith(said + x) for t in TEXTS)}
  return pieces | ({STOP, SPARE} if said in TEXTS else set())


def test_masks_of_random_trees(lark):
  rng = np.random.default_rng(0)
  B, N, free, reached = 8, 12, 5, 0
  rules = np.repeat(np.asarray(of_lark(lark, MATCHERS))[None], B, 0)
  rules[free] = 0  # a row without a grammar among the others
  text = rng.integers(0, 5, size=(B, 6)).astype(np.int32)
  text[:3] = [0, 1, 4, 1, 0, 0]  # a b ba b
  for length in ([0, 1, 2, 3, 0, 1, 1, 2], [1, 2, 3, 4, 0, 1, 2, 2], [4, 2, 1, 4, 1, 2, 3, 0]):
    tokens = rng.choice([0, 1, 2, 3, 4, 5, STOP], size=(B, N)).astype(np.int32)
    parent = np.array([[0, *(rng.integers(0, i) for i in range(1, N))] for _ in range(B)])
    valid = rng.random((B, N)) < 0.9
    valid[:, 0] = True
    arguments = (rules, text, np.array(length), np.full(B, 99), tokens, parent, valid)
    words = MATCHERS.masks(*arguments)
    np.testing.assert_array_equal(words, Matchers(letters(), V, (STOP, SPARE)).masks(*arguments))
    got = np.asarray(unpacked(jnp.asarray(words), V))
    for b in range(B):
      way = {0: text[b, : length[b]].tolist()}
      for node in range(1, N):
        if valid[b, node] and parent[b, node] in way:
          before = way[parent[b, node]]
          if tokens[b, node] in allowed(before) and len(allowed(before)) < V:
            way[node] = [*before, int(tokens[b, node])]
      for node in range(N):
        ruled = node in way and b != free
        expected = allowed(way[node]) if ruled else set(range(V))
        assert set(np.flatnonzero(got[b, node])) == expected, (b, node)
      reached += len(way)
  assert reached > 40


@pytest.mark.parametrize(
  ("said", "left", "expected"),
  [
    ('{"unit":"a', 65, None), ('{"unit":"a', 5, None),  # far from the end; too late
    ('{"unit":"apples","count":7', 12, None), ('{"unit":"apples","count":7', 9, ","),
    ('{"unit":"dollars","count":7,"sure":fa', 4, "lse"), ('{"why":"a \\" 1', 27, '"'),
    ('{"unit":"apples","count":7,"sure":true}', 4, "STOP"),
  ],
)  # fmt: skip
def test_a_text_has_to_end_in_its_budget(said, left, expected):
  matchers = Matchers(MODEL.tokenizer, MODEL.config.vocab_size, MODEL.stop)
  ids = MODEL.tokenizer.encode(said)
  one = np.zeros((1, 1), np.int32)
  grammar = np.asarray(of_json_schema(WORDY if "why" in said else SCHEMA, matchers))[None]
  masks = [
    matchers.masks(grammar, [ids], [len(ids)], [rest], one, one, one == 0) for rest in (left, 999)
  ]
  near, far = (np.flatnonzero(unpacked(jnp.asarray(x[0, 0]), 512)) for x in masks)
  if expected is None:
    assert near.tolist() == far.tolist()
  elif expected == "STOP":
    assert set(near) == set(MODEL.stop)
  else:
    (token,) = near
    assert expected.startswith(MODEL.tokenizer.decode([token])) and token in far


def test_what_is_said_is_appended():
  said = Said(jnp.array([[7, 0, 0], [0, 0, 0], [5, 6, 0]]), jnp.array([1, 0, 2]))
  said = say(said, jnp.array([[8, 9], [1, 2], [3, 4]]), jnp.array([2, 0, 1]))
  np.testing.assert_array_equal(said.tokens, [[7, 8, 9], [0, 0, 0], [5, 6, 3]])
  np.testing.assert_array_equal(said.length, [3, 0, 3])


def test_what_is_forced(lark):
  matchers = Matchers(MODEL.tokenizer, MODEL.config.vocab_size, MODEL.stop)
  grammar = of_json_schema(SCHEMA, matchers)

  def forced(said: str, depth: int = 12) -> str:
    ids = MODEL.tokenizer.encode(said) or [0]
    text, length = np.array([ids], np.int32), np.array([len(ids) if said else 0])
    (row,) = matchers.forced(grammar, text, length, depth)
    assert (np.diff((row < 0).astype(int)) >= 0).all()
    return "".join(
      "." if i in MODEL.stop else MODEL.tokenizer.decode([i]) for i in row.tolist() if i >= 0
    )

  whole = '{"unit":"apples","count":7,"sure":true}'
  assert whole.startswith(forced("")) and len(forced("")) > 5
  assert forced('{"unit":"a').startswith("pples") and forced('{"unit":"a', 0) == ""
  assert forced('{"unit":"apples","count":7') == "" and forced(whole) == "."
  assert forced('{"units') == ""


# --- Texts

FORMATS = jsonschema.FormatChecker()  # whose times are those of draft 3, without an offset
FORMATS.checks("time", ValueError)(
  lambda text: datetime.time.fromisoformat(text).tzinfo is not None
)


@pytest.mark.slow
@pytest.mark.full(but=["eagle-0.8", "forced*-0.0"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafter", ["prompt_lookup", "eagle", "forced-12[{}]|eagle-8"])
def test_drafts_change_nothing(drafter, temperature):
  name = drafter.replace("{}", json.dumps(WORDY))
  plain, drafted = (
    Decoder(MODEL, x, "target_only", temperature=temperature, batch=2, json_schema=WORDY)
    for x in ("none", name)
  )
  for a, b in zip(plain(QUESTIONS, 80), drafted(QUESTIONS, 80), strict=True):
    assert a.tokens == b.tokens and a.tokens[-1] in MODEL.stop
    np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-4)
    said = json.loads(a.text)
    assert list(said) == WORDY["required"] and said["count"] <= 99
    assert b.passes < a.passes / (2 if "forced" in name else 1)


@pytest.mark.slow
@pytest.mark.full(but=["0.0"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_end_in_their_budget(temperature):
  """A model that knows nothing of JSON: a grammar alone leaves most of these texts cut."""
  some = [sample for sample in samples(50) if sample.kind != "nested"][::2]
  texts = []
  for drafter in ("none", "prompt_lookup-4"):
    decoder = Decoder(MODEL, drafter, "target_only", temperature=temperature, batch=4,
                      processors=["json_schema"])  # fmt: skip
    with Engine(decoder, max_length=256) as engine:
      tickets = [engine.submit(QUESTIONS[0], 90, json_schema=x.schema) for x in some]
      texts.append([ticket.wait() for ticket in tickets])
  assert texts[0] == texts[1] and max(map(len, texts[0])) > 64
  for sample, text in zip(some, texts[0], strict=True):
    assert text[-1] in MODEL.stop
    check = jsonschema.Draft202012Validator(sample.schema, format_checker=FORMATS)
    check.validate(json.loads(MODEL.decode(text)))


def test_another_schema_needs_no_other_loop():
  schemas = [SCHEMA, {**SCHEMA, "required": ["unit"]}]
  one, two = (Decoder(MODEL, json_schema=schema) for schema in schemas)
  assert one.method == two.method and one.method.processors
  assert [x.shape for x in one._processors] == [x.shape for x in two._processors]


@pytest.mark.slow
@pytest.mark.full(but=["0.0"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_each_request_of_an_engine_brings_its_own(temperature):
  """Rows of two schemas and of none, in any company, say what decoders of their own say."""
  asked = [SCHEMA, None, {**SCHEMA, "required": ["unit"]}, None, SCHEMA]
  settings = {"temperature": temperature, "seed": 3}
  expected = [
    Decoder(MODEL, "none", "target_only", json_schema=own, **settings)([QUESTIONS[0]], 40)[0]
    for own in asked
  ]
  served = Decoder(MODEL, "eagle-8", "target_only", batch=2, processors=["json_schema"], **settings)
  with Engine(served, max_length=256) as engine:
    tickets = [engine.submit(QUESTIONS[0], 40, json_schema=own) for own in asked]
    for ticket, own, alone in zip(tickets, asked, expected, strict=True):
      assert ticket.wait() == alone.tokens
      if own:
        assert {*own["required"]} <= {*json.loads(alone.text)}
    long = {**SCHEMA, "properties": {**SCHEMA["properties"], "x": {"enum": ["a" * OWN]}}}
    for bad, message in (
      (
        long,
        'json_schema\\[\'\\{"type": "object", "x-guidance":.*got '
        r"16703\.",
      ),
      ({"type": "foo"}, "Invalid type"),
    ):
      with pytest.raises(ValueError, match=message):
        engine.submit(QUESTIONS[0], json_schema=bad)
  with pytest.raises(
    ValueError,
    match=(r"`json_schema` must be left out of a decoder without processors=\['json_schema'\]\."),
  ):
    Decoder(MODEL).processors_with(SCHEMA)


# --- Bad input

STOPLESS = dataclasses.replace(MODEL, stop=())
MUTE = dataclasses.replace(MODEL, tokenizer=None)


@pytest.mark.parametrize(
  ("model", "settings", "message"),
  [
    (MODEL, {"json_schema": '{"type": '}, "no JSON"),
    (MODEL, {"json_schema": "absent.json"}, "json_schema['absent.json'] must name a file of text"),
    (MODEL, {"json_schema": {"type": "foo"}}, "Invalid type: foo"),
    (MUTE, {"processors": ["json_schema"]}, "json_schema[TEXT]"),
    (
      MODEL,
      {"processors": ["grammar[absent.lark]"]},
      "grammar['absent.lark'] must name a file of text",
    ),
    (MODEL, {"drafter": "forced-8"}, "forced[SCHEMA]"),
    (
      MODEL,
      {"drafter": "forced-1[{}]"},
      "must have between 2 and 4096 nodes, or be 'none', got 'forced-1[{}]'",
    ),
    (MUTE, {"json_schema": SCHEMA}, "has no tokenizer"),
    (MUTE, {"drafter": "forced-8[{}]"}, "has no tokenizer"),
    (STOPLESS, {"json_schema": SCHEMA}, "a token that ends the text"),
  ],
)
def test_bad_settings(model, settings, message):
  with pytest.raises(ValueError, match=re.escape(message)) as error:
    Decoder(model, **settings)
  assert "\n" not in str(error.value)


def test_bad_grammars(tmp_path):
  for text, message in (('start: "a" foo', "unknown name"), ('start: "x"', "no text of this form")):
    path = tmp_path / "bad.lark"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
      of_lark(str(path), MATCHERS)
    assert "\n" not in str(error.value)


def test_the_engine_may_be_absent(monkeypatch):
  monkeypatch.setitem(sys.modules, "llguidance", None)
  with pytest.raises(ValueError, match=re.escape("pip install specjax[grammar]")):
    Matchers(letters(), V, (STOP,))
