"""A head's chain that a policy ends: which guesses it has, and that nothing else changes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cut import cut

import specjax
from specjax import speculate
from specjax.draft_length import confidence, marginal, survival
from specjax.heads import drafting
from specjax.heads.adaptive_head import adaptive_head
from specjax.heads.base import Examples
from specjax.heads.dspark import DSparkConfig, dspark
from specjax.names.build.head import load_head
from specjax.names.grammar import parse_one
from specjax.sampling import Noise

MODEL = cut()
PROMPTS = [
  "A pen costs 3 dollars. What do 7 cost?",
  "Tom has",
  "How many are 12 apples and 5 pears?",
]
D, T = 4, 24


@functools.cache
def loaded(name: str):
  return load_head(MODEL, parse_one("drafter", name))[1]


@functools.cache
def proposing(drafter):
  return jax.jit(drafter.propose)


@functools.cache
def ended(name: str, least: float, keep: bool):
  return adaptive_head(loaded(name).head, confidence(least, D, keep=keep), D + 1)


def drafted(drafter, params, ids):
  """(tokens i32[D + 1], valid bool[D + 1]) of the first draft after a prompt."""
  decoder = specjax.Decoder(MODEL, (drafter, params))
  tokens = jnp.asarray([ids + [0] * (T - len(ids))])
  length = jnp.asarray([len(ids)], jnp.int32)
  request = decoder.request(np.arange(1), np.array([len(ids) + 8]))
  state = speculate.compiled_start(decoder.method, decoder.weights, tokens, length, request, T + 16)
  noise = Noise(request.key, length)
  draft, _ = proposing(drafter)(
    params, MODEL.params, state.drafter, state.context, request.settings, noise
  )
  return np.asarray(draft.tokens[0]), np.asarray(draft.valid[0])


def examples_of(head, text: list[int]) -> Examples:
  """What `unroll` takes, to draft the last D tokens of a text."""
  tokens, T = jnp.asarray([text]), len(text)
  _, features = MODEL.target.prefill(
    MODEL.params, tokens, jnp.asarray([T], jnp.int32), T, head.hidden_layers
  )
  position, segment = jnp.arange(T, dtype=jnp.int32)[None], jnp.zeros((1, T), jnp.int32)
  return Examples(tokens, position, segment, features, jnp.asarray([[T - D - 2]], jnp.int32))


def chances(name: str, text: list[int]) -> list[float]:
  """How likely the best guess of each depth is, by the unroll that trains the head."""
  head, params = loaded(name).head, loaded(name).params
  states = drafting.unroll(head, params, MODEL.params, examples_of(head, text))
  said = [head.read(params, MODEL.params, x, d)[0, 0] for d, x in enumerate(states[:D], 1)]
  return [float(jax.nn.softmax(logits).max()) for logits in said]


@pytest.mark.slow
@pytest.mark.full(but=["False-medusa"])
@pytest.mark.parametrize("name", ["eagle", "eagle3", "medusa"])
@pytest.mark.parametrize("keep", [True, False])
def test_it_is_the_heads_chain_up_to_where_it_ends(name, keep):
  """A guess that is less likely than the threshold ends the draft, and is kept or not."""
  head, params = loaded(name).head, loaded(name).params
  whole = drafting.drafter(head, tuple((0,) * d for d in range(1, D + 1)))
  found = set()
  for prompt in PROMPTS:
    ids = MODEL.encode(prompt)
    tokens, valid = drafted(whole, params, ids)
    assert valid.all()
    likely = chances(name, [*ids, *tokens[1:].tolist()])
    for least in (0.3, 0.9):
      ends = [d for d, chance in enumerate(likely) if chance < least]
      want = min(D, ends[0] + keep) if ends else D
      got, valid = drafted(ended(name, least, keep), params, ids)
      assert (got == tokens)[valid].all() and valid.tolist() == [i <= want for i in range(D + 1)]
      found.add(want)
  assert len(found) > 1


def test_a_head_is_asked_until_all_drafts_have_ended(monkeypatch):
  """The last question is the one whose answer ends the draft, or the chain is whole."""
  head, params = loaded("eagle").head, loaded("eagle").params
  asked: list[int] = []
  read = type(head).begin

  def begin(*arguments):
    step, *rest = read(*arguments)

    def counted(level, *more):
      jax.debug.callback(lambda: asked.append(level))
      return step(level, *more)

    return counted, *rest

  monkeypatch.setattr(type(head), "begin", begin)
  found = set()
  for least in (0.0, 0.3, 0.9):
    asked.clear()
    drafter = adaptive_head(head, confidence(least, D + 1, keep=False), D + 1)
    _, valid = drafted(drafter, params, MODEL.encode(PROMPTS[0]))
    jax.effects_barrier()
    guessed = int(valid.sum()) - 1
    assert sorted(asked) == list(range(min(D, guessed + 1)))
    found.add(guessed)
  assert len(found) > 1


@pytest.mark.slow
@pytest.mark.full(but=["eagle-5/adaedl-0.4"])
@pytest.mark.parametrize(
  "name",
  ["eagle-5/adaedl-0.4", "prompt_lookup-4,shortest=2|eagle-5/confidence-0.5",
   "eagle3-4/confidence-0.6", "medusa-5/marginal-0.2", "eagle/heuristic-2",
   "eagle-4/constant-2", "eagle3/trimmed-300[TEXTS]/constant-3"],
)  # fmt: skip
def test_texts_are_those_of_plain_decoding(name, tmp_path):
  (tmp_path / "texts.jsonl").write_text('{"text": "A pen costs 3 dollars. 7 * 3 = 21"}\n')
  name = name.replace("TEXTS", str(tmp_path / "texts.jsonl"))
  for temperature in (0.0, 0.8):
    plain, decoder = (
      specjax.Decoder(MODEL, x, "target_only" if temperature else None, temperature=temperature,
                      batch=2, seed=2)
      for x in ("none", name)
    )  # fmt: skip
    want, found = (d(PROMPTS, [20, 9, 14]) for d in (plain, decoder))
    assert [r.tokens for r in found] == [r.tokens for r in want] and decoder.name == name
    assert sum(r.passes for r in found) < sum(r.passes for r in want)
    offered = np.sum([r.rounds.offered for r in found], 0)
    if "constant" in name:
      assert np.flatnonzero(offered).tolist() == [int(name[-1])]
    elif temperature == 0:
      assert len(np.flatnonzero(offered)) > 1


@pytest.mark.parametrize(
  ("name", "words"),
  [
    (
      "hidden_transfer/adaedl",
      "`head` must have no pseudo rows and no blank before a draft.*got 'hidden_transfer' "
      r"guesses in the pass that verifies\.",
    ),
    ("eagle/adaedl/dynamic-6,depth=3,beam=2", "a draft length ends a chain, without a tree"),
    ("prompt_lookup/adaedl", r"prompt_lookup/adaedl: after prompt_lookup/ may follow none\."),
    ("eagle/specdecpp", "specdecpp: it needs an acceptance head"),
  ],
)
def test_what_has_no_length_to_choose(name, words):
  with pytest.raises(ValueError, match=words):
    specjax.Decoder(specjax.load(), name)


@pytest.mark.slow
def test_a_confidence_ends_a_draft_where_it_is_not_believed():
  """`survival` and `marginal` read DSpark's own product of chances, that of its `unroll`."""
  head = dspark(MODEL.target, DSparkConfig(D, 1))
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: x + jnp.asarray(rng.normal(size=x.shape) / 4, x.dtype),
    head.init(jax.random.key(0), MODEL.params),
  )
  params["params"]["confidence"] /= 16
  ids = MODEL.encode(PROMPTS[0])
  tokens, valid = drafted(
    drafting.drafter(head, tuple((0,) * d for d in range(1, D + 1))), params, ids
  )
  assert valid.all()
  examples = examples_of(head, [*ids, *tokens[1:].tolist()])
  states = drafting.unroll(head, params, MODEL.params, examples)
  sure = jnp.stack([jax.nn.sigmoid(head.log_odds(params, x))[0, 0] for x in states])
  reached = np.cumprod(sure)
  between = (reached[:-1] + reached[1:]) / 2
  assert reached[0] > 1.5 * reached[-1]
  for least in (0.0, *between):
    short, kept = drafted(adaptive_head(head, survival(float(least), 0), D + 1), params, ids)
    assert short[kept].tolist() == tokens[kept].tolist()
    assert kept.tolist() == [True, *(reached >= least)]
  costs = marginal(0.01, float(between[1]) - 0.01)
  _, kept = drafted(adaptive_head(head, costs, D + 1), params, ids)
  assert kept.tolist() == [True, *(reached >= between[1])]
