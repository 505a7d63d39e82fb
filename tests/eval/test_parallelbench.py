"""The suite for denoisers: what it asks, counts and writes, and its command lines."""

import functools
import json

import numpy as np
import pytest
from sentences import says

from specjax.cli.main import main
from specjax.data import lists
from specjax.data.parallelbench_score import Score
from specjax.decoding.batching import Result
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.eval import parallelbench
from specjax.eval.interleaved import Runs
from specjax.eval.parallelbench import Config
from specjax.names.load import load

SMALL = Config(
  methods=("confidence", "threshold-0.3/dual", "confidence/guesses-3"), tasks=("copy", "shuffle"),
  lengths=(3, 4), count=2, max_new_tokens=8, batch=4,
)  # fmt: skip


def test_the_questions_are_of_every_task_and_length():
  asked = [lists.parse(q.text) for q in parallelbench.questions(SMALL)]
  kinds = sorted((q.task, len(q.items)) for q in asked)
  assert kinds == sorted([(t, n) for t in SMALL.tasks for n in SMALL.lengths] * 2)


def filled(text: str, passes: int) -> Result:
  return Result("", text, [], [], passes, 0.0)


def judged(question: str, answer: str) -> Score:
  """To the letter only where the names are in alphabetical order."""
  return Score(lists.is_right(question, answer), answer == "Ada Bob Cy")


@pytest.mark.slow
def test_figures_are_counted_by_hand(list_denoiser, monkeypatch):
  model = load(list_denoiser)
  monkeypatch.setattr(parallelbench, "said", lambda model, f: f.text)
  asked = [
    parallelbench.Question(text.split()[0], [{"role": "user", "content": text}],
                           functools.partial(judged, text))
    for text in ("copy : Ada Bob Cy =", "shuffle : Ada Bob Cy =", "copy : Ada Bob Cy =")
  ]  # fmt: skip
  results = [filled("Ada Bob Cy", 4), filled("Bob Ada Cy", 2), filled("Ada", 3)]
  seconds = np.array([[1.0, 5.0], [2.0, 10.0], [3.0, 4.0]])  # of three repeats and two batches
  got = parallelbench.figures(model, asked, Runs(None, results, seconds, 0 * seconds))
  assert got["accuracy"] == pytest.approx(2 / 3) and got["passes"] == 3
  assert got["accuracy_interval"] == (0.0, 1.0) and got["passes_interval"][0] < 3
  assert got["seconds"] == pytest.approx(2 + 5)
  assert got["accuracy_strict"] == pytest.approx(1 / 3)
  copy, shuffle = got["tasks"]["copy"], got["tasks"]["shuffle"]
  assert copy == {"accuracy": 0.5, "accuracy_strict": 0.5, "passes": 3.5}
  assert shuffle == {"accuracy": 1.0, "accuracy_strict": 0.0, "passes": 2.0}


@pytest.mark.slow
def test_a_run_writes_what_it_measured(list_denoiser, tmp_path):
  summary = parallelbench.run(load(list_denoiser), SMALL, str(tmp_path))
  assert list(summary["methods"]) == list(SMALL.methods)
  lines = [json.loads(x) for x in (tmp_path / "results.jsonl").read_text().splitlines()]
  assert len(lines) == 3 * 8
  said = {m: [x["said"] for x in lines if x["method"] == m] for m in SMALL.methods}
  assert said["confidence"] == said["confidence/guesses-3"]
  passes = {m: f["passes"] for m, f in summary["methods"].items()}
  assert passes["confidence/guesses-3"] <= passes["confidence"] == 8
  assert (tmp_path / "parallelbench.png").exists()
  assert "threshold-0.3/dual" in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize(
  ("label", "problem"),
  [
    (
      "threshold/quick",
      "policy/quick: after policy/ may follow fixed, adaptive, streaming, none, dual,",
    ),
    (
      "entropy_threshold/student",
      "-student' is not in the zoo.: train one with `.*train.distill`",
    ),
    ("learned", "-filter' is not in the zoo.: train one with `python -m specjax.train.filter`"),
    ("sure", r"`policy` must be one of random, confidence, margin.*got 'sure'\."),
    ("threshold:0.9", r"`policy` must be NAME, NAME-NUMBER or.*got 'threshold:0\.9'\."),
  ],
)
def test_other_labels_are_refused(list_denoiser, label, problem):
  with pytest.raises(ValueError, match=problem):
    parallelbench.make_decoder(load(list_denoiser), label, SMALL)


