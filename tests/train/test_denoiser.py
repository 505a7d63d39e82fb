"""A denoiser from questions and answers, and from text, end to end and tiny."""

import dataclasses
import json
import pathlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from options import changed

import specjax
from specjax.data import lists
from specjax.data.chat import TEMPLATES
from specjax.data.packing import pack
from specjax.data.tokenizer import END, MASK, train_words
from specjax.diffusion import blocks, caches, denoise, stopping
from specjax.diffusion.base import Canvas
from specjax.diffusion.policies import POLICIES
from specjax.sampling import request_keys
from specjax.train import denoiser as script
from specjax.train.recipe.config import Network, Training


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """The configuration of a finished run on short copies."""
  home = tmp_path_factory.mktemp("denoiser")
  records = lists.records(0, 400, lengths=(2,), tasks=("copy",))
  (home / "data.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
  config = script.Config(
    data=str(home / "data.jsonl"), out=str(home / "run"), words=True, length=10,
    network=Network(width=32, layers=2, heads=2, kv_heads=2, head_dim=16, mlp_width=64),
    training=Training(
      batch=64, steps=300, rate=5e-3, warmup=10, save_every=75, decay=0.1, devices=1
    ),
  )  # fmt: skip
  script.main(config)
  return config


@pytest.mark.slow
def test_it_learns_where_a_text_ends_and_its_export_decodes(run):
  model = specjax.load(f"{run.out}/model")
  assert not model.config.causal and model.template == TEMPLATES["plain"]
  questions = [r["question"] for r in lists.records(1, 16, lengths=(2,), tasks=("copy",))]
  B, W, network = len(questions), 4, model.denoiser
  assert network.mask == model.tokenizer.id(MASK)
  tokens = np.zeros((B, 16), np.int32)
  masked = np.zeros((B, 16), bool)
  for b, question in enumerate(questions):
    ids = model.chat(question)
    tokens[b, : len(ids)] = ids
    masked[b, len(ids) : len(ids) + W] = True
  canvas = Canvas(jnp.asarray(tokens), jnp.asarray(masked), jnp.asarray(masked.argmax(1) + W))
  method = denoise.DenoiseMethod(
    network, caches.none(network, W), POLICIES["confidence"](), blocks.fixed(W), stopping.whole()
  )
  weights = denoise.Weights(model.params, method.policy.parameters(jnp.ones(B, jnp.int32)))
  request = denoise.DenoiseRequest(request_keys(0, np.arange(B)), jnp.zeros(B))
  state = denoise.compiled_start(method, weights, canvas)
  state = denoise.compiled_advance(method, weights, request, state, jnp.int32(99))
  answers = [
    model.decode([int(i) for i in row[m] if i != model.stop[0]])
    for row, m in zip(np.asarray(state.canvas.tokens), masked, strict=True)
  ]
  # Too small to copy, but two names and then the end is what all answers are.
  assert np.mean([len(a.split()) == 2 for a in answers]) > 0.8, answers
  with open(f"{run.out}/metrics.jsonl") as file:
    loss = [json.loads(line)["loss"] for line in file]
  assert np.mean(loss[-20:]) < 0.6 * np.mean(loss[:5])


COPY = [
  {"role": "user", "content": "copy : Ann Bob ="}, {"role": "assistant", "content": "Ann Bob"},
]  # fmt: skip


def test_a_question_is_never_masked_and_the_rest_ends_the_text():
  tokenizer = train_words(["copy : Ann Bob ="])
  end = tokenizer.id(END)
  rows = script.rows_of([COPY], 10, TEMPLATES["plain"], tokenizer, end)
  assert rows.tokens.tolist() == [[*tokenizer.encode("copy : Ann Bob = Ann Bob"), *[end] * 3]]
  assert rows.mask.tolist() == [[False] * 5 + [True] * 5]
  assert rows.position.tolist() == [list(range(10))] and not rows.segment.any()


def test_conversations_share_a_row_of_blocks():
  tokenizer = train_words(["copy : Ann Bob ="])
  end, plain = tokenizer.id(END), TEMPLATES["plain"]
  one = [*tokenizer.encode("copy : Ann Bob = Ann Bob"), *[end] * 3]  # 8 tokens with their end
  said = [False] * 5 + [True] * 5
  rows = script.rows_of([COPY] * 3, 22, plain, tokenizer, end, 5)
  assert rows.tokens.tolist() == [[*one, *one, 0, 0], [*one, *[0] * 12]]
  assert rows.mask.tolist() == [said * 2 + [False] * 2, said + [False] * 12]
  assert rows.segment.tolist() == [[0] * 10 + [1] * 10 + [-1] * 2, [0] * 10 + [-1] * 12]
  assert rows.position[0].tolist() == [*range(10), *range(10), 0, 0]
  # A row need not be whole blocks.
  assert script.rows_of([COPY], 8, plain, tokenizer, end, 5).tokens.tolist() == [one[:8]]


def test_text_fills_rows_and_all_of_it_is_masked_at_times():
  tokenizer = train_words(["a b c"])
  rows = script.rows_of(["a b c " * 5, "c b a"], 10, TEMPLATES["plain"], tokenizer, 0)
  stream = [*tokenizer.encode("a b c " * 5), 0, *tokenizer.encode("c b a"), 0]
  assert rows.tokens.tolist() == [stream[:10], stream[10:20]] and rows.mask.all()


def test_rows_that_are_too_short():
  tokenizer = train_words(["copy : Ann Bob ="])
  with pytest.raises(
    ValueError,
    match=(
      "`length` must be at least 8, the tokens of the shortest record with its answer, got "
      r"6\."
    ),
  ):
    script.rows_of([COPY], 6, TEMPLATES["plain"], tokenizer, 0)


def test_a_conversation_that_is_longer_than_a_row_is_left_out(capsys):
  tokenizer = train_words(["copy : Ann Bob ="])
  plain, long = TEMPLATES["plain"], [COPY[0], {"role": "assistant", "content": "Ann " * 9}]
  rows = script.rows_of([COPY, long], 10, plain, tokenizer, 0)
  assert rows.tokens.tolist() == script.rows_of([COPY], 10, plain, tokenizer, 0).tokens.tolist()
  assert capsys.readouterr().out == "1 of 2 records take more than 10 tokens and are left out.\n"


def test_a_conversation_ends_with_an_answer():
  tokenizer = train_words(["copy : Ann Bob ="])
  with pytest.raises(ValueError, match="record 2 does not end with an answer"):
    script.rows_of([COPY, COPY[:1]], 10, TEMPLATES["plain"], tokenizer, 0)


@pytest.mark.slow
def test_a_model_goes_on_from_where_it_was(run, tmp_path):
  config = changed(
    run, start=f"{run.out}/model", out=str(tmp_path), words=False, layers=7, steps=2, rate=1e-9,
    warmup=1, save_every=2,
  )  # fmt: skip
  script.main(config)
  before, after = specjax.load(config.start), specjax.load(f"{tmp_path}/model")
  assert (after.config, after.mask, after.stop) == (before.config, before.mask, before.stop)
  chex.assert_trees_all_close(after.params, before.params, atol=1e-5)
  loss = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])["loss"]
  with open(f"{run.out}/metrics.jsonl") as file:
    assert loss < 0.7 * json.loads(file.readline())["loss"]


