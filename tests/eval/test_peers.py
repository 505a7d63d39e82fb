"""The comparison of programs: clock, stop rule, figures, margins, and runs that are killed."""

import dataclasses
import json
import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest
from test_benchmarks import load
from test_plots import ABOUT, legible

import specjax
from specjax.checkpoints import hf
from specjax.data.jinja_chat import JinjaTemplate
from specjax.data.tokenizer import train_bpe
from specjax.eval import code_tasks, divergence, peers, prompts
from specjax.eval.peers import Contender, Run
from specjax.eval.plots import peers as plots
from specjax.models import transformer
from specjax.models.config import Config

SCRIPT = load("benchmarks/speed/peers.py")
CHATML = (
  "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
  "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ASKED = [
  ("writing", ["Tell of a train.", "Tell it again, in red."]), ("qa", ["Who has 3 apples?"]),
  ("translation", ["Ein roter Zug"]), ("math_reasoning", ["3 pens cost 6. What do 5 cost?"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  """A random Llama with a tokenizer, a chat template and a stop id."""
  import jax

  tokenizer = train_bpe(prompts.OUR_QUESTIONS, 300)
  config = Config(tokenizer.vocab_size, 32, 1, 2, 1, 16, 48, max_length=512)
  params = jax.jit(transformer.init, static_argnums=0)(config, jax.random.key(0))
  path = tmp_path_factory.mktemp("tiny")
  template = JinjaTemplate(CHATML, "", "")
  hf.save(path, config, params, tokenizer, template=template, stop=(7,), dtype=jnp.float32)
  return specjax.load(str(path))


@pytest.fixture
def config(model, tmp_path):
  path = tmp_path / "asked.jsonl"
  records = [{"question_id": 7, "category": c, "turns": turns} for c, turns in ASKED]
  path.write_text("".join(json.dumps(r) + "\n" for r in records))
  return SCRIPT.Config(
    model.name,
    prompts=str(path),
    limit=3,
    max_new_tokens=10,
    weights=("float", "bfloat16", "int8"),
    out=str(tmp_path / "out"),
  )


@pytest.mark.full
def test_a_killed_run_goes_on_and_absent_programs_are_named(model, config, monkeypatch, capsys):
  for name in ("torch", "llama_cpp"):
    monkeypatch.setitem(sys.modules, name, None)  # importing it fails
  SCRIPT.main(config)
  out = capsys.readouterr().out
  assert "Left out: transformers (pip install torch transformers)." in out
  assert f"Left out: llama.cpp (it reads GGUF files, and {model.name} is none)." in out
  assert "| specjax, prompt_lookup |" in out
  file = SCRIPT.pathlib.Path(config.out) / "answers.jsonl"
  lines = file.read_bytes().splitlines(keepends=True)
  assert len(lines) == 6 * 3
  first = [json.loads(line) for line in lines]
  plain = "specjax", "specjax bfloat16", "specjax int8"
  drafted = [f"{name}, prompt_lookup" for name in plain]
  assert {r["name"] for r in first} == {*plain, *drafted}
  for r in first:
    assert len(r["tokens"]) == 10 or r["tokens"][-1] == 7
    assert r["timed"] == len(r["tokens"]) and 0 < r["seconds"] < r["total"]

  file.write_bytes(b"".join(lines[:7]) + lines[7][:20])
  SCRIPT.main(config)
  again = file.read_bytes().splitlines(keepends=True)
  assert again[:6] == lines[:6]  # of the first question; the second was not whole
  assert [json.loads(line)["tokens"] for line in again] == [r["tokens"] for r in first]
  summary = json.loads((file.parent / "summary.json").read_text())
  assert all(summary["contenders"][name]["same_as_own_plain"] == 3 for name in drafted)
  assert summary["prompts"] == 3 and "llama-cpp-python" in summary["versions"]
  with pytest.raises(ValueError, match="max_new_tokens=10"):
    SCRIPT.main(dataclasses.replace(config, max_new_tokens=9))


def test_questions_are_first_turns_in_the_chat_template(model, config):
  asked = SCRIPT.questions(model, dataclasses.replace(config, limit=None))
  assert [q.text for q in asked] == [
    turns[0] for _, turns in ASKED[:1] + ASKED[2:3] + ASKED[1:2] + ASKED[3:]
  ]
  assert all(q.ids == model.chat(q.text) for q in asked)


def test_tasks_of_the_suite_code_in_the_chat_template(config):
  known = {task.turns[0]: task.category for task in code_tasks.read()}
  template = types.SimpleNamespace(max_length=2**20)
  model = types.SimpleNamespace(chat=lambda text: [1, len(text)], config=template, name="m")
  edits = dataclasses.replace(config, suite="code", tasks=("edit",), prompts=None)
  asked = SCRIPT.questions(model, edits)
  assert [known[q.text] for q in asked] == ["edit"] * 3
  assert [q.ids for q in asked] == [[1, len(q.text)] for q in asked]


@pytest.mark.parametrize(
  ("name", "option"), [("tasks", {"tasks": ("edit",)}), ("prompts", {"suite": "code"})]
)
def test_an_option_of_another_suite_is_refused(name, option, config):
  with pytest.raises(ValueError, match=f"^`{name}` must be none with the suite"):
    SCRIPT.main(dataclasses.replace(config, **option))


@pytest.mark.parametrize(
  ("came", "stop", "budget", "tokens"),
  [([4, 5, 6], (), 2, [4, 5]), ([4, 5, 6], (5,), 3, [4, 5]), ([4, 5, 6], (6,), 2, [4, 5]),
   ([4], (4, 5), 9, [4])],
)  # fmt: skip
def test_the_stop_rule(came, stop, budget, tokens):
  found, times = peers.until_stop(iter(came), stop, budget)
  assert found == tokens and len(times) == len(tokens) and times == sorted(times)


class Llama:
  """Stands for llama_cpp.Llama: says 11, 12, 13, .., the first after a pass over the prompt."""

  metadata: dict = {}  # noqa: RUF012

  def __init__(self, file, **options):
    self.file, self.options = file, options

  def reset(self):
    pass

  def eval(self, tokens):
    pass

  def generate(self, tokens, temp, repeat_penalty):
    assert (temp, repeat_penalty) == (0, 1)
    step = 2 if "draft_model" in self.options else 1
    for i in range(100):
      if i == 0 or (i - 1) % step == 0:
        self.eval(tokens)
      yield 11 + i


@pytest.mark.parametrize(
  ("float32", "kept"), [(True, {"type_k": "f32", "type_v": "f32"}), (False, {})]
)
def test_llama_cpp_stops_as_ours_and_counts_its_passes(float32, kept, monkeypatch):
  made = []
  package = types.ModuleType("llama_cpp")
  package.Llama = lambda *a, **k: made.append(Llama(*a, **k)) or made[-1]
  package.GGML_TYPE_F32 = "f32"
  package.llama_chat_format = types.ModuleType("chat")
  package.llama_speculative = types.SimpleNamespace(LlamaPromptLookupDecoding=dict)
  monkeypatch.setitem(sys.modules, "llama_cpp", package)
  found = peers.llama_cpp("m.gguf", (15,), 3, 64, "llama.cpp X", float32)
  assert list(found) == ["llama.cpp X", "llama.cpp X, prompt lookup"]
  assert [m.options.get("draft_model") for m in made] == [None, {"num_pred_tokens": 3}]
  for m in made:
    assert m.file == "m.gguf" and m.options["n_ctx"] == 64 + 3
    assert {k: v for k, v in m.options.items() if k.startswith("type_")} == kept
  for contender, passes in zip(found.values(), (4, 2), strict=True):
    run = contender.run([1, 2], 8)
    assert run.tokens == [11, 12, 13, 14, 15] and run.timed == 4 and run.passes == passes
    assert 0 <= run.seconds <= run.total
    assert contender.run([1, 2], 3).tokens == [11, 12, 13]
    assert contender.read is None and contender.float32 == float32


def run(tokens, seconds, total, passes=None):
  timed = len(tokens) - 1
  return Run(tokens, timed, seconds, timed if passes is None else passes, total)


RUNS = {  # two repeats of two questions
  "specjax": [[run([1, 2, 3], 4.0, 6.0), run([1, 2], 3.0, 4.0)],
              [run([1, 2, 3], 2.0, 4.0), run([1, 2], 1.0, 4.0)]],
  "specjax, eagle": [[run([1, 2, 3], 1.0, 3.0, 1), run([1, 2], 1.0, 3.0)],
                     [run([1, 2, 3], 1.0, 3.0, 1), run([1, 4], 1.0, 3.0)]],
  "theirs": [[run([1, 5, 6], 8.0, 9.0), run([1, 2], 4.0, 9.0)]] * 2,
}  # fmt: skip


def test_figures_are_of_totals_over_medians_of_repeats():
  plain, eagle, theirs = (SCRIPT.figures(RUNS, name) for name in RUNS)
  assert plain["ms_per_token"] == pytest.approx(1e3 * (3 + 2) / 3)
  assert plain["ms_per_token_quartiles"] == pytest.approx([1625, 1750, 1875])
  assert plain["ms_per_token_with_prompt"] == pytest.approx(1e3 * (5 + 4) / 5)
  assert plain["over_ours"] == plain["over_own_plain"] == plain["tau"] == 1
  assert eagle["over_own_plain"] == eagle["over_ours"] == pytest.approx(5 / 2)
  assert eagle["tau"] == 3 / 2
  assert theirs["over_own_plain"] == 1 and theirs["over_ours"] == pytest.approx(5 / 12)
  assert theirs["over_ours_interval"] == pytest.approx((3 / 8, 2 / 4))
  assert (plain["unstable"], eagle["unstable"], theirs["unstable"]) == (0, 1, 0)
  assert [m["same_as_own_plain"] for m in (plain, eagle, theirs)] == [2, 2, 2]


def test_a_divergence_has_the_margin_of_both_tokens_in_both_logits():
  asked = [SCRIPT.Question([9], None), SCRIPT.Question([8], None)]
  seen = []

  def logits(values):
    return lambda ids: seen.append(ids) or np.array(values, np.float32)

  fail = lambda ids: pytest.fail("logits of another arithmetic")  # noqa: E731
  contenders = {
    "specjax": Contender(None, logits([0, 0, 3, 0, 0, 2.5])),
    "theirs": Contender(None, logits([0, 0, 3, 0, 0, 3.25])),
    "theirs 4-bit": Contender(None, fail, float32=False),
  }
  mine, ours = RUNS["theirs"][0], RUNS["specjax"][0]
  (found,) = SCRIPT.divergences(contenders, "theirs", asked, mine, ours)
  assert found == {"question": 0, "index": 1, "ours": 2, "theirs": 5, "margin": 0.5,
                   "their_margin": 0.25}  # fmt: skip
  assert seen == [[9, 1], [9, 1]]
  assert SCRIPT.divergences(contenders, "theirs 4-bit", asked, mine, ours) == [
    {"question": 0, "index": 1}
  ]


def summary(**divergences):
  figures = {k: SCRIPT.figures(RUNS, k) for k in RUNS}
  return ABOUT | {
    "prompts": 2, "config": ABOUT["config"] | {"max_new_tokens": 3, "repeats": 2},
    "same_prompts": {"theirs": 2}, "left_out": {"another": "pip install another"},
    "by_kind": SCRIPT.by_kind(RUNS, ["qa", "qa"]),
    "contenders": {
      k: m | {"float32": True, "divergences": divergences.get(k, [])} for k, m in figures.items()
    },
  }  # fmt: skip


def test_the_table_and_what_it_says_below():
  apart = {"question": 0, "index": 1, "margin": 0.5, "their_margin": 0.1}
  said = SCRIPT.text(summary(theirs=[apart])).splitlines()
  assert said[0].startswith("gsm8k-7m, 2 prompts, greedy, batch 1, up to 3 new tokens, median of 2")
  rows = [line.split(" | ") for line in said if line.startswith("| ")]
  assert [row[0] for row in rows] == ["| ", "| specjax", "| specjax, eagle", "| theirs"]
  named = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
  assert [x["same ids as ours"] for x in named] == ["2", "2", "1"]
  assert [x["over its own plain"][:4] for x in named] == ["", "2.50", ""]
  assert [x["over ours"][:4] for x in named] == ["", "2.50", "0.42"]
  assert [x["largest margin |"] for x in named] == [" |", " |", "5.0e-01 |"]
  assert "theirs parts from specjax by more than a tie in 1 answers." in said
  assert "theirs reads 2 of 2 questions as the same ids." in said
  assert "Left out: another (pip install another)." in said
  tie = SCRIPT.text(summary(theirs=[apart | {"margin": 2e-5}]))
  assert "2.0e-05" in tie and "more than a tie" not in tie


def test_the_time_of_a_token_by_the_kind_of_a_question():
  said = SCRIPT.text(summary() | {"by_kind": SCRIPT.by_kind(RUNS, ["edit", "chat"])})
  assert "| specjax | 1500.0 | 2000.0 |" in said and "| theirs | 4000.0 | 4000.0 |" in said
  assert "| ms/token | qa |" not in SCRIPT.text(summary())


def test_bars_are_as_long_as_a_token_takes():
  figure = plots.bars(summary())
  widths = [bar.get_width() for bar in figure.axes[0].patches]
  assert widths == pytest.approx([1e3 * 5 / 3, 1e3 * 2 / 3, 1e3 * 4])
  assert {"specjax, eagle", "theirs", "4000.0"} <= legible(figure)


def test_logits_are_those_of_the_margin(model):
  found = divergence.logits(model, [5, 6, 7])
  assert found.shape == (model.config.vocab_size,) and found.dtype == np.float32
  low, high = np.sort(found)[-2:]
  assert divergence.margin(model, [5, 6, 7]) == high - low > 0


def test_transformers_decodes_the_same(model):
  """Where torch is installed: the same ids, prompts and logits, and what prompt lookup saves."""
  pytest.importorskip("torch")
  found = peers.transformers(model.name, model.stop, 5)
  ours = peers.specjax(model, ())["specjax"]
  ids = model.chat("Who has 3 apples?")
  wanted = ours.run(ids, 24).tokens
  for contender in found.values():
    got = contender.run(ids, 24)
    assert got.tokens == wanted and got.timed == len(wanted) - 1 >= got.passes
    assert contender.read("Who has 3 apples?") == ids
    np.testing.assert_allclose(contender.logits(ids), ours.logits(ids), atol=1e-5)