def test_denoise_prints_json(list_denoiser, capsys):
  assert main(["denoise", "--model", list_denoiser, "--prompt", "copy : Ada Bob =", "--policy",
               "confidence-2/fixed-8", "--max-new-tokens", "8", "--json"]) == 0  # fmt: skip
  line = json.loads(capsys.readouterr().out)
  assert line["passes"] <= 4 and line["method"] == "confidence-2/fixed-8" and line["seconds"] > 0
  assert (
    main(["denoise", "--model", list_denoiser, "--prompt", "copy : Ada =", "--policy", "x"]) == 2
  )
  assert says(
    capsys.readouterr().err, "`policy` must be one of random, confidence, margin .. got 'x'."
  )


@pytest.mark.slow
def test_denoise_samples_as_dream_does(list_denoiser, tmp_path, capsys):
  prompts, policy = tmp_path / "prompts.jsonl", "entropy-1,heat=0.2/anew/tempered/adaptive-8[Ada]"
  texts = ["copy : Ada Bob =", "copy : Cy =", "sort : Bob Ada ="]
  prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
  assert main(["denoise", "--model", list_denoiser, "--prompts", str(prompts), "--policy", policy,
               "--max-new-tokens", "8", "--temperature", "0.8", "--top-p", "0.9", "--top-k", "5",
               "--dtype", "bfloat16", "--batch", "2", "--seed", "3", "--json"]) == 0  # fmt: skip
  lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
  decoder = DiffusionDecoder(load(list_denoiser, "bfloat16"), policy, temperature=0.8, top_p=0.9,
                             top_k=5, seed=3, batch=2)  # fmt: skip
  assert decoder.name == "entropy,heat=0.2/adaptive-8[Ada]/anew/tempered"
  assert [x["tokens"] for x in lines] == [r.tokens for r in decoder(texts, 8)]
  assert {x["method"] for x in lines} == {decoder.name}
  one = ["denoise", "--model", list_denoiser, "--prompt", "copy : Ada ="]
  for wrong in (["--top-p", "0"], ["--top-k", "-1"], ["--policy", "threshold/tepid"]):
    assert main([*one, *wrong]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_published_questions_take_the_place_of_ours(list_denoiser, tmp_path, capsys):
  names = ["Ada", "Bob", "Cy"]
  turns = [{"role": "user", "content": f"copy : {' '.join(names)} ="}]
  for task, label in (("copy", json.dumps(names)), ("shuffle", {"input": names})):
    line = json.dumps({"messages": turns, "label": label})
    (tmp_path / f"waiting_line_{task}.jsonl").write_text(f"{line}\n" * 3)
  out = tmp_path / "out"
  assert main(["bench", "--suite", "parallelbench", "--model", list_denoiser, "--methods",
               "confidence-8", "--limit", "2", "--max-new-tokens", "8", "--published",
               str(tmp_path), "--out", str(out)]) == 0  # fmt: skip
  said = capsys.readouterr().out
  assert "| copy | shuffle |" in said and "| right | strict |" in said
  lines = [json.loads(x) for x in (out / "results.jsonl").read_text().splitlines()]
  assert [x["task"] for x in lines] == ["copy", "copy", "shuffle", "shuffle"]


def test_the_suite_is_a_command(list_denoiser, tmp_path, capsys):
  out = str(tmp_path / "out")
  assert main(["bench", "--suite", "parallelbench", "--model", list_denoiser, "--methods",
               "confidence-8", "--limit", "1", "--max-new-tokens", "8", "--tasks", "copy",
               "latin_square", "--lengths", "2", "--out", out]) == 0  # fmt: skip
  said = capsys.readouterr().out
  assert "| confidence-8 |" in said and "| copy | latin_square |" in said