@pytest.mark.slow
def test_uniform_noise_is_learned_and_its_export_decodes(run, tmp_path):
  config = changed(run, noise="uniform", out=str(tmp_path), steps=40, save_every=40)
  script.main(config)
  model = specjax.load(f"{tmp_path}/model")
  assert model.config.uniform and model.mask is None
  loss = [json.loads(x)["loss"] for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert np.mean(loss[-5:]) < 0.7 * loss[0]
  method = "entropy_bound+renoise-5+settled/cooling/anew/fixed-4"
  (answer,) = specjax.DiffusionDecoder(model, method, temperature=1.0)(["copy : Ann Bob ="], 4)
  assert answer.passes <= 5 and len(answer.filling.canvas) > 4
  with pytest.raises(ValueError, match="`noise` must be mask with any_order, with context or"):
    script.main(dataclasses.replace(config, context=True))


def test_uniform_noise_is_any_token_where_masks_would_be():
  tokens = np.full((64, 32), 3)
  rows = pack([(row.tolist(), [False] * 8 + [True] * 24) for row in tokens], 32, first=True)
  masks, words = (
    script.drawn((rows, np.ones(64)), jax.random.key(0), None, mask, 11) for mask in (10, None)
  )
  masked = np.asarray(masks.tokens == 10)
  np.testing.assert_array_equal(masked, words.masked)
  assert (np.asarray(words.tokens)[~masked] == 3).all() and not masked[:, :8].any()
  counts = np.bincount(np.asarray(words.tokens)[masked], minlength=11)
  assert len(counts) == 11 and counts.min() > 0.6 * masked.sum() / 11


@pytest.mark.slow
def test_low_rank_updates_alone_are_trained(run, tmp_path):
  config = changed(
    run, start=f"{run.out}/model", out=str(tmp_path), words=False, rank=2, steps=8, rate=3e-2,
    warmup=0,
  )  # fmt: skip
  script.main(config)
  before, after = (
    flatten_dict(specjax.load(f"{path}/model").params["params"]) for path in (run.out, tmp_path)
  )
  for name, old in before.items():
    change = np.asarray(after[name] - old)
    if change.ndim == 1 or len(name) == 1:  # norms and the embedding
      assert not change.any(), name
    else:  # files hold 16 bits of a number
      _, second, third, *_ = np.linalg.svd(change, compute_uv=False)
      assert second > 5 * third, name
  with pytest.raises(ValueError, match=r"`rank` must be 0 without start, got 2\."):
    script.main(dataclasses.replace(config, start=None))


@pytest.mark.slow
@pytest.mark.full(but=["options1*", "options2*"])
@pytest.mark.parametrize(
  ("options", "within"),
  [({"remat": True}, 1e-5), ({"devices": 4}, 1e-5), ({"dtype": "bfloat16", "rank": 2}, 2e-2)],
)
def test_devices_and_layers_computed_again_and_short_numbers_learn_the_same(
  run, tmp_path, options, within
):
  def losses(name, **options):
    config = changed(
      run, start=f"{run.out}/model", out=str(tmp_path / name), words=False, steps=3, save_every=3,
      **options,
    )  # fmt: skip
    script.main(config)
    lines = (pathlib.Path(config.out) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines], specjax.load(f"{config.out}/model")

  alone = {"rank": options["rank"]} if "rank" in options else {}
  (got, model), (want, _) = losses("changed", **options), losses("alone", **alone)
  np.testing.assert_allclose(got, want, rtol=within)
  assert model.dtype == jnp.float32


def test_a_model_without_a_tokenizer_does_not_go_on(run, tmp_path):
  with pytest.raises(
    ValueError,
    match=(r"`start` must have a tokenizer, got '.*llama3'\."),
  ):
    fixture = pathlib.Path(__file__).parents[1] / "fixtures" / "hf" / "llama3"
    script.main(changed(run, start=str(fixture), out=str(tmp_path)))
