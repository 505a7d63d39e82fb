"""Chat templates in Jinja: what they write and what is trained.

Between [[ and ]] stands what the model must say. Where transformers is installed, ids and masks are
also compared with its own.
"""

import itertools

import pytest
import tokenizers
from chat_families import BYTES, FAMILIES, SYSTEM, TOKENIZERS, TURNS, text_of

from specjax.data.jinja_chat import JinjaTemplate

_THREE = (
  "<|im_start|>user\nWas ist 日本 {{ 7 }}?<|im_end|>\n"
  "<|im_start|>assistant\n[[Ein Land,\n\n  größer 🗾.<|im_end|>]]\n"
  "<|im_start|>user\nassistant\nand {% if %}?<|im_end|>\n<|im_start|>assistant\n[[No.<|im_end|>]]\n"
  "<|im_start|>user\n12 + 30<|im_end|>\n<|im_start|>assistant\n[[= 42<|im_end|>]]\n"
)
GOLDEN = {
  "chatml": "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + _THREE,
  "llama3": (
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWas ist 日本 {{ 7 }}?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n[[Ein Land,\n\n  größer 🗾.<|eot_id|>]]"
    "<|start_header_id|>user<|end_header_id|>\n\nassistant\nand {% if %}?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n[[No.<|eot_id|>]]"
    "<|start_header_id|>user<|end_header_id|>\n\n12 + 30<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n[[= 42<|eot_id|>]]"
  ),
  "mistral": (
    "<s>[INST] Was ist 日本 {{ 7 }}? [/INST][[ Ein Land,\n\n  größer 🗾.</s>]]"
    "[INST] assistant\nand {% if %}? [/INST][[ No.</s>]][INST] 12 + 30 [/INST][[ = 42</s>]]"
  ),
  "qwen": _THREE,
  "gemma": (
    "<bos><start_of_turn>user\nWas ist 日本 {{ 7 }}?<end_of_turn>\n"
    "<start_of_turn>model\n[[Ein Land,\n\n  größer 🗾.<end_of_turn>]]\n"
    "<start_of_turn>user\nassistant\nand {% if %}?<end_of_turn>\n"
    "<start_of_turn>model\n[[No.<end_of_turn>]]\n"
    "<start_of_turn>user\n12 + 30<end_of_turn>\n<start_of_turn>model\n[[= 42<end_of_turn>]]\n"
  ),
  "marked": _THREE,
}
WITH_SYSTEM = {
  "chatml": (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n12 + 30<|im_end|>\n"
    "<|im_start|>assistant\n"
  ),
  "llama3": (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n12 + 30<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
  ),
  "mistral": "<s>[INST] Be brief.\n\n12 + 30 [/INST]",
}
WITH_SYSTEM |= {"qwen": WITH_SYSTEM["chatml"], "marked": WITH_SYSTEM["chatml"]}


def marked(ids, mask) -> str:
  """The text, with [[ ]] around what is trained."""
  assert len(ids) == len(mask)
  text = ""
  for said, group in itertools.groupby(zip(ids, mask, strict=True), key=lambda x: x[1]):
    part = text_of([i for i, _ in group])
    text += f"[[{part}]]" if said else part
  return text


@pytest.mark.parametrize("name", FAMILIES)
def test_the_mask_of_three_turns_is_exact(name):
  assert marked(*FAMILIES[name].encode(BYTES, TURNS)) == GOLDEN[name]


@pytest.mark.parametrize("name", WITH_SYSTEM)
def test_a_system_prompt(name):
  assert text_of(FAMILIES[name].prompt(BYTES, [SYSTEM, TURNS[-2]])) == WITH_SYSTEM[name]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_prompt_is_the_conversation_up_to_the_answer(name, count):
  prompt = FAMILIES[name].prompt(BYTES, TURNS[:count])
  ids, mask = FAMILIES[name].encode(BYTES, TURNS[: count + 1])
  assert ids[: len(prompt)] == prompt
  assert mask[len(prompt)] and not mask[len(prompt) - 1]


def test_nothing_is_put_before_what_the_template_writes():
  """The tokenizer's own first token would be a second one here, and wrong for ChatML."""
  assert BYTES.inner.encode("a").tokens[0] == "<s>"
  for name, first in (("mistral", "<s>"), ("gemma", "<bos>"), ("chatml", "<|im_start|>")):
    ids = FAMILIES[name].prompt(BYTES, TURNS[:1])
    assert BYTES.inner.id_to_token(ids[0]) == first and ids.count(ids[0]) <= 3
    assert ids.count(BYTES.id("<s>")) == (name == "mistral")


