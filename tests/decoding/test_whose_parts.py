"""Drafts, heads and other parts that belong to another model: told in one sentence, before work."""

import dataclasses
import functools
import json
import pathlib
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers

import specjax
from specjax.checkpoints import parts, trained_for
from specjax.data import datastore, vocabulary
from specjax.data.tokenizer import Tokenizer
from specjax.decoding.decoder import Decoder
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.draft_length.specdecpp import AcceptanceHead
from specjax.drafters.layers import skipped_layers
from specjax.models import transformer
from specjax.models.config import Config
from specjax.names.build.drafter import make_drafter
from specjax.names.build.drafters import sharing
from specjax.names.load import ZOO, Model
from specjax.search.pearl_decoder import PearlDecoder
from specjax.search.switching import switching
from specjax.verifiers.judge import Judge

TARGET, PLACES = "gsm8k-7m", (1000, 2000)


@functools.cache
def load(name: str) -> Model:
  return specjax.load(name)


def permuted(name: str, directory: pathlib.Path) -> str:
  """A copy of a model of the zoo, in which two ids have changed places."""
  shutil.copytree(ZOO / name, directory)
  file = directory / "tokenizer.json"
  load(name).tokenizer.save(file)  # which it may share with another
  raw = json.loads(file.read_text())
  words = raw["model"]["vocab"]
  a, b = (next(word for word, i in words.items() if i == place) for place in PLACES)
  words[a], words[b] = words[b], words[a]
  file.write_text(json.dumps(raw))
  return str(directory)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  """Paths by what they hold, all of a model with other tokens."""
  path = tmp_path_factory.mktemp("other")
  found = {"other": permuted(TARGET, path / "other"),
           "denoiser": permuted("gsm8k-7m-denoiser", path / "denoiser")}  # fmt: skip
  model = load(found["other"])
  E = model.config.width
  found["store"] = str(path / "store.npz")
  ids = [model.encode("What is 2 + 3?")]
  datastore.save(
    found["store"], datastore.build(ids), model.config.vocab_size, model.identity.tokens
  )
  head = jax.device_get(AcceptanceHead(1).init(jax.random.key(0), jnp.zeros((1, E))))
  found["acceptance"], found["judge"] = str(path / "acceptance"), str(path / "judge")
  own = model.identity
  parts.save(found["acceptance"], parts.Acceptance(1, head), target=own, draft=own)
  parts.save(found["judge"], Judge(jnp.ones(E), jnp.float32(0.1)), base=own)
  found["texts"] = str(path / "texts.jsonl")
  pathlib.Path(found["texts"]).write_text('{"text": "Two and three."}\n')
  found["layers"] = str(path / "skipped.json")
  skipped_layers.save(found["layers"], np.ones((7, 2), bool), {"model": "seven"})
  return found


TOKENS = r"has another vocabulary than gsm8k-7m, .* id 1000 is '.*' there, and '.*' in gsm8k-7m\.$"
TRAINED = "was trained for .*other, not gsm8k-7m: their tokenizers have other tokens"
DRAFTERS = [
  (f"draft_model[{TARGET}]/ensemble[{{other}}]", TOKENS),
  ("denoiser[{denoiser}]", TOKENS),
  ("medusa/local[{other}]", TOKENS),
  (f"draft_model[{TARGET}]/specdecpp[{{acceptance}}]", TRAINED),
  ("rest[{store}]", "has ids of another tokenizer"),
  ("history[{store}]", "has ids of another tokenizer"),
  ("aded[{store}]", "has ids of another tokenizer"),
  ("self_speculative[{layers}]", r"`layers` must be 8, those of the model, got 7\."),
  # Numbers that a part cannot have, which were cut in silence.
  ("eagle-8/constant-7",
   r"`nodes` must be at most 6 for gsm8k-7m-eagle, which guesses 5 tokens ahead, got 8\."),
  ("eagle/constant-7", r"`length` must be between 0 and 5 \(the most that is drafted\), got 7\."),
  ("eagle/heuristic-7", r"`length` must be between 0 and 5 \(the most that is drafted\), got 7\."),
  (f"draft_model-4[{TARGET}]/constant-7",
   r"`length` must be between 0 and 3 \(the most that is drafted\), got 7\."),
  (f"draft_model[{TARGET}]/trimmed-5000[{{texts}}]",
   r"`size` must be between 1 and 4096, got 5000\."),
  ("medusa/trimmed-5000[{texts}]", r"`size` must be between 1 and 512, got 5000\."),
  # Nothing ships under this name.
  ("hydra", r"no hydra is known for gsm8k-7m \(.* is not in the zoo\): train one"),
  ("medusa[smollm2-135m-medusa]", "was trained for smollm2-135m, not gsm8k-7m: that has a vocab"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "words"), DRAFTERS, ids=[name for name, _ in DRAFTERS])
def test_what_belongs_to_another_model_is_refused(files, name, words):
  with pytest.raises(ValueError, match=words):
    make_drafter(load(TARGET), name.format(**files))


