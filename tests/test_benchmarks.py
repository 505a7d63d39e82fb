"""Every script of benchmarks and examples: in the index, and one sentence for a user's error."""

import dataclasses
import importlib.util
import json
import pathlib
import sys

import pytest
from cut import cut
from sentences import says

import specjax
from specjax import command_line

ROOT = pathlib.Path(__file__).parents[1]
SCRIPTS = sorted(
  path.relative_to(ROOT) for folder in ("benchmarks", "examples")
  for path in (ROOT / folder).rglob("*.py")
)  # fmt: skip
INDEX = (ROOT / "benchmarks" / "README.md").read_text()


def load(path):
  """The script as a module."""
  spec = importlib.util.spec_from_file_location(f"script_{pathlib.Path(path).stem}", ROOT / path)
  module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where help is read
  spec.loader.exec_module(module)
  return module


@pytest.mark.parametrize("path", SCRIPTS, ids=str)
def test_a_script_is_in_the_index_and_ends_as_all_do(path):
  text = (ROOT / path).read_text()
  assert text.endswith("  sys.exit(command_line.run(main, Config, __doc__))\n")
  assert f"python {path}" in text
  assert path.parts[0] == "examples" or f"python {path}" in INDEX


ERRORS = [
  ("benchmarks/accelerator.py", "`size` must be small where jax computes on cpu, got '8b'."),
  (
    "benchmarks/accelerator.py --parts luck",
    "`parts` must be one of attention, speed_xla, speed_kernel .. got 'luck'.",
  ),
  ("benchmarks/claims/attention.py --nodes 0", "`nodes` must be between 1 and 2147483647, got 0."),
  (
    "benchmarks/claims/attention.py --dtypes int4",
    "`dtypes` must be one of bfloat16, float16, float32, got 'int4'.",
  ),
  ("benchmarks/claims/lossless.py --prompts absent.jsonl", "absent.jsonl"),
  ("benchmarks/claims/lossless.py --limit 0", "`limit` must be between 1 and 2147483647, got 0."),
  ("benchmarks/claims/lossless.py --model absent", "absent"),
  ("benchmarks/claims/lossless.py --drafters absent", "absent"),
  ("benchmarks/claims/lossless.py --drafters draft_model[absent]", "absent"),
  (
    "benchmarks/claims/lossless.py --batches 0",
    "`batches` must be between 1 and 2147483647, got 0.",
  ),
  (
    "benchmarks/claims/tuner.py --tuned-on 0",
    "`tuned_on` must be between 9 and 2147483647, got 0.",
  ),
  ("benchmarks/claims/tuner.py --drafters luck", "luck"),
  (
    "benchmarks/claims/lossless.py --temperatures -1",
    "`temperatures` must be at least 0, got -1.0.",
  ),
  ("benchmarks/claims/lossy.py --verifiers judge[absent]", "absent"),
  ("benchmarks/claims/lossy.py --verifiers sure", "sure"),
  (
    "benchmarks/claims/lossy.py --drafter eagle:8",
    "`drafter` must be NAME, NAME-NUMBER or .. got 'eagle:8'.",
  ),
  (
    "benchmarks/claims/published_denoising.py --llada absent",
    "`llada` must be the directory of a checkout, got 'absent'.",
  ),
  (
    "benchmarks/claims/published_denoising.py --prompts 0",
    "`prompts` must be between 1 and 2147483647, got 0.",
  ),
  (
    "benchmarks/claims/published_heads.py --eagle absent",
    "`eagle` must be the directory of a checkout, got 'absent'.",
  ),
  (
    "benchmarks/claims/published_heads.py --medusa absent",
    "`medusa` must be the directory of a checkout, got 'absent'.",
  ),
  (
    "benchmarks/claims/published_heads.py --rounds 0",
    "`rounds` must be between 1 and 2147483647, got 0.",
  ),
  (
    "benchmarks/claims/verifiers.py --verifiers sure",
    "`verifiers` must be among greedy, target_only, token .. got 'sure'.",
  ),
  ("benchmarks/claims/narrow_answers.py --kinds int2", "`kinds` must be one of .. got 'int2'."),
  (
    "benchmarks/claims/narrow_answers.py --batch 0",
    "`batch` must be between 1 and 2147483647, got 0.",
  ),
  (
    "benchmarks/claims/cache_answers.py --long 0",
    "`long` must be between 1 and 2147483647, got 0.",
  ),
  ("benchmarks/claims/cache_answers.py --caches dust", "dust"),
  (
    "benchmarks/claims/vocabularies.py --data x --models y --limit 0",
    "`limit` must be between 1 and 2147483647, got 0.",
  ),
  (
    "benchmarks/claims/mixed_requests.py --batch 0",
    "`batch` must be between 1 and 2147483647, got 0.",
  ),
  ("benchmarks/claims/traffic.py --seconds 0", "`seconds` must be above 0, got 0.0."),
  ("benchmarks/quality/harness_http.py --limit 0", "`limit` must be between 1 and 2147483647"),
  ("benchmarks/speed/by_load.py --drafter luck", "luck"),
  ("benchmarks/claims/memory.py --rounds 0", "`rounds` must be between 1 and 2147483647, got 0."),
  ("benchmarks/claims/memory.py --model absent", "absent"),
  ("benchmarks/claims/verifiers.py --trees oak", "oak"),
  (
    "benchmarks/claims/verifiers.py --max-new-tokens 0",
    "`max_new_tokens` must be between 1 and 2147483647, got 0.",
  ),
  (
    "benchmarks/quality/by_bytes.py",
    "`prompts` must be a file or dataset of questions with answers, such as GSM8K's, got None.",
  ),
  (
    "benchmarks/quality/by_bytes.py --covers 0",
    "`covers` must be between 1 and 2147483647, got 0.",
  ),
  ("benchmarks/quality/navigation.py --each 0", "`each` must be between 1 and 2147483647, got 0."),
  (
    "benchmarks/quality/denoisers.py",
    "`prompts` must be a file or dataset of questions with answers, such as GSM8K's, got None.",
  ),
  ("benchmarks/quality/denoisers.py --prompts absent.jsonl --model lists-3m", "absent.jsonl"),
  ("benchmarks/quality/harness.py", "`tasks` must be one or more names of tasks, got ()."),
  (
    "benchmarks/quality/harness.py --tasks moon",
    "`tasks` must be a task of lm-evaluation-harness, or of a file in --include, got 'moon'.",
  ),
  ("benchmarks/quality/harness.py --tasks gsm8k --model absent", "absent"),
  (
    "benchmarks/quality/routing.py --patterns 0",
    "`patterns` must be between 1 and 2147483647, got 0.",
  ),
  (
    "benchmarks/quality/routing.py --skipping skip_decode-4",
    "`skipping` must be duo[DIRECTORY], got 'skip_decode-4'.",
  ),
  (
    "benchmarks/quality/skipping.py",
    "`prompts` must be a file or dataset of questions with answers, such as GSM8K's, got None.",
  ),
  (
    "benchmarks/quality/skipping.py --repeats 0",
    "`repeats` must be between 1 and 2147483647, got 0.",
  ),
  (
    "benchmarks/quality/strategies.py",
    "`prompts` must be a file or dataset of questions with answers, such as GSM8K's, got None.",
  ),
  ("benchmarks/quality/strategies.py --prompts absent.jsonl", "absent.jsonl"),
  (
    "benchmarks/speed/few_rows.py --ways luck",
    "`ways` must be one of xla, skinny, native, native/int8, int8, int4, int4/int8, got 'luck'.",
  ),
  ("benchmarks/speed/prompts.py --tokens 0", "`tokens` must be between 1 and 2147483647, got 0."),
  (
    "benchmarks/compile/batches.py --batches 0",
    "`batches` must be between 1 and 2147483647, got 0.",
  ),
  ("benchmarks/speed/few_rows.py --nodes 0", "`nodes` must be between 1 and 2147483647, got 0."),
  ("benchmarks/speed/bakeoff.py --heads absent", "heads='absent'"),
  (
    "benchmarks/speed/denoising_pass.py --canvas 64",
    "`block` must be at most 32, half of the canvas, got 64.",
  ),
  (
    "benchmarks/speed/denoising_pass.py --repeats 0",
    "`repeats` must be between 1 and 2147483647, got 0.",
  ),
  (
    "benchmarks/speed/denoising_share.py --repeats 0",
    "`repeats` must be between 1 and 2147483647, got 0.",
  ),
  (
    "benchmarks/speed/denoising_share.py --model gsm8k-7m",
    "`model` must be a denoiser, got 'gsm8k-7m'.",
  ),
  (
    "benchmarks/speed/denoising_share.py --methods threshold-0.9/guesses-4",
    "`methods` must be methods that read one canvas in a pass, got 'threshold-0.9/guesses-4'.",
  ),
  (
    "benchmarks/speed/drafting.py --repeats 0",
    "`repeats` must be between 1 and 2147483647, got 0.",
  ),
  ("benchmarks/speed/refilling.py --rounds 0", "`rounds` must be between 1 and 2147483647, got 0."),
  (
    "benchmarks/speed/shared_prefix.py --clients 0",
    "`clients` must be between 1 and 2147483647, got 0.",
  ),
  ("benchmarks/speed/shared_prefix.py --tokens 99999", "`tokens` must be between 1 and"),
  ("benchmarks/speed/drafting.py --drafters luck-8", "luck"),
  (
    "benchmarks/speed/experts.py --model gsm8k-7m",
    "`model` must be a model with experts, got 'gsm8k-7m'.",
  ),
  (
    "benchmarks/speed/experts.py --chosen 17",
    "`chosen` must be between 1 and 16 (of 16 experts), got 17.",
  ),
  ("benchmarks/speed/experts.py --rows 0", "`rows` must be between 1 and 2147483647, got 0."),
  ("benchmarks/speed/head_round.py --nodes 3", "Dynamic(nodes=3"),
  (
    "benchmarks/speed/head_round.py --repeats 0",
    "`repeats` must be between 1 and 2147483647, got 0.",
  ),
  (
    "benchmarks/speed/head_windows.py --lengths 0",
    "`lengths` must be between 1 and 2147483647, got 0.",
  ),
  ("benchmarks/speed/head_training.py --length 64", "`points` must be between 1 and 58, got 128."),
  (
    "benchmarks/speed/head_training.py --batch 0",
    "`batch` must be between 1 and 2147483647, got 0.",
  ),
  ("benchmarks/speed/json_schemas.py --model absent", "absent"),
  ("benchmarks/speed/json_schemas.py --published absent.jsonl", "there is no such file"),
  (
    "benchmarks/speed/json_schemas.py --count 0",
    "`count` must be between 1 and 2147483647, got 0.",
  ),
  ("benchmarks/speed/kernels.py --repeats 0", "`repeats` must be between 1 and 2147483647, got 0."),
  (
    "benchmarks/speed/kernels.py --ways best",
    "`ways` must be one of kernel, dense, dot_product_attention, got 'best'.",
  ),
  (
    "benchmarks/speed/kernels.py --most 1",
    "`most` must be at least 256, the rows of the smallest cell, got 1.",
  ),
  ("benchmarks/speed/peers.py --limit 0", "`limit` must be between 1 and 2147483647, got 0."),
  ("benchmarks/speed/peers.py --model absent", "absent"),
  ("benchmarks/speed/processors.py --processors luck", "luck"),
  (
    "benchmarks/speed/processors.py --repeats 0",
    "`repeats` must be between 1 and 2147483647, got 0.",
  ),
  (
    "benchmarks/speed/verifier_cost.py --repeats 0",
    "`repeats` must be between 1 and 2147483647, got 0.",
  ),
  ("benchmarks/speed/streaming.py --tokens 0", "`tokens` must be between 1 and 2147483647, got 0."),
  ("benchmarks/speed/sweep.py --tasks fly", "fly"),
  ("benchmarks/speed/sweep.py --count 0", "`count` must be between 1 and 2147483647, got 0."),
  ("benchmarks/speed/tree_pass.py --nodes 0", "`nodes` must be between 1 and 2147483647, got 0."),
  ("benchmarks/speed/tree_pass.py --model absent", "absent"),
  ("benchmarks/compile/delta_net.py --topologies moon", "topologies='moon'"),
  ("benchmarks/compile/sharded_loop.py --topologies moon", "topologies='moon'"),
  ("benchmarks/compile/training_step.py --topologies moon", "topologies='moon'"),
  (
    "benchmarks/compile/training_step.py --layers 2 1",
    "`layers` must be rising numbers of at least 1, got (2, 1).",
  ),
  (
    "benchmarks/compile/training_step.py --points 4000",
    "`points` must be between 1 and 2048, got 4000.",
  ),
  ("benchmarks/compile/denoising_loop.py --topologies moon", "topologies='moon'"),
  (
    "benchmarks/compile/denoising_loop.py --caches dense",
    "`caches` must be one of none, dual, vicinity, prefix, free .. got 'dense'.",
  ),
  (
    "benchmarks/compile/denoising_loop.py --layers 2 1",
    "`layers` must be rising numbers of at least 1, got (2, 1).",
  ),
  ("examples/demo.py absent.jsonl", "absent.jsonl"),
  ("examples/demo.py --limit 0", "`limit` must be between 1 and 2147483647, got 0."),
]


