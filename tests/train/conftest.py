"""Questions, a tiny model with its head trained on them, and a tiny denoiser with blocks."""

import dataclasses
import json
import warnings

import jax
import numpy as np
import pytest
from options import changed
from orbax.checkpoint import v1 as ocp

from specjax.checkpoints import hf
from specjax.heads.medusa import MedusaConfig
from specjax.names.load import load
from specjax.train import heads, joint, lm
from specjax.train.recipe.answers import AnswersConfig
from specjax.train.recipe.config import Network, Training

COUNT = 160


@pytest.fixture(scope="session")
def questions(tmp_path_factory):
  """A JSONL file of sums in words."""
  path = tmp_path_factory.mktemp("data") / "sums.jsonl"
  records = [
    {
      "question": f"{a} {thing} and {b}?",
      "answer": f"{a} + {b} = {a + b}.",
    }
    for a in range(COUNT // 8)
    for b, thing in enumerate(["pens", "cups", "nuts", "eggs", "hats", "keys", "figs", "jars"])
  ]
  path.write_text("".join(json.dumps(r) + "\n" for r in records))
  return path


@pytest.fixture(scope="session")
def tiny(questions):
  """Settings that train in seconds; `out` is for the test to replace."""
  return lm.Config(
    data=str(questions), out="", vocab_size=300, length=64,
    network=Network(width=32, layers=2, heads=2, kv_heads=1, head_dim=16, mlp_width=48),
    training=Training(
      batch=4, steps=60, rate=1e-2, warmup=5, save_every=20, decay=0.1, devices=1
    ),
  )  # fmt: skip


@pytest.fixture(scope="session")
def lm_run(tiny, tmp_path_factory):
  """The configuration of a finished language model."""
  config = changed(tiny, out=str(tmp_path_factory.mktemp("lm") / "run"))
  lm.main(config)
  return config


@pytest.fixture(scope="session")
def tiny_heads(lm_run):
  """Settings of heads for that model; `out` is for the test to replace."""
  return heads.Config(
    model=f"{lm_run.out}/model", data=lm_run.data, out="", held_out=24, max_new_tokens=16,
    head=MedusaConfig(depth=3), length=64, points=32, nodes=8,
    training=Training(batch=8, steps=60, rate=3e-3, warmup=5, save_every=20, devices=1),
  )  # fmt: skip


@pytest.fixture(scope="session")
def warm(tiny_heads, tmp_path_factory):
  """The settings of a finished head, which has learned alone."""
  config = changed(tiny_heads, out=str(tmp_path_factory.mktemp("warm")))
  heads.main(config)
  return config


@pytest.fixture(scope="session")
def tiny_joint(warm):
  """Settings of a joint training of that head; `out` is for the test to replace."""
  same = {field.name: getattr(warm, field.name) for field in dataclasses.fields(AnswersConfig)}
  config = joint.Config(init=f"{warm.out}/model", rank=4, points=32, nodes=8, **same)
  return changed(config, answers=f"{warm.out}/answers.jsonl", steps=40)


@pytest.fixture(scope="session")
def block_denoiser(list_denoiser, tmp_path_factory) -> str:
  """The directory of the model of `list_denoiser` as if it were causal over blocks of 4 slots."""
  path, model = tmp_path_factory.mktemp("blocks"), load(list_denoiser)
  config = dataclasses.replace(model.config, block_length=4)
  hf.save(path / "model", config, model.params, model.tokenizer, template=model.template,
          mask=model.mask, stop=model.stop)  # fmt: skip
  return str(path / "model")


@pytest.fixture(scope="session")
def final_state():
  """Reads the newest checkpoint of a run as numpy arrays."""

  def read(directory):
    with warnings.catch_warnings(), ocp.training.Checkpointer(f"{directory}/checkpoints") as saved:
      warnings.simplefilter("ignore", UserWarning)  # orbax: sharding comes from its file
      return jax.tree.map(np.asarray, saved.load())

  return read
