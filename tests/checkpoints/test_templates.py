"""Where a directory's chat template comes from, and that it is written on."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import processors

import specjax
from specjax.checkpoints import hf, templates
from specjax.cli import convert
from specjax.cli.arguments import Convert
from specjax.data.chat import TEMPLATES, Template
from specjax.data.jinja_chat import JinjaTemplate
from specjax.data.tokenizer import train_bpe
from specjax.models.config import Config
from specjax.models.transformer import Transformer

JINJA = JinjaTemplate("{{ bos_token }}{{ messages[0].content }} é\n", "<s>", "</s>")
CONFIG = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>"}
TWO = [{"name": "rag", "template": "no"}, {"name": "default", "template": JINJA.source}]


@pytest.fixture
def directory(tmp_path):
  """A model with a tokenizer and without a chat template."""
  tokenizer = train_bpe(["the cat sat on the mat"] * 2, 280)
  tokenizer.inner.add_special_tokens(["<s>", "</s>"])
  config = Config(tokenizer.vocab_size, 16, 1, 2, 1, 8, 24, max_length=64)
  z, mask = jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2, 2), bool)
  shapes = jax.eval_shape(Transformer(config).init, jax.random.key(0), z, z, mask)
  params = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)
  hf.save(tmp_path / "model", config, params, tokenizer)
  return tmp_path / "model"


@pytest.mark.parametrize(
  ("files", "expected"),
  [
    ({}, None),
    ({"config": {"specjax_template": "qa"}}, TEMPLATES["qa"]),
    ({"tokenizer_config": CONFIG | {"chat_template": JINJA.source}}, JINJA),
    ({"tokenizer_config": CONFIG | {"chat_template": TWO}}, JINJA),
    ({"tokenizer_config": CONFIG | {"chat_template": None}}, None),
    ({"tokenizer_config": CONFIG | {"chat_template": "old"}, "jinja": JINJA.source}, JINJA),
    ({"special_tokens_map": CONFIG, "jinja": JINJA.source, "tokenizer_config": {}}, JINJA),
    ({"special_tokens_map": CONFIG | {"eos_token": "<e>"}, "tokenizer_config": CONFIG,
      "jinja": JINJA.source}, JINJA),
    ({"config": {"specjax_template": "qa"}, "jinja": JINJA.source, "tokenizer_config": CONFIG},
     JINJA),
  ],
)  # fmt: skip
def test_the_checkpoint_s_own_comes_first(directory, files, expected):
  for name, content in files.items():
    file = directory / ("chat_template.jinja" if name == "jinja" else f"{name}.json")
    if name == "config":
      content = json.loads(file.read_text()) | content
    file.write_text(content if name == "jinja" else json.dumps(content), encoding="utf-8")
  assert hf.load(directory).template == expected


@pytest.mark.parametrize("template", [JINJA, TEMPLATES["qa"], None])
@pytest.mark.parametrize("before", [JINJA, TEMPLATES["chatml"], None])
def test_a_template_is_written_on(directory, template, before):
  old = hf.load(directory)
  for each in (before, template):
    hf.save(directory, old.config, old.params, old.tokenizer, template=each, stop=(5,))
  new = hf.load(directory)
  assert new.template == template and new.stop == (5,) and new.start == ()


def test_convert_keeps_the_template_and_its_tokens(directory, tmp_path, capsys):
  old = hf.load(directory)
  known = [("<s>", old.tokenizer.id("<s>"))]
  old.tokenizer.inner.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=known)
  hf.save(directory, old.config, old.params, old.tokenizer, template=JINJA, stop=(3,))
  convert.run_convert(Convert(format="hf", model=str(directory), out=str(tmp_path / "again")))
  model = specjax.load(str(tmp_path / "again"))
  assert model.template == JINJA and model.stop == (3,) and model.start == (known[0][1],)
  # The template writes the first token, and nothing puts another before it.
  assert model.chat("the cat") == model.encode("the cat é")
  turns = [{"role": "system", "content": "the mat"}, {"role": "user", "content": "the cat"}]
  assert model.chat(turns) == model.encode("the mat é")


@pytest.mark.parametrize("template", ["qa", Template("{}", "{}"), 7])
def test_what_has_no_name_here_is_refused(template):
  with pytest.raises(ValueError, match=r"^`template` must be a JinjaTemplate, or .* plain.*, got "):
    templates.known(template)


def test_a_model_takes_a_template_by_name_or_file(tmp_path):
  turns = [{"role": "user", "content": "hi"}]
  (tmp_path / "mine.jinja").write_text(
    "{% for turn in messages %}<{{ turn.content }}{{ eos_token }}{% endfor %}>"
  )
  own, named, filed = (
    specjax.load(template=x) for x in (None, "plain", str(tmp_path / "mine.jinja"))
  )
  end = own.tokenizer.inner.id_to_token(own.stop[0])
  assert named.template == TEMPLATES["plain"] != own.template
  assert filed.chat(turns) == own.tokenizer.encode(f"<hi{end}>")
  for wrong in ("latin", str(tmp_path), ""):
    with pytest.raises(ValueError, match=r"`template` must be one of plain, .* or a file in Jinja"):
      specjax.load(template=wrong)
