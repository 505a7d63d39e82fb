"""`specjax search` says what the functions of `specjax.search` say."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sentences import says

import specjax
from specjax.checkpoints import hf
from specjax.cli.main import main
from specjax.data import datastore
from specjax.data.chat import TEMPLATES
from specjax.data.tokenizer import train_bpe
from specjax.models.config import Config
from specjax.models.transformer import init

PROMPT = "the cat sa"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
  """A random Llama with a tokenizer and a chat template."""
  tokenizer = train_bpe(["the cat sat on the mat, Question: Answer: the dog"] * 2, 280)
  config, path = Config(280, 32, 1, 2, 1, 16, 48, max_length=128), tmp_path_factory.mktemp("model")
  params = jax.jit(lambda key: init(config, key))(jax.random.key(0))
  hf.save(path, config, params, tokenizer, dtype=jnp.float32, template=TEMPLATES["qa"])
  return str(path)


def by_hand(name: str, model, small):
  """What the function says."""
  search = specjax.search
  return {
    "by_bytes-4": lambda: search.by_bytes(model, [PROMPT], 5, covers=4)[0],
    "beam_search-2": lambda: search.beam_search(model, [PROMPT], 2, 5)[0],
    "adadec-0.5,ahead=2": lambda: search.adadec(model, [PROMPT], 0.5, 5, ahead=2)[0],
    "cntp-3": lambda: search.cntp(model, [PROMPT], 5, trials=3, temperature=0.7, seed=2)[0],
    "navigated-3,each=2": lambda: search.navigated(
      specjax.Decoder(model, temperature=0.7, seed=2), [PROMPT], 3, 5, each=2
    )[0],
    f"switching-2,window=3[{small}]": lambda: search.switching(
      specjax.load(small), model, [PROMPT], 2.0, 5, window=3
    )[0],
  }[name]()


@pytest.mark.slow
@pytest.mark.full(but=["by_bytes*", "navigated*"])
@pytest.mark.parametrize(
  "name",
  [
    "by_bytes-4", "beam_search-2", "adadec-0.5,ahead=2", "cntp-3", "navigated-3,each=2",
    "switching-2,window=3[{}]",
  ],
)  # fmt: skip
def test_the_command_says_what_the_function_says(name, directory, capsys):
  own = name.format(directory)
  drawn = ["--temperature", "0.7", "--seed", "2"] if name.startswith(("cntp", "nav")) else []
  options = ["--prompt", PROMPT, "--model", directory, "--max-new-tokens", "5", *drawn]
  assert main(["search", own, *options, "--json"]) == 0
  (line,) = map(json.loads, capsys.readouterr().out.splitlines())
  want = by_hand(own, specjax.load(directory), directory)
  each = want if isinstance(want, list) else [want]
  got = [{k: np.asarray(v).tolist() for k, v in one.items()} for one in line["found"]]
  assert line["prompt"] == PROMPT and line["search"] == own
  assert got == [
    {k: np.asarray(v).tolist() for k, v in one._asdict().items() if k != "said"} for one in each
  ]


@pytest.mark.full
def test_a_datastore_is_read(directory, tmp_path, capsys):
  model, path = specjax.load(directory), str(tmp_path / "store.npz")
  store = datastore.build([model.encode("the cat sat on the mat")])
  datastore.save(path, store, model.config.vocab_size, model.identity.tokens)
  options = ["--prompt", PROMPT, "--model", directory, "--max-new-tokens", "4"]
  assert main(["search", f"superposed-2,candidates=3[{path}]", *options]) == 0
  want = specjax.search.superposed(model, PROMPT, store, 2, 4, candidates=3)
  shown = capsys.readouterr().out
  assert all(one.text.strip() in shown for one in want)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (("zzz",), "`name` must be one of best_of, beam_search .. got 'zzz'."),
    (("best_of-4",), "`name` must be another search: of best_of the way is .. got 'best_of-4'."),
    (("beam_search-2[x]",), "beam_search takes nothing in brackets."),
    (("switching",), "switching: it needs the small model, switching[MODEL]."),
    (("superposed",), "superposed: it needs a datastore, superposed[FILE.npz]."),
    (("beam_search", "--temperature", "1"), "`temperature` must be left out for beam_search"),
    (("adadec", "--batch", "2"), "`batch` must be 1 for adadec"),
    (("adadec-0.5,looks=2",), "adadec takes threshold=0.9, candidates=3, ahead=5, not looks"),
  ],
)
def test_what_is_not_accepted_is_refused(arguments, message, directory, capsys):
  options = ["--prompt", PROMPT, "--model", directory, "--max-new-tokens", "5"]
  assert main(["search", *arguments, *options]) == 2
  assert says(capsys.readouterr().err, message)
