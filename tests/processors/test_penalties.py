"""Penalties of every row's own, against a loop over tokens."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cut import cut

from specjax import Decoder, speculate
from specjax.base import Context, Draft
from specjax.processors import Penalties, penalties
from specjax.serving.engine import Engine

V = 7
PROMPT = [3, 1, 3]
SAID = [4, 1, 4]  # emitted since, the last of them the root
TOKENS = [4, 2, 4, 1, 0]  # a tree below it
PATHS = [[], [2], [2, 4], [2, 1], [2, 4, 0]]
PARENT, DEPTH = [0, 0, 1, 1, 2], [0, 1, 2, 2, 3]


def plainly(logits, prompt, said, row):
  """One row's logits after the tokens `said`, token by token."""
  out = [float(x) for x in logits]
  for token in range(V):
    x = out[token] + row["bias"].get(token, 0.0)
    if token in prompt or token in said:
      x = x / row["repetition"] if x > 0 else x * row["repetition"]
    x -= row["presence"] * (token in said) + row["frequency"] * said.count(token)
    out[token] = -np.inf if token in row["stop"] and len(said) < row["min_tokens"] else x
  return out


OFF = {"repetition": 1.0, "presence": 0.0, "frequency": 0.0,
       "min_tokens": 0, "bias": {}, "stop": ()}  # fmt: skip
ROWS = [
  OFF,
  OFF | {"repetition": 1.7},
  OFF | {"presence": 0.8, "frequency": -0.5},
  OFF | {"bias": {0: 3.5, 4: -100.0}},
  OFF | {"min_tokens": 5, "stop": (2, 6)},
  {"repetition": 0.6, "presence": -1.0, "frequency": 0.3, "min_tokens": 4,
   "bias": {6: 2.0, 1: -1.0}, "stop": (6,)},
]  # fmt: skip


def params_of(rows) -> Penalties:
  strengths = (jnp.asarray([row[k] for row in rows], jnp.float32) for k in Penalties._fields[:3])
  bias = [[row["bias"].get(t, 0.0) for t in range(V)] for row in rows]
  stop = [[t in row["stop"] for t in range(V)] for row in rows]
  least = jnp.asarray([row["min_tokens"] for row in rows], jnp.int32)
  return Penalties(*strengths, least, jnp.asarray(bias, jnp.float32), jnp.asarray(stop))


@pytest.mark.parametrize("rows", [ROWS, [OFF] * 2], ids=["all kinds", "none"])
def test_every_node_counts_its_own_path(rows):
  B, N = len(rows), len(TOKENS)
  processor, params = penalties(V), params_of(rows)
  text = jnp.asarray([[*PROMPT, *[0] * 9]] * B, jnp.int32)
  context = Context(text, jnp.full(B, len(PROMPT), jnp.int32))
  state = processor.init(params, context, jnp.full(B, 12))
  said = jnp.asarray([[*SAID, 6]] * B, jnp.int32)  # the fourth is not emitted
  state = processor.update(params, state, said, jnp.full(B, len(SAID), jnp.int32))
  mask = np.eye(N, dtype=bool)
  for i, path in enumerate(PATHS):
    mask[i, [PATHS.index(path[:d]) for d in range(len(path))]] = True
  draft = Draft(*(jnp.asarray([x] * B) for x in (TOKENS, PARENT, DEPTH, [True] * N)))
  logits = np.random.default_rng(2).normal(size=(B, N, V)).astype(np.float32) * 3
  got = jax.jit(processor.logits)(
    params, state, draft, jnp.asarray(np.stack([mask] * B)), jnp.asarray(logits)
  )
  for b, row in enumerate(rows):
    for i, path in enumerate(PATHS):
      wanted = plainly(logits[b, i], PROMPT, SAID + path, row)
      np.testing.assert_allclose(got[b, i], wanted, rtol=1e-6)
    if row == OFF:
      np.testing.assert_array_equal(got[b], logits[b])


MODEL = cut()
ASKED = [
  None,
  Penalties(presence=-20, frequency=9),
  Penalties(repetition=2.5, bias={5: 3.0, "221": -100}),
  Penalties(min_tokens=9),
]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_drafts_and_neighbours_change_no_text(temperature):
  """Requests of one engine that drafts against plain decoders of one each; nothing is compiled."""
  prompt, new = MODEL.encode("the the a the"), 12
  (plain,) = Decoder(MODEL, verifier="target_only", temperature=temperature)([prompt], new)
  ends = plain.tokens[3:4]
  decoder = Decoder(
    MODEL, "prompt_lookup-4", "target_only", batch=2, temperature=temperature,
    processors=["penalties"], stop=ends,
  )  # fmt: skip
  own = Decoder(
    MODEL, verifier="target_only", temperature=temperature, processors=["penalties"], stop=ends
  )
  expected = []
  for asked in ASKED:
    used = own.processors_with(penalties=asked)
    own._processors = tuple(one.params for one in used)
    expected.append(own([prompt], new)[0].tokens)
  assert expected[0] == plain.tokens[: plain.tokens.index(ends[0]) + 1]
  assert len({tuple(x) for x in expected}) == len(ASKED)
  with Engine(decoder, max_length=64, queue=20) as engine:
    engine.submit(prompt, new).wait()
    compiled = speculate.compiled_advance._cache_size()
    tickets = [engine.submit(prompt, new, penalties=asked) for asked in ASKED]
    assert [ticket.wait() for ticket in tickets] == expected
    assert compiled == speculate.compiled_advance._cache_size()
  assert ends[0] not in expected[3][:9]


@pytest.mark.parametrize(("given", "words"), [
  ("penalties-0", "repetition is above 0"),
  ("penalties[1]", "logit_bias=1: accepted is an object of ids and numbers."),
  ('penalties[{"x": 1}]', "a token of logit_bias='x'"),
  ('penalties[{"999999": 1}]', "a token of logit_bias=999999"),
  ('penalties[{"3": 101}]', "logit_bias[3]=101"),
  ('penalties[{"3": true}]', "logit_bias[3]=True"),
])  # fmt: skip
def test_bad_penalties_are_refused(given, words):
  with pytest.raises(ValueError, match=re.escape(words)):
    Decoder(MODEL, processors=[given])


def test_penalties_need_their_processor_and_no_stop_words():
  with pytest.raises(ValueError, match=r"penalties: accepted by a decoder with processors="):
    Decoder(MODEL).processors_with(penalties=Penalties())
  decoder = Decoder(MODEL, processors=["penalties"], stop_words=["x"])
  with pytest.raises(ValueError, match="min_tokens=3: accepted is only 0 beside stop words"):
    decoder.processors_with(penalties=Penalties(min_tokens=3))


@pytest.mark.parametrize(
  "given", [{"presence": float("nan")}, {"min_tokens": 2.5}, {"min_tokens": -1}]
)
def test_bad_numbers_of_a_request_are_refused(given):
  ((name, value),) = given.items()
  decoder = Decoder(MODEL, processors=["penalties"])
  with pytest.raises(ValueError, match=re.escape(f"{name}={value}: accepted is")):
    decoder.processors_with(penalties=Penalties(**given))
