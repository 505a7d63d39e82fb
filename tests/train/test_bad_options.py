"""What a user may do wrong with a training command: one sentence, exit status 2, nothing lost."""

import importlib
import json

import pytest
from sentences import says

from specjax import command_line

SCRIPTS = {
  "lm": (), "denoiser": (), "heads": ("--model", "gsm8k-7m"), "judge": ("--model", "gsm8k-7m"),
  "acceptance": ("--model", "gsm8k-7m", "--draft", "gsm8k-7m"), "filter": ("--model", "lists-3m"),
  "distill": ("--model", "lists-3m"), "draft_model": ("--model", "gsm8k-7m"),
  "skipping": ("--model", "gsm8k-7m"), "duo": ("--model", "gsm8k-7m"),
  "energy": ("--model", "lists-3m"),
  "parscale": ("--model", "gsm8k-7m"), "coprocessor": ("--model", "gsm8k-7m"),
  "pard": ("--model", "gsm8k-7m", "--start", "gsm8k-7m"),
  "joint": ("--model", "gsm8k-7m", "--init", "specjax/zoo/gsm8k-7m-medusa"),
}  # fmt: skip
# From answers of their own making.
DRAFTING = ("heads", "acceptance", "draft_model", "joint", "pard")
SKIPPING = ("skipping", "duo")
ASKING = (*DRAFTING, *SKIPPING, "judge", "filter", "distill", "energy")

