"""Layers that skip tokens, against a network in float64 that reads a text token by token."""

import dataclasses

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from specjax.checkpoints import duo as small_mlps
from specjax.checkpoints import routers
from specjax.decoding.conversation import Conversation
from specjax.decoding.decoder import Decoder
from specjax.models import lora
from specjax.models.config import Config, Experts
from specjax.models.layers import of_layer
from specjax.models.skipping.duo import DUO, duo
from specjax.models.skipping.first import ROUTERS, Routers
from specjax.models.skipping.skip_decode import skip_decode
from specjax.models.transformer import init
from specjax.names.build.skipping import skipping
from specjax.names.load import Model, load

CONFIG = Config(
  vocab_size=13, width=16, layers=4, heads=4, kv_heads=2, head_dim=8, mlp_width=24, max_length=128
)
H, K, C, L, E = CONFIG.heads, CONFIG.kv_heads, CONFIG.head_dim, CONFIG.layers, CONFIG.width
PARAMS = jax.tree.map(lambda x: 3 * x, init(CONFIG, jax.random.key(1)))
RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(13, size=n).tolist() for n in (9, 14, 5)]
NEW = 20


class Reader:
  """A text that is read token by token, each by some layers, and with a price by some MLPs."""

  def __init__(self, params, price=None):
    self.w = jax.tree.map(lambda x: np.asarray(x, np.float64), params["params"])
    self.price, self.beside = price, jax.tree.map(np.float64, params.get(DUO))
    self.keys, self.values = ([[] for _ in range(L)] for _ in range(2))
    self.inputs: list[list[np.ndarray]] = []

  def norm(self, x, own):
    return x / np.sqrt((x * x).mean() + CONFIG.norm_epsilon) * own["weight"]

  def rotate(self, x, place):
    a, b = np.split(x, 2, -1)
    angle = place * CONFIG.rope_theta ** -(np.arange(0, C, 2) / C)
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle),
                           b * np.cos(angle) + a * np.sin(angle)], -1)  # fmt: skip

  def mlp(self, x, own, answers):
    h = self.norm(x, own["mlp_norm"])
    gate_up, down = own["gate_up"], own["down"]
    if answers and self.price is not None:
      beside = self.beside[f"layer_{len(self.inputs[-1]) - 1}"]
      logits = beside["router"] @ h + beside["bias"]
      cost = np.array([0, SMALL_WIDTH / CONFIG.mlp_width, 1])
      choice = int(np.argmax(np.log(np.exp(logits) / np.exp(logits).sum()) - self.price * cost))
      CHOSEN.setdefault(self.price, []).append(choice)
      if choice == 0:
        return np.zeros(E)
      if choice == 1:
        gate_up, down = beside["small_gate_up"], beside["small_down"]
    gate, up = np.split(gate_up @ h, 2)
    return down @ (gate / (1 + np.exp(-gate)) * up)

  def __call__(self, token, layers, answers=True):
    """The log-probabilities [V] of what follows; `answers` says that it is no token of a prompt."""
    x, place = self.w["embedding"][token], len(self.inputs)
    self.inputs.append([])
    for i in range(L):
      self.inputs[-1].append(x)
      if not layers[i]:
        self.keys[i].append(None)
        self.values[i].append(None)
        continue
      own = self.w[f"layer_{i}"]
      qkv = own["qkv"] @ self.norm(x, own["attention_norm"])
      q, k, v = np.split(qkv, [H * C, (H + K) * C])
      self.keys[i].append(self.rotate(k.reshape(K, C), place))
      self.values[i].append(v.reshape(K, C))
      heads = []
      for h, one in enumerate(self.rotate(q.reshape(H, C), place)):
        logits = np.array([one @ key[h // (H // K)] for key in self.keys[i]]) / np.sqrt(C)
        p = np.exp(logits - logits.max())
        heads.append(sum(
          a * value[h // (H // K)] for a, value in zip(p / p.sum(), self.values[i], strict=True)
        ))  # fmt: skip
      x = x + own["out"] @ np.concatenate(heads)
      x = x + self.mlp(x, own, answers)
    logits = self.w["embedding"] @ self.norm(x, self.w["norm"])
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def of_skip_decode(least, span, first):
  def layers(t, reader, prompt):
    active = round(L - (L - least) * min(t / span, 1))
    return [i < first or i >= L - active + first for i in range(L)]

  return layers


def of_first(threshold):
  def layers(t, reader, prompt):
    w, b = (np.asarray(x, np.float64) for x in OF_LAYERS)
    score = [
      np.mean([1 / (1 + np.exp(-(reader.inputs[n][i] @ w[i] + b[i]))) for n in range(prompt - 1)])
      for i in range(L)
    ]
    KEPT.add(tuple(kept := [x >= threshold for x in score]))
    return kept

  return layers


def of_duo(t, reader, prompt):
  return [True] * L


KEPT: set[tuple[bool, ...]] = set()
CHOSEN: dict[float, list[int]] = {}  # by the price
SMALL_WIDTH = 7
UPDATES = jax.tree.map(
  lambda x: jnp.asarray(RNG.normal(size=x.shape) / 8, x.dtype),
  lora.start(jax.random.key(0), PARAMS, 2),
)
OF_LAYERS = Routers(*(jnp.asarray(RNG.normal(size=n), jnp.float32) / 4 for n in ((L, E), L)))
WITH_ROUTERS = {**lora.merge(PARAMS, UPDATES), ROUTERS: OF_LAYERS._asdict()}
SHAPES = {"router": (3, E), "bias": (3,), "small_gate_up": (2 * SMALL_WIDTH, E),
          "small_down": (E, SMALL_WIDTH)}  # fmt: skip
SMALL_MLPS = {
  f"layer_{i}": {k: jnp.asarray(RNG.normal(size=n) / 4, jnp.float32) for k, n in SHAPES.items()}
  for i in range(L)
}
PLAIN = Model("random", CONFIG, PARAMS, None, (), (), None)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  """A model by the name of its skipping."""
  path = tmp_path_factory.mktemp("routers")
  routers.save(path, UPDATES, OF_LAYERS, base="random")
  small_mlps.save(path / "duo", SMALL_MLPS, base="random")

  def of(name):
    chosen, params = skipping(name.format(path), CONFIG, PARAMS)
    return dataclasses.replace(PLAIN, params=params, skipping=chosen)

  return of


CASES = {
  "skip_decode-1,span=10,first=1": of_skip_decode(1, 10, 1),
  "skip_decode-2,span=30,first=0": of_skip_decode(2, 30, 0),
  "first[{}]": of_first(0.5), "first-0.4[{}]": of_first(0.4),
  "duo[{}/duo]": of_duo, "duo-0.7[{}/duo]": of_duo,
}  # fmt: skip
PRICES = {"duo[{}/duo]": 0.0, "duo-0.7[{}/duo]": 0.7}


@pytest.mark.slow
@pytest.mark.full(but=["skip_decode-1*", "first-0.4*", "duo-0.7*"])
@pytest.mark.parametrize("name", CASES)
def test_each_token_is_read_by_its_layers(model, name):
  own, layers = model(name), CASES[name]
  said = Decoder(own, temperature=1.0, batch=3)(PROMPTS, NEW)
  for prompt, result in zip(PROMPTS, said, strict=True):
    reader, found = Reader(own.params, PRICES.get(name)), []
    for n, token in enumerate([*prompt, *result.tokens[:-1]]):
      last = len(prompt) - 1
      if n == last or (n > last and name.startswith("skip_decode")):
        some = layers(n - last, reader, len(prompt))
      log_p = reader(token, [True] * L if n < last else some, n >= last)
      if n >= last:
        found.append(log_p[result.tokens[n - last]])
    np.testing.assert_allclose(result.log_probs, found, rtol=1e-4, atol=1e-4)
  assert not name.startswith("first") or any(not all(x) and any(x) for x in KEPT)
  assert "duo" not in name or set(CHOSEN[PRICES[name]]) == {0, 1, 2}


@pytest.mark.slow
@pytest.mark.full(
  but=["prompt_lookup-6-skip_decode-2*", "prompt_lookup-6-duo-0.7*", "token_recycling-6-first-0.4*"]
)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("drafter", ["prompt_lookup-6", "token_recycling-6"])
def test_drafts_change_no_token(model, name, drafter):
  own = model(name)
  for temperature in (0.0, 1.0):
    options = {"temperature": temperature, "batch": 2}
    plain = Decoder(own, **options)(PROMPTS, NEW)
    drafted = Decoder(own, drafter, "target_only", **options)(PROMPTS, NEW)
    assert [r.tokens for r in drafted] == [r.tokens for r in plain]
  assert own.label == f"random, LOSSY ({own.skipping.name})"


@pytest.mark.slow
def test_all_layers_are_the_whole_model(model):
  whole, all_layers = (
    Decoder(PLAIN)(PROMPTS, NEW),
    Decoder(model("skip_decode-4,span=9"))(PROMPTS, NEW),
  )
  assert [r.tokens for r in all_layers] == [r.tokens for r in whole]


@pytest.mark.parametrize(
  ("name", "words"),
  [
    ("skip_decode-5",
     "`first` must be between 0 and `least`, `least` between 1.*got first=1, least=5 and "
     r"span=128\."), ("skip_decode-2,span=0",
     "`first` must be between 0 and `least`, `least` between 1.*got first=1, least=2 and "
     r"span=0\."),
    ("first", "it needs trained routers"), ("first-2[{}]",
     r"`threshold` must be between 0 and 1, got 2\.0\."),
    ("none",
     "`skipping` must be one of skip_decode, first, duo, got "
     r"'none'\."), ("skip_decode[x]", "takes nothing in brack"),
    ("duo", "it needs trained routers, duo.DIRECTORY., see specjax.train.duo"),
    ("duo[{}]", "lacks skipping='duo'"), ("first[{}/duo]", "lacks skipping='first'"),
    ("duo-0-1[{}/duo]", "duo takes price=0.0"),
  ],
)  # fmt: skip
def test_what_cannot_be_is_refused(model, name, words):
  with pytest.raises(ValueError, match=words):
    model(name)


def test_what_does_not_go_together_is_refused(model, tmp_path):
  own = model("skip_decode-2,span=30,first=0")
  with pytest.raises(
    ValueError,
    match=(
      r"`model` must have no skipping in a conversation, got 'skip_decode-2,span=30,first=0'\."
    ),
  ):
    Conversation(Decoder(own))
  with pytest.raises(
    ValueError, match=(r"`cache` must be dense for a model that skips layers, got 'int8'\.")
  ):
    Decoder(own, cache="int8")
  with pytest.raises(ValueError, match="cache must be dense for a drafter that reads it"):
    Decoder(own, "layerskip-4,exit=2")(PROMPTS, 4)
  with pytest.raises(
    ValueError, match=r"`skipping` must be None for a model .*sliding window.*, got 'skip"
  ):
    load("lists-3m", skipping="skip_decode-1")
  with pytest.raises(ValueError, match="`weights` must be 'float' and `mesh` None"):
    routers.save(tmp_path, UPDATES, OF_LAYERS, base="random")
    load(weights="int8", skipping=f"first[{tmp_path}]")
  with pytest.raises(ValueError, match="lacks tensor layer_4"):
    load(skipping=f"first[{tmp_path}]")


def test_small_mlps_fit_one_model(tmp_path):
  small_mlps.save(tmp_path, SMALL_MLPS, base="random")
  with pytest.raises(ValueError, match="lacks tensor layer_4"):
    load(skipping=f"duo[{tmp_path}]")
  with pytest.raises(
    ValueError, match=("the target of small MLPs must be a model without experts: small MLPs stand")
  ):
    small_mlps.load(tmp_path, dataclasses.replace(CONFIG, experts=Experts(2, 1, 8)), PARAMS)
  with pytest.raises(ValueError, match=r"`price` must be at least 0, got -1\."):
    duo(L, -1)


def test_the_higher_the_price_the_less_is_read(model):
  x = jnp.asarray(RNG.normal(size=(2, 50, E)), jnp.float32)
  models = [model(f"duo-{price}[{{}}/duo]") for price in (0, 0.3, 1, 99)]
  mean = [float(m.skipping.mlp(m.params, 1, of_layer(CONFIG, 1), x)[1].mean()) for m in models]
  assert 1 > mean[0] > mean[1] > mean[2] > mean[3] == 0


def test_fewer_layers_read_later_tokens():
  chosen = skip_decode(L, 2, 8, 1)
  runs = np.asarray(chosen.runs(jnp.array([5]), jnp.arange(4, 30)[None]))[0]
  assert (runs[:-1] >= runs[1:]).all() and runs[0].all()
  assert runs[-1].tolist() == [True, False, False, True]
