"""Turns of a conversation have the tokens, and the rounds, of a decoder that is given all of it.

Rounds show what tokens cannot: a drafter whose memory misses a turn guesses worse, and no rule lets
that change a token. A drafter that also remembers what it guessed in vain has learned more from a
conversation than a new decoder learns from its text, so its rounds may differ.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers

from specjax import Decoder, Model
from specjax.data.chat import TEMPLATES
from specjax.data.tokenizer import Tokenizer, train_bpe
from specjax.decoding import conversation
from specjax.decoding.conversation import Conversation
from specjax.draft_length import confidence
from specjax.drafters import draft_model, forced, self_speculative, swift
from specjax.drafters.combine.rescored import local
from specjax.drafters.layers.swift import begin
from specjax.drafters.models.rapid import rapid
from specjax.drafters.retrieval.recycled import recycled
from specjax.heads import HEADS
from specjax.models.config import Config
from specjax.models.exits import sorted_exits
from specjax.models.transformer import Transformer, target
from specjax.processors import grammar
from specjax.processors.matchers import Matchers
from specjax.processors.schemas import of_json_schema

V, NEW = 12, 8
CONFIG = Config(
  vocab_size=V, width=16, layers=4, heads=2, kv_heads=1, head_dim=8, mlp_width=24, max_length=160
)


def weights_of(init, *arguments, seed: int):
  rng = np.random.default_rng(seed)
  shapes = jax.eval_shape(init, *arguments)
  return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), shapes)


def random_model(config: Config, tokenizer=None, stop=()) -> Model:
  z, mask = jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2, 2), bool)
  params = weights_of(Transformer(config).init, jax.random.key(0), z, z, mask, seed=0)
  return Model("random", config, params, tokenizer, stop, (), TEMPLATES["qa"])


MODEL = random_model(CONFIG)
NOISE = np.random.default_rng(1)
NEAR = dataclasses.replace(  # a draft model that is often right
  MODEL, params=jax.tree.map(lambda x: x + NOISE.normal(size=x.shape) / 8, MODEL.params)
)


def head(name: str):
  build, config = HEADS[name]
  made = build(MODEL.target, config())
  return made, weights_of(made.init, jax.random.key(0), MODEL.params, None, seed=2)


def rescored():
  medusa, params = head("medusa")
  return local(medusa, NEAR.target), {"head": params, "lm": NEAR.params}


def memorised():
  medusa, params = head("medusa")
  return recycled(medusa), params


LETTERS = tokenizers.Tokenizer(
  tokenizers.models.BPE({x: i for i, x in enumerate((*'"abcdefghij', "<|end|>"))}, [])
)
MATCHERS = Matchers(Tokenizer(LETTERS), V, [V - 1])
PAIRS = of_json_schema({"type": "string", "pattern": "^(abc|abd)+$"}, MATCHERS)
RUN = jnp.ones((CONFIG.layers, 2), bool).at[2, 1].set(False)
TREE = [[0], [1], [2], [3], [0, 0]]
# name: (makes the drafter, options of the decoder)
METHODS = {
  "none": (lambda: "none", {}),
  "prompt_lookup": (lambda: "prompt_lookup-4", {}),
  "aggressive": (lambda: "aggressive-4", {}),
  "pruned": (lambda: "jacobi-3+prompt_lookup-4/pruned", {}),
  "rapid": (
    lambda: (rapid(draft_model(NEAR.target, 4), 3, 6), NEAR.params),
    {},
  ),
  "token_recycling": (lambda: "token_recycling-8", {}),
  "jacobi": (lambda: "jacobi-4", {}),
  "lookahead": (lambda: "lookahead-3,window=4,guesses=2", {}),
  "speculative_jacobi": (lambda: "speculative_jacobi-4", {}),
  "self_speculative": (lambda: (self_speculative(MODEL.target, 4, 0.1), RUN), {}),
  "over_cache": (lambda: "self_speculative-4,least=0.1/keyformer-0.3", {}),
  "swift": (lambda: (swift(MODEL.target, 4, 4), begin(CONFIG.layers)), {}),
  "layerskip": (lambda: "layerskip-4,exit=3", {}),
  "del": (lambda: "del-4,every=1", {}),
  "draft_model": (lambda: NEAR, {}),
  "draft_model, token": (lambda: NEAR, {"verifier": "token"}),
  "draft_model, policy": (lambda: NEAR, {"draft_length": confidence(0.3, 3)}),
  "draft_model, exits": (
    lambda: (draft_model(sorted_exits(NEAR.target, 0.4), 4), NEAR.params),
    {},
  ),
  "draft_model, tree": (lambda: NEAR, {"tree": [[0], [1], [0, 0]]}),
  "rescored": (rescored, {}),
  "recycled": (memorised, {}),
  "penalties": (lambda: "prompt_lookup-4", {"processors": ["penalties-1.3,presence=0.4"]}),
  "forced": (
    lambda: (forced(MATCHERS.forced, 4), PAIRS),
    {"processors": [(grammar(MATCHERS.masks), PAIRS)], "stop": [V - 1]},
  ),
  "momentum": (lambda: "prompt_lookup-4", {"processors": ["momentum"]}),
  "second row": (lambda: "prompt_lookup-4", {"batch": 2}),
} | {name: (functools.partial(head, name), {"tree": TREE}) for name in HEADS}
# What these keep depends on the passes before, which read a new turn and an old one differently,
# or on what the first prompt was.
OF_PASSES = ("token_recycling", "recycled", "jacobi", "lookahead", "speculative_jacobi",
             "aggressive", "pruned", "rapid", "self_speculative", "over_cache", "swift",
             "del")  # fmt: skip
# What these learn they share among the rows of a batch.
OF_BATCH = ("swift", "del")


def answer(talk: Conversation, ids: list[int], new: int = NEW) -> tuple[list[int], int]:
  """(ids, rounds)."""
  pieces = list(talk.ask(ids, new))
  return [token for piece in pieces for token in piece.tokens], len(pieces)


@pytest.fixture
def small(monkeypatch):
  """Caches that must grow, and turns that take several passes to read."""
  monkeypatch.setattr(conversation, "CHUNK", 8)
  monkeypatch.setattr(conversation, "LEAST", 64)


@pytest.mark.slow
@pytest.mark.full(but=["eagle"])
@pytest.mark.parametrize("name", METHODS)
def test_turns_equal_a_new_decoder(name, small):
  make, options = METHODS[name]
  drafter = make()
  options, saved = {"verifier": "target_only"} | options, 0
  for temperature in (0.0, 0.8):
    decoder = Decoder(MODEL, drafter, temperature=temperature, seed=3, **options)
    talk = Conversation(decoder)
    # Prompts of 33 to 64 tokens, which the decoder reads in one compiled shape.
    text = np.random.default_rng(4).integers(4, size=33).tolist()
    for turn in range(3):
      (expected,) = decoder([text], NEW)
      tokens, rounds = answer(talk, text)
      assert tokens == expected.tokens
      assert rounds == expected.passes or name in OF_PASSES
      assert talk.ids == text + tokens
      assert talk.read == (3 if turn else 32)
      saved += len(tokens) - rounds
      text = [*talk.ids, 5, turn, 7]
  assert saved > 0 or name in ("none", "aggressive"), (
    "the drafter guessed nothing, so its memory is not seen"
  )


@pytest.fixture(scope="module")
def decoder():
  return Decoder(MODEL, "prompt_lookup-4", temperature=0.8, stop=[2])


TEXT = np.random.default_rng(5).integers(3, V, size=40).tolist()


@pytest.mark.slow
def test_only_new_tokens_pass_through_the_model(small):
  passes: list[int] = []  # nodes of each; 0 for a prefill
  inner = target(CONFIG)

  def evaluate(params, cache, tokens, *rest, **named):
    jax.debug.callback(lambda _: passes.append(tokens.shape[1]), tokens)
    return inner.evaluate(params, cache, tokens, *rest, **named)

  def prefill(params, tokens, *rest, **named):
    jax.debug.callback(lambda _: passes.append(0), tokens)
    return inner.prefill(params, tokens, *rest, **named)

  watched = dataclasses.replace(inner, evaluate=evaluate, prefill=prefill)
  kind = type("Watched", (Model,), {"target": watched})
  model = kind(**{field.name: getattr(MODEL, field.name) for field in dataclasses.fields(Model)})
  talk = Conversation(Decoder(model, "prompt_lookup-4"))
  text = TEXT[:20]
  for reading in ([0, 8, 8, 8], [8], [8, 8]):  # 19, 3 and 10 tokens, 7 in a pass
    passes.clear()
    _, rounds = answer(talk, text)
    jax.effects_barrier()
    assert sorted(passes) == sorted(reading + [4] * rounds)
    text = talk.ids + (TEXT[:3] if reading[0] == 0 else TEXT[:10])


@pytest.mark.slow
def test_a_stop_token_belongs_to_the_text(decoder):
  talk = Conversation(decoder)
  for first in range(3, V):
    tokens, _ = answer(talk, [first, *TEXT], 40)
    if tokens[-1] == 2:
      break
  assert tokens[-1] == 2 and len(tokens) < 40
  text = [*talk.ids, 2, 5]  # the template may write stop tokens itself
  tokens, _ = answer(talk, text)
  assert talk.read == 2 and tokens == answer(Conversation(decoder), text)[0]


def test_an_answer_that_is_left_goes_on(decoder):
  talk = Conversation(decoder)
  whole, _ = answer(talk, TEXT, 20)
  talk = Conversation(decoder)
  said = next(talk.ask(TEXT, 20)).tokens
  assert talk.ids == TEXT + said and len(said) < len(whole)
  rest, _ = answer(talk, talk.ids, 20 - len(said))
  assert talk.read == 0 and said + rest == whole


def test_a_text_that_was_changed_is_read_again(decoder):
  talk = Conversation(decoder)
  answer(talk, TEXT)
  changed = [*TEXT[:-1], 3 + (TEXT[-1] == 3), 9]
  tokens, _ = answer(talk, changed)
  assert talk.read == len(changed) - 1
  assert tokens == answer(Conversation(decoder), changed)[0]


@pytest.mark.slow
def test_a_conversation_after_a_reset_is_another_request(decoder):
  talk = Conversation(decoder)
  answers = []
  for _ in range(2):
    answers.append(answer(talk, TEXT, 20)[0])
    talk.reset()
    assert talk.ids == []
  assert answers == [decoder([TEXT], 20, first=i)[0].tokens for i in range(2)]
  assert answers[0] != answers[1]


def test_a_round_that_breaks_off_leaves_nothing(decoder, monkeypatch):
  talk = Conversation(decoder)
  expected, _ = answer(talk, TEXT)

  def breaks(*_):
    raise FloatingPointError("became NaN")

  with monkeypatch.context() as patch:
    patch.setattr(decoder, "check_logits", breaks)
    with pytest.raises(FloatingPointError, match="became NaN"):
      answer(talk, [*talk.ids, 5])
  assert talk.ids == [] and answer(talk, TEXT)[0] == expected and talk.read == len(TEXT) - 1


@pytest.mark.slow
def test_turns_are_written_in_the_template():
  tokenizer = train_bpe(["Question: Answer: the cat sat on the mat"] * 2, 270)
  config = dataclasses.replace(CONFIG, vocab_size=tokenizer.vocab_size)
  model = random_model(config, tokenizer)
  decoder = Decoder(model)
  talk = Conversation(decoder)
  turns = [{"role": "user", "content": "the cat"}]
  tokens, _ = answer(talk, turns, 4)
  assert tokens == decoder([model.chat(turns)], 4)[0].tokens


@pytest.mark.parametrize(
  ("prompt", "new", "words"),
  [
    ([1] * 160, 8, "the conversation is full: it has 160 tokens, and random has 160 positions"),
    ([], 8, "prompt is empty"),
    ([V], 8, f"`prompt[0]` must be between 0 and {V - 1}, got {V}."),
    ("the cat", 8, "`prompt` must be a list of turns or of token ids, got 'the cat'."),
    ([{"role": "user", "content": "the cat"}], 8, "random has no chat template"),
    ([1], 0, "`max_new_tokens` must be between 1 and 2147483647, got 0."),
  ],
)
def test_refused(decoder, prompt, new, words):
  with pytest.raises(ValueError) as error:
    Conversation(decoder).ask(prompt, new)
  assert words in str(error.value)


@pytest.mark.slow
def test_an_answer_ends_with_the_positions(decoder):
  talk = Conversation(decoder)
  tokens, _ = answer(talk, [3] * 155, 100)
  assert tokens == decoder([[3] * 155], 5)[0].tokens
