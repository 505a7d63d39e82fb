"""What every method inherits from the loop, one table of drafters through all of it."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafters, speculate
from specjax.decoding.method import method as pair
from specjax.draft_length import confidence
from specjax.heads import drafting
from specjax.heads.medusa import MedusaConfig, medusa
from specjax.models.config import Config
from specjax.models.denoiser import denoiser
from specjax.models.transformer import Transformer, attention_mask, target
from specjax.sampling import Noise, Settings, request_keys
from specjax.testing import fixed_draft, random_draft, random_table, table_model
from specjax.trees import IID, Static
from specjax.verifiers import block, greedy, recursive, target_only, token

V = 32
CONFIG = Config(
  vocab_size=V, width=16, layers=2, heads=4, kv_heads=2, head_dim=64, mlp_width=24, max_length=128
)
TREE = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
T, BUDGET, FOREVER = 16, 24, 1000
TARGET_ONLY = target_only()


def random_params(module, seed: int, *example):
  """Matrices are normal with deviation 1 / 4, vectors are 1."""
  rng = np.random.default_rng(seed)
  shapes = jax.eval_shape(module.init, jax.random.key(0), *example)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape) / 4 if len(x.shape) > 1 else np.ones(x.shape),
                          jnp.float32),
    shapes,
  )  # fmt: skip


def random_transformer(config: Config, seed: int):
  z = jnp.zeros((1, 2), jnp.int32)
  return random_params(Transformer(config), seed, z, z, jnp.ones((1, 2, 2), bool))


PARAMS, OTHER_PARAMS = random_transformer(CONFIG, 0), random_transformer(CONFIG, 1)
HEAD = medusa(target(CONFIG), MedusaConfig(depth=3))
HEAD_PARAMS = random_params(HEAD, 2, PARAMS)
SAMPLED = drafters.draft_model(target(CONFIG), 3)
ADAPTIVE, KEPT = (
  drafters.adaptive_model(target(CONFIG), confidence(0.1, 3, keep=keep), 4)
  for keep in (True, False)
)
MEDUSA = drafting.drafter(HEAD, Static(TREE))
TWO_CHOSEN = drafters.union(drafters.prompt_lookup(5), MEDUSA)
BOTH_SIDES = dataclasses.replace(CONFIG, causal=False)
CHAIN = drafters.draft_tree(target(CONFIG), IID(((0,), (0, 0))))
ONE_DRAWN = drafters.union(drafters.prompt_lookup(5), CHAIN)
FIRST = drafters.fallback(drafters.prompt_lookup(5, 3, 2), MEDUSA)
OWN = drafters.self_speculative(target(CONFIG), 4, 0.1)
NARROW = {"fallback": (1, 2), "adaptive_model, block": (2,)}  # widths of passes
METHODS = {
  name: (
    pair(target(CONFIG), drafter, verifier, narrow=NARROW.get(name, ())),
    speculate.Weights(PARAMS, params),
  )
  for name, drafter, verifier, params in (
    ("none", drafters.none(), TARGET_ONLY, ()),
    ("prompt_lookup", drafters.prompt_lookup(5), TARGET_ONLY, ()),
    ("token_recycling", drafters.token_recycling(target(CONFIG), 4), TARGET_ONLY, ()),
    ("jacobi", drafters.jacobi(5), TARGET_ONLY, ()),
    ("lookahead", drafters.lookahead(3, 4, 2), TARGET_ONLY, ()),
    ("self_speculative", OWN, TARGET_ONLY, jnp.array([[True, True], [True, False]])),
    ("layerskip", drafters.layerskip(target(CONFIG), 4), TARGET_ONLY, ()),
    ("draft_model", SAMPLED, TARGET_ONLY, OTHER_PARAMS),
    # Its own draft model: most of what it says is accepted, to full depth.
    ("itself", SAMPLED, TARGET_ONLY, PARAMS),
    ("adaptive_model", ADAPTIVE, TARGET_ONLY, (PARAMS, ())),
    ("medusa", MEDUSA, TARGET_ONLY, HEAD_PARAMS),
    (
      "denoiser",
      drafters.denoiser(denoiser(BOTH_SIDES, V - 1), target(CONFIG), 4, 24),
      TARGET_ONLY,
      OTHER_PARAMS,
    ),
    ("random_draft", random_draft(TREE, V), TARGET_ONLY, ()),
    ("union", TWO_CHOSEN, TARGET_ONLY, ((), HEAD_PARAMS)),
    ("fallback", FIRST, TARGET_ONLY, ((), HEAD_PARAMS)),
    ("union, recursive", ONE_DRAWN, recursive(), ((), OTHER_PARAMS)),
    ("draft_model, token", SAMPLED, token(), OTHER_PARAMS),
    ("speculative_jacobi, token", drafters.speculative_jacobi(target(CONFIG), 4), token(), ()),
    ("adaptive_model, block", KEPT, block(), (OTHER_PARAMS, ())),
    ("medusa, greedy", MEDUSA, greedy(), HEAD_PARAMS),
  )
}
SAME_AS_PLAIN = [name for name in METHODS if "," not in name]
PLAIN = "none"
QUICK = [
  "none",
  "prompt_lookup",
  "token_recycling",
  "draft_model",
  "itself",
  "medusa",
  "denoiser",
  "fallback",
  "draft_model, token",
]


@dataclasses.dataclass(frozen=True)
class Row:
  """One request."""

  prompt: tuple[int, ...]
  budget: int = BUDGET
  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  typical_p: float = 1.0
  request: int = 0


def random_prompt(seed: int, length: int) -> tuple[int, ...]:
  # Few distinct tokens, so that prompt lookup finds something.
  return tuple(np.random.default_rng(seed).integers(4, size=length).tolist())


ROWS = (
  Row(random_prompt(0, 16), 24, request=0),
  Row(random_prompt(1, 1), 24, 0.8, request=1),
  Row(random_prompt(2, 7), 1, 0.8, request=2),
  Row(random_prompt(3, 9), 24, 0.8, top_k=5, request=3),
  Row(random_prompt(4, 2), 13, 0.8, top_p=0.9, typical_p=0.9, request=4),
  Row(random_prompt(5, 12), 24, 1.2, top_k=20, top_p=0.9, min_p=0.02, request=5),
)
STOP = (3, 17)


def inputs(rows, stop=()):
  """(tokens, length, request) on the device."""
  tokens = np.zeros((len(rows), T), np.int32)
  for b, row in enumerate(rows):
    tokens[b, : len(row.prompt)] = row.prompt
  length = np.array([len(row.prompt) for row in rows], np.int32)
  settings = Settings(
    *(jnp.asarray([getattr(row, name) for row in rows], jnp.int32 if name == "top_k" else None)
      for name in Settings._fields)
  )  # fmt: skip
  limit = length + np.array([row.budget for row in rows], np.int32)
  request = speculate.DecodeRequest(
    settings, request_keys(7, [row.request for row in rows]), jnp.asarray(limit),
    jnp.asarray((*stop, -1, -1)[:2], jnp.int32),
  )  # fmt: skip
  return jnp.asarray(tokens), jnp.asarray(length), request


def begin(method, weights, rows, stop=()):
  tokens, length, request = inputs(rows, stop)
  # Not one column to spare: the last write of a full row ends at the capacity.
  capacity = speculate.capacity_for(T, BUDGET, method.drafter.depth)
  return request, speculate.compiled_start(method, weights, tokens, length, request, capacity)


def finish(method, weights, request, state, rounds=FOREVER):
  return speculate.compiled_advance(method, weights, request, state, jnp.int32(rounds))


def new_tokens(rows, state) -> list[list[int]]:
  text, length = np.asarray(state.context.tokens), np.asarray(state.context.length)
  return [text[b, len(row.prompt) : length[b]].tolist() for b, row in enumerate(rows)]


@functools.cache
def decode(name: str, rows=ROWS, stop=()):
  """(new tokens of each row, final state)."""
  method, weights = METHODS[name]
  request, state = begin(method, weights, rows, stop)
  state = finish(method, weights, request, state)
  return new_tokens(rows, state), state


def signature(tree):
  return jax.tree.structure(tree), [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(tree)]


@pytest.mark.parametrize("name", METHODS)
def test_types(name):
  method, weights = METHODS[name]
  B, N, A = len(ROWS), method.drafter.nodes, method.drafter.depth + 1
  tokens, length, request = inputs(ROWS)
  start = functools.partial(speculate.start, method, capacity=64)
  state = jax.eval_shape(start, weights, tokens, length, request)
  round_ = functools.partial(speculate.decode_round, method, source=Noise)
  assert signature(jax.eval_shape(round_, weights, request, state)) == signature(state)

  def draft_and_verdict(weights, request, state):
    noise = Noise(request.key, state.context.length)
    draft, drafter = method.drafter.propose(
      weights.drafter, weights.target, state.drafter, state.context, request.settings, noise
    )
    log_probs = jnp.zeros((B, N, V))
    verdict = method.verifier.verify(
      (), draft, log_probs, None, noise,
      depth=method.drafter.depth, proposal=method.drafter.proposal,
    )  # fmt: skip
    return draft, verdict, drafter

  draft, verdict, drafter = jax.eval_shape(draft_and_verdict, weights, request, state)
  assert signature(drafter) == signature(state.drafter)
  for x in draft[:3]:
    assert (x.shape, x.dtype) == ((B, N), jnp.int32)
  assert (draft.valid.shape, draft.valid.dtype) == ((B, N), jnp.bool)
  has_log_probs = method.drafter.proposal != "deterministic" and N > 1
  assert (draft.log_probs is not None) == has_log_probs
  if has_log_probs:
    assert (draft.log_probs.shape, draft.log_probs.dtype) == ((B, N, V), jnp.float32)
  assert [x.shape for x in verdict] == [(B, A), (B,), (B, A)]
  assert {x.dtype for x in verdict} == {jnp.dtype(jnp.int32)}


@pytest.mark.slow
def test_plain_decoding_equals_a_loop_over_the_whole_text():
  model = Transformer(CONFIG)

  @jax.jit
  def logits_after(text):
    position = jnp.arange(text.shape[1], dtype=jnp.int32)[None]
    mask = attention_mask(jnp.zeros_like(text), causal=True)
    return model.apply(PARAMS, model.apply(PARAMS, text, position, mask)[0], method="head")

  rows = tuple(dataclasses.replace(row, temperature=0.0) for row in ROWS)
  got, _ = decode(PLAIN, rows)
  for row, tokens in zip(rows, got, strict=True):
    text = list(row.prompt)
    for _ in range(row.budget):
      padded = np.array([text + [0] * (T + BUDGET - len(text))], np.int32)
      text.append(int(np.argmax(logits_after(padded)[0, len(text) - 1])))
    assert tokens == text[len(row.prompt) :]


@pytest.mark.slow
@pytest.mark.full(but=[name for name in QUICK[1:] if name in SAME_AS_PLAIN])
@pytest.mark.parametrize("name", SAME_AS_PLAIN[1:])
def test_tokens_are_those_of_plain_decoding(name):
  got, state = decode(name)
  want, plain = decode(PLAIN)
  assert got == want
  assert [len(tokens) for tokens in got] == [row.budget for row in ROWS]
  chex.assert_trees_all_equal(state.failed, jnp.zeros(len(ROWS), bool))
  if name in ("prompt_lookup", "token_recycling", "lookahead", "itself"):
    assert state.stats.passes.sum() < plain.stats.passes.sum()


@pytest.mark.slow
@pytest.mark.full(but=["draft_model, token"])
@pytest.mark.parametrize(
  "name",
  ["medusa, greedy", "draft_model, token", "adaptive_model, block", "union, recursive",
   "speculative_jacobi, token"],
)  # fmt: skip
def test_greedy_rows_are_those_of_plain_decoding(name):
  rows = tuple(dataclasses.replace(row, temperature=0.0) for row in ROWS)
  assert decode(name, rows)[0] == decode(PLAIN, rows)[0]


@pytest.mark.full(but=["none", "draft_model", "medusa", "denoiser"])
@pytest.mark.parametrize("name", SAME_AS_PLAIN)
def test_stop_tokens_cut_the_text(name):
  whole, _ = decode(PLAIN)
  got, state = decode(name, ROWS, STOP)
  cut = [next((i + 1 for i, t in enumerate(x) if t in STOP), len(x)) for x in whole]
  assert got == [x[:n] for x, n in zip(whole, cut, strict=True)]
  assert sum(n < len(x) for x, n in zip(whole, cut, strict=True)) >= 2
  assert bool(state.done.all())


@pytest.mark.full(but=QUICK)
@pytest.mark.parametrize("name", METHODS)
def test_counts_add_up(name):
  got, state = decode(name)
  stats, A = state.stats, METHODS[name][0].drafter.depth + 1
  np.testing.assert_array_equal(stats.emitted, [len(tokens) for tokens in got])
  np.testing.assert_array_equal(stats.accepted.sum(1), stats.passes)
  np.testing.assert_array_equal(stats.offered.sum(1), stats.passes)
  assert (stats.accepted @ jnp.arange(1, A + 1) >= stats.emitted).all()
  np.testing.assert_array_equal(state.cache.length, state.context.length - 1)


@pytest.mark.full(but=QUICK)
@pytest.mark.parametrize("name", METHODS)
def test_a_row_does_not_see_its_neighbours(name):
  together, _ = decode(name)
  others = tuple(Row(random_prompt(9 + b, 5 + b), 3 * b + 1, 0.3 * b, request=b) for b in range(6))
  for place, b in ((2, 0), (5, 3), (0, 5)):
    rows = (*others[:place], ROWS[b], *others[place + 1 :])
    assert decode(name, rows)[0][place] == together[b]


@pytest.mark.full(but=["medusa"])
@pytest.mark.parametrize("name", ["medusa", "draft_model, token"])
def test_a_row_alone_is_the_row_in_a_batch(name):
  together, _ = decode(name)
  for b in (0, 3, 5):
    assert decode(name, (ROWS[b],))[0] == [together[b]]


@pytest.mark.parametrize("name", [PLAIN, "prompt_lookup"])
def test_a_long_cache_gives_the_tokens_of_a_short_one(name):
  method, weights = METHODS[name]
  tokens, length, request = inputs(ROWS)
  state = speculate.compiled_start(method, weights, tokens, length, request, 1024)
  assert new_tokens(ROWS, finish(method, weights, request, state)) == decode(name)[0]


@pytest.mark.parametrize("name", ["draft_model", "medusa"])
def test_streaming_is_one_call_in_pieces(name):
  method, weights = METHODS[name]
  want, whole = decode(name)
  request, state = begin(method, weights, ROWS)
  rounds = 0
  while not bool(state.done.all()):
    state = finish(method, weights, request, state, 1)
    rounds += 1
  assert new_tokens(ROWS, state) == want
  assert rounds == whole.stats.passes.max()
  chex.assert_trees_all_equal(state.stats, whole.stats)


@pytest.mark.slow
def test_a_python_loop_is_the_compiled_loop():
  method, weights = METHODS["medusa"]

  def python_loop(unfinished, body, carry):
    body = jax.jit(body)
    while unfinished(carry):
      carry = body(carry)
    return carry

  request, state = begin(method, weights, ROWS)
  state = speculate.advance(
    method, weights, request, state, jnp.int32(FOREVER), while_loop=python_loop
  )
  want, whole = decode("medusa")
  assert new_tokens(ROWS, state) == want
  chex.assert_trees_all_equal(state.stats, whole.stats)


@pytest.mark.parametrize("name", ["prompt_lookup", "token_recycling"])
def test_twenty_prompts_are_one_trace(name):
  drafter = {
    "prompt_lookup": drafters.prompt_lookup(5),
    "token_recycling": drafters.token_recycling(TABLE, tree=Static([[0], [1]])),
  }[name]  # fmt: skip

  chex.clear_trace_counter()

  @chex.assert_max_traces(n=1)
  def evaluate(*arguments, hidden_layers):
    return TABLE.evaluate(*arguments, hidden_layers=hidden_layers)

  method = pair(dataclasses.replace(TABLE, evaluate=evaluate), drafter, TARGET_ONLY)
  weights = speculate.Weights(random_table(0, 8), ())
  for i in range(20):
    rows = [Row(random_prompt(i, 1 + i % T), 3 + i, 0.1 * i, request=i)]
    request, state = begin(method, weights, rows, STOP[: i % 2])
    finish(method, weights, request, state)


def test_nothing_returns_to_the_host():
  method, weights = METHODS["medusa"]
  request, state = begin(method, weights, ROWS)
  rounds = jnp.int32(FOREVER)
  with jax.transfer_guard("disallow"):
    jax.block_until_ready(speculate.compiled_advance(method, weights, request, state, rounds))
  request, state = begin(method, weights, ROWS)
  with jax.transfer_guard("disallow"), pytest.raises(Exception, match="transfer"):
    speculate.compiled_advance(method, weights, request, state, np.int32(FOREVER))


@pytest.mark.slow
@pytest.mark.full(but=["none-2", "draft_model-2", "medusa-2", "draft_model-12"])
@pytest.mark.parametrize("B", [2, 12])  # written one after the other, and by a loop
@pytest.mark.parametrize(
  "name",
  ["none", "prompt_lookup", "self_speculative", "layerskip", "draft_model", "adaptive_model",
   "medusa"],
)  # fmt: skip
def test_the_loop_does_not_copy_a_cache(name, B):
  method, weights = METHODS[name]
  long = 8192
  tokens, length, request = inputs((ROWS * 2)[:B])
  start = functools.partial(speculate.start, method, capacity=long)
  state = jax.eval_shape(start, weights, tokens, length, request)
  compiled = speculate.compiled_advance.lower(
    method, weights, request, state, jnp.int32(1)
  ).compile()
  size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.cache.kv))
  assert compiled.memory_analysis().temp_size_in_bytes < size / 4


BROKEN = 5  # the token after which the table below says NaN
TABLE = table_model(8)
PLAIN_TABLE = pair(TABLE, METHODS[PLAIN][0].drafter, TARGET_ONLY)


def nan_table():
  table = random_table(3, 8)["logits"]
  # Token 4 leads to the broken one, and nothing leads to 4 but a prompt.
  table = table.at[:, :, 4].set(-100.0).at[:, :, BROKEN].set(-100.0)
  return {"logits": table.at[:, 4, BROKEN].set(100.0).at[:, BROKEN].set(jnp.nan)}


@pytest.mark.parametrize(
  "drafter",
  [
    PLAIN_TABLE.drafter,
    fixed_draft([[0], [1], [0, 0], [1, 0]], [1, BROKEN, 4, 2]),
    drafters.draft_model(TABLE, 2),
  ],
  ids=["plain", "broken sibling", "draft_model"],
)
def test_nan_logits_end_their_row_and_no_other(drafter):
  rows = (Row((1, 2)), Row((1, 4)), Row((3, 0), temperature=0.8, request=1), Row((BROKEN,)))
  method = pair(TABLE, drafter, TARGET_ONLY)
  params = random_table(3, 8) if drafter.name == "draft_model" else ()

  def run(method, params, table):
    weights = speculate.Weights(table, params)
    request, state = begin(method, weights, rows)
    state = finish(method, weights, request, state)
    return new_tokens(rows, state), state.failed.tolist(), state.done.tolist()

  got, failed, done = run(method, params, nan_table())
  want, *_ = run(PLAIN_TABLE, (), nan_table())
  assert failed == [False, True, False, True]
  assert all(done)
  assert got == want
  assert [len(tokens) for tokens in got] == [24, 1, 24, 0]
  assert got[1] == [BROKEN]