# The tokenizer gives white space no offsets of its own.
@pytest.mark.parametrize("content", ["a  \n\n  b", " ", "a \n", "日 本"])
@pytest.mark.parametrize("name", ["chatml", "marked"])
def test_white_space_in_an_answer(name, content):
  turns = [TURNS[0], {"role": "assistant", "content": content}]
  expected = f"<|im_start|>assistant\n[[{content}<|im_end|>]]\n"
  assert marked(*FAMILIES[name].encode(BYTES, turns)).endswith(expected)


def test_thinking_that_is_left_out_later_is_trained_in_the_last_turn_only():
  turns = [turn | {"thinking": "Hm."} if turn["role"] == "assistant" else turn for turn in TURNS]
  text = marked(*FAMILIES["qwen"].encode(BYTES, turns))
  assert text.count("[[") == 1
  assert text.endswith("<|im_start|>assistant\n[[<think>\nHm.\n</think>\n\n= 42<|im_end|>]]\n")


def test_a_token_after_the_last_turn_is_in_no_other():
  source = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + ' ' + m.content + '<|im_end|>' }}"
    "{% endfor %}{{ '<|im_start|>assistant ' if add_generation_prompt else eos_token }}"
  )
  text = marked(*JinjaTemplate(source, "", "<eos>").encode(BYTES, TURNS[2:]))
  assert text == (
    "<|im_start|>user assistant\nand {% if %}?<|im_end|><|im_start|>assistant[[ No.<|im_end|>]]"
    "<|im_start|>user 12 + 30<|im_end|><|im_start|>assistant[[ = 42<|im_end|><eos>]]"
  )


def test_a_template_that_cannot_be_trained_says_so():
  source = "{% for m in messages %}{{ m.content }};{% endfor %}{{ '...' if add_generation_prompt }}"
  template = JinjaTemplate(source)
  assert text_of(template.prompt(BYTES, TURNS[:1])) == "Was ist 日本 {{ 7 }}?;..."
  with pytest.raises(ValueError, match=r"no \{% generation %\}, and .* cannot be trained\.$"):
    template.encode(BYTES, TURNS)
  assert not any(template.encode(BYTES, TURNS[:1])[1])  # a question alone trains nothing


