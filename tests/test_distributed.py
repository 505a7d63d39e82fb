"""Real processes that decode together give the tokens of one."""

import json
import os
import socket
import subprocess
import sys

import pytest

from specjax import Decoder, DiffusionDecoder, load

QUESTIONS = ["Ann has 3 pens and buys 4.", "Bob eats 2 of 9 figs.", "Is 7 odd?"]


def run(count: int, *words: str) -> list[subprocess.CompletedProcess]:
  """A command of specjax in `count` processes, each with one device."""
  with socket.socket() as here:
    here.bind(("localhost", 0))
    address = f"localhost:{here.getsockname()[1]}"
  running = [
    subprocess.Popen(
      [sys.executable, "-m", "specjax.cli", *words], text=True, stdout=subprocess.PIPE,
      stderr=subprocess.PIPE, env=os.environ | {
        "JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(count),
        "JAX_PROCESS_ID": str(index),
      },
    )
    for index in range(count)
  ]  # fmt: skip
  ended = [(p, *p.communicate(timeout=500)) for p in running]
  return [subprocess.CompletedProcess(p.args, p.returncode, out, err) for p, out, err in ended]


def spoken(processes: list[subprocess.CompletedProcess]) -> list[list[int]]:
  """The tokens that process 0 printed; the others print nothing."""
  for process in processes:
    assert process.returncode == 0, process.stderr[-2000:]
  # What connects them says so, on the output of every process.
  said, *others = (
    [line for line in p.stdout.splitlines() if not line.startswith("[Gloo]")] for p in processes
  )
  assert not any(others)
  return [json.loads(line)["tokens"] for line in said]


@pytest.fixture
def prompts(tmp_path):
  path = tmp_path / "questions.jsonl"
  path.write_text("".join(json.dumps({"question": q}) + "\n" for q in QUESTIONS))
  return str(path)


@pytest.mark.slow
@pytest.mark.full(but=["data=2-0"])
@pytest.mark.parametrize("temperature", ["0", "0.8"])
@pytest.mark.parametrize("mesh", ["data=2", "model=2", "data=2,model=2"])
def test_several_processes_decode_what_one_does(mesh, temperature, prompts):
  words = ("--drafter", "eagle-4", "--batch", "2", "--max-new-tokens", "12", "--temperature",
           temperature, "--verifier", "target_only")  # fmt: skip
  count = 4 if "," in mesh else 2
  together = spoken(run(count, "generate", "--mesh", mesh, "--prompts", prompts, "--json", *words))
  model = load("gsm8k-7m")
  decoder = Decoder(model, "eagle-4", "target_only", batch=2, temperature=float(temperature))
  assert together == [r.tokens for r in decoder([model.chat(q) for q in QUESTIONS], 12)]


@pytest.mark.full
def test_several_processes_denoise_what_one_does(tmp_path):
  model, path = load("lists-3m"), tmp_path / "lists.jsonl"
  asked = ["copy : Ann Bob =", "reverse : Bob Ann Cy ="]
  path.write_text("".join(json.dumps({"question": q}) + "\n" for q in asked))
  words = ("--prompts", str(path), "--json", "--batch", "2", "--max-new-tokens", "8")
  got = spoken(run(2, "denoise", "--mesh", "data=2", *words))
  decoder = DiffusionDecoder(model, batch=2)
  assert got == [r.tokens for r in decoder([model.chat(q) for q in asked], 8)]


@pytest.mark.full
@pytest.mark.parametrize(
  ("words", "said"),
  [
    (("generate", "--prompt", "a"), "`mesh` must hold all the"),
    (("list",), "list runs in one process"),
  ],
)
def test_what_several_processes_cannot_do_is_refused(words, said):
  for process in run(2, *words):
    assert process.returncode == 2 and said in process.stderr
