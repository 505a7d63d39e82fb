"""Writes the table of formats in docs/how_to/models.md: python tests/checkpoints/formats_page.py"""

import math
import pathlib
import re
import tempfile

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "how_to" / "models.md"
REFUSED = "refused"
_S8, _S4 = "8.5 bits a weight", "4.5 bits a weight"
# What a file has, and how "native" holds it, with its scales.
TITLES = {
  "fp8, blocks": ("FP8 of DeepSeek and Qwen, blocks of 128 x 128", REFUSED),
  "fp8, a scale a tensor": ("FP8, one scale", REFUSED),
  "compressed-tensors, fp8, a scale a row": ("compressed-tensors, FP8, a scale a row", REFUSED),
  "compressed-tensors, fp8, blocks": ("compressed-tensors, FP8, blocks", REFUSED),
  "compressed-tensors, int8, a scale a row": ("compressed-tensors, int8, a scale a row", _S8),
  "compressed-tensors, int8, a scale a tensor": ("compressed-tensors, int8, one scale", _S8),
  "compressed-tensors, int8, zeros": ("compressed-tensors, int8 with zeros", "9.25 bits a weight"),
  "compressed-tensors, words of int4": ("compressed-tensors, int4 in groups", _S4),
  "compressed-tensors, words of int4, zeros": (
    "compressed-tensors, int4 in groups with zeros", "5.25 bits a weight",
  ),
  "compressed-tensors, words of int4, any order": (
    "compressed-tensors, int4, groups in any order", REFUSED,
  ),
  "compressed-tensors, words of int8": ("compressed-tensors, int8 in words", _S8),
  "awq": ("AWQ, 4 bits, gemm", "5.25 bits a weight"),
  "gptq, 4 bits": ("GPTQ, 4 bits", _S4),
  "gptq, 4 bits, zeros": ("GPTQ, 4 bits with zeros", "5.25 bits a weight"),
  "gptq, 8 bits": ("GPTQ, 8 bits with zeros", "9.25 bits a weight"),
  "gptq, 4 bits, any order": ("GPTQ, 4 bits, `desc_act`", REFUSED),
  "gptq_v2, 4 bits": ("GPTQ, 4 bits, `gptq_v2`", "5.25 bits a weight"),
  "mxfp4": ("MXFP4 of GPT-OSS", "5.5 bits a weight"),
}  # fmt: skip
# Whose own program gave the same values; see `test_values_are_those_of_the_published_programs`.
PROGRAMS = {
  "fp8": "transformers", "compressed-tensors": "compressed-tensors", "awq": "AutoAWQ",
  "mxfp4": "transformers",
}  # fmt: skip
_ROW = re.compile(r"^\| (\w[^|]*) \| ([^|]*) \| (float64[^|]*) \| ([\de.-]+) \|\n", re.M)


def rows(page: str) -> dict[str, tuple[str, str, float]]:
  """How a page says that a format is held, what it was compared with, and the difference."""
  return {title: (held, beside, float(most)) for title, held, beside, most in _ROW.findall(page)}


def program_of(name: str) -> str | None:
  """The program whose own dequantising a format was compared with."""
  by_order = name.startswith("compressed") and "order" in name  # which it does not read any more
  return next((p for x, p in PROGRAMS.items() if name.startswith(x) and not by_order), None)


def beside(name: str) -> str:
  """What a format was compared with."""
  program = program_of(name)
  return "float64" if program is None else f"float64, {program}"


def main() -> None:
  from test_few_bits import compared

  lines = ""
  for name, (title, held) in TITLES.items():
    with tempfile.TemporaryDirectory() as directory:
      worst = compared(pathlib.Path(directory), name)
    unit = 10.0 ** math.floor(math.log10(worst)) if worst else 1.0
    most = f"{math.ceil(worst / unit) * unit:.0e}" if worst else "0"
    lines += f"| {title} | {held} | {beside(name)} | {most} |\n"
  page = PAGE.read_text()
  first = _ROW.search(page)
  assert first is not None
  PAGE.write_text(page[: first.start()] + lines + _ROW.sub("", page[first.start() :]))


if __name__ == "__main__":
  main()
