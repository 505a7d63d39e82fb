"""A head in a file of the user's own is trained and decodes like one of the package's."""

import json

import pytest

import specjax
from specjax.checkpoints import formats
from specjax.heads import drafting
from specjax.heads.named import named
from specjax.train import heads

SOURCE = '''
import dataclasses
import functools

import jax
import jax.numpy as jnp

from specjax.base import Target
from specjax.heads import draft_vocabulary
from specjax.heads.recurrent import Recurrent
from specjax.models.linear import linear


@dataclasses.dataclass(frozen=True)
class MixConfig:
  depth: int = 3


@functools.cache
def mix(target: Target, config: MixConfig) -> Recurrent:
  """Adds what a matrix makes of the newest token to the state."""
  E = target.width

  def init(key, target_params, vocabulary=None):
    return {"mix": 0.02 * jax.random.normal(key, (config.depth, E, 2 * E))}

  def step(params, target_params, z, tokens, d):
    x = jnp.concatenate([z, target.embed(target_params, tokens)], -1)
    z = z + linear(x, params["params"]["mix"][d - 1])
    return z, z

  return Recurrent("mix", target, config.depth, init, draft_vocabulary.through(target), step)


def no_config(target):
  return mix(target, MixConfig())


raises = None
'''


@pytest.fixture
def file(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "my_head.py").write_text(SOURCE)
  return tmp_path / "my_head.py"


@pytest.mark.slow
def test_it_is_trained_by_name_and_decodes(file, tiny_heads, capsys):
  options = {
    "model": tiny_heads.model, "data": tiny_heads.data, "out": "run", "held-out": 24,
    "max-new-tokens": 16, "length": 64, "points": 32, "steps": 30, "rate": 3e-3, "warmup": 5,
    "nodes": 8, "save-every": 20, "devices": 1,
  }  # fmt: skip
  words = [str(x) for k, v in options.items() for x in (f"--{k}", v)]
  assert heads.command([*words, "my_head.py:mix", "--depth", "2"]) == 0
  assert "my_head.py:mix" in capsys.readouterr().out

  model = specjax.load(tiny_heads.model)
  loaded = formats.load("run/model", model.config, called="my_head.py:mix")
  build, kind = named("my_head.py:mix")
  assert loaded.head is build(model.target, kind(2)) and loaded.config == kind(2)
  drafter = drafting.drafter(loaded.head, loaded.choices[:3])
  prompts = [model.chat("3 pens and 4?"), model.chat("5 cups and 1?")]
  drafted = specjax.Decoder(model, (drafter, loaded.params))(prompts, 12)
  named_in_full = specjax.Decoder(model, "my_head.py:mix-4[run/model]")
  assert named_in_full.name == "my_head.py:mix-4[run/model]"
  assert [r.tokens for r in named_in_full(prompts, 12)] == [r.tokens for r in drafted]
  plain = specjax.Decoder(model)(prompts, 12)
  assert [r.tokens for r in drafted] == [r.tokens for r in plain]
  assert sum(r.emitted for r in drafted) > sum(r.passes for r in drafted)

  file.unlink()
  with pytest.raises(ValueError, match=r"^drafter='my_head\.py:mix': there is no file my_head\.py"):
    specjax.Decoder(model, "my_head.py:mix[run/model]")


@pytest.mark.parametrize(
  "drafter", ["head[evil]", "head[evil]/beam-4,depth=2,width=2", "medusa[evil]"]
)
def test_a_file_that_only_config_json_names_is_not_run(file, drafter):
  (file.parent / "evil.py").write_text("open('it_ran', 'w')\n")
  (file.parent / "evil").mkdir()
  raw = {"head": "evil.py:f", "config": {}, "draft_vocab": None, "choices": [], "hit_rates": None}
  (file.parent / "evil" / "config.json").write_text(json.dumps(raw))
  with pytest.raises(ValueError, match=r"run only where you .* use drafter='evil\.py:f\[evil\]'"):
    specjax.Decoder(specjax.load(), drafter)
  assert not (file.parent / "it_ran").exists()


@pytest.mark.parametrize(
  ("name", "words"),
  [
    ("oracle", r"`head` must be one of medusa, blockwise, chimera, clover.*got 'oracle'\."),
    ("absent.py:mix", "there is no file absent.py in "),
    ("my_head.py:other", "my_head.py has no function other"),
    (
      "my_head.py:raises",
      r"my_head\.py: raises must be raises\(target: Target, config: CONFIG\) -> Head,",
    ),
    ("my_head.py:no_config", "no_config must be no_config\\(target: Target, config: CONFIG\\)"),
    ("broken.py:mix", "broken.py cannot be run: SyntaxError: "),
    (["medusa"], r"`head` must be one of medusa, blockwise, chimera, clover.*got \['medusa'\]\."),
  ],
)
def test_a_name_of_nothing_is_one_sentence(file, name, words):
  (file.parent / "broken.py").write_text("def mix(:")
  with pytest.raises(ValueError, match=words):
    named(name)


def test_a_user_error_on_the_command_line_exits_with_2(file, capsys):
  assert heads.command(["--model", "m", "--data", "d", "--out", "o", "absent.py:mix"]) == 2
  assert capsys.readouterr().err.startswith("error: head='absent.py:mix': there is no file")