CALL = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
PARTS = {"role": "user", "content": [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]}
DEVELOPER = {"role": "developer", "content": "Be kind."}
LOOP = (
  "{%% for m in messages %%}<{{ m.role }}>%s;{%% endfor %%}"
  "{{ '<assistant>' if add_generation_prompt }}"
)
PLAIN = LOOP % "{{ m.content }}"
ADDED = LOOP % "{{ '' + m.content }}"
CALLING = LOOP % "{{ m.content if m.content is not none else m.tool_calls[0].function.name }}"
PARTED = LOOP % (
  "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}[{{ p.text }}]"
  "{% endfor %}{% endif %}"
)
KNOWING = (
  "{% for m in messages %}{% if m.role in ('user', 'system') %}{{ m.content }};{% endif %}"
  "{% endfor %}"
)
MESSAGES = {
  "a call": (CALLING, CALLS, "<assistant>add;"),
  "a call that is not written": (PLAIN, CALLS, "<assistant>;"),
  "a call beside texts alone": (ADDED, CALLS, "<assistant>;"),
  "a text": (PLAIN, {"role": "user", "content": "None"}, "<user>None;"),
  "parts": (PARTED, PARTS, "<user>[ab][c];"),
  "parts that are no text": (PLAIN, PARTS, "<user>abc;"),
  "parts beside texts alone": (ADDED, PARTS, "<user>abc;"),
  "a developer": (PLAIN, DEVELOPER, "<system>Be kind.;"),
  "a developer who is not heard": (KNOWING, DEVELOPER, "Be kind.;"),
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_are_handed_to_the_template_as_they_are(name):
  source, turn, want = MESSAGES[name]
  question = {"role": "user", "content": "?"}
  asked = JinjaTemplate(source).prompt(BYTES, [question, turn])
  assert want in text_of(asked) and "None;" not in text_of(asked).replace(want, "")


def test_what_is_left_out_later_is_counted():
  turns = [TURNS[0], {"role": "assistant", "content": "<think>Hm.</think>Yes."}, *TURNS[2:4]]
  family = FAMILIES["qwen"]
  said = text_of(family.encode(BYTES, turns)[0])
  lost = "<think>Hm.</think>Yes.<|im_end|>" if "Hm." not in said else ""
  assert family.untrained(BYTES, turns) == len(BYTES.encode(lost))
  assert (
    FAMILIES["chatml"].untrained(BYTES, TURNS) == FAMILIES["marked"].untrained(BYTES, TURNS) == 0
  )


@pytest.fixture(scope="module", params=TOKENIZERS)
def both(request):
  """A tokenizer of ours, and transformers' around a copy of it."""
  transformers = pytest.importorskip("transformers")
  ours = TOKENIZERS[request.param]
  copy = tokenizers.Tokenizer.from_str(ours.inner.to_str())
  return ours, lambda template: transformers.PreTrainedTokenizerFast(
    tokenizer_object=copy, chat_template=template.source, eos_token=template.eos_token or None,
    bos_token=template.bos_token or None,
  )  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_are_those_of_transformers(name, both):
  ours, wrap = both
  theirs, system = wrap(FAMILIES[name]), [SYSTEM] if name in WITH_SYSTEM else []
  for turns in (TURNS[:1], TURNS[:5], system + TURNS[:3], TURNS, system + TURNS[:2]):
    ids = theirs.apply_chat_template(turns, add_generation_prompt=True)["input_ids"]
    assert FAMILIES[name].prompt(ours, turns) == ids
    ids = theirs.apply_chat_template(turns)["input_ids"]
    assert FAMILIES[name].encode(ours, turns)[0] == ids


def test_masks_are_those_of_transformers(both):
  ours, wrap = both
  theirs = wrap(FAMILIES["marked"])
  for turns in (TURNS, [SYSTEM, *TURNS[:2]], TURNS[:5]):
    expected = theirs.apply_chat_template(turns, return_assistant_tokens_mask=True)
    ids, mask = FAMILIES["marked"].encode(ours, turns)
    assert ids == expected["input_ids"] and mask == [bool(m) for m in expected["assistant_masks"]]
    # Without the mark the same is derived from what turns add.
    source = FAMILIES["marked"].source.replace("generation %}", "if true %}", 1)
    bare = JinjaTemplate(source.replace("endgeneration", "endif"), "", "<|im_end|>")
    assert bare.encode(ours, turns) == (ids, mask)


REFUSED = [
  ("mistral", TURNS[1:], "refuses the turns: roles must alternate user/assistant/user/assistant."),
  ("gemma", [SYSTEM, TURNS[0]], "the chat template refuses the turns: System role not supported."),
  ("chatml", [], "the chat template refuses the turns: "),
  ("chatml", "hello", "`turns` must be a list of turns, got 'hello'."),
  ("chatml", [{"role": "user"}], "`turns[0]` must be a dict with the texts role and content, got"),
  ("chatml", [{"role": "user", "content": ["x"]}], "turns[0]: `content` must be text, or parts"),
  ("chatml", [{"role": "user", "content": ["x"]}], ", got ['x']."),
  ("chatml", [{"role": "user", "content": "\udfff"}], "text without lone surrogates"),
]


@pytest.mark.parametrize(("name", "turns", "words"), REFUSED)
def test_refused_turns(name, turns, words):
  for ask in (FAMILIES[name].prompt, FAMILIES[name].encode):
    with pytest.raises(ValueError) as refusal:
      ask(BYTES, turns)
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


EACH = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
NAMED = (
  "{% for m in messages %}{% if m.role == 'user' or m.role == 'assistant' %}{{ m.content | upper }}"
  "{% elif m['role'] in ['tool', 'ipython'] %}{{ m.content | tojson }}{% endif %}{% endfor %}"
)
FIRST = "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}" + NAMED


@pytest.mark.parametrize(("source", "roles"), [
  (EACH, ()), (NAMED, ("tool", "ipython")), (FIRST, ("tool", "ipython")),
  ("{% if messages[0].role != 'developer' %}x{% endif %}" + EACH, ("developer",)),
])  # fmt: skip
def test_roles_are_those_that_a_template_names(source, roles):
  assert JinjaTemplate(source).roles == ("user", "assistant", "system", *roles)


SYSTEM_X, TOOL, USER = ({"role": r, "content": "a"} for r in ("system", "tool", "user"))


@pytest.mark.parametrize(("source", "turns", "left_out"), [
  (EACH, [SYSTEM_X, USER], None), (NAMED, [USER, TOOL], None), (NAMED, [SYSTEM_X, USER], 0),
  (FIRST, [SYSTEM_X, USER], None), (FIRST, [USER, SYSTEM_X], 1),
  (NAMED, [USER | {"content": ""}, SYSTEM_X | {"content": ""}], 1),
])  # fmt: skip
def test_a_turn_that_a_template_leaves_out_is_refused(source, turns, left_out):
  template = JinjaTemplate(source)
  if left_out is None:
    assert template.prompt(BYTES, turns)
    return
  with pytest.raises(ValueError) as refusal:
    template.prompt(BYTES, turns)
  role = turns[left_out]["role"]
  words = f"turns[{left_out}]: role='{role}': the chat template leaves this turn out."
  assert str(refusal.value) == words


def test_a_turn_of_the_user_that_is_left_out_is_said(capsys):
  JinjaTemplate("{{ messages[-1].content }}").prompt(BYTES, [USER | {"content": "b"}, USER])
  said = "turns[0]: role='user': the chat template leaves this turn out.\n"
  assert capsys.readouterr().err == said