def test_every_way_in_is_asked(files):
  model, other = load(TARGET), load(files["other"])
  for use in (
    lambda: PearlDecoder(model, other),
    lambda: switching(other, model, ["Hi"], 1.0),
  ):
    with pytest.raises(ValueError, match=TOKENS):
      use()
  with pytest.raises(ValueError, match=TRAINED):
    Decoder(model, verifier=f"judge[{files['judge']}]")
  for name in ("medusa", "eagle", "eagle3", "hidden_transfer"):
    with pytest.raises(ValueError, match=r"was trained for gsm8k-7m, not .*other: their tokeniz"):
      make_drafter(other, f"{name}[{TARGET}-{name}]")


@pytest.mark.parametrize(
  ("policy", "trainer"), [("learned", "train.filter"), ("threshold/student", "train.distill")]
)
def test_what_a_text_denoiser_lacks_is_trained_by_a_command(policy, trainer):
  with pytest.raises(ValueError, match=rf"is not in the zoo\): train one with `.*\.{trainer}`"):
    DiffusionDecoder(load("gsm8k-7m-denoiser"), policy)


def test_a_model_of_another_name_that_is_alike_is_a_line(capsys):
  model = dataclasses.replace(load(TARGET), name="my/tuned")
  make_drafter(model, f"medusa[{TARGET}-medusa]")
  assert capsys.readouterr().err == (
    "gsm8k-7m-medusa was trained for gsm8k-7m, not my/tuned: it may draft badly.\n"
  )
  make_drafter(dataclasses.replace(model, name=f"a/{TARGET}"), f"medusa[{TARGET}-medusa]")
  make_drafter(load(TARGET), "medusa")
  assert not capsys.readouterr().err


def test_tensors_of_another_shape_say_whose_they_are(tmp_path):
  """A file that has no more than the name of its target."""
  path = tmp_path / "head"
  shutil.copytree(ZOO / f"{TARGET}-medusa", path)
  raw = json.loads((path / "config.json").read_text())
  raw["base"] = "llama"
  del raw[trained_for.KEY]
  (path / "config.json").write_text(json.dumps(raw))
  model = load(TARGET)
  wider = dataclasses.replace(model, config=dataclasses.replace(model.config, width=320))
  with pytest.raises(ValueError, match=r"trained for llama, not gsm8k-7m: tensor .* shape"):
    make_drafter(wider, f"medusa[{path}]")


def words(texts: str, added: str = "") -> Tokenizer:
  """A tokenizer of these words, one a letter, with more that are added to them."""
  inner = tokenizers.Tokenizer(
    tokenizers.models.WordLevel({x: i for i, x in enumerate(texts)}, unk_token=texts[0])
  )
  inner.add_special_tokens([f"<{x}>" for x in added])
  return Tokenizer(inner)


@pytest.mark.parametrize(
  ("a", "b", "found"),
  [
    (("abc",), ("abc",), None),
    (("abc",), ("acb",), (1, "b", "c")),
    (("abc",), ("abcd",), (3, None, "d")),
    (("abcd",), ("abc",), (3, "d", None)),
    (("abc", "xy"), ("abc", "x"), None),
    (("abc", "xy"), ("abc", "yx"), (3, "<x>", "<y>")),
    (("abc", "x"), ("abcd",), (3, "<x>", "d")),
  ],
)
def test_the_first_token_that_differs(a, b, found):
  first, second = words(*a), words(*b)
  assert vocabulary.difference(first, second) == found
  same = {a[0], b[0]} == {a[0]}
  assert (vocabulary.digest(first) == vocabulary.digest(second)) == same


def made(V: int, name: str) -> Model:
  """A small random model of V rows, of which 12 have a token."""
  config = Config(
    vocab_size=V, width=16, layers=1, heads=2, kv_heads=2, head_dim=8, mlp_width=16, max_length=64
  )
  params = transformer.init(config, jax.random.key(0))
  params = jax.tree.map(lambda x: x * 20 if x.ndim > 1 else x, params)
  return Model(name, config, params, words("abcdefghijkl"), (), (), None)


@pytest.mark.slow
@pytest.mark.parametrize(("V", "W"), [(12, 16), (16, 12)])
def test_vocabularies_may_be_padded_to_other_lengths(V, W):
  model, small = made(V, "a"), made(W, "b")
  own = sharing(model, small, "draft").target
  tokens, place = jnp.asarray([[3, 11]]), jnp.asarray([[0, 1]])
  mask = jnp.tril(jnp.ones((1, 2, 2), bool))
  cache, _ = own.prefill(small.params, jnp.asarray([[1, 2]]), jnp.asarray([2]), 8)
  got = own.evaluate(small.params, cache, tokens, place, mask).logits
  plain = small.target.evaluate(small.params, cache, tokens, place, mask).logits
  want = np.full((1, 2, V), -np.inf)
  want[..., : min(V, W)] = plain[..., : min(V, W)]
  np.testing.assert_array_equal(got, want)
  if V > W:
    drafted, alone = (Decoder(model, drafter)([[1, 2, 3]], 12) for drafter in (small, "none"))
    assert drafted[0].tokens == alone[0].tokens
  bare = dataclasses.replace(small, tokenizer=None)
  with pytest.raises(ValueError, match=f"draft must have the vocabulary of a, {V} tokens, got {W}"):
    sharing(model, bare, "draft")
  assert re.fullmatch("[0-9a-f]{16}", model.identity.tokens or "")
