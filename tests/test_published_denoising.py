"""The comparison with published denoising programs, on a program that is written here."""

import pytest
from test_benchmarks import load

SAMPLER = """
import torch
from transformers import AutoModel
from .model.modeling_llada import Absent


@torch.no_grad()
def generate(model, prompt, steps, gen_length, block_length, temperature, remasking, mask_id,
             cfg_scale=0.0):
  canvas = torch.cat([prompt, torch.full((1, gen_length), mask_id)], 1)
  lo = prompt.shape[1]
  while (canvas == mask_id).any():
    block = slice(lo, lo + block_length)
    for _ in range(steps * block_length // gen_length):
      logits = model(canvas).logits[0, block].double()
      sure, token = logits.softmax(-1).max(-1)
      sure[canvas[0, block] != mask_id] = {taken}
      best = sure.argsort(descending={descending})[: gen_length // steps]
      canvas[0, block.start + best] = token[best]
    lo += block_length
  return canvas, "passes are counted"
"""


@pytest.fixture
def script():
  pytest.importorskip("torch", reason="torch is not installed")
  return load("benchmarks/claims/published_denoising.py")


@pytest.mark.parametrize(("surest", "verdict"), [(True, "equal"), (False, "DIFFERENT")])
def test_a_program_is_compared(script, tmp_path, surest, verdict):
  source = SAMPLER.format(taken="-1" if surest else "2", descending=surest)
  (tmp_path / "generate.py").write_text(source)
  generate = script.program("llada", str(tmp_path)).generate
  model = script.make_model(0)
  setting = script.Setting("llada", "generate", {"block_length": 16, "steps": 8},
                           "confidence-4/fixed-16")  # fmt: skip
  prompts = [[1, 2, 3], [4, 5, 6]]
  a = [script.theirs(model, generate, setting.options, prompt) for prompt in prompts]
  assert all(text.passes == 8 and len(text.tokens) == 32 for text in a)
  assert [text.when.count(now) for text in a for now in range(8)] == [4] * 16
  cell = script.compare(setting, a, script.ours(model, setting.ours, prompts))
  assert (cell["verdict"], cell["when"], cell["passes"]) == (verdict, surest, True)
  assert verdict in str(script.rows([cell]))


TEXT = [0, 0, 0]
CASES = [  # when by theirs, when by ours, whether theirs took the last slot of a block of 3
  ([0, 1, 1, 2, 3, 3], [0, 1, 2, 3, 4, 5], True),
  ([1, 0, 1, 2, 3, 4], [2, 0, 1, 3, 4, 5], True),
  ([0, 1, 2, 3, 4, 4], [0, 1, 2, 3, 4, 5], True),
  ([0, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5], False),  # a slot more, but the block is not full
  ([0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5], False),  # two slots more
  ([0, 1, 2, 3, 4, 5], [0, 1, 1, 2, 3, 4], False),  # ours took more
  ([0, 1, 1, 2, 3, 4], [0, 2, 2, 3, 4, 5], False),  # ours took none
  ([0, 1, 1, 2, 3, 4], [0, 1, 1, 2, 3, 4], False),  # no pass differs
]


@pytest.mark.parametrize(("theirs", "ours", "expected"), CASES)
def test_why_a_factor_differs(theirs, ours, expected):
  script = load("benchmarks/claims/published_denoising.py")
  a, b = (script.Decoded(TEXT, max(when) + 1, when) for when in (theirs, ours))
  assert script.took_the_last(a, b, 3) is expected


def test_cells_name_what_there_is():
  """Every cell's blocks and steps divide the slots, and its name says the same of both sides."""
  script = load("benchmarks/claims/published_denoising.py")
  cells = script.settings()
  assert len({(c.program, c.function, c.ours) for c in cells}) == len(cells)
  for cell in cells:
    block, steps = cell.options["block_length"], cell.options["steps"]
    assert script.NEW % block == 0 and steps % (script.NEW // block) == 0
    assert f"/fixed-{block}" in cell.ours


def test_what_is_not_given_is_left_out(capsys, tmp_path):
  script = load("benchmarks/claims/published_denoising.py")
  script.main(script.Config(out=str(tmp_path / "out")))
  said = capsys.readouterr().out
  assert "llada: left out, for --llada is not given" in said
  assert "fast_dllm: left out, for --fast-dllm is not given" in said
  assert not (tmp_path / "out").exists()
