"""Calls of functions: which texts are calls, what is shown before they come, and their schema."""

import dataclasses
import json

import jsonschema
import pytest
import tokenizers

import specjax
from specjax.data.jinja_chat import JinjaTemplate
from specjax.serving.tools import STYLES, Spoken, Tools, parse, read, spoken

HERMES, MISTRAL, LLAMA = STYLES
WEATHER = {
  "type": "function",
  "function": {
    "name": "weather",
    "parameters": {
      "type": "object",
      "properties": {"town": {"type": "string"}},
      "required": ["town"],
    },
  },
}
TIME = {"type": "function", "function": {"name": "time"}}
OFFERED = [WEATHER, TIME]

# (style, whether a call was asked for, an answer, its text, its calls)
ANSWERS = {
  "a call": (
    HERMES, False, '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>', "",
    [("time", {})],
  ),
  "text, then two calls": (
    HERMES, False,
    'Let me look.\n<tool_call>{"name": "weather", "arguments": {"town": "Köln"}}</tool_call>\n'
    '<tool_call>{"name": "time", "arguments": {}}</tool_call>',
    "Let me look.", [("weather", {"town": "Köln"}), ("time", {})],
  ),
  "text": (HERMES, False, "It is 3 < 4, not <tool> {}", "It is 3 < 4, not <tool> {}", []),
  "JSON that no mark makes a call": (
    HERMES, False, '{"name": "time", "arguments": {}}', '{"name": "time", "arguments": {}}', [],
  ),
  "another function": (
    HERMES, False, '<tool_call>{"name": "fly", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "fly", "arguments": {}}</tool_call>', [],
  ),
  "a call that was cut": (
    HERMES, False, 'a <tool_call>{"name": "time", "argu', 'a <tool_call>{"name": "time", "argu', [],
  ),
  "asked for": (HERMES, True, '{"name": "time", "arguments": {"a": 1}}', "", [("time", {"a": 1})]),
  "a list": (
    MISTRAL, False, '[TOOL_CALLS] [{"name": "time", "arguments": {}}]', "", [("time", {})],
  ),
  "a list behind a special token": (
    MISTRAL, False, ' [{"name": "time", "arguments": {}}]', "", [("time", {})],
  ),
  "lists without end": (MISTRAL, False, "[" * 100_000, "[" * 100_000, []),
  "no list of calls": (MISTRAL, False, "[1, 2]", "[1, 2]", []),
  "Llama's": (
    LLAMA, False,
    '{"name": "weather", "parameters": {"town": "x"}}; {"name": "time", "parameters": {}}', "",
    [("weather", {"town": "x"}), ("time", {})],
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_calls_are_read(name):
  style, forced, answer, text, calls = ANSWERS[name]
  tools = Tools(OFFERED, style, forced)
  said, found = parse(answer, tools)
  called = [(x["function"]["name"], json.loads(x["function"]["arguments"])) for x in found]
  assert (said, called) == (text, calls)
  assert len({x["id"] for x in found}) == len(calls)
  assert parse(answer, Tools()) == (answer, [])


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("name", ANSWERS)
def test_a_stream_shows_the_text_alone(name, size):
  style, forced, answer, text, calls = ANSWERS[name]
  spoken = Spoken(Tools(OFFERED, style, forced))
  shown = "".join(spoken.add(answer[i : i + size]) for i in range(0, len(answer), size))
  assert text.startswith(shown)
  rest, found = spoken.end()
  assert (shown + rest, len(found)) == (text, len(calls))


def test_text_is_shown_as_it_comes():
  spoken = Spoken(Tools(OFFERED, HERMES))
  assert [spoken.add(x) for x in ("It is ", "noon. <to", "p> or", " <tool_c")] == [
    "It is", " noon.", " <top> or", "",
  ]  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_the_schema_describes_one_call(style):
  schema = Tools(OFFERED, style, True).schema
  good = {"name": "weather", style.arguments: {"town": "x"}}
  jsonschema.validate(good, schema)
  for bad in ({**good, "name": "time2"}, {**good, style.arguments: {}}, {**good, "more": 1}, []):
    with pytest.raises(jsonschema.ValidationError):
      jsonschema.validate(bad, schema)
  text = json.dumps(good)
  assert [x["function"]["name"] for x in parse(text, Tools(OFFERED, style, True))[1]] == ["weather"]


TEMPLATE = JinjaTemplate(
  "{% if tools %}Tools: {% for t in tools %}{{ t | tojson }} {% endfor %}say <tool_call>\n"
  "{% endif %}{% for m in messages %}{{ 'result' if m.role == 'tool' else m.role }}: "
  "{% if m.tool_calls %}{% for c in m.tool_calls %}"
  "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% else %}{{ m.content }}{% endif %}"
  "\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(scope="module")
def model():
  return dataclasses.replace(specjax.load(), template=TEMPLATE)


@pytest.mark.parametrize(
  ("choice", "names", "forced"),
  [
    ("auto", ["weather", "time"], False),
    ("none", [], False),
    ("required", ["weather", "time"], True),
    ({"type": "function", "function": {"name": "time"}}, ["time"], True),
  ],
)
def test_a_choice(model, choice, names, forced):
  tools = read(model, {"tools": OFFERED, "tool_choice": choice})
  assert (tools.names, tools.forced) == (names, forced)


WRONG = [
  ({"tools": [1]}, r"tools\[0\]"),
  ({"tools": [{"function": {"name": "x"}}]}, r"`tools\[0\]` must be an object of type function"),
  ({"tools": [TIME], "parallel_tool_calls": False}, "`parallel_tool_calls` must be true"),
  ({"tools": [{"type": "function", "function": {"name": 7}}]}, r"tools\[0\].*`name`"),
  ({"tools": [{"type": "custom", "function": {"name": "x"}}]}, r"tools\[0\]"),
  ({"tools": [TIME] * 129}, "up to 128"),
  ({"tools": OFFERED, "tool_choice": "always"}, "tool_choice.*always"),
  ({"tool_choice": "required"}, "tool_choice.*required"),
  (
    {"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "fly"}}},
    "tool_choice.*fly",
  ),
]


@pytest.mark.parametrize(("given", "sentence"), WRONG)
def test_what_is_no_offer_is_refused(model, given, sentence):
  with pytest.raises(ValueError, match=sentence):
    read(model, given)


def test_a_model_that_calls_nothing_refuses():
  with pytest.raises(ValueError, match=r"tools.*calls no tools"):
    read(specjax.load(), {"tools": OFFERED})


def test_a_template_sees_tools_and_calls_as_transformers_shows_them(model):
  transformers = pytest.importorskip("transformers")
  theirs = transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizers.Tokenizer.from_str(model.tokenizer.inner.to_str()),
    chat_template=TEMPLATE.source,
  )
  calls = [{"type": "function", "function": {"name": "time", "arguments": '{"zone": "CET"}'}}]
  turns = [
    {"role": "user", "content": "When?"},
    {"role": "assistant", "content": "", "tool_calls": spoken(calls, "tool_calls")},
    {"role": "tool", "content": "noon", "tool_call_id": "1"},
  ]
  found = theirs.apply_chat_template(
    turns, tools=OFFERED, add_generation_prompt=True, tokenize=False
  )
  assert '"arguments": {"zone": "CET"}' in found
  assert model.tokenizer.decode(model.chat(turns, tools=OFFERED)) == found


def test_a_variable_that_a_template_does_not_read_is_refused(model):
  with pytest.raises(ValueError, match=r"enable_thinking.*reads tools"):
    model.chat("When?", enable_thinking=False)
  with pytest.raises(ValueError, match=r"tools.*reads no variable"):
    specjax.load().chat("When?", tools=OFFERED)
  with pytest.raises(ValueError, match=r"question.*reads tools"):
    model.chat("When?", **{"question": 1})
