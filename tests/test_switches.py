"""Every public switch of JAX that changes types, draws or checks leaves the tokens as they are."""

import dataclasses
import functools
import pathlib
import re

import jax
import numpy as np
import pytest

import specjax
from specjax import switches
from specjax.cli import main
from specjax.data import datastore
from specjax.decoding.conversation import Conversation
from specjax.models.config import Config
from specjax.models.transformer import init
from specjax.names.load import Model
from specjax.sampling import new_key
from specjax.serving.engine import Engine
from specjax.serving.refill import refilled

ROOT = pathlib.Path(__file__).parents[1]
V, MASK = 24, 23
CONFIG = Config(
  vocab_size=V, width=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp_width=24, max_length=96
)
SWITCHES = {
  "draws": {
    "jax_default_prng_impl": "rbg", "jax_threefry_partitionable": False,
    "jax_high_dynamic_range_gumbel": True, "jax_random_seed_offset": 7,
  },
  "64 bits": {
    "jax_enable_x64": True, "jax_default_prng_impl": "unsafe_rbg", "jax_legacy_prng_key": "error",
    "jax_transfer_guard": "disallow",
  },
  "checks": {
    "jax_debug_nans": True, "jax_debug_infs": True, "jax_enable_checks": True,
    "jax_debug_key_reuse": True, "jax_explicit_x64_dtypes": "error",
  },
  "rbg": {"jax_default_prng_impl": "rbg"},
  "unsafe_rbg": {"jax_default_prng_impl": "unsafe_rbg"},
  "64 bits alone": {"jax_enable_x64": True},
  "as a user has them": {
    "jax_numpy_dtype_promotion": "standard", "jax_numpy_rank_promotion": "allow",
    "jax_enable_custom_prng": True, "jax_softmax_custom_jvp": True,
    "jax_default_matmul_precision": "float32",
  },
  "leaks": {"jax_check_tracer_leaks": True},
  "no programs": {"jax_disable_jit": True},
}  # fmt: skip
PROMPTS = [[5, 6, 7, 5, 6], [8, 9], [3, 3, 4]]


@functools.cache
def model(seed: int = 0, causal: bool = True) -> Model:
  config = dataclasses.replace(CONFIG, causal=causal)
  params = jax.tree.map(lambda x: x * 9 if x.ndim > 1 else x, init(config, new_key(seed)))
  return Model(f"tiny {seed}", config, params, None, (), (), None, None if causal else MASK)


def said(results) -> list[list[int]]:
  return [list(map(int, x.tokens)) for x in results]


def decoded(*names: str) -> dict[str, list[list[int]]]:
  """Tokens by method: greedy and sampled, with a draft and without, and of a denoiser."""
  sampled = functools.partial(specjax.Decoder, model(), temperature=1.0)
  decoders = {
    "greedy": lambda: specjax.Decoder(model(), batch=3),
    "sampled": lambda: sampled(batch=3),
    "sampled, one by one": sampled,
    "lookup": lambda: sampled("prompt_lookup-3", batch=3),
    "draft model": lambda: sampled(model(1), "token", batch=3, top_p=0.9),
    "denoised": lambda: specjax.DiffusionDecoder(
      model(2, False), "random/anew", blocks=4, temperature=0.8, batch=3
    ),
  }
  return {name: said(decoders[name]()(PROMPTS, 5)) for name in names or decoders}


plain = functools.cache(decoded)


@pytest.mark.slow
@pytest.mark.full(but=["64 bits"])
@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_changes_no_token(name, switch):
  names = ("greedy", "sampled", "lookup") if name == "no programs" else ()
  want = plain(*names)
  assert want["sampled"] == want.get("sampled, one by one", want["sampled"]) == want["lookup"]
  switch(SWITCHES[name])
  assert decoded(*names) == want


def lookup() -> specjax.Decoder:
  return specjax.Decoder(model(), "prompt_lookup-3", temperature=1.0)


def by_an_engine() -> list[int]:
  with Engine(lookup(), max_length=64) as engine:
    return engine.submit(PROMPTS[0], 5).wait()


ONE = PROMPTS[:1]
DOORS = {
  "stream": lambda: list(lookup().stream(ONE, 5)),
  "conversation": lambda: said(Conversation(lookup()).ask(PROMPTS[0], 5)),
  "engine": by_an_engine,
  "refilled": lambda: sorted((i, x.tokens) for i, x in refilled(lookup(), PROMPTS, 5)),
  "best_of": lambda: [x.chosen for x in specjax.search.best_of(lookup(), ONE, 2, 4)],
  "pearl": lambda: said(specjax.search.PearlDecoder(model(), model(1), 2, temperature=1.0)(ONE, 5)),
  "beam_search": lambda: [said(x) for x in specjax.search.beam_search(model(), ONE, 2, 4)],
  "adadec": lambda: said(specjax.search.adadec(model(), ONE, 1.0, 4)),
  "switching": lambda: said(
    specjax.search.switching(model(), model(1), ONE, 1.0, 4, temperature=1.0)
  ),
  "superposed": lambda: said(
    specjax.search.superposed(model(), PROMPTS[0], datastore.build([PROMPTS[0] * 3]), 2, 4,
                              candidates=4)
  ),
  "constrained": lambda: said(
    specjax.search.constrained(model(), ONE, lambda text: sum(text) % 2 == 0, 2, 3)[0]
  ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.full(but=["stream", "engine"])
@pytest.mark.parametrize("door", DOORS)
def test_every_door_holds_its_switches(door, switch):
  want = DOORS[door]()
  switch({**SWITCHES["64 bits"], **SWITCHES["draws"]})
  assert DOORS[door]() == want


def test_a_generator_gives_its_users_switches_back(switch):
  @switches.hold
  def numbers():
    for i in range(2):
      yield i, jax.config.jax_enable_x64

  switch({"jax_enable_x64": True})
  for _, inside in numbers():
    assert not inside and jax.config.jax_enable_x64


@pytest.mark.parametrize("name", ["jax_no_tracing", "jax_no_execution"])
def test_a_command_that_may_compute_nothing_says_so(name, switch, capsys):
  switch({name: True})
  assert main.main(["generate", "--prompt", "hi"]) == 2
  assert capsys.readouterr().err.startswith(f"error: `{name}` must be False, ")


def test_a_key_is_that_of_the_seed_under_threefry():
  for seed in (0, 1, 2**31, 2**32 - 1):
    key = new_key(seed)
    assert str(jax.random.key_impl(key)) == "threefry2x32"
    assert jax.random.key_data(key).tolist() == [0, seed]
    np.testing.assert_array_equal(jax.random.key_data(jax.random.key(seed)), [0, seed])


def test_keys_are_made_in_one_place():
  files = [f for part in ("specjax", "kernels", "train", "configs", "benchmarks", "examples")
           for f in (ROOT / part).rglob("*.py")]  # fmt: skip
  made = re.compile(r"random\.(key|PRNGKey|wrap_key_data)\(")
  found = [str(f.relative_to(ROOT)) for f in files if made.search(f.read_text())]
  assert found == ["specjax/sampling.py"]
