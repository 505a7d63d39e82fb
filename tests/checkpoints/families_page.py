"""Writes rows of docs/families.md, those of the families that are named or all:

    python tests/checkpoints/families_page.py [FAMILY ...]

Needs torch and llama-cpp-python. What is measured is explained on the page.
"""

import math
import pathlib
import re
import sys
import tempfile
from collections.abc import Sequence

import numpy as np

TITLES = {
  "gemma": "Gemma 1",
  "gemma2": "Gemma 2",
  "gemma3_text": "Gemma 3, text",
  "olmo2": "OLMo 2",
  "olmo3": "OLMo 3",
  "exaone4": "EXAONE 4",
  "seed_oss": "Seed-OSS",
  "phi3": "Phi-3 and Phi-4, with longrope",
  "granite": "Granite 3, dense",
  "granitemoehybrid": "Granite 4, dense",
  "granite4_hybrid": "Granite 4, with Mamba-2 and experts",
  "smollm3": "SmolLM3",
  "ernie4_5": "ERNIE 4.5, dense",
  "helium": "Helium",
  "glm": "GLM",
  "glm4": "GLM-4",
  "cohere2": "Cohere 2",
  "ministral": "Ministral, by layers",
  "ministral3": "Ministral 3, text",
  "olmoe": "OLMoE",
  "qwen2_moe": "Qwen2-MoE",
  "glm4_moe": "GLM-4.5",
  "dots1": "dots.llm1",
  "minimax_m2": "MiniMax-M2",
  "qwen3_next": "Qwen3-Next",
  "qwen3_5_text": "Qwen3.5, text",
  "qwen3_5_moe_text": "Qwen3.5 with experts, text",
  "gpt_oss": "GPT-OSS, in floats",
  "deepseek_v3": "DeepSeek-V3, and Kimi K2 as `kimi_k2`",
  "llama4_text": "Llama 4, text",
  "deepseek_v2": "DeepSeek-V2",
  "gemma3n_text": "Gemma 3n, text",
  "gemma4_text": "Gemma 4, text, with the shared keys and embeddings of E2B and E4B",
  "gemma3": "Gemma 3 with pictures, its language model",
  "qwen3_5": "Qwen3.5 with pictures, its language model",
  "qwen3_5_moe": "Qwen3.5 with experts and pictures, its language model",
  "mistral3": "Ministral 3 and Mistral Small 3 with pictures, their language model",
  "llama4": "Llama 4 with pictures, its language model",
  "gemma4": "Gemma 4 with pictures, its language model, with experts and keys as values",
}
# `model_type`s of networks that have another name here.
TYPES = {"granite4_hybrid": "granitemoehybrid"}
_ROW = re.compile(r"^\| ([^|]*) \| `\w+` \| (\d.*) \|\n", re.M)
# The files of language models beside pictures.
_AS_TEXT = {
  "gemma3": "gemma3", "gemma4": "gemma4, experts", "mistral3": "mistral3", "llama4": "llama4",
  "qwen3_5": "qwen35", "qwen3_5_moe": "qwen35moe",
}  # fmt: skip
WARM = {"temperature": 1.0, "seed": 7}


def rows(page: str) -> dict[str, list[str]]:
  """What stands behind each network of a page: the largest difference of a logit, that of a
  tree, greedy tokens equal, tokens equal with and without drafts, what a cache loses, the
  difference of a saved model, the loss of a head, and the difference from llama.cpp."""
  names = {title: name for name, title in TITLES.items()}
  return {names[title]: cells.split(" | ") for title, cells in _ROW.findall(page)}


def up(x: float | None) -> str:
  """A figure rounded up to one digit."""
  if not x:
    return "-" if x is None else "0"
  unit = 10.0 ** math.floor(math.log10(x))
  return f"{math.ceil(x / unit) * unit:.0e}"


def measured(name: str) -> list[str]:
  """The cells of a family."""
  import families_ids
  import gguf_llama_cpp
  import test_families
  import transformers
  from test_hf import torch_logits

  from specjax.checkpoints import hf

  kept, want = test_families.KEPT, test_families.expected(name)[1]
  cells = [
    up(float(np.abs(test_families.ours(name)[..., kept] - want).max())),
    up(test_families.tree_apart(name)),
  ]
  with tempfile.TemporaryDirectory() as path:
    directory = families_ids.stretched(name, pathlib.Path(path))
    found = hf.load(directory)
    theirs = families_ids.theirs(directory, "vision_config" in test_families.MODELS[name])
  plain, drafted = (families_ids.ours(found, x) for x in ("none", "prompt_lookup-4"))
  cells.append(str(families_ids.equal(drafted, theirs)))
  warm = [families_ids.ours(found, x, **WARM) for x in ("none", "prompt_lookup-4")]
  cells.append(f"{families_ids.equal(plain, drafted)}, {families_ids.equal(*warm)}")
  cells.append(up(test_families.lost(found, families_ids.PROMPTS, plain)))
  with tempfile.TemporaryDirectory() as path:
    test_families.save(pathlib.Path(path), name)
    again = torch_logits(transformers, pathlib.Path(path), test_families.IDS)
  cells.append(up(float(np.abs(again[..., kept] - want).max())))
  losses = test_families.losses(name)
  cells.append(f"{losses[0]:.1f} to {losses[-1]:.1f}")
  files = {own: model for model, (own, _) in reversed(gguf_llama_cpp.FAMILIES.items())} | _AS_TEXT
  model = files.get(name)
  cells.append("-" if model is None else up(gguf_llama_cpp.apart(model)))
  return cells


def main(names: Sequence[str]) -> None:
  from test_families import PAGE

  for name in names or TITLES:
    cells = measured(name)
    print(name, *cells, flush=True)
    page = PAGE.read_text()
    found = rows(page) | {name: cells}
    first = _ROW.search(page)
    assert first is not None
    lines = [f"| {title} | `{TYPES.get(key, key)}` | {' | '.join(found[key])} |\n"
             for key, title in TITLES.items() if key in found]  # fmt: skip
    PAGE.write_text(page[: first.start()] + "".join(lines) + _ROW.sub("", page[first.start() :]))


if __name__ == "__main__":
  main(sys.argv[1:])
