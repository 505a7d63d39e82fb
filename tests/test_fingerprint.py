"""Keys of kept work: each ingredient of each file, changed, is named with both its values."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import fingerprint
from specjax.data import resume
from specjax.data.chat import TEMPLATES
from specjax.data.jinja_chat import JinjaTemplate
from specjax.data.tokenizer import train_bpe

MODEL = specjax.load("gsm8k-7m")


def scaled(params, factor):
  return jax.tree.map(lambda x: x * factor, params)


OTHERS = {
  "weights": {"params": scaled(MODEL.params, 1.5)},
  "config.rope_theta": {"config": dataclasses.replace(MODEL.config, rope_theta=7.0)},
  "config.max_length": {"config": dataclasses.replace(MODEL.config, max_length=77)},
  "tokenizer": {"tokenizer": train_bpe(["c d e"], 270)},
  "template": {"template": TEMPLATES["chatml"]},
  "stop": {"stop": (7,)},
  "start": {"start": (7,)},
  "mask": {"mask": 7},
  "shift": {"shift": True},
  "stored": {"weights": "int8"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_every_ingredient_of_a_model_is_in_its_key(name):
  other = dataclasses.replace(MODEL, **OTHERS[name])
  there, here = MODEL.ingredients(), other.ingredients()
  said = fingerprint.differences(json.loads(json.dumps(there)), here)
  assert said.startswith(f"model.{name}={there[f'model.{name}']!r} (now ") and ", model" not in said


def test_the_key_of_a_model_does_not_depend_on_how_it_was_loaded():
  again = specjax.load("gsm8k-7m", jnp.bfloat16)
  assert MODEL.ingredients() == again.ingredients()


def test_a_template_is_known_by_what_it_says():
  keys = [
    dataclasses.replace(MODEL, template=JinjaTemplate(source)).ingredients()
    for source in ("a{{ messages }}", "b{{ messages }}", "a{{ messages }}")
  ]
  assert keys[0] == keys[2] != keys[1]


def test_weights_are_known_by_name_shape_and_value():
  x = np.arange(6, dtype=np.float32)
  trees = {"a": x}, {"b": x}, {"a": x.reshape(2, 3)}, {"a": x + 1}, {"a": x.astype(np.int32)}
  assert len({fingerprint.of_weights(tree) for tree in trees}) == 5
  assert fingerprint.of_weights(trees[0]) == fingerprint.of_weights({"a": jnp.asarray(x)})


def test_files_are_known_by_what_they_hold(tmp_path):
  (tmp_path / "a").mkdir()
  (tmp_path / "a" / "x.json").write_text("1")
  before = fingerprint.of_files(tmp_path / "a")
  (tmp_path / "a" / "x.json").write_text("2")
  assert before != fingerprint.of_files(tmp_path / "a")
  assert fingerprint.of_files("gsm8k-7m-eagle") != fingerprint.of_files("gsm8k-7m-medusa")


def test_differences_are_sorted_and_free_ones_left_out():
  there, here = {"b": 1, "c": None, "free": 1}, {"a": (1, 2), "b": 2, "free": 2}
  assert fingerprint.differences(there, here, ("free",)) == "a=None (now [1, 2]), b=1 (now 2)"
  assert fingerprint.differences({"a": [1]}, {"a": (1,)}) == ""


def test_a_setting_that_a_newer_version_added_is_no_difference_while_it_is_off():
  old = {"a": 1}
  for off in (None, False, 0, "", []):
    assert fingerprint.differences(old, old | {"new": off}) == ""
    assert fingerprint.differences(old | {"new": off}, old) == ""
  assert fingerprint.differences(old, old | {"new": True}) == "new=None (now True)"
  assert fingerprint.differences({"a": 0}, {"a": False, "b": 2}) == "b=None (now 2)"
  assert fingerprint.differences({"a": 0}, {"a": None}) == "a=0 (now None)"


def test_a_directory_of_another_key_is_refused_and_stays(tmp_path):
  resume.claim(tmp_path, {"a": 1, "b": 2})
  before = (tmp_path / "run.json").read_bytes()
  with pytest.raises(ValueError, match=r"holds a run with a=1 \(now 3\): continue it with the"):
    resume.claim(tmp_path, {"a": 3, "b": 2})
  assert (tmp_path / "run.json").read_bytes() == before
