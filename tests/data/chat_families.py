"""Short chat templates in the published formats, and tokenizers that know their markers."""

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
