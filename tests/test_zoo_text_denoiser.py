"""The zoo's denoiser of text: its cache and its drafts change no token, and it writes answers."""

import functools

import numpy as np
import pytest

from specjax import Decoder, DiffusionDecoder
from specjax.eval import likelihood
from specjax.names.load import load

NAME, NEW = "gsm8k-7m-denoiser", 48
QUESTIONS = (
  "A pen costs 3 dollars. What do 7 pens cost?",
  "Lena bakes 3 trays of 12 rolls and sells 20 of them at the market. How many rolls are left?",
  "Tom has 5 boxes with 8 cars each. He gives 12 cars to his sister. How many cars has he now?",
)


@functools.cache
def filled(label: str):
  model = load(NAME)
  decoder = DiffusionDecoder(model, label, batch=len(QUESTIONS))
  return decoder([model.chat(q) for q in QUESTIONS], NEW)


def same(some, others):
  """Whether all slots of all canvases are the same."""
  return [r.filling.canvas for r in some] == [r.filling.canvas for r in others]


@pytest.mark.full
@pytest.mark.parametrize("policy", ["threshold-0.7", "confidence", "factor", "entropy_bound"])
def test_the_cache_of_finished_blocks_changes_no_token(policy):
  assert same(filled(policy), filled(f"{policy}/none"))


@pytest.mark.full
@pytest.mark.parametrize("policy", ["threshold-0.7", "confidence"])
def test_verified_guesses_change_no_token_and_save_passes(policy):
  plain, verified = filled(policy), filled(f"{policy}/guesses-4")
  assert same(plain, verified)
  assert sum(r.passes for r in verified) < sum(r.passes for r in plain)


@pytest.mark.slow
def test_it_writes_text_that_the_causal_model_finds_likely():
  judge = load("gsm8k-7m")
  results = filled("threshold-0.7")
  assert all("<<" in r.text for r in results), [r.text for r in results]
  pairs = [(judge.chat(q), r.tokens) for q, r in zip(QUESTIONS, results, strict=True)]
  log_prob = sum(score.log_prob for score in likelihood.causal(judge, pairs))
  assert -log_prob / sum(len(r.tokens) for r in results) < 1.5


@pytest.mark.full
def test_it_drafts_for_the_model_that_it_was_made_of():
  model = load("gsm8k-7m")
  prompts = [model.chat(q) for q in QUESTIONS]
  plain, drafted = (
    Decoder(model, d, batch=3)(prompts, NEW) for d in ("none", f"denoiser-9[{NAME}]")
  )
  assert [r.tokens for r in drafted] == [r.tokens for r in plain]
  assert np.sum([r.emitted for r in drafted]) > 1.8 * np.sum([r.passes for r in drafted])
