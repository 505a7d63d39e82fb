"""A run's options in a file: what it fills, what comes before it, what is kept and refused."""

import dataclasses
import importlib

import pytest
import tyro
import yaml
from options import changed
from sentences import says

from specjax.heads import HEADS
from specjax.heads.eagle3 import Eagle3Config
from specjax.heads.medusa import MedusaConfig
from specjax.train import heads, lm
from specjax.train.recipe import options, run
from specjax.train.recipe.config import Training

SCRIPTS = (
  "lm", "denoiser", "heads", "judge", "acceptance", "filter", "distill", "draft_model", "skipping",
  "duo", "joint", "parscale", "prompts", "cot2", "coprocessor", "energy", "pard",
)  # fmt: skip
GIVEN = {
  "model": "m", "data": "d", "out": "o", "held-out": 20, "steps": 7, "rate": "1e-3",
  "log_to": "wandb", "layers": [2, 4], "loss": ["tv=1", 0.5],
  "head": {"name": "eagle3", "depth": 4},
}  # fmt: skip
WANTED = heads.Config(
  "m", "d", "o", held_out=20, layers=(2, 4), loss=("tv=1", 0.5), head=Eagle3Config(depth=4),
  training=Training(steps=7, rate=1e-3, log_to="wandb"),
)  # fmt: skip


def write(path, content) -> str:
  path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
  return str(path)


def parse(*words, kind=heads.Config):
  """What a trainer is called with."""
  found = []
  status = options.command(
    found.append, kind, "", argv=words, markers=(tyro.conf.OmitSubcommandPrefixes,)
  )
  return found[0] if status == 0 else status


def test_a_file_fills_options_and_those_that_are_typed_come_first(tmp_path):
  file = write(tmp_path / "run.yaml", GIVEN)
  assert parse("--config", file) == parse(f"--config={file}") == WANTED
  typed = parse("--steps", "9", "--config", file, "--out", "p")
  assert typed == changed(WANTED, steps=9, out="p")
  assert parse("--config", file, "eagle3", "--window", "8").head == Eagle3Config(depth=4, window=8)
  assert parse("--config", file, "medusa", "--depth", "2").head == MedusaConfig(depth=2)
  # What is asked for may be in either.
  some = write(tmp_path / "some.yaml", {"model": "m", "head": "medusa"})
  words = ("--config", some, "--data", "d", "--out", "o")
  assert parse(*words) == heads.Config("m", "d", "o")


def test_what_the_file_lacks_is_asked_for(tmp_path, capsys):
  file = write(tmp_path / "run.yaml", {"model": "m", "data": "d"})
  with pytest.raises(SystemExit):
    parse("--config", file)
  assert "--out" in capsys.readouterr().err


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_run_keeps_is_the_run_again(tmp_path, name):
  kind = importlib.import_module(f"specjax.train.{name}").Config
  asked = {
    field.name: "x" for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING
    and field.default_factory is dataclasses.MISSING and field.type in (str, "str")
  }  # fmt: skip
  own = changed(kind(**asked), seed=5)
  options.keep(tmp_path, own)
  assert parse("--config", str(tmp_path / options.FILE), kind=kind) == own


@pytest.mark.parametrize("name", HEADS)
def test_every_head_is_kept_with_its_options(tmp_path, name):
  own = heads.Config("m", "d", "o", head=HEADS[name][1]())
  options.keep(tmp_path, own)
  assert parse("--config", str(tmp_path / options.FILE)) == own


def test_options_are_printed_and_stay_where_a_directory_is_refused(tmp_path, capsys):
  own = changed(WANTED, out=str(tmp_path))
  run.claim(tmp_path, own, [[1, 2]])
  said = (tmp_path / options.FILE).read_text()
  assert said in capsys.readouterr().out and "\nheld_out: 20\n" in said
  assert yaml.safe_load(said)["head"]["name"] == "eagle3"
  with pytest.raises(ValueError, match="holds a run with "):
    run.claim(tmp_path, changed(own, held_out=21), [[1, 2]])
  assert (tmp_path / options.FILE).read_text() == said


def test_a_head_in_a_file_of_ones_own_is_named_in_the_file(tmp_path, monkeypatch):
  (tmp_path / "mine.py").write_text("""
import dataclasses

@dataclasses.dataclass(frozen=True)
class Own:
  depth: int = 2

def head(target, config: Own):
  '''Ours.'''
""")
  name, called = f"{tmp_path / 'mine.py'}:head", []
  monkeypatch.setattr(heads, "main", lambda config, heads: called.append(config))
  file = write(tmp_path / "run.yaml", {**GIVEN, "head": {"name": name, "depth": 3}})
  assert heads.command(["--config", file]) == 0
  (config,) = called
  assert (type(config.head).__name__, config.head.depth, config.held_out) == ("Own", 3, 20)


WRONG = {
  "an unknown option": ({"step": 7}, "that --help lists, got 'step' (did you mean steps"),
  "no integer": ({"steps": "many"}, "run.yaml: `steps` must be an integer, got 'many'."),
  "a truth for a number": ({"steps": True}, "`steps` must be an integer, got True."),
  "no truth": ({"online": 1}, "`online` must be true or false, got 1."),
  "no number": ({"rate": "fast"}, "`rate` must be a number, got 'fast'."),
  "no text": ({"data": 7}, "`data` must be text, got 7."),
  "none of a few": ({"log_to": "x"}, "must be one of tensorboard, wandb, trackio or null, got 'x'"),
  "no list": ({"layers": 7}, "`layers` must be a list of which each is an integer, got 7."),
  "no such head": ({"head": "x"}, "`head` must be a name, or a mapping with the name, of medusa"),
  "no such option of it": (
    {"head": {"name": "eagle3", "deep": 4}}, "head: `option` must be one that --help .. got 'deep'"
  ),
  "no mapping": ("[1, 2]", "`config` must be a mapping of options, got [1, 2]."),
  "no YAML": ("a: [", "is not YAML: "),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_bad_file_is_one_sentence(tmp_path, capsys, name):
  content, words = WRONG[name]
  file = write(tmp_path / "run.yaml", content)
  assert parse("--config", file, "--model", "m", "--data", "d", "--out", "o") == 2
  error = capsys.readouterr().err
  assert error.startswith("error: ") and error.count("\n") == 1 and says(error, words)


@pytest.mark.parametrize(
  ("words", "sentence"),
  [
    (("--config", "nothing.yaml"), "'nothing.yaml': No such file or directory."),
    (("--config",), "`config` must be one file of options in YAML, got ''."),
    (
      ("--config", "a", "--config", "b"),
      "`config` must be one file of options in YAML, got 'a b'.",
    ),
  ],
)
def test_a_file_that_is_not_there_is_one_sentence(capsys, words, sentence):
  assert parse(*words, kind=lm.Config) == 2
  assert sentence in capsys.readouterr().err
