"""A head that follows a target whose weights change, beside one that stays as it was."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import specjax
from specjax.data.packing import pack
from specjax.heads import drafting
from specjax.models.transformer import Transformer
from specjax.names.build.head import load_head
from specjax.names.grammar import Part
from specjax.train.lm import loss_fn
from specjax.train.recipe.config import Training
from specjax.train.refresh import Refresh

ROUNDS, LENGTH, NEW = 10, 64, 14


@pytest.fixture(scope="module")
def model(warm):
  return specjax.load(warm.model)


@pytest.fixture(scope="module")
def head(model, warm):
  return load_head(model, Part("medusa", (), f"{warm.out}/model"))[1]


def texts_of(model, numbers):
  """Texts that say another thing than those the model was trained on, with the answer trained."""
  template, found = model.template, []
  for a in numbers:
    turns = [
      {"role": "user", "content": f"{a} pens and {a % 7}?"},
      {"role": "assistant", "content": f"pens: {a + a % 7} pens, {a} and {a % 7}."},
    ]
    found.append(template.encode(model.tokenizer, turns))
  return found


def decoded(model, params, drafter):
  changed = dataclasses.replace(model, params=params)
  prompts = [changed.chat(f"{a} pens and {a % 7}?") for a in (2, 9, 15)]
  return specjax.generate(changed, prompts, drafter=drafter, max_new_tokens=NEW)


@pytest.mark.slow
def test_a_head_that_follows_its_target_in_ten_steps_and_one_that_does_not(model, head):
  network = Transformer(model.config)
  rule = optax.adam(3e-3)
  params, state = model.params, rule.init(model.params)
  training = Training(steps=ROUNDS * 10, batch=8, rate=3e-3, warmup=5, devices=1)
  follow = Refresh(model, head, training, length=LENGTH, points=16)
  before = jax.tree.map(np.array, head.params)

  @jax.jit
  def learned(params, state, rows):
    grads = jax.grad(lambda p: loss_fn(p, network, rows)[0])(params)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes float and int scalars
      step, state = rule.update(grads, state, params)
    return optax.apply_updates(params, step), state

  rng = np.random.default_rng(0)
  rows = [pack(texts_of(model, rng.integers(0, 20, 16)), LENGTH) for _ in range(ROUNDS)]
  rows = [type(x)(*(y[:6] for y in x)) for x in rows]
  for some in rows:
    for _ in range(6):
      params, state = learned(params, state, some)
    newest = follow(params, texts_of(model, rng.integers(0, 20, 16)), steps=10)
  assert follow.done == ROUNDS * 10
  assert follow._step._cache_size() == 1  # one program, whatever the weights are
  jax.tree.map(np.testing.assert_array_equal, head.params, before)

  other = texts_of(model, range(20, 28))
  ours, theirs = follow.accepted(params, other), follow.accepted(params, other, head.params)
  assert follow._hits._cache_size() == 1
  assert ours[0] > theirs[0] + 0.1
  choices = ((0,), (0, 0), (0, 0, 0))
  drafter = drafting.drafter(head.head, choices)
  plain = decoded(model, params, "none")
  found = [decoded(model, params, (drafter, own)) for own in (newest, head.params)]
  for each in found:
    assert [x.tokens for x in each] == [x.tokens for x in plain]
  new, old = (sum(x.passes for x in each) for each in found)
  assert new < old


def test_what_a_head_cannot_follow_is_refused(model, head):
  with pytest.raises(ValueError, match="`length` must be between 2 and"):
    Refresh(model, head, Training(), length=10**6)
  follow = Refresh(model, head, Training(batch=2, devices=1), length=LENGTH)
  texts = texts_of(model, [3])
  with pytest.raises(ValueError, match=r"`steps` must be between 1 and .*, got 0"):
    follow(model.params, texts, steps=0)
  with pytest.raises(ValueError, match="`texts` must have a token to learn in their first 64"):
    follow(model.params, [(ids, [False] * len(ids)) for ids, _ in texts], steps=1)
  wide = jax.tree.map(lambda x: jnp.concatenate([x, x]), model.params)
  with pytest.raises(ValueError, match="`target_params` must have the names, shapes and dtypes of"):
    follow(wide, texts, steps=1)
  assert follow.done == 0
