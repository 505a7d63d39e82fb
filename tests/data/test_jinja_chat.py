"""Chat templates in Jinja: what they write, what is trained, and what they may not do.

The templates are short ones in the published formats. Between [[ and ]] stands what the model must
say; where transformers is installed, ids and masks are also compared with its own.
"""

import itertools

import pytest
import tokenizers
from tokenizers import normalizers, pre_tokenizers, processors

from specjax.data.jinja_chat import JinjaTemplate
from specjax.data.tokenizer import Tokenizer, train_bpe

CHATML = """\
{%- if messages[0]['role'] != 'system' %}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA3 = """\
{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' \
+ message['content'] | trim + '<|eot_id|>' %}\
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}\
{% endfor %}{% if add_generation_prompt %}\
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system = messages[0]["content"] + "\\n\\n" %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set system, turns = "", messages %}
{%- endif %}
{{- bos_token }}
{%- for turn in turns %}
    {%- if (turn["role"] == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("roles must alternate user/assistant/user/assistant") }}
    {%- endif %}
    {%- if turn["role"] == "user" %}
        {{- "[INST] " + (system if loop.first else "") + turn["content"] + " [/INST]" }}
    {%- else %}
        {{- " " + turn["content"] | trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""

QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{%- continue %}{%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' and loop.index0 > ns.last and message.thinking is defined %}
        {{- '<think>\\n' + message.thinking + '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

GEMMA = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}
{{ raise_exception('System role not supported') }}
{%- endif %}
{%- for message in messages %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{ '<start_of_turn>model\\n' }}
{%- endif %}
"""

MARKED = """\
{%- for message in messages %}
  {%- if message['role'] == 'assistant' %}
    {{- '<|im_start|>assistant\\n' }}
    {%- generation %}
    {{- message['content'] + '<|im_end|>' }}
    {%- endgeneration %}
    {{- '\\n' }}
  {%- else %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

FAMILIES = {
  "chatml": JinjaTemplate(CHATML, "", "<|im_end|>"),
  "llama3": JinjaTemplate(LLAMA3, "<|begin_of_text|>", "<|eot_id|>"),
  "mistral": JinjaTemplate(MISTRAL, "<s>", "</s>"),
  "qwen": JinjaTemplate(QWEN, "", "<|im_end|>"),
  "gemma": JinjaTemplate(GEMMA, "<bos>", "<eos>"),
  "marked": JinjaTemplate(MARKED, "", "<|im_end|>"),
}
SPECIAL = [
  "<s>", "</s>", "<bos>", "<eos>", "<|begin_of_text|>", "<|im_start|>", "<|im_end|>",
  "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>", "<end_of_turn>",
]  # fmt: skip

SYSTEM = {"role": "system", "content": "Be brief."}
TURNS = [
  {"role": "user", "content": "Was ist 日本 {{ 7 }}?"},
  {"role": "assistant", "content": "Ein Land,\n\n  größer 🗾."},
  {"role": "user", "content": "assistant\nand {% if %}?"},
  {"role": "assistant", "content": "No."},
  {"role": "user", "content": "12 + 30"},
  {"role": "assistant", "content": "= 42"},
]
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


def byte_level() -> Tokenizer:
  """As Llama 3 has it: offsets leave out white space, and text alone gets a first token."""
  tokenizer = train_bpe([" ".join(t["content"] for t in TURNS) + "\n\n"] * 9, 330)
  inner = tokenizer.inner
  inner.add_special_tokens(SPECIAL)
  # The regular expression that makes the line breaks of a header one token, whatever follows.
  breaks = pre_tokenizers.Split(tokenizers.Regex(r"\s*[\r\n]+"), "isolated")
  inner.pre_tokenizer = pre_tokenizers.Sequence([breaks, inner.pre_tokenizer])
  first = processors.TemplateProcessing(
    "<s> $A", special_tokens=[("<s>", inner.token_to_id("<s>"))]
  )
  inner.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), first])
  return tokenizer


def sentence_piece() -> Tokenizer:
  """As Llama 2 and Mistral have it: "▁" before words, bytes for what is unknown."""
  words = ["▁", "▁a", "▁n", "a", "n", "d", "▁an", "▁and", "s", "i", "t", "\n", "4", "2"]
  pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
  merges = [("▁", "a"), ("▁", "n"), ("▁a", "n"), ("▁an", "d")]
  inner = tokenizers.Tokenizer(tokenizers.models.BPE(
    {piece: i for i, piece in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True,
  ))  # fmt: skip
  inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
  inner.decoder = tokenizers.decoders.Sequence(
    [tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.ByteFallback(),
     tokenizers.decoders.Fuse()]
  )  # fmt: skip
  inner.add_special_tokens(SPECIAL)
  return Tokenizer(inner)


TOKENIZERS = {"byte_level": byte_level(), "sentence_piece": sentence_piece()}
BYTES = TOKENIZERS["byte_level"]


def text_of(ids) -> str:
  return BYTES.inner.decode(list(ids), skip_special_tokens=False)


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


@pytest.fixture(scope="module")
def transformers():
  return pytest.importorskip("transformers")


@pytest.fixture(scope="module", params=TOKENIZERS)
def both(request, transformers):
  """A tokenizer of ours, and transformers' around a copy of it."""
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
    bare = JinjaTemplate(MARKED.replace("generation %}", "if true %}", 1).replace(
      "endgeneration", "endif"), "", "<|im_end|>")  # fmt: skip
    assert bare.encode(ours, turns) == (ids, mask)


WRITES = [
  ("{{ messages | tojson }}", '[{"role": "user", "content": "é<\\"&"}]'),
  ("{{ messages[0] | tojson(indent=2) }}", '{\n  "role": "user",\n  "content": "é<\\"&"\n}'),
  ("{{ strftime_now('%Y')[:2] }}", "20"),
  ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
  ("{{ tools is none }}{{ documents is none }}{{ missing }}", "TrueTrue"),
  ("{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}", "2"),
  ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
  ("{{ strftime_now.__code__ }}", ""),
  ("{{ bos_token }}|{{ eos_token }}", "<s>|</s>"),
  ("{{ messages[0].name is defined }}", "False"),
]


@pytest.mark.parametrize(("source", "text"), WRITES)
def test_what_a_template_may_use(source, text):
  turns = [{"role": "user", "content": 'é<"&', "name": None}]
  assert text_of(JinjaTemplate(source, "<s>", "</s>").prompt(BYTES, turns)) == text


@pytest.mark.parametrize(("source", "text"), WRITES)
def test_transformers_writes_the_same(source, text, transformers):
  theirs = transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizers.Tokenizer.from_str(BYTES.inner.to_str()), bos_token="<s>",
    eos_token="</s>", chat_template=source,
  )  # fmt: skip
  turns = [{"role": "user", "content": 'é<"&', "name": None}]
  assert theirs.apply_chat_template(turns, tokenize=False) == text


ESCAPES = [
  "{{ ''.__class__.__mro__[1].__subclasses__() }}",
  "{{ messages.__class__.__init__.__globals__ }}",
  "{{ raise_exception.__globals__['json'] }}",
  "{{ (messages | attr('append')).__self__ }}",
  "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
  "{{ messages.append({'role': 'user', 'content': 'x'}) }}",
  "{{ messages[0].update({'content': 'x'}) }}",
  "{{ self.__init__.__globals__ }}",
  "{{ cycler.__init__.__globals__ }}",
  "{{ lipsum.__globals__['os'] }}",
  "{% include '/etc/passwd' %}",
  "{% import 'os' as os %}",
  "{{ range(10**9) | list }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_the_sandbox_holds(source):
  turns = [{"role": "user", "content": "hello"}]
  with pytest.raises(ValueError, match=r"^the chat template refuses the turns: .+\.$"):
    JinjaTemplate(source).prompt(BYTES, turns)
  assert turns == [{"role": "user", "content": "hello"}]


BAD = [
  ("{% for m in messages %}", "the chat template has an error in line 1: Unexpected end"),
  ("a\n{{ 1 + }}", "the chat template has an error in line 2: "),
  ("{{ x | no_such_filter }}", "the chat template has an error in line 1: No filter named"),
  ("{% generation %}", "the chat template has an error in line 1: Unexpected end"),
  (7, "chat template: source=7: accepted is text"),
  ("\ud800", "chat template: source='\\ud800': accepted is text without lone surrogates"),
]


@pytest.mark.parametrize(("source", "words"), BAD)
def test_bad_templates(source, words):
  with pytest.raises(ValueError) as refusal:
    JinjaTemplate(source)
  sentence = str(refusal.value)
  assert sentence.startswith(words) and sentence.endswith(".") and "\n" not in sentence


REFUSED = [
  ("mistral", TURNS[1:], "refuses the turns: roles must alternate user/assistant/user/assistant."),
  ("gemma", [SYSTEM, TURNS[0]], "the chat template refuses the turns: System role not supported."),
  ("chatml", [], "the chat template refuses the turns: "),
  ("chatml", "hello", "turns='hello': accepted is a list of turns"),
  ("chatml", [{"role": "user"}], "accepted is a dict with the texts role and content"),
  ("chatml", [{"role": "user", "content": ["x"]}], "turns[0]: content=['x']: accepted is text"),
  ("chatml", [{"role": "user", "content": "\udfff"}], "text without lone surrogates"),
]


@pytest.mark.parametrize(("name", "turns", "words"), REFUSED)
def test_refused_turns(name, turns, words):
  for ask in (FAMILIES[name].prompt, FAMILIES[name].encode):
    with pytest.raises(ValueError) as refusal:
      ask(BYTES, turns)
    assert words in str(refusal.value) and "\n" not in str(refusal.value)
