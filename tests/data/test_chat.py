"""Loss masks by chat template, and prompts that are prefixes of conversations."""

import itertools

import pytest

from specjax.data.chat import TEMPLATES, with_known_roles
from specjax.data.tokenizer import train_bpe

SPECIAL = [
  "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>",
  "<|eot_id|>", "<|begin_of_text|>",
]  # fmt: skip
SYSTEM = {"role": "system", "content": "Be brief."}
TURNS = [
  {"role": "user", "content": "What is 12 + 30?"},
  {"role": "assistant", "content": "12 + 30 = {42}.\nSo 42 "},
  {"role": "user", "content": "and Answer: \n 7, ASSISTANT: assistant?"},
  {"role": "assistant", "content": "49"},
]

# Between [[ and ]] stands what the model must say.
GOLDEN = {
  "plain": (
    "What is 12 + 30?[[12 + 30 = {42}.\nSo 42 <|end|>]]"
    "and Answer: \n 7, ASSISTANT: assistant?[[49<|end|>]]"
  ),
  "qa": (
    "Question: What is 12 + 30?\nAnswer:[[ 12 + 30 = {42}.\nSo 42 <|end|>]]"
    "Question: and Answer: \n 7, ASSISTANT: assistant?\nAnswer:[[ 49<|end|>]]"
  ),
  "vicuna": (
    "<s>USER: What is 12 + 30? ASSISTANT:[[ 12 + 30 = {42}.\nSo 42 </s>]]"
    "USER: and Answer: \n 7, ASSISTANT: assistant? ASSISTANT:[[ 49</s>]]"
  ),
  "chatml": (
    "<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n"
    "<|im_start|>assistant\n[[12 + 30 = {42}.\nSo 42 <|im_end|>]]\n"
    "<|im_start|>user\nand Answer: \n 7, ASSISTANT: assistant?<|im_end|>\n"
    "<|im_start|>assistant\n[[49<|im_end|>]]\n"
  ),
  "llama3": (
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWhat is 12 + 30?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n[[12 + 30 = {42}.\nSo 42 <|eot_id|>]]"
    "<|start_header_id|>user<|end_header_id|>\n\n"
    "and Answer: \n 7, ASSISTANT: assistant?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n[[49<|eot_id|>]]"
  ),
}
GOLDEN["continued"] = GOLDEN["plain"].replace("[[", "[[ ")
GOLDEN["llada"] = GOLDEN["llama3"].replace("<|begin_of_text|>", "<|startoftext|>")
GOLDEN["dream"] = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + GOLDEN["chatml"]
WITH_SYSTEM = {
  "vicuna": "<s>Be brief. USER: What is 12 + 30? ASSISTANT:",
  "chatml": (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n"
    "<|im_start|>assistant\n"
  ),
  "llama3": (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nWhat is 12 + 30?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
  ),
}


@pytest.fixture(scope="module")
def tokenizer():
  # The headers are in the text, so that merges would run across turns if anything let them.
  words = "Question: Answer: USER: ASSISTANT: user assistant\n\n"
  tokenizer = train_bpe([words + t["content"] for t in TURNS] * 9, 330)
  tokenizer.inner.add_special_tokens(SPECIAL)
  return tokenizer


def text_of(tokenizer, ids) -> str:
  return tokenizer.inner.decode(list(ids), skip_special_tokens=False)


@pytest.mark.parametrize("name", TEMPLATES)
def test_mask_covers_what_the_assistant_says_and_its_end_marker(tokenizer, name):
  ids, mask = TEMPLATES[name].encode(tokenizer, TURNS)
  assert len(ids) == len(mask)
  marked = ""
  for said, group in itertools.groupby(zip(ids, mask, strict=True), key=lambda x: x[1]):
    text = text_of(tokenizer, [i for i, _ in group])
    marked += f"[[{text}]]" if said else text
  assert marked == GOLDEN[name]


