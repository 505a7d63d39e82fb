"""What a chat template in Jinja may use, what the sandbox refuses, and what is no template."""

import pytest
import tokenizers
from chat_families import BYTES, text_of

from specjax.data.jinja_chat import JinjaTemplate

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
def test_transformers_writes_the_same(source, text):
  transformers = pytest.importorskip("transformers")
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
  (7, "chat template: `source` must be text, got 7."),
  ("\ud800", "chat template: `source` must be text without lone surrogates, got '\\ud800'."),
]


@pytest.mark.parametrize(("source", "words"), BAD)
def test_bad_templates(source, words):
  with pytest.raises(ValueError) as refusal:
    JinjaTemplate(source)
  sentence = str(refusal.value)
  assert sentence.startswith(words) and sentence.endswith(".") and "\n" not in sentence
