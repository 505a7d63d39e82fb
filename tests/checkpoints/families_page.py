"""Writes the table of docs/families.md: python tests/checkpoints/families_page.py"""

import math
import re

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
  "gemma4_text": "Gemma 4, text, with the shared keys and embeddings of E2B and E4B",
  "gemma3": "Gemma 3 with pictures, its language model",
  "qwen3_5": "Qwen3.5 with pictures, its language model",
  "qwen3_5_moe": "Qwen3.5 with experts and pictures, its language model",
  "mistral3": "Ministral 3 and Mistral Small 3 with pictures, their language model",
  "llama4": "Llama 4 with pictures, its language model",
  "gemma4": "Gemma 4 with pictures, its language model, with experts and keys as values",
}
ROW = re.compile(r"^\| .* \| `(\w+)` \| (\S+) \|\n", re.M)


def rows(page: str) -> dict[str, float]:
  """The largest differences that a page gives, by `model_type`."""
  return {name: float(most) for name, most in ROW.findall(page)}


def main() -> None:
  from test_families import PAGE, expected, ours

  lines = ""
  for name, title in TITLES.items():
    worst = float(np.abs(ours(name) - expected(name)[1]).max())
    unit = 10.0 ** math.floor(math.log10(worst))
    lines += f"| {title} | `{name}` | {math.ceil(worst / unit) * unit:.0e} |\n"
  page = PAGE.read_text()
  first = ROW.search(page)
  assert first is not None
  PAGE.write_text(page[: first.start()] + lines + ROW.sub("", page[first.start() :]))


if __name__ == "__main__":
  main()
