"""Certainty forcing: what is masked, what is asked, the loss, the run and its files."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from options import changed

from specjax.data import lists
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.models import lora
from specjax.models.transformer import Transformer
from specjax.names.load import load
from specjax.train import distill as script
from specjax.train.recipe import block_diffusion, forward
from specjax.train.recipe.config import Training

ANSWER = (np.arange(20) >= np.array([[3], [6], [2]])) & (
  np.arange(20) < np.array([[15], [10], [3]])
)


@pytest.mark.parametrize("share", [0.5, None])
@pytest.mark.parametrize(("whole", "aligned"), [(False, False), (True, False), (False, True)])
def test_each_slot_of_a_block_is_asked_once(whole, aligned, share):
  blocks = set()
  for seed in range(40):
    drawn = script.masks(jax.random.key(seed), jnp.asarray(ANSWER), 5, share, whole, aligned)
    hidden, asked = np.asarray(drawn.hidden), np.asarray(drawn.asked)
    assert not (asked[0] & asked[1]).any() and not (asked & ~hidden).any()
    assert not (hidden & ~ANSWER).any()
    segment = asked.any(0)
    for b in range(3):
      slots, answer = np.flatnonzero(segment[b]), np.flatnonzero(ANSWER[b])
      place = slots - (answer[0] - answer[0] % 5 if aligned else answer[0])
      if whole:
        np.testing.assert_array_equal(slots, answer)
        assert (hidden[:, b] == asked[:, b]).all()
        continue
      blocks.add((b, place[0] // 5))
      assert place[0] % 5 == 0 or slots[0] == answer[0]
      assert (place // 5 == place[0] // 5).all() and (np.diff(slots) == 1).all()
      assert place[-1] % 5 == 4 or slots[-1] == answer[-1]
      later = answer[answer > slots[-1]]
      earlier = answer[answer < slots[0]]
      assert hidden[:, b][:, later].all() and not hidden[:, b][:, earlier].any()
  if not whole:
    assert blocks == {(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)}


def test_a_share_of_none_is_drawn_for_each_row():
  answer = jnp.ones((400, 16), bool)
  drawn = script.masks(jax.random.key(0), answer, 16, None, False)
  count = np.asarray(drawn.hidden[0].sum(1))
  # Masks of a uniform share are as likely few as many: k of n for every k.
  assert np.bincount(count, minlength=17).min() >= 10 and abs(count.mean() - 8) < 0.6


def certainty_loss(logits, tokens, asked, weight):
  return script.certainty_loss(*script.certainty(0.5)(logits, tokens), asked, weight)


def test_only_what_is_right_is_made_certain():
  logits = jnp.array([[[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.0, 0.0]]])
  asked = jnp.array([[True, True, False]])
  right, _ = certainty_loss(logits, jnp.array([[0, 0, 0]]), asked, 2.0)
  log_probs = np.exp(np.asarray(logits[0], float))
  log_probs /= log_probs.sum(-1, keepdims=True)
  sharp = log_probs**2 / (log_probs**2).sum(-1, keepdims=True)
  entropy = -(sharp[0] * np.log(sharp[0])).sum()  # of the first slot: the second is wrong
  wanted = -(np.log(log_probs[0, 0]) + np.log(log_probs[1, 0])) / 2 + 2 * entropy
  np.testing.assert_allclose(right, wanted, rtol=1e-5)
  _, metrics = certainty_loss(logits, jnp.array([[1, 0, 0]]), asked, 2.0)
  assert metrics["entropy"] == 0 and metrics["accuracy"] == 0


def test_the_gradient_is_that_of_finite_differences():
  rng = np.random.default_rng(0)
  logits = jnp.asarray(rng.normal(size=(2, 3, 4)), jnp.float32)
  tokens, asked = jnp.asarray(rng.integers(0, 4, (2, 3))), jnp.asarray(rng.random((2, 3)) < 0.7)

  @jax.jit
  def loss(x):
    return certainty_loss(x, tokens, asked, 1.5)[0]

  got = np.asarray(jax.grad(loss)(logits))
  for index in np.ndindex(2, 3, 4):
    step = jnp.zeros_like(logits).at[index].set(1e-2)
    np.testing.assert_allclose(
      got[index], (loss(logits + step) - loss(logits - step)) / 2e-2, atol=2e-3
    )


@pytest.mark.slow
@pytest.mark.full(but=["2"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_run_gives_a_student(list_denoiser, tmp_path, rank):
  data = tmp_path / "questions.jsonl"
  data.write_text("".join(json.dumps(record) + "\n" for record in lists.records(1, 16)))
  config = script.Config(
    model=list_denoiser, data=str(data), out=str(tmp_path / "run"), questions=16, new=6, block=6,
    rank=rank, answer_batch=8,
    training=Training(batch=8, steps=8, warmup=1, save_every=4, rate=1e-2, devices=1),
  )  # fmt: skip
  script.main(config)
  student, teacher = load(str(tmp_path / "run" / "model")), load(list_denoiser)
  assert student.mask == teacher.mask and student.template == teacher.template
  same = jax.tree.map(lambda a, b: bool((a == b).all()), student.params, teacher.params)["params"]
  assert not same["layer_0"]["qkv"] and same["embedding"] == bool(rank)
  filled = DiffusionDecoder(student, "entropy_threshold", blocks=6)(["copy : Ada Bob ="], 6)
  assert filled[0].passes <= 6
  with pytest.raises(ValueError, match="rank"):
    script.main(changed(config, rank=5))


@pytest.mark.slow
@pytest.mark.parametrize("shift", [False, True])
def test_a_noisy_block_is_said_as_in_decoding(block_denoiser, shift):
  """As the network says it of a row that ends with the block, whatever comes later in the row."""
  model, (T, D, begin) = load(block_denoiser), (14, 4, 8)
  tokens = jnp.asarray(np.random.default_rng(0).integers(1, model.config.vocab_size, (2, T)))
  tokens = tokens.at[:, [begin, begin + 2]].set(model.mask).astype(jnp.int32)
  used, network = jnp.ones((2, T), bool), Transformer(model.config)
  said = forward.states(
    network, model.params, tokens, used, shift, block_diffusion.causal_mask(T, D)
  )  # fmt: skip
  cut = tokens[:, : begin + D]
  position = jnp.broadcast_to(jnp.arange(begin + D, dtype=jnp.int32), cut.shape)
  hidden, _ = model.denoiser.evaluate(model.params, cut, position, used[:, : begin + D])
  wanted = hidden[:, begin - shift : begin + D - shift]
  np.testing.assert_allclose(said[:, begin : begin + D], wanted, atol=1e-5)


@pytest.mark.slow
def test_a_block_denoiser_gets_a_student_that_decodes_over_its_cache(block_denoiser, tmp_path):
  data = tmp_path / "questions.jsonl"
  data.write_text("".join(json.dumps(record) + "\n" for record in lists.records(1, 16)))
  config = script.Config(
    model=block_denoiser, data=str(data), out=str(tmp_path / "run"), questions=16, new=6,
    answer_batch=8,
    training=Training(batch=8, steps=8, warmup=1, save_every=4, rate=1e-2, devices=1),
  )  # fmt: skip
  script.main(config)
  student = load(str(tmp_path / "run" / "model"))
  assert student.config.block_length == 4
  decoder = DiffusionDecoder(student, "entropy_threshold")
  assert decoder.loop.method.cache.name == "committed"
  assert decoder(["copy : Ada Bob ="], 6)[0].passes <= 6
  for more in ({"block": 6}, {"whole": True}):
    with pytest.raises(
      ValueError,
      match=(r"`block` and `whole` must be 4 and False, since.*got (6 and False|4 and True)\."),
    ):
      script.main(dataclasses.replace(config, **more))


def test_wrong_answers_to_lists_teach_nothing(list_denoiser, tmp_path):
  """A network that knows nothing answers nothing right: no row is left."""
  config = script.Config(
    model=list_denoiser, data="lists:1:8", out=str(tmp_path), questions=8, answer_batch=8,
    training=Training(batch=8, devices=1),
  )  # fmt: skip
  with pytest.raises(
    ValueError, match=(r"`batch` must be between 1 and 0, the rows that the data fill, got 8\.")
  ):
    script.main(config)
  model = load(list_denoiser)
  said = ["Bob Ada", "Ada Bob", "Ada Bob Cy", "Ada Bob"]
  rows = script.StudentRows(
    np.zeros((4, 12), np.int32), np.zeros((4, 12), bool), np.ones((4, 12), bool)
  )
  for i, text in enumerate(said):
    ids = [*model.encode(text), *([model.stop[0]] * 9)][:9]
    rows.tokens[i, 3:], rows.answer[i, 3:] = ids, True
  questions = ["reverse : Ada Bob =", "copy : Ada Bob =", "copy : Ada Bob =", "sort : Bob Ada ="]
  np.testing.assert_array_equal(script.is_right(model, questions, rows), [True, True, False, True])


def test_updates_begin_with_nothing(list_denoiser):
  params = load(list_denoiser).params
  updates = lora.start(jax.random.key(0), params, 3)
  assert updates.keys() == {"layer_0"}
  jax.tree.map(np.testing.assert_array_equal, lora.merge(params, updates), params)
