"""What a decoder will need, against what it holds."""

import functools

import jax
import numpy as np
import pytest
from sentences import says

from specjax import Model, load
from specjax.cli import main
from specjax.decoding.decoder import Decoder
from specjax.eval import memory
from specjax.models.config import Config
from specjax.models.transformer import init

PROMPT, NEW = 20, 12
CONFIG = Config(
  vocab_size=64, width=16, layers=2, heads=2, kv_heads=1, head_dim=8, mlp_width=24, max_length=96
)


@functools.cache
def small() -> Model:
  return Model("small", CONFIG, init(CONFIG, jax.random.key(0)), None, (), (), None)


def held(*trees) -> int:
  """Bytes of the arrays, each once."""
  known = {id(x): x for tree in trees for x in jax.tree.leaves(tree)}
  return sum(np.asarray(x).nbytes for x in known.values())


@pytest.mark.slow
@pytest.mark.full(but=["medusa-8"])
@pytest.mark.parametrize("drafter", ["prompt_lookup-4", "medusa-8"])
def test_what_rests_is_what_a_decoder_holds(drafter):
  model = load()
  decoder = Decoder(model, drafter, batch=3)
  found = memory.measure(decoder, PROMPT, NEW)
  _, state, _ = decoder._start([[5] * PROMPT] * 3, [NEW] * 3, 0)
  assert found.cache == held(state.cache)
  assert found.state == held(state._replace(cache=()))
  assert found.weights + found.parts == held(model.params, decoder.weights)
  assert (found.parts > 0) == (drafter == "medusa-8")
  assert found.total == found.resting + max(found.prefill, found.round) > found.resting


@pytest.mark.slow
def test_pages_are_counted():
  decoder = Decoder(small(), batch=2)
  found = memory.measure(decoder, PROMPT, NEW, pages=9)
  page = 64 * CONFIG.kv_heads * CONFIG.head_dim * 4  # of keys, of a layer
  own = 2 * (4 + 4)  # a table of one page for each row, and lengths
  assert found.cache == (1 + 9) * page * 2 * CONFIG.layers + own
  assert found.total > found.resting > found.cache
  drafted = memory.measure(Decoder(small(), small(), batch=2), PROMPT, NEW, pages=9)
  assert drafted.cache == found.cache and drafted.state - found.state >= found.cache
  with pytest.raises(ValueError, match=r"`pages` must be 0 with the drafter 'jacobi-4'"):
    memory.measure(Decoder(small(), "jacobi-4"), PROMPT, NEW, pages=9)


def test_a_store_of_beginnings_is_counted():
  decoder = Decoder(small(), batch=2)
  without, found = (memory.measure(decoder, PROMPT, NEW, held) for held in (0, 10**6))
  _, state, _ = decoder._start([[5] * PROMPT] * 2, [NEW] * 2, 0)
  one = (held(state.cache) + held(state._replace(cache=()))) // 2  # the row that is read
  assert found.resting - without.resting == found.prefixes == 10**6 + one
  assert found.rows[4]["memory"] == "beginnings of prompts" and len(without.rows) == 8
  with pytest.raises(ValueError, match=r"`prefixes` must be 0 with the drafter 'jacobi-4'"):
    memory.measure(Decoder(small(), "jacobi-4"), PROMPT, NEW, 10**6)


@pytest.mark.slow
def test_the_largest_batch_fits_and_one_more_does_not():
  def decoder(batch):
    return Decoder(small(), batch=batch)

  budget = memory.measure(decoder(40), PROMPT, NEW).total
  batch, found = memory.largest_batch(decoder, budget, PROMPT, NEW)
  assert found == memory.measure(decoder(batch), PROMPT, NEW) and found.total <= budget
  assert 38 <= batch <= 40  # what a program sets aside grows in steps
  none, one = memory.largest_batch(decoder, 1000, PROMPT, NEW)
  assert none == 0 and one == memory.measure(decoder(1), PROMPT, NEW)


@pytest.mark.slow
def test_the_command_prints_the_parts(capsys):
  assert main.main(["memory", "--max-new-tokens", "8"]) == 0
  out = capsys.readouterr().out
  assert "at most" in out and "gsm8k-7m, none, batch 1" in out
  size = next(line.split()[-1] for line in out.splitlines() if "of the target" in line)
  assert float(size) == pytest.approx(held(load().params) / 1e6, abs=0.06)


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (("--budget", "0"), "`budget` must be above 0, got 0.0."),
    (("--budget", "1", "--batch", "4"), "--batch 4: --budget 1 finds the batch itself."),
    (("--prompt-tokens", "0"), "`prompt_tokens` must be between 1 and 2147483647, got 0."),
    (
      ("--prompt-tokens", "300"),
      "`prompt_tokens` and `max_new_tokens` must be together at .. got 300 and 128.",
    ),
    (("--drafter", "nothing"), "nothing"),
  ],
)
def test_bad_numbers_are_one_sentence(words, message, capsys):
  assert main.main(["memory", *words]) == 2
  assert says(capsys.readouterr().err, message)
