"""A language model from text, end to end and tiny."""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest
from options import changed

import specjax
from specjax.checkpoints import families
from specjax.data.chat import TEMPLATES
from specjax.data.tokenizer import END, train_bpe
from specjax.models.config import Config as ModelConfig
from specjax.train import lm
from specjax.train.recipe.config import Network


def test_loss_falls(lm_run):
  with open(f"{lm_run.out}/metrics.jsonl") as file:
    loss = [json.loads(line)["loss"] for line in file]
  assert len(loss) == lm_run.training.steps
  assert abs(loss[0] - np.log(300)) < 0.2
  assert np.mean(loss[-5:]) < 0.5 * loss[0]


def test_export_loads_and_decodes(lm_run):
  model = specjax.load(f"{lm_run.out}/model")
  assert model.template == TEMPLATES["qa"] and model.stop == (model.tokenizer.id(END),)
  assert model.config.max_length == lm_run.length
  result = specjax.generate(model, [model.chat("3 pens and 4?")],
                            max_new_tokens=20)[0]  # fmt: skip
  assert "=" in result.text


def test_tfds_records_are_trained_on_like_lines(lm_run):
  """Records are documents whatever they come from: the source is opened by name only."""
  tokenizer = train_bpe(["a b c"], 300)
  turns = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "so."}]
  documents = lm.documents(turns, lm_run, tokenizer)
  (ids, mask), = documents  # fmt: skip
  assert tokenizer.inner.decode(ids, skip_special_tokens=False) == (
    "Question: why?\nAnswer: so.<|end|>"
  )
  assert all(mask)


def test_long_texts_are_split_and_lose_nothing(lm_run):
  tokenizer = train_bpe(["a b c"], 300)
  text = "abc " * 50
  documents = lm.documents(text, lm_run, tokenizer)
  assert all(len(ids) <= lm_run.length for ids, _ in documents) and len(documents) > 1
  ids = [i for ids, _ in documents for i in ids]
  assert ids == tokenizer.encode(text + END)


@pytest.mark.slow
def test_plain_text_makes_a_model_without_a_chat_template(tiny, tmp_path):
  (tmp_path / "text.jsonl").write_text(json.dumps({"text": "the cat sat. " * 200}) + "\n")
  config = changed(
    tiny, data=str(tmp_path / "text.jsonl"), out=str(tmp_path / "out"), steps=2, template="vicuna"
  )
  lm.main(config)
  model = specjax.load(str(tmp_path / "out" / "model"))
  assert model.template is None
  assert specjax.generate(model, ["the cat"], max_new_tokens=3)[0].emitted <= 3


@pytest.mark.parametrize(
  "change", [{"width": 64}, {"seed": 1}, {"steps": 59}, {"vocab_size": 310}, {"rate": 1e-3}]
)
def test_other_settings_do_not_continue_a_run(lm_run, change):
  (key, value), = change.items()  # fmt: skip
  with pytest.raises(ValueError, match=rf"holds a run with {key}=\S+ \(now {value}\)"):
    lm.main(changed(lm_run, **change))


def test_other_data_do_not_continue_a_run(lm_run, tmp_path):
  records = pathlib.Path(lm_run.data).read_text().splitlines(keepends=True)
  (tmp_path / "fewer.jsonl").write_text("".join(records[:-1]))
  with pytest.raises(ValueError, match="holds a run with data_digest="):
    lm.main(changed(lm_run, data=str(tmp_path / "fewer.jsonl")))


@pytest.mark.slow
def test_a_moved_run_and_moved_data_continue(lm_run, tmp_path):
  shutil.copytree(lm_run.out, tmp_path / "moved")
  shutil.copy(lm_run.data, tmp_path / "copy.jsonl")
  shutil.rmtree(tmp_path / "moved" / "model")
  lm.main(changed(
    lm_run, out=str(tmp_path / "moved"), data=str(tmp_path / "copy.jsonl"), save_every=7
  ))  # fmt: skip
  weights = [
    pathlib.Path(out, "model", "model.safetensors").read_bytes()
    for out in (lm_run.out, tmp_path / "moved")
  ]
  assert weights[0] == weights[1]


def test_checkpoints_without_a_record_of_settings_continue(lm_run, tmp_path):
  shutil.copytree(lm_run.out, tmp_path / "old")
  (tmp_path / "old" / "run.json").unlink()
  lm.main(changed(lm_run, out=str(tmp_path / "old")))
  assert (tmp_path / "old" / "run.json").exists()


@pytest.mark.slow
def test_a_mistake_can_be_corrected_in_the_same_directory(tiny, tmp_path):
  with pytest.raises(
    ValueError,
    match=(r"`batch` must be between 1 and 160, the rows that the data fill, got 1000\."),
  ):
    lm.main(changed(tiny, out=str(tmp_path), batch=1000))
  lm.main(changed(tiny, out=str(tmp_path), steps=1))


def test_a_hybrid_is_a_network_of_a_published_family():
  sizes = {"width": 8, "layers": 4, "heads": 4, "kv_heads": 2, "head_dim": 4, "mlp_width": 8}
  config = ModelConfig(vocab_size=9, **Network(**sizes, attention_every=2).sizes)
  assert [kind.recurrence is None for kind in config.kinds] == [False, True, False, True]
  raw = families.to_json(config)
  assert raw["model_type"] == "qwen3_5_text"
  assert raw["layer_types"] == ["linear_attention", "full_attention"] * 2
  read = families.by_type(raw, "config.json").from_json(raw)
  assert read == dataclasses.replace(config, max_length=read.max_length)
  for every in (1, 5):
    with pytest.raises(ValueError, match="`attention_every` must be between 2 and 4"):
      Network(**sizes, attention_every=every).sizes  # noqa: B018
  config = ModelConfig(vocab_size=9, **Network(**sizes, attention_every=2, self_decoder=2).sizes)
  raw = families.to_json(config)
  assert (raw["model_type"], raw["self_decoder_layers"]) == ("specjax_sambay", 2)