@pytest.mark.parametrize(
  ("command", "message"),
  # Both of these read the names of all published tasks.
  [pytest.param(*x, id=x[0], marks=pytest.mark.full if "gsm8k --model" in x[0] else ())
   for x in ERRORS],
)  # fmt: skip
def test_a_users_error_is_one_sentence(command, message, tmp_path, monkeypatch, capsys):
  path, *options = command.split()
  monkeypatch.chdir(tmp_path)
  module = load(path)
  assert command_line.run(module.main, module.Config, module.__doc__, argv=options) == 2
  said = capsys.readouterr().err
  assert said.startswith("error: ") and says(said, message) and said.count("\n") == 1
  assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_losslessness_goes_on_where_it_was_and_takes_more_drafters(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(specjax, "load", lambda name, **more: cut())
  module = load("benchmarks/claims/lossless.py")
  config = module.Config(
    drafters=("prompt_lookup-4",), limit=2, max_new_tokens=6, batches=(2, 1), out="found"
  )
  module.main(config)
  table, log = (tmp_path / "found/table.md"), (tmp_path / "found/answers.jsonl")
  first = table.read_text()
  assert first.count("| 0 of 2 |") == 6  # plain decoding once, and prompt lookup at two sizes
  lines = log.read_text().splitlines()
  log.write_text("\n".join(lines[:2]) + '\n{"batch": 1, "dra')  # it was killed at the third
  module.main(config)
  assert table.read_text() == first and log.read_text().splitlines() == lines
  module.main(dataclasses.replace(config, drafters=("prompt_lookup-4", "jacobi-4"), batches=(2,)))
  assert table.read_text().count("| 0 of 2 |") == 6
  assert log.read_text().splitlines()[:3] == lines
  wrong = [line.replace('"texts": [[0.0, [', '"texts": [[0.0, [9, ') for line in lines]
  log.write_text("\n".join([lines[0], *wrong[1:]]) + "\n")
  module.main(config)
  assert table.read_text().count("| 1 of 2 |") == 2


def test_a_comparison_of_heads_goes_on_with_the_next_head(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  module, measured = load("benchmarks/speed/bakeoff.py"), []

  def measure(model, name, *_):  # in place of minutes of decoding
    if len(measured) == 1:
      raise KeyboardInterrupt
    measured.append(name)
    one = {
      "tau": 2.0, "tau_interval": [1.0, 3.0], "speed_up": 1.0, "speed_up_interval": [0.9, 1.1],
      "acceptance_by_depth": [0.5], "divergences": [], "lossy": False,
    }  # fmt: skip
    return {
      "parameters": 1, "hit_rates": [0.5], "draft_share": 0.1, "own": f"{name}-4",
      "figures": dict.fromkeys((module.SAME, module.DYNAMIC, module.OWN), one),
    }  # fmt: skip

  monkeypatch.setattr(module, "measure", measure)
  for name in ("hydra", "medusa"):
    (tmp_path / "runs/bakeoff" / name / "model").mkdir(parents=True)
  config = module.Config(limit=1)
  with pytest.raises(KeyboardInterrupt):
    module.main(config)
  assert measured == ["hydra"] and not (tmp_path / config.out / "table.md").exists()
  measured.clear()
  module.main(config)
  assert measured == ["medusa"]
  table = (tmp_path / config.out / "table.md").read_text()
  assert "| hydra |" in table and "| medusa |" in table
  measured.clear()
  (tmp_path / "runs/bakeoff/hydra/model/head.safetensors").write_text("trained again")
  module.main(config)
  assert measured == ["hydra"]
  with pytest.raises(ValueError, match="nodes=16"):
    module.main(dataclasses.replace(config, nodes=8))


@pytest.fixture
def accelerator(tmp_path):
  """(the parts, a function that runs some of them in the small size; it returns what it saved)."""
  module = load("benchmarks/accelerator.py")

  def run(*names):
    options = ["--size", "small", "--out", str(tmp_path), "--parts", *names]
    code = command_line.run(module.main, module.Config, module.__doc__, argv=options)
    summary = json.loads((tmp_path / "summary.json").read_text())
    return code, summary, (tmp_path / "table.md").read_text()

  return module.PARTS, run


@pytest.mark.parametrize(
  ("log", "code", "said"),
  [
    ("busy\nerror: nodes=0.\n", 2, "error: nodes=0."),
    ("Traceback:\njax.errors.JaxRuntimeError: no memory\n-----\nFor simplicity, frames\n", 1,
     "jax.errors.JaxRuntimeError: no memory"),
    ("error: an early one\nCheck failed\n\n", -6, "signal 6; Check failed"),
    ("", -9, "signal 9;"), ("", 1, "ended with 1"), ("only this\n", 1, "only this"),
  ],
)  # fmt: skip
def test_the_reason_of_a_failure_is_found_in_its_log(log, code, said):
  assert load("benchmarks/accelerator.py").reason(log, code) == said


@pytest.mark.full
def test_every_part_runs_without_an_accelerator(accelerator):
  parts, run = accelerator
  code, summary, text = run(*parts)
  assert {name: part["problem"] for name, part in summary["parts"].items()} == dict.fromkeys(parts)
  assert code == 0 and summary["versions"]["jax"] and summary["machine"]["backend"] == "cpu"
  for name, part in parts.items():
    assert f"## {part.title}\n\n{summary['parts'][name]['table']}" in text
    assert summary["parts"][name]["summary"]["config"]["out"].endswith(name)
  assert sum(part.minutes for part in parts.values()) < 25


@pytest.mark.slow
def test_a_part_that_fails_or_hangs_is_reported_and_the_others_run(accelerator, monkeypatch):
  parts, run = accelerator
  bad = parts["attention"]._replace(small="--nodes 0")
  slow = bad._replace(title="Too slow", minutes=0.001)
  left = {"bad": bad, "slow": slow, "attention": parts["attention"]}
  monkeypatch.setattr(sys.modules["script_accelerator"], "PARTS", left)
  code, summary, text = run(*left)
  problems = {name: part["problem"] for name, part in summary["parts"].items()}
  assert code == 2
  assert problems == {
    "bad": "error: `nodes` must be between 1 and 2147483647, got 0.",
    "slow": "stopped after 0.001 minutes", "attention": None,
  }  # fmt: skip
  assert "Failed: stopped after 0.001 minutes" in text and "| xla |" in text