# What is wrong for every script of a group: options after the good ones, and the sentence.
WRONG = {
  "no file": (SCRIPTS, "--data nothing.jsonl",
   "`data` must be a .jsonl file, tfds:NAME:SPLIT or lists:SEED:COUNT."),
  "a folder": (SCRIPTS, "--data .",
   "`data` must be a .jsonl file, tfds:NAME:SPLIT or lists:SEED:COUNT."),
  "an empty file": (SCRIPTS, "--data DIR/empty.jsonl", "empty.jsonl' holds no records"),
  "no JSON": (SCRIPTS, "--data DIR/broken.jsonl", "broken.jsonl: record 1 is not JSON"),
  "a bad split": (SCRIPTS, "--data tfds:gsm8k", "expected tfds:NAME:SPLIT"),
  "no text in a field": (ASKING, "--field query", "record 1 has no text in field 'query'; fields"),
  "no fields": (("lm", "denoiser"), "--fields question reply", "no text in field 'reply'"),
  "no answers": (("judge", "energy", *SKIPPING), "--answer-field reply",
   "has no text in field 'reply'"),
  "unknown model": (ASKING, "--model nowhere", "'nowhere' is no directory with a config.json"),
  "unknown draft": (("acceptance",), "--draft nowhere", "'nowhere' is no directory with a config"),
  "unknown start": (("denoiser",), "--start nowhere", "'nowhere' is no directory with a config"),
  "another vocabulary": (("acceptance",), "--draft lists-3m", "they must share one"),
  "a denoiser": ((*DRAFTING, "judge", *SKIPPING), "--model lists-3m", "diffusion"),
  "no denoiser": (("filter", "distill", "energy"), "--model gsm8k-7m",
   "`model` must be a masked diffusion model, with is_causal .. got 'gsm8k-7m'."),
  "no blocks": (("denoiser",), "--block-length 0", "`block_length` must be at least 1, got 0."),
  "context": (("denoiser",), "--block-length 4 --context",
   "`context` must be False with block_length=4, got True."),
  "template": (("lm", "denoiser"), "--template alpaca",
   "`template` must be one of plain, continued, qa, vicuna .. got 'alpaca'."),
  "rate": (SCRIPTS, "--rate -1", "`rate` must be at least 0, got -1.0."),
  "no number": (SCRIPTS, "--rate nan", "`rate` must be at least 0, got nan."),
  "infinite": (SCRIPTS, "--clip inf", "`clip` must be at least 0, got inf."),
  "steps": (SCRIPTS, "--steps 0", "`steps` must be at least 1, got 0."),
  "batch": (SCRIPTS, "--batch 0", "`batch` must be at least 1, got 0."),
  "negative batch": (SCRIPTS, "--batch -8", "`batch` must be at least 1, got -8."),
  "warmup": (SCRIPTS, "--warmup -1", "`warmup` must be at least 0, got -1."),
  "save_every": (SCRIPTS, "--save-every 0", "`save_every` must be at least 1, got 0."),
  "seed": (SCRIPTS, "--seed -1", "`seed` must be between 0 and 4294967295, got -1."),
  "large seed": (SCRIPTS, "--seed 99999999999999999999",
   "`seed` must be between 0 and 4294967295, got 99999999999999999999."),
  "devices": (SCRIPTS, "--devices 99", "`devices` must be at most 8 and divide batch="),
  "shares": (SCRIPTS, "--devices 3 --batch 8",
   "`devices` must be at most 8 and divide batch=8, got 3."),
  "mesh": (SCRIPTS, "--mesh rows=2",
   "`mesh` must be data=ROWS,model=COLUMNS .. such as data=2,model=4, got 'rows=2'."),
  "tokens on a mesh": (("lm", "joint"), "--mesh sequence=2",
   "`mesh` must be data=ROWS,model=COLUMNS, such as data=2,model=4, got 'sequence=2'."),
  "many tokens on a mesh": (("heads",), "--mesh sequence=99",
   "`data`, `model` and `sequence` must be at least 1 .. got 1, 1 and 99."),
  "large mesh": (SCRIPTS, "--mesh data=99",
   "`data` and `model` must be at least 1, and together at most .. got 99 and 1."),
  "too few rows": (("lm", "denoiser"), "--batch 1000", "`batch` must be between 1 and"),
  "length": (("lm", "denoiser", "heads", "judge", "acceptance"), "--length 0",
   "`length` must be at least 2, got 0."),
  "no room for an answer": (DRAFTING, "--length 2 --held-out 2 --batch 1",
   "`length` must be more than 19, the tokens of the shortest .. got 2: no answer would be "
   "read."),
  "nothing to train on": (
    ("judge", *SKIPPING), "--length 2 --held-out 2",
    "at length=2 and lose 30 labels: there is nothing to train on",
  ),
  "longer than the model": (
    (*DRAFTING, "judge", *SKIPPING), "--length 1000 --held-out 2 --batch 1",
    "`length` must be at most 384, the positions of gsm8k-7m, got 1000.",
  ),
  "longer than its start": (
    ("denoiser",), "--start lists-3m --length 1000",
     "`length` must be at most 96, the positions of lists-3m, got 1000."
  ),
  "more rows than there can be": (
    DRAFTING, "--batch 11 --held-out 2",
     "`batch` must be between 1 and 10, the rows that the data can fill, got 11."
  ),
  "more records than there can be": (
    ("filter",), "--batch 1000 --answer-batch 4 --held-out 2",
     "`batch` must be between 1 and 160, the rows that the data can fill, got 1000."
  ),
  "more answers than there are": (("distill",), "--batch 99",
   "`batch` must be between 1 and 12, the rows that the data can fill, got 99."),
  "answers beyond the model": (
    ("filter", "distill"), "--new 1000 --batch 1 --held-out 2", "questions leave less than 1000 of"
  ),
  "short canvases": (("energy",), "--new 1", "`new` must be at least "),
  "no token to learn": (("acceptance",), "--mixed 1",
   "`mixed` must be below 1, for the head learns from the other tokens, got 1.0."),
  "no loss": (("heads",), "--loss 0 0 0 0.8",
   "`loss` must have a weight above 0 for at least one term, got 0.0 0.0 0.0 0.8."),
  "width": (("lm", "denoiser"), "--width 0", "`width` must be at least 1, got 0."),
  "heads": (("lm",), "--heads 3 --kv-heads 2 --batch 1", "`heads` must be a multiple of kv_heads"),
  "vocab_size": (("lm", "denoiser"), "--vocab-size 0", "`vocab_size` must be at least 2, got 0."),
  "questions": (ASKING, "--questions 0", "`questions` must be at least 1, got 0."),
  "held_out": ((*DRAFTING, "judge", "filter", *SKIPPING), "--held-out 99", 
   "and less than 12, the questions that fit the model, got 99."),
  "none held out": (("heads", "judge", "acceptance", "filter"), "--held-out 0",
   "`held_out` must be at least 1, got 0."),
  "max_new_tokens": (DRAFTING, "--max-new-tokens 0", "`max_new_tokens` must be at least 1, got 0."),
  "temperature": (("heads", "judge", "distill"), "--temperature -1",
   "`temperature` must be at least 0"),
  "top_k": (("judge",), "--top-k 0", "`top_k` must be at least 1, got 0."),
  "large top_k": (("judge",), "--top-k 5000 --held-out 2",
   "`top_k` must be between 1 and 4096, got 5000."),
  "mixed": (("acceptance",), "--mixed 2", "`mixed` must be between 0 and 1, got 2.0."),
  "precision": (("filter",), "--precision 2", "`precision` must be between 0 and 1, got 2.0."),
  "share": (("distill",), "--share 1", "`share` must be between 0.01 and 0.99, got 1.0."),
  "keep": (("draft_model",), "--keep 8 --held-out 2",
   "`keep` must be between 1 and 7, fewer than the target's layers, got 8."),
  "kept share": (SKIPPING, "--keep 2", "`keep` must be between 0 and 1, got 2.0."),
  "router rate": (("duo",), "--router-rate -1", "`router_rate` must be at least 0, got -1.0."),
  "mask": (("pard",), "--mask 4096 --held-out 2", "`mask` must be between 0 and 4095, got 4096."),
  "streams": (("parscale",), "--streams 0", "`streams` must be at least 1, got 0."),
  "small share": (("duo",), "--small 2", "`small` must be between 0 and 1, got 2.0."),
  "skipping": (("skipping",), "--skipping none --held-out 2",
   "`skipping` must be one of skip_decode, first, duo, got 'none'."),
  "no start": (("denoiser",), "--anneal 3", "`anneal` must be 0 without start, got 3."),
  "rank": (("distill",), "--rank -1", "`rank` must be at least 0, got -1."),
  "no head to update": (("heads",), "--lora 4",
   "`init` must name the head that is updated with lora=4, got None."),
  "large updates": (("heads",), "--init gsm8k-7m-medusa --lora 999",
   "`lora` must give updates fewer numbers than the head has, got 999."),
  "no rank": (("joint",), "--rank 0", "`rank` must be at least 1, got 0."),
  "no head": (("joint",), "--init .", "'.' is no directory with a config.json"),
  "answers together": (("filter",), "--answer-batch 99 --held-out 2",
   "`answer_batch` must be between 1 and 12, the questions that fit the model, got 99."),
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
  assert error.startswith("error: ") and error.count("\n") == 1 and says(error, sentence)
  assert sorted(folder.rglob("*")) == kept


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_command_itself_ends_with_status_2(folder, monkeypatch, capsys, name):
  """The module as `python -m` runs it, in this process."""
  import runpy

  argv = [name, "--data", str(folder / "data.jsonl"), "--out", "x", *SCRIPTS[name], "--steps", "0"]
  monkeypatch.setattr("sys.argv", argv)
  importlib.import_module(f"specjax.train.{name}")
  with pytest.warns(RuntimeWarning, match="found in sys.modules"), pytest.raises(SystemExit) as end:
    runpy.run_module(f"specjax.train.{name}", run_name="__main__")
  assert end.value.code == 2 and "`steps` must be at least 1, got 0." in capsys.readouterr().err
