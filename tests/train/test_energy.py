"""The energy network: its loss on a table, the run, and how it decodes by name."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from options import changed

from specjax.checkpoints import parts
from specjax.data import lists
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.diffusion.reweight import Guess
from specjax.models import energy
from specjax.names.load import load
from specjax.train import energy as script
from specjax.train.recipe.config import Training

P = np.array([9, 1, 1, 9, 4])  # how often each of five texts is true, of 24
Q = np.array([6, 6, 6, 4, 2])  # and how often it is drawn


def test_the_least_loss_is_where_the_energy_is_log_q_minus_log_p():
  true, drawn = (np.repeat(np.arange(5), count) for count in (P, Q))

  def loss(table):
    return script.nce(table[true], table[drawn]).mean()

  def step(_, table):
    return table - 4 * jax.grad(loss)(table)

  found = jax.lax.fori_loop(0, 2000, step, jnp.zeros(5))
  np.testing.assert_allclose(found, np.log(Q) - np.log(P), atol=1e-3)


def test_answers_are_filled_up_with_ends():
  asked, said = [False, False], [True] * 3
  documents = [([5, 6, 7, 0], asked + said[:2]), ([5, 6, 7, 8, 9, 0], asked + [True] * 4)]
  assert script.documents_of(documents, 3, 0) == [([5, 6, 7, 0, 0], asked + said)]
  with pytest.raises(ValueError, match=r"`new` must be at least 2, .*, got 1\."):
    script.documents_of(documents, 1, 0)


@pytest.fixture(scope="module")
def trained(list_denoiser, tmp_path_factory):
  """The options of a finished run."""
  config = script.Config(
    model=list_denoiser, data="lists:1:400", out=str(tmp_path_factory.mktemp("energy")),
    questions=400, held_out=64, new=8, hidden=8,
    training=Training(batch=16, steps=60, rate=1e-2, warmup=5, save_every=20, devices=1),
  )  # fmt: skip
  script.main(config)
  return config


@pytest.mark.slow
def test_a_run_tells_the_true_texts_from_the_drawn_ones(trained):
  """The random denoiser draws any words; continued, a finished run does nothing again."""
  file = pathlib.Path(trained.out, "report.json")
  report = json.loads(file.read_text())
  found = report["held_out"]
  assert found["loss"] < 0.8 * 2 * np.log(2)
  assert found["told_apart"] > 0.9 * found["guesses_differ"] > 0.8
  script.main(trained)
  assert json.loads(file.read_text()) == report
  with pytest.raises(ValueError, match="hidden=8"):
    script.main(changed(trained, hidden=9))


@pytest.mark.slow
def test_the_energy_reads_what_is_seen_and_what_was_masked(trained):
  model = load(trained.model)
  weights = parts.load_energy(f"{trained.out}/model", model.config)
  tokens = jnp.array([[3, 4, 5, 6, 7]])
  masked, seen = jnp.array([[False, False, True, True, False]]), jnp.array([[True] * 4 + [False]])
  guess = Guess(tokens, masked, seen, jnp.zeros(1))

  def of(**other) -> float:
    return float(energy.learned(model.config)(weights, guess._replace(**other))[0])

  assert of(tokens=tokens.at[0, 4].set(9)) == of(log_q=jnp.ones(1)) == of()
  others = {"known": tokens.at[0, 0].set(9), "drawn": tokens.at[0, 2].set(9)}
  assert all(abs(of(tokens=x) - of()) > 1e-4 for x in others.values())
  assert abs(of(masked=masked.at[0, 1].set(True)) - of()) > 1e-4


@pytest.mark.slow
def test_texts_of_lower_energy_are_written_by_name(trained):
  model, path = load(trained.model), f"{trained.out}/model"
  weights = parts.load_energy(path, model.config)
  prompts = [model.chat(r["question"]) for r in lists.records(7, 64, (3,), ("copy",))]
  N = len(prompts[0]) + 8  # each has as many tokens

  def mean(samples: int) -> float:
    name = f"left_to_right-8/reweighted-{samples}[{path}]"
    decoder = DiffusionDecoder(model, name, stopping="whole", temperature=1.0, batch=64)
    results = decoder(prompts, 8)
    assert decoder.name.startswith("left_to_right-8/whole/reweighted") and results[0].passes == 1
    texts = jnp.asarray([r.filling.canvas for r in results])
    masked = jnp.broadcast_to(jnp.arange(N) >= N - 8, texts.shape)
    guess = Guess(texts, masked, jnp.ones_like(masked), jnp.zeros(64))
    return float(energy.learned(model.config)(weights, guess).mean())

  found = {samples: mean(samples) for samples in (1, 2, 32)}
  assert found[32] < found[2] < found[1], found
