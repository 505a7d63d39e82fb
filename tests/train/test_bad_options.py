"""What a user may do wrong with a training command: one sentence, exit status 2, nothing lost."""

import importlib
import json

import pytest

from specjax import command_line

SCRIPTS = {
  "lm": (), "denoiser": (), "heads": ("--model", "gsm8k-7m"), "judge": ("--model", "gsm8k-7m"),
  "acceptance": ("--model", "gsm8k-7m", "--draft", "gsm8k-7m"), "filter": ("--model", "lists-3m"),
  "distill": ("--model", "lists-3m"), "draft_model": ("--model", "gsm8k-7m"),
  "skipping": ("--model", "gsm8k-7m"), "duo": ("--model", "gsm8k-7m"),
  "joint": ("--model", "gsm8k-7m", "--init", "specjax/zoo/gsm8k-7m-medusa"),
}  # fmt: skip
DRAFTING = ("heads", "acceptance", "draft_model", "joint")  # from answers of their own making
SKIPPING = ("skipping", "duo")
ASKING = (*DRAFTING, *SKIPPING, "judge", "filter", "distill")

# What is wrong for every script of a group: options after the good ones, and the sentence.
WRONG = {
  "no file": (SCRIPTS, "--data nothing.jsonl", "data='nothing.jsonl': no such file; accepted"),
  "a folder": (SCRIPTS, "--data .", "data='.': no such file; accepted"),
  "an empty file": (SCRIPTS, "--data DIR/empty.jsonl", "empty.jsonl' holds no records"),
  "no JSON": (SCRIPTS, "--data DIR/broken.jsonl", "broken.jsonl: record 1 is not JSON"),
  "a bad split": (SCRIPTS, "--data tfds:gsm8k", "expected tfds:NAME:SPLIT"),
  "no text in a field": (ASKING, "--field query", "record 1 has no text in field 'query'; fields"),
  "no fields": (("lm", "denoiser"), "--fields question reply", "no text in field 'reply'"),
  "no answers": (("judge", *SKIPPING), "--answer-field reply", "has no text in field 'reply'"),
  "unknown model": (ASKING, "--model nowhere", "'nowhere' is no directory with a config.json"),
  "unknown draft": (("acceptance",), "--draft nowhere", "'nowhere' is no directory with a config"),
  "unknown start": (("denoiser",), "--start nowhere", "'nowhere' is no directory with a config"),
  "another vocabulary": (("acceptance",), "--draft lists-3m", "they must share one"),
  "a denoiser": ((*DRAFTING, "judge", *SKIPPING), "--model lists-3m", "diffusion"),
  "no denoiser": (("filter", "distill"), "--model gsm8k-7m", "is no masked diffusion model"),
  "no blocks": (("denoiser",), "--block-length 0", "block_length=0: accepted is 1 or more"),
  "context": (("denoiser",), "--block-length 4 --context", "context=True: accepted is False with"),
  "template": (("lm", "denoiser"), "--template alpaca", "template='alpaca': accepted are plain"),
  "rate": (SCRIPTS, "--rate -1", "rate=-1.0: accepted is 0 or more"),
  "no number": (SCRIPTS, "--rate nan", "rate=nan: accepted is 0 or more"),
  "infinite": (SCRIPTS, "--clip inf", "clip=inf: accepted is 0 or more"),
  "steps": (SCRIPTS, "--steps 0", "steps=0: accepted is 1 or more"),
  "batch": (SCRIPTS, "--batch 0", "batch=0: accepted is 1 or more"),
  "negative batch": (SCRIPTS, "--batch -8", "batch=-8: accepted is 1 or more"),
  "warmup": (SCRIPTS, "--warmup -1", "warmup=-1: accepted is 0 or more"),
  "save_every": (SCRIPTS, "--save-every 0", "save_every=0: accepted is 1 or more"),
  "seed": (SCRIPTS, "--seed -1", "seed=-1: accepted is 0 to 4294967295"),
  "large seed": (SCRIPTS, "--seed 99999999999999999999", "accepted is 0 to 4294967295"),
  "devices": (SCRIPTS, "--devices 99", "devices=99: accepted are up to 8 that divide batch="),
  "shares": (SCRIPTS, "--devices 3 --batch 8", "devices=3: accepted are up to 8 that divide batch"),
  "mesh": (SCRIPTS, "--mesh rows=2", "mesh='rows=2': accepted is data=ROWS,model=COLUMNS"),
  "large mesh": (SCRIPTS, "--mesh data=99", "at most as many together as the 8 devices"),
  "too few rows": (("lm", "denoiser"), "--batch 1000", "batch=1000: accepted is 1 to"),
  "length": (("lm", "denoiser", "heads", "judge", "acceptance"), "--length 0", "length=0: acc"),
  "no room for an answer": (DRAFTING, "--length 2 --held-out 2 --batch 1", "length=2: accepted is"),
  "nothing to train on": (
    ("judge", *SKIPPING), "--length 2 --held-out 2",
    "at length=2 and lose 30 labels: there is nothing to train on",
  ),
  "longer than the model": (
    (*DRAFTING, "judge", *SKIPPING), "--length 1000 --held-out 2 --batch 1",
    "length=1000: accepted is at most 384, the positions of",
  ),
  "longer than its start": (
    ("denoiser",), "--start lists-3m --length 1000", "length=1000: accepted is at most"
  ),
  "more rows than there can be": (
    DRAFTING, "--batch 11 --held-out 2", "batch=11: accepted is 1 to 10, the rows"
  ),
  "more records than there can be": (
    ("filter",), "--batch 1000 --answer-batch 4 --held-out 2", "batch=1000: accepted is 1 to 160"
  ),
  "more answers than there are": (("distill",), "--batch 99", "batch=99: accepted is 1 to 12"),
  "answers beyond the model": (
    ("filter", "distill"), "--new 1000 --batch 1 --held-out 2", "questions leave less than 1000 of"
  ),
  "no token to learn": (("acceptance",), "--mixed 1", "mixed=1.0: accepted is below 1"),
  "no loss": (("heads",), "--loss 0 0 0 0.8", "loss=0.0 0.0 0.0 0.8: accepted is a weight above"),
  "width": (("lm", "denoiser"), "--width 0", "width=0: accepted is 1 or more"),
  "heads": (("lm",), "--heads 3 --kv-heads 2 --batch 1", "heads=3 must be a multiple of kv_heads"),
  "vocab_size": (("lm", "denoiser"), "--vocab-size 0", "vocab_size=0: accepted is 2 or more"),
  "questions": (ASKING, "--questions 0", "questions=0: accepted is 1 or more"),
  "held_out": ((*DRAFTING, "judge", "filter", *SKIPPING), "--held-out 99", "fewer than the 12"),
  "none held out": (("heads", "judge", "acceptance", "filter"), "--held-out 0", "held_out=0: acc"),
  "max_new_tokens": (DRAFTING, "--max-new-tokens 0", "max_new_tokens=0: accepted"),
  "temperature": (("heads", "judge", "distill"), "--temperature -1", "temperature=-1.0: accepted"),
  "top_k": (("judge",), "--top-k 0", "top_k=0: accepted is 1 or more"),
  "large top_k": (("judge",), "--top-k 5000 --held-out 2", "top_k=5000: accepted is 1 to 4096"),
  "mixed": (("acceptance",), "--mixed 2", "mixed=2.0: accepted is 0 to 1"),
  "precision": (("filter",), "--precision 2", "precision=2.0: accepted is 0 to 1"),
  "share": (("distill",), "--share 1", "share=1.0: accepted is 0.01 to 0.99"),
  "keep": (("draft_model",), "--keep 8 --held-out 2", "keep=8: accepted is 1 to 7"),
  "kept share": (SKIPPING, "--keep 2", "keep=2.0: accepted is 0 to 1"),
  "router rate": (("duo",), "--router-rate -1", "router_rate=-1.0: accepted is 0 or more"),
  "small share": (("duo",), "--small 2", "small=2.0: accepted is 0 to 1"),
  "skipping": (("skipping",), "--skipping none --held-out 2", "skipping='none': accepted are skip"),
  "no start": (("denoiser",), "--anneal 3", "anneal=3: accepted is 0 without start"),
  "rank": (("distill",), "--rank -1", "rank=-1: accepted is 0 or more"),
  "no rank": (("joint",), "--rank 0", "rank=0: accepted is 1 or more"),
  "no head": (("joint",), "--init .", "'.' is no directory with a config.json"),
  "answers together": (("filter",), "--answer-batch 99 --held-out 2", "answer_batch=99: accepted"),
  "a file in the way": (SCRIPTS, "--out DIR/data.jsonl", "data.jsonl': nothing can be written"),
  "a folder below it": (SCRIPTS, "--out DIR/data.jsonl/x", "/x': nothing can be written"),
  "no such disk": (SCRIPTS, "--out /proc/nothing", "out='/proc/nothing': nothing can be written"),
  "another run": (SCRIPTS, "--out DIR/taken --batch 1 --held-out 2", "holds a run with "),
  "a damaged run": (SCRIPTS, "--out DIR/damaged --batch 1 --held-out 2", "run.json is not JSON"),
  "other answers": (DRAFTING, "--answers DIR/other.jsonl --held-out 2", "line 1"),
}  # fmt: skip
CASES = [
  pytest.param(name, words, sentence, id=f"{name}, {wrong}")
  for wrong, (group, words, sentence) in WRONG.items()
  for name in group
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Good data, and what is no data."""
  path = tmp_path_factory.mktemp("bad")
  records = [{"question": f"copy : Ann Bob = {i}", "answer": "Ann Bob"} for i in range(12)]
  (path / "data.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
  (path / "empty.jsonl").write_text("\n")
  (path / "broken.jsonl").write_text('{"question": \n' * 20)
  (path / "other.jsonl").write_text('{"prompt": [1], "answer": [2]}\n' * 20)
  for name, content in (("taken", '{"seed": 5}'), ("damaged", '{"seed"')):
    (path / name).mkdir()
    (path / name / "run.json").write_text(content)
  return path


@pytest.mark.parametrize(("name", "words", "sentence"), CASES)
def test_a_users_error_is_one_sentence(folder, tmp_path, capsys, name, words, sentence):
  module = importlib.import_module(f"specjax.train.{name}")
  said = words.replace("DIR", str(folder)).split()
  if name in ("lm", "denoiser", "distill") and "--held-out" in said:
    del said[said.index("--held-out") :]
  good = ("--data", f"{folder}/data.jsonl", "--out", str(tmp_path / "run"), *SCRIPTS[name])
  kept = sorted(folder.rglob("*"))
  assert command_line.run(module.main, module.Config, argv=[*good, *said]) == 2
  error = capsys.readouterr().err
  assert error.startswith("error: ") and error.count("\n") == 1 and sentence in error
  assert sorted(folder.rglob("*")) == kept


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_command_itself_ends_with_status_2(folder, monkeypatch, capsys, name):
  """The module as `python -m` runs it, in this process."""
  import runpy

  argv = [name, "--data", str(folder / "data.jsonl"), "--out", "x", *SCRIPTS[name], "--steps", "0"]
  monkeypatch.setattr("sys.argv", argv)
  with pytest.warns(RuntimeWarning, match="found in sys.modules"), pytest.raises(SystemExit) as end:
    runpy.run_module(f"specjax.train.{name}", run_name="__main__")
  assert end.value.code == 2 and "error: steps=0" in capsys.readouterr().err