@pytest.mark.parametrize("name", TEMPLATES)
def test_end_marker_is_one_masked_token(tokenizer, name):
  ids, mask = TEMPLATES[name].encode(tokenizer, TURNS)
  markers = {"vicuna": "</s>", "chatml": "<|im_end|>", "dream": "<|im_end|>"}
  markers |= dict.fromkeys(("plain", "continued", "qa"), "<|end|>")
  marker = tokenizer.id(markers.get(name, "<|eot_id|>"))
  said_last = [i for i, said, after in zip(ids, mask, [*mask[1:], False], strict=True)
               if said and not after]  # fmt: skip
  assert said_last == [marker] * 2


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("turns", [TURNS[:2], TURNS])
def test_prompt_is_the_conversation_up_to_the_answer(tokenizer, name, turns):
  prompt = TEMPLATES[name].prompt(tokenizer, turns[:-1])
  ids, mask = TEMPLATES[name].encode(tokenizer, turns)
  assert ids[: len(prompt)] == prompt
  assert mask[len(prompt)] and not mask[len(prompt) - 1]


@pytest.mark.parametrize("name", WITH_SYSTEM)
def test_system_turn(tokenizer, name):
  turns = [SYSTEM, TURNS[0]]
  prompt = TEMPLATES[name].prompt(tokenizer, turns)
  assert text_of(tokenizer, prompt) == WITH_SYSTEM[name]
  assert not any(TEMPLATES[name].encode(tokenizer, turns)[1])


def test_roles_that_a_template_lacks_are_refused(tokenizer):
  with pytest.raises(ValueError, match=r"role='system': .* turns of user, assistant\."):
    TEMPLATES["qa"].encode(tokenizer, [SYSTEM])
  with pytest.raises(ValueError, match=r"role='tool': .* turns of user, assistant, system\."):
    TEMPLATES["chatml"].encode(tokenizer, [{"role": "tool", "content": "x"}])


DEVELOPER, SAID = {"role": "developer", "content": "Be kind."}, {"role": "user", "content": "x"}


@pytest.mark.parametrize(("roles", "found"), [
  (("user", "assistant", "system"), "system"), (("user", "developer"), "developer"),
])  # fmt: skip
def test_a_developer_is_the_system_of_a_template_without_one(roles, found):
  turns = [DEVELOPER, SAID | {"name": "Ann"}]
  assert with_known_roles(turns, roles) == [DEVELOPER | {"role": found}, turns[1]]


@pytest.mark.parametrize(("turns", "words"), [
  ([], "`turns` must be a list of one turn or more, got []."),
  ([SAID, DEVELOPER], "turns[1]: role='developer': this template has turns of user, assistant."),
  ([SAID | {"role": "tool"}], "turns[0]: role='tool': this template has turns of user, assistant."),
  ([SAID | {"role": "User"}], "turns[0]: role='User': this template has turns of user, assistant."),
])  # fmt: skip
def test_turns_of_unknown_roles_are_refused(turns, words):
  with pytest.raises(ValueError) as refusal:
    with_known_roles(turns, TEMPLATES["qa"].roles)
  assert str(refusal.value) == words


def test_openais_messages_are_texts(tokenizer):
  """A developer is the system, parts are a text, and a call of a tool is an empty turn."""
  call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
  parts = [{"type": "text", "text": "Be "}, {"type": "text", "text": "x"}]
  turns = [
    {"role": "developer", "content": parts},
    {"role": "user", "content": "7?"}, {"role": "assistant", "content": None, "tool_calls": [call]},
    {"role": "user", "content": "8?"}, {"role": "assistant", "content": "9."},
  ]  # fmt: skip
  ids, mask = TEMPLATES["chatml"].encode(tokenizer, turns)
  assert text_of(tokenizer, ids) == "".join(
    f"<|im_start|>{role}\n{content}<|im_end|>\n"
    for role, content in [("system", "Be x"), ("user", "7?"), ("assistant", ""), ("user", "8?"),
                          ("assistant", "9.")]
  )  # fmt: skip
  said = [i for i, own in zip(ids, mask, strict=True) if own]
  assert text_of(tokenizer, said) == "9.<|im_end|>"
  image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
  with pytest.raises(
    ValueError, match=(r"`type` must be one of text, input_text, output_text, got 'image_url'\.")
  ):
    TEMPLATES["chatml"].encode(tokenizer, [image])
