"""The judge's training: what is marked and how, the states it sees, the run and its files."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from options import changed

from specjax.checkpoints import parts
from specjax.data.chat import TEMPLATES
from specjax.data.tokenizer import Tokenizer, train_bpe
from specjax.models.config import Config
from specjax.models.transformer import Transformer, attention_mask
from specjax.names.load import Model, load
from specjax.train import judge
from specjax.train.recipe.calibration import area
from specjax.train.recipe.config import Training
from specjax.train.recipe.judge_labels import (
  DIGIT,
  OPERATOR,
  WORD,
  JudgeLabels,
  kinds,
  mark,
  replaceable,
)
from specjax.train.recipe.judge_marks import marked, states
from specjax.verifiers.judge import Judge, probability

ANSWER = "Ann has 3+4 = <<3+4=7>>7 red pens.\nBob has 2*7 = $<<2*7=14>>14.\n#### 14"
TOKENIZER = train_bpe(
  [ANSWER, "Ann Ann Bob Bob has has red red pens pens blue blue 0123456789"], 300
)
CONFIG = Config(
  vocab_size=300, width=16, layers=2, heads=2, kv_heads=1, head_dim=8, mlp_width=24, max_length=96
)
KIND = kinds(TOKENIZER, 300)


def random_model() -> Model:
  z = jnp.zeros((1, 2), jnp.int32)
  params = Transformer(CONFIG).init(jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool))
  params = jax.tree.map(lambda x: x * 8 if x.ndim > 1 else x, params)
  return Model("tiny", CONFIG, params, TOKENIZER, (0,), (), TEMPLATES["qa"])


def test_results_operators_and_words_may_be_replaced():
  ids = TOKENIZER.encode(ANSWER)
  may = replaceable(TOKENIZER, ids, KIND)
  pieces = [TOKENIZER.decode([i]) for i in ids]
  shown = "".join(
    p if m and k != WORD else "." * len(p) for p, m, k in zip(pieces, may, KIND[ids], strict=True)
  )
  kept = [(i, c) for i, c in enumerate(shown) if c != "."]
  assert "".join(c for _, c in kept) == "+77*141414"
  assert ANSWER[kept[0][0] - 3 : kept[0][0] + 1] == "<<3+"
  words = {p.strip() for p, m, k in zip(pieces, may, KIND[ids], strict=True) if m and k == WORD}
  assert words and all(w.isalpha() for w in words)
  assert (KIND == DIGIT).sum() == 10 and (KIND == OPERATOR).sum() == 4


@pytest.mark.slow
def test_states_are_those_of_the_text_with_one_token_replaced():
  model, ids = random_model(), TOKENIZER.encode(ANSWER)
  head = TOKENIZER.encode("Ann?")
  text = head + ids
  document = text, [False] * len(head) + [True] * len(ids)
  got = mark(model, [document], top_k=5, temperature=1.0, seed=0, length=len(text) + 3)
  position = jnp.arange(len(text), dtype=jnp.int32)[None]
  run = jax.jit(Transformer(CONFIG).apply)
  mask = attention_mask(jnp.zeros_like(position), True)

  def state(text, i: int) -> np.ndarray:
    return np.asarray(run(model.params, jnp.asarray([text], jnp.int32), position, mask)[0])[0, i]

  own = got.hidden[: len(ids)]
  np.testing.assert_allclose(own[-1], state(text, len(text) - 1), atol=5e-3)
  assert got.right[: len(ids)].all()
  wrong = np.flatnonzero(~got.right)
  may = replaceable(TOKENIZER, ids, KIND) & (KIND[ids] != WORD)
  places = np.flatnonzero(may) + len(head)
  assert len(wrong) == len(places) == got.number[: len(ids)].sum() == 10
  assert (got.right[len(ids) :] == ~got.number[len(ids) :]).all()
  assert (~got.number[len(ids) :]).any()
  for r, i in zip(wrong, places, strict=True):
    others = [t for t in np.flatnonzero(KIND[text[i]] == KIND) if t != text[i]]
    states = [state([*text[:i], t, *text[i + 1 :]], i) for t in others]
    assert min(np.abs(got.hidden[r] - s).max() for s in states) < 5e-3


def test_numbers_of_several_digits_are_refused():
  """Also where the vocabulary has every digit as well."""
  whole = tokenizers.Tokenizer.from_str(TOKENIZER.inner.to_str())
  whole.add_tokens(["14"])
  model = dataclasses.replace(random_model(), tokenizer=Tokenizer(whole))
  ids = model.tokenizer.encode("Bob has 14")
  with pytest.raises(
    ValueError,
    match=(
      r"`model` must have a tokenizer that splits digits, or the.*got 'tiny', whose vocabulary "
      r"has numbers of several digits"
    ),
  ):
    mark(model, [(ids, [True] * len(ids))], top_k=2, temperature=1.0, seed=0, length=20)


def spoken(marked) -> list[str]:
  """The texts of the wrong tokens."""
  (ids, _), wrong = marked
  return [TOKENIZER.decode([i]) for i, w in zip(ids, wrong, strict=True) if w]


RIGHT = {"question": "Ann?", "answer": "Ann has 14 red pens"}


@pytest.mark.parametrize(
  ("record", "wrong"),
  [
    ({"wrong": []}, [""]),
    ({"wrong": [[8, 10]]}, ["14"]),
    ({"wrong": [[9, 10], [11, 14]]}, ["4 red"]),
    ({"wrong_answer": "Ann has 17 red pens"}, ["", "7"]),
    ({"wrong_answer": "Ann has red pens"}, ["", ""]),
    ({"wrong_answer": "Bob has 14 red blue pens"}, ["", "Bob blue"]),
  ],
)
def test_records_say_which_tokens_are_wrong(record, wrong):
  texts = marked(random_model(), RIGHT | record, 0, "question", "answer")
  assert ["".join(spoken(text)).strip() for text in texts] == wrong


@pytest.mark.parametrize(
  ("record", "words"),
  [
    ({}, r"record 3: a record must have wrong or wrong_answer, got neither\."),
    (
      {"wrong": [[3, 20]]},
      r"`wrong` must be pairs \[begin, end\] of characters of the answer, which has 19, got "
      r"\[\[3, 20\]\]\.",
    ),
    (
      {"wrong": "3"},
      r"`wrong` must be pairs \[begin, end\] of characters of the answer, which has 19, got "
      r"'3'\.",
    ),
    ({"wrong_answer": " "}, r"`wrong_answer` must be text, got ' '\."),
    ({"answer": None, "wrong": []}, r"`answer` must be text, got None\."),
  ],
)
def test_marks_that_say_nothing_are_refused(record, words):
  with pytest.raises(ValueError, match=words):
    marked(random_model(), RIGHT | record, 2, "question", "answer")


@pytest.mark.slow
def test_marked_states_are_those_of_each_text_alone():
  model = random_model()
  records = [
    marked(model, RIGHT | {"wrong_answer": "Ann has 17 pens"}, 0, "question", "answer"),
    marked(model, {"question": "Bob?", "answer": "2 pens", "wrong": [[0, 1]]}, 1, "question",
           "answer"),
  ]  # fmt: skip
  got = states(model, records, length=48, batch=1)
  run = jax.jit(Transformer(CONFIG).apply)
  want = []
  for (ids, said), wrong in (text for record in records for text in record):
    position = jnp.arange(len(ids), dtype=jnp.int32)[None]
    mask = attention_mask(jnp.zeros_like(position), True)
    hidden = run(model.params, jnp.asarray([ids], jnp.int32), position, mask)[0][0]
    digit = [any(c.isdigit() for c in TOKENIZER.decode([i])) for i in ids]
    rows = zip(np.asarray(hidden), said, wrong, digit, strict=True)
    want += [(h, not w, d) for h, own, w, d in rows if own]
  near = np.abs(got.hidden[:, None] - np.stack([h for h, *_ in want])[None]).max(-1) < 5e-3
  assert len(got.right) == len(want) and near.any(1).all() and near.any(0).all()
  for i, j in np.argwhere(near):
    assert got.right[i] == want[j][1] or near[i].sum() > 1
    assert got.number[i] == want[j][2] or near[i].sum() > 1
  assert (~got.right).sum() == 2  # the 7 and the 2


def test_the_area_counts_pairs():
  rng = np.random.default_rng(0)
  score, right = rng.integers(6, size=40) / 6, rng.random(40) < 0.4
  pairs = [(a > b) + (a == b) / 2 for a in score[right] for b in score[~right]]
  assert area(score, right) == pytest.approx(np.mean(pairs))
  assert np.isnan(area(score, np.ones(40, bool)))


def test_right_and_wrong_weigh_the_same_in_the_loss():
  rng = np.random.default_rng(1)
  hidden, right = rng.normal(size=(9, 4)).astype(np.float16), np.arange(9) < 7
  params = Judge(jnp.asarray(rng.normal(size=4), jnp.float32), jnp.float32(0.2))
  p = np.asarray(probability(params, jnp.asarray(hidden)), np.float64)
  want = -(np.log(p[right]).mean() + np.log(1 - p[~right]).mean()) / 2
  np.testing.assert_allclose(judge.loss(params, JudgeLabels(hidden, right, right)), want, rtol=1e-5)


@pytest.fixture(scope="module")
def config(lm_run, tmp_path_factory):
  directory = tmp_path_factory.mktemp("judge")
  records = [
    {"question": f"{a} pens and {b}?", "answer": f"<<{a}+{b}={a + b}>>{a + b} pens.\n#### {a + b}"}
    for a in range(6)
    for b in range(5)
  ]
  data = directory / "sums.jsonl"
  data.write_text("".join(json.dumps(r) + "\n" for r in records))
  return judge.Config(
    model=f"{lm_run.out}/model", data=str(data), out=str(directory / "run"), held_out=8, length=64,
    training=Training(batch=64, steps=20, warmup=2, save_every=10, devices=1),
  )  # fmt: skip


@pytest.mark.slow
def test_a_run_is_reported_saved_and_not_mixed_with_another(config, tmp_path):
  judge.main(config)
  report = json.loads((tmp_path / config.out / "report.json").read_text())
  assert report["numbers"]["wrong"] == report["tokens"]["wrong"] > 0
  assert set(report["tokens"]["threshold 0.5"]) == {"precision", "recall", "wrong_passed"}
  network = load(config.model).config
  params = parts.load_judge(f"{config.out}/model", network)
  assert params.w.shape == (network.width,) and bool((params.w != 0).any())
  judge.main(config)  # a finished run does nothing more
  assert (parts.load_judge(f"{config.out}/model", network).w == params.w).all()
  with pytest.raises(ValueError, match=r"holds a run with steps=20 \(now 10\)"):
    judge.main(changed(config, steps=10))


@pytest.mark.slow
def test_a_judge_learns_from_marked_records(config, tmp_path):
  data = tmp_path / "marked.jsonl"
  records = [
    {"question": f"{a} pens and {b}?", "answer": f"{a + b} pens.", "wrong_answer": f"{a} pens."}
    for a in range(5)
    for b in range(1, 5)
  ]
  data.write_text("".join(json.dumps(r) + "\n" for r in records))
  own = dataclasses.replace(config, data=str(data), out=str(tmp_path / "run"), marked=True)
  judge.main(own)
  report = json.loads((tmp_path / "run" / "report.json").read_text())
  assert report["trained_on"]["wrong"] >= 12 and report["tokens"]["wrong"] >= 4


def test_judges_that_do_not_fit_are_refused(tmp_path):
  parts.save(tmp_path, Judge(jnp.ones(8), jnp.float32(1)), base="tiny")
  with pytest.raises(ValueError, match=r"tensor w has shape \(8,\), expected \(16,\)"):
    parts.load_judge(tmp_path, CONFIG)
  with pytest.raises(ValueError, match=r"tensor b is not finite in dtype float32"):
    parts.save(tmp_path, Judge(jnp.ones(8), jnp.float32(jnp.nan)), base="tiny")
  (tmp_path / "config.json").write_text("{}")
  with pytest.raises(ValueError, match=r"lacks verifier='judge': this is no judge"):
    parts.load_judge(tmp_path, CONFIG)
