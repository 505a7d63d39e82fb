"""Smaller vocabularies: what is left says what it said before, and nothing else is drafted."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cut import cut

import specjax
from specjax.checkpoints import hf
from specjax.heads import draft_vocabulary
from specjax.models.trimmed import trim, trimmed
from specjax.names.build.head import load_head
from specjax.names.build.vocabulary import chosen, trim_head
from specjax.names.grammar import parse_one

W = 300
TEXTS = ["A pen costs 3 dollars. ", "Tom has 12 apples and eats 5 of them. ", "7 * 8 = 56 "]
PROMPT = "A pen costs 3 dollars. What do 7 cost?"
MODEL = cut()


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
  path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
  path.write_text("".join(json.dumps({"text": x * (i + 1)}) + "\n" for i, x in enumerate(TEXTS)))
  return path


def named(texts, size: int = W):
  return parse_one("drafter", f"trimmed-{size}[{texts}]")


def test_the_most_frequent_tokens_are_chosen(texts):
  label, ids = chosen(MODEL, named(texts, 5))
  said = np.concatenate([MODEL.encode(x * (i + 1)) for i, x in enumerate(TEXTS)])
  counts = np.bincount(said, minlength=4096)
  assert label == f"trimmed-5[{texts}]" and len(ids) == 5 and (np.diff(ids) > 0).all()
  assert counts[ids].min() >= np.delete(counts, ids).max()
  among = np.sort(np.unique(said))[::2]
  _, some = chosen(MODEL, named(texts, 3), among)
  assert set(some) <= set(among) and counts[some].min() >= np.sort(counts[among])[-3]
  assert len(chosen(MODEL, named(texts, 4096))[1]) == 4096
  with pytest.raises(ValueError, match=r"`size` must be between 1 and 4096, got 4097\."):
    chosen(MODEL, named(texts, 4097))


@pytest.mark.full(but=["eagle3", "medusa", "medusa-every_token"])
@pytest.mark.parametrize(
  "name", ["eagle", "eagle3", "hidden_transfer", "medusa", "medusa-every_token"]
)
def test_a_trimmed_head_reads_its_rows(texts, name):
  """The logits of the kept tokens are those of the whole head."""
  name, _, every = name.partition("-")
  _, loaded = load_head(MODEL, parse_one("drafter", name))
  if every:
    loaded = loaded._replace(params=loaded.head.init(jax.random.key(1), MODEL.params))
  _, less = trim_head(MODEL, loaded, named(texts))
  kept, old = draft_vocabulary.ids(less.params), draft_vocabulary.ids(loaded.params)
  assert kept.shape == (W,)
  state = jax.random.normal(jax.random.key(0), (1, 2, MODEL.config.width))
  for d in (1, 2):
    ours, whole = (
      np.asarray(x.head.read(x.params, MODEL.params, state, d)) for x in (less, loaded)
    )
    place = np.asarray(kept) if old is None else np.searchsorted(old, kept)
    np.testing.assert_allclose(ours, whole[..., place], rtol=1e-5, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
  "name", ["medusa-6/trimmed-300[TEXTS]", "eagle3/trimmed-300[TEXTS]/dynamic-6,depth=3,beam=2"]
)
def test_trimmed_heads_change_no_token(texts, name):
  name = name.replace("TEXTS", str(texts))
  decoder = specjax.Decoder(MODEL, name)
  (plain,), (found,) = (d([PROMPT], 24) for d in (specjax.Decoder(MODEL), decoder))
  assert found.tokens == plain.tokens and found.passes < plain.passes
  assert decoder.name == name


@pytest.mark.slow
def test_a_trimmed_model_says_its_tokens_alone(texts):
  _, ids = chosen(MODEL, named(texts))
  small = trimmed(MODEL.target)
  assert small is trimmed(MODEL.target)
  params = trim(MODEL.target, MODEL.params, jnp.asarray(ids))
  tokens, length = jnp.asarray([MODEL.encode(PROMPT)]), jnp.asarray([9], jnp.int32)
  cache, _ = MODEL.target.prefill(MODEL.params, tokens, length, 32)
  node, mask = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1, 1), bool)
  whole = MODEL.target.evaluate(MODEL.params, cache, tokens[:, 8:9], node, mask)
  found = small.evaluate(params, cache, tokens[:, 8:9], node, mask)
  np.testing.assert_allclose(found.logits[..., ids], whole.logits[..., ids], rtol=1e-5, atol=1e-4)
  assert np.isneginf(np.delete(np.asarray(found.logits), ids, -1)).all()
  np.testing.assert_allclose(found.features.hidden, whole.features.hidden, rtol=1e-5, atol=1e-5)
  with pytest.raises(
    ValueError,
    match=(
      r"`hidden_layers` must be \(\) for a trimmed model, which shows no layers, got \(1,\)\."
    ),
  ):
    small.evaluate(params, cache, tokens[:, 8:9], node, mask, (1,))


@pytest.mark.slow
@pytest.mark.full(but=["chain"])
@pytest.mark.parametrize(
  "after", ["", "/adaedl-0.3", "/without_replacement-2-1"], ids=["chain", "adaedl", "tree"]
)
def test_trimmed_draft_models_change_no_token(tmp_path, after):
  hf.save(tmp_path / "model", MODEL.config, MODEL.params, MODEL.tokenizer)
  (want,) = specjax.Decoder(MODEL, temperature=0.8, seed=3)([PROMPT], 24)
  (tmp_path / "texts.jsonl").write_text(json.dumps({"text": PROMPT + want.text}))
  name = f"draft_model[{tmp_path}/model]/trimmed-300[{tmp_path}/texts.jsonl]{after}"
  (found,) = specjax.Decoder(MODEL, name, "target_only", temperature=0.8, seed=3)([PROMPT], 24)
  assert found.tokens == want.tokens and found.passes < want.passes
  assert specjax.Decoder(MODEL, name, temperature=0.8)([PROMPT], 8)[0].emitted == 8


@pytest.mark.parametrize(
  ("name", "words"),
  [
    ("medusa/trimmed", "trimmed: it needs texts, trimmed\\[FILE.jsonl\\]"),
    ("medusa/trimmed-0[TEXTS]", r"`size` must be between 1 and 512, got 0\."),
    (
      "prompt_lookup/trimmed-9[TEXTS]",
      r"prompt_lookup/trimmed: after prompt_lookup/ may follow none\.",
    ),
  ],
)
def test_bad_names(texts, name, words):
  with pytest.raises(ValueError, match=words):
    specjax.Decoder(MODEL, name.replace("TEXTS", str(texts)))
