"""Spec-Bench on a tiny random model: conversations, counts, and runs that are killed."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.checkpoints import hf
from specjax.cli.main import main
from specjax.data import spec_bench
from specjax.data.chat import TEMPLATES
from specjax.data.resume import count_lines
from specjax.data.tokenizer import train_bpe
from specjax.decoding.decoder import Decoder
from specjax.eval import divergence, prompts, specbench, specbench_report
from specjax.eval.options import Bench
from specjax.eval.specbench import FILE, Answer
from specjax.models.config import Config
from specjax.models.transformer import Transformer

ASKED = [
  ("writing", ["Tell of a train.", "Tell it again, in red."]), ("qa", ["Who has 3 apples?"]),
  ("coding", ["Count the apples.", "Count the pears."]), ("translation", ["Ein roter Zug"]),
  ("math_reasoning", ["3 pens cost 6 dollars. What do 5 cost?"]), ("qa", ["Where is the bus?"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  """A random Llama with a tokenizer and a chat template."""
  tokenizer = train_bpe(prompts.OUR_QUESTIONS, 300)
  config = Config(tokenizer.vocab_size, 32, 1, 2, 1, 16, 48, max_length=512)
  z = jnp.zeros((1, 2), jnp.int32)
  params = jax.jit(Transformer(config).init)(jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool))
  path = tmp_path_factory.mktemp("tiny")
  hf.save(path, config, params, tokenizer, template=TEMPLATES["qa"], dtype=jnp.float32)
  return specjax.load(str(path))


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Bench:
  """Six questions of four categories, two of them with two turns."""
  path = tmp_path_factory.mktemp("questions") / "asked.jsonl"
  records = [{"question_id": 7, "category": c, "turns": turns} for c, turns in ASKED]
  path.write_text("".join(json.dumps(r) + "\n" for r in records))
  return Bench(("prompt_lookup-4",), prompts=str(path), max_new_tokens=12, repeats=2)


@pytest.fixture(scope="module")
def whole(model, small, tmp_path_factory):
  """(directory, summary) of a run that was left alone."""
  out = tmp_path_factory.mktemp("whole")
  return out, specbench.run(model, small, out)


def answered(directory) -> list[Answer]:
  return [Answer(**json.loads(line)) for line in (directory / FILE).read_text().splitlines()]


def untimed(directory) -> list[Answer]:
  return [dataclasses.replace(a, seconds=0, prefill_seconds=0) for a in answered(directory)]


# --- Questions


def test_without_a_file_one_sentence_says_where_to_get_it(model, small, tmp_path, monkeypatch):
  monkeypatch.setattr(spec_bench, "LOCAL", tmp_path / "none.jsonl")
  with pytest.raises(
    ValueError, match=(r"`prompts` must be Spec-Bench's question\.jsonl, which lies.*got None\.")
  ):
    specbench.run(model, dataclasses.replace(small, prompts=None), tmp_path / "out")


def test_questions_without_room_are_left_out(model, small, tmp_path):
  short = dataclasses.replace(model, config=dataclasses.replace(model.config, max_length=40))
  known = spec_bench.read(small.prompts)
  fit = specbench.fitting(short, known, 12)
  assert [q.number for q in known if q not in fit] == [
    q.number for q in known if sum(len(model.chat(t)) + 12 for t in q.turns) > 40
  ]
  assert 0 < len(fit) < len(known)
  with pytest.raises(ValueError, match=r"max_new_tokens=500: no question of .*512 positions"):
    specbench.run(model, dataclasses.replace(small, max_new_tokens=500), tmp_path / "out")
  assert not (tmp_path / "out").exists()


# --- Conversations


def holds_the_first_answers(model, found) -> int:
  """Checks the prompts of every turn, and returns the number of second turns."""
  first = {(a.method, a.repeat, a.question): a for a in found if a.turn == 0}
  for a in found:
    one = first[a.method, a.repeat, a.question]
    turns = ASKED[a.question - 1][1]
    said = model.decode([t for t in one.tokens if t not in model.stop]).strip()
    messages = [{"role": "user", "content": turns[0]}]
    if a.turn:
      messages.append({"role": "assistant", "content": said})
      messages.append({"role": "user", "content": turns[1]})
    assert a.prompt == model.chat(messages)
  return sum(a.turn for a in found)


@pytest.mark.slow
def test_the_second_turn_holds_the_first_answer(model, whole):
  found = answered(whole[0])
  assert len(found) == 2 * 2 * (6 + 2)  # methods, repeats, turns
  assert holds_the_first_answers(model, found) == 2 * 2 * 2


@pytest.mark.full
def test_each_method_continues_its_own_sample(model, small, tmp_path):
  """The rule draws with other noise than plain decoding, so the first answers differ."""
  drafter = f"draft_model-3[{model.name}]"
  config = dataclasses.replace(
    small, drafters=(drafter,), temperature=1.0, repeats=1, batch=2, verifier="token"
  )
  summary = specbench.run(model, config, tmp_path)
  found = answered(tmp_path)
  assert holds_the_first_answers(model, found) == 2 * 2
  second = {m: [a.prompt for a in found if a.turn and a.method == m] for m in summary["methods"]}
  assert second["none"] != second[next(x for x in second if x != "none")]
  assert not summary["methods"]["none"]["divergences"]


# --- Figures


def test_figures_are_those_of_the_answers(whole, small):
  out, summary = whole
  first = [a for a in answered(out) if a.repeat == 0]
  assert summary["questions"] == {"overall": 6, "MT-Bench": 2, "translation": 1, "QA": 2, "math": 1}
  for label, m in summary["methods"].items():
    for category, x in m["figures"].items():
      mine = [a for a in first if a.method == label and category in ("overall", a.category)]
      assert x["tokens"] == sum(len(a.tokens) for a in mine)
      assert x["tau"] == x["tokens"] / sum(a.passes for a in mine)
  plain, drafted = (m["figures"]["overall"] for m in summary["methods"].values())
  assert plain["tau"] == plain["speed_up"] == plain["speed_up_with_prefill"] == 1
  assert plain["tokens"] == drafted["tokens"] and drafted["tau"] > 1
  assert all(m["unstable_batches"] == 0 == len(m["divergences"]) and m["must_equal_plain"]
             for m in summary["methods"].values())  # fmt: skip
  assert {p.name for p in out.iterdir()} == {
    "run.json", FILE, "summary.json", "table.md", "speedup.png", "tokens.png",
  }  # fmt: skip
  text = (out / "table.md").read_text()
  assert "| none | 1.00 | 1.00 |" in text and "| Medusa | 2.31 | 1.71 |" in text


def answer(batch, turn, tokens, passes, seconds, repeat=0, question=None, category="QA"):
  return Answer(
    "m", repeat, batch, batch if question is None else question, category, turn, [1], [2] * tokens,
    "", passes, seconds, 1.0,
  )  # fmt: skip


def test_times_are_medians_of_whole_conversations():
  """Batch 0 has two rows with two turns each, batch 1 one row with one; three repeats."""
  times = {0: [(1.0, 2.0), (10.0, 0.5), (2.0, 2.0)], 1: [(4.0,), (3.0,), (9.0,)]}
  found = [
    answer(batch, turn, 3 + row, 2, seconds, repeat, question=10 * batch + row)
    for repeat in range(3)
    for batch, rows in ((0, 2), (1, 1))
    for turn, seconds in enumerate(times[batch][repeat])
    for row in range(rows)
  ]
  run = specbench.collect(None, found, 3)
  np.testing.assert_array_equal(run.seconds, [[3, 4], [10.5, 3], [4, 9]])
  np.testing.assert_array_equal(run.prefill, [[2, 1]] * 3)
  total = specbench.totals(run)
  np.testing.assert_array_equal(total, [[14, 3], [8, 2], [4, 4], [6, 5]])
  plain = np.array([[14.0, 3], [14, 3], [12, 6], [14, 7]])
  x = specbench.figures(total, plain)
  assert x["tau"] == 17 / 10 and x["ms_per_token"] == pytest.approx(1e3 * 8 / 17)
  assert x["speed_up"] == pytest.approx(18 / 8) and x["speed_up_interval"] == (1.5, 3.0)
  assert x["speed_up_with_prefill"] == pytest.approx(21 / 11)
  assert run.unstable == 0
  found[-1] = dataclasses.replace(found[-1], tokens=[3])
  assert specbench.collect(None, found, 3).unstable == 1


def test_mismatches_are_counted(model, whole):
  summary = whole[1]
  runs = {
    k: specbench.collect(
      SimpleNamespace(model=model), [a for a in answered(whole[0]) if a.method == k], 2
    )
    for k in summary["methods"]
  }
  plain, drafted = runs.values()
  assert specbench.mismatches(drafted, plain, True) == []

  def changed(i: int, place: int, **more) -> None:
    a = drafted.results[i]
    other = [*a.tokens[:place], (a.tokens[place] + 1) % 300, *a.tokens[place + 1 :]]
    drafted.results[i] = dataclasses.replace(a, tokens=other, **more)

  second = [i for i, a in enumerate(drafted.results) if a.turn]
  changed(second[0], 3)
  changed(second[1], 0, prompt=[1, 2])  # it read another first answer: nothing to compare
  (found,) = specbench.mismatches(drafted, plain, True)
  reference = plain.results[second[0]]
  assert found == {
    "question": reference.question, "category": "MT-Bench", "turn": 1, "index": 3,
    "margin": divergence.margin(model, reference.prompt + reference.tokens[:3]),
  }  # fmt: skip
  label = list(summary["methods"])[1]
  methods = summary["methods"] | {label: summary["methods"][label] | {"divergences": [found]}}
  row = specbench_report.rows(summary | {"methods": methods})[1]
  assert row["differ"] == "1 of 6" and row["largest margin"] == f"{found['margin']:.1e}"
  assert specbench.mismatches(drafted, plain, False)[0]["margin"] is None


# --- Runs that are stopped


@pytest.mark.full(but=["3", "31"])
@pytest.mark.parametrize("kept", [0, 3, 8, 31])
def test_a_stopped_run_goes_on(model, small, whole, tmp_path, kept):
  """The first two batches have 4 answers each: two methods, two turns."""
  lines = (whole[0] / FILE).read_bytes().splitlines(keepends=True)
  shutil.copy(whole[0] / "run.json", tmp_path)
  (tmp_path / FILE).write_bytes(b"".join(lines[:kept]) + lines[kept][:20])
  specbench.run(model, small, tmp_path)
  again = (tmp_path / FILE).read_bytes().splitlines(keepends=True)
  ends = [0, 4, 8, 10, 12, 14, 16, 20, 24, 26, 28, 30, 32]
  unchanged = max(end for end in ends if end <= kept)
  assert again[:unchanged] == lines[:unchanged]
  assert untimed(tmp_path) == untimed(whole[0])


def test_a_finished_run_only_reports(model, small, whole, tmp_path, monkeypatch):
  shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
  (tmp_path / "table.md").unlink()
  monkeypatch.setattr(Decoder, "__call__", lambda *_, **__: pytest.fail("something was decoded"))
  summary = specbench.run(model, small, tmp_path)
  assert summary["methods"] == whole[1]["methods"]
  assert (tmp_path / "table.md").read_text() == (whole[0] / "table.md").read_text()


@pytest.mark.parametrize(
  "change", [{"seed": 1}, {"limit": 5}, {"drafters": ()}, {"temperature": 1.0}]
)
def test_a_run_with_other_options_is_refused(model, small, whole, change):
  before = (whole[0] / FILE).read_bytes()
  with pytest.raises(ValueError, match=f"holds a run with .*{next(iter(change))}="):
    specbench.run(model, dataclasses.replace(small, **change), whole[0])
  assert (whole[0] / FILE).read_bytes() == before


@pytest.mark.full
def test_a_killed_process_goes_on(model, small, tmp_path):
  """It is killed twice; the third start ends as a run does that was left alone."""
  command = [
    sys.executable, "-m", "specjax.cli", "bench", "--suite", "specbench", "--model", model.name,
    "--drafters", *small.drafters, "--prompts", small.prompts, "--max-new-tokens", "12",
    "--repeats", "2", "--out",
  ]  # fmt: skip
  killed, alone = tmp_path / "killed", tmp_path / "alone"
  for lines in (3, 9):
    end = time.monotonic() + 120
    with subprocess.Popen([*command, str(killed)], env=os.environ) as process:
      while count_lines(killed / FILE) < lines and time.monotonic() < end:
        time.sleep(0.001)
      process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
  subprocess.run([*command, str(killed)], check=True)
  subprocess.run([*command, str(alone)], check=True)
  assert untimed(killed) == untimed(alone)
  summaries = [json.loads((d / "summary.json").read_text()) for d in (killed, alone)]
  counts = [
    {label: [(c, x["tau"], x["tau_interval"]) for c, x in m["figures"].items()]
     for label, m in s["methods"].items()}
    for s in summaries
  ]  # fmt: skip
  assert counts[0] == counts[1] and summaries[0]["questions"] == summaries[1]["questions"]


@pytest.mark.slow
def test_the_suite_is_a_command(model, small, tmp_path, capsys):
  out = str(tmp_path / "out")
  command = ["bench", "--suite", "specbench", "--model", model.name, "--prompts", small.prompts,
             "--drafters", "prompt_lookup", "--limit", "3", "--max-new-tokens", "4",
             "--repeats", "1", "--out", out]  # fmt: skip
  assert main(command) == 0
  said = capsys.readouterr().out
  assert "translation (1)" in said and "MT-Bench (1)" in said and "0 of 3" in said
  assert "specbench.jsonl" in said
