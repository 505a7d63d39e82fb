r"""Do llama.cpp and transformers say the same from the same GGUF file?

    python benchmarks/claims/same_ids.py --model gemma3-270m --prompts gsm8k_test.jsonl

Each goes on greedily from the ids of the same prompts, in float32 with the file's dequantised
weights, whatever token ends a text. Where ids differ from ours, the report has the margin of our
two best logits there. A program that is not installed is left out, and so is transformers for
architectures that it does not read.
"""

import dataclasses
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array, lax

import specjax
from specjax import checks, command_line
from specjax.base import Params
from specjax.checkpoints import gguf_float32
from specjax.decoding.decoder import pad_to_bucket
from specjax.eval import metrics, peers, prompts, report, table
from specjax.names.load import Model, resolve

Texts = list[list[int]]


@dataclasses.dataclass(frozen=True)
class Config(prompts.Questions):
  """What is compared."""

  model: str = "smollm2-135m"
  limit: int | None = 12  # number of questions, at equal distances in the file
  max_new_tokens: int = 64
  programs: tuple[str, ...] = ("llama.cpp", "transformers")
  out: str = "results/same_ids"


def leads(model: Model, prompts: Texts, said: Texts) -> list[np.ndarray]:
  """f32[new tokens] of each text, by how much the best logit was above the second one."""
  if not said:
    return []
  count = len(said[0])
  T = pad_to_bucket(max(map(len, prompts)) + count)

  @jax.jit
  def best(params: Params, tokens: Array, length: Array) -> Array:
    _, found = model.target.prefill(params, tokens, length, T)
    rows = lax.dynamic_slice_in_dim(found.hidden[0], length[0] - count - 1, count)
    return lax.top_k(model.target.head(params, rows), 2)[0]

  above = []
  for text in map(list.__add__, prompts, said):
    tokens = np.zeros((1, T), np.int32)
    tokens[0, : len(text)] = text
    two = np.asarray(best(model.params, tokens, np.array([len(text)], np.int32)))
    above.append(two[:, 0] - two[:, 1])
  return above


def of_llama_cpp(file: pathlib.Path, prompts: Texts, count: int) -> Texts:
  with tempfile.TemporaryDirectory() as directory:
    float32 = pathlib.Path(directory) / "float32.gguf"
    gguf_float32.write(file, float32)
    room = max(map(len, prompts)) + count
    plain = peers.llama_cpp(float32, (), 1, room)["llama.cpp"]
    return [list(plain.run(ids, count).tokens) for ids in prompts]


def of_transformers(file: pathlib.Path, prompts: Texts, count: int) -> Texts:
  import torch
  import transformers

  model = transformers.AutoModelForCausalLM.from_pretrained(
    file.parent, gguf_file=file.name, dtype=torch.float32
  ).eval()
  model.generation_config.eos_token_id = None
  said = []
  for ids in prompts:
    given = torch.tensor([ids])
    with torch.no_grad():
      found = model.generate(
        given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=count,
        pad_token_id=0, repetition_penalty=1.0,
      )  # fmt: skip
    said.append(found[0, len(ids) :].tolist())
  return said


PEERS: dict[str, Callable[[pathlib.Path, Texts, int], Texts]] = {
  "llama.cpp": of_llama_cpp, "transformers": of_transformers,
}  # fmt: skip


def main(config: Config) -> None:
  for name in config.programs:
    checks.choice("programs", name, PEERS)
  model = dataclasses.replace(specjax.load(config.model, weights="float"), stop=())
  ids = [list(item.ids) for item in config.evenly(model)]
  decoder = specjax.Decoder(model, "none", batch=len(ids))
  ours = [list(result.tokens) for result in decoder(ids, config.max_new_tokens)]
  cells: list[dict[str, Any]] = []
  for name in config.programs:
    try:
      said = PEERS[name](resolve(config.model), ids, config.max_new_tokens)
    except (ImportError, ValueError) as error:
      print(f"{name} is left out: {error}", file=sys.stderr)
      continue
    apart = {
      i: index
      for i, pair in enumerate(zip(said, ours, strict=True))
      if (index := metrics.first_divergence(*pair)) is not None
    }
    above = leads(model, [ids[i] for i in apart], [ours[i] for i in apart])
    different = [
      {"prompt": i, "index": index, "margin": float(lead[index])}
      for (i, index), lead in zip(apart.items(), above, strict=True)
    ]
    cells.append({"program": name, "texts": len(ids), "different": different})
  rows = [
    {"program": cell["program"], "texts with the same ids": f"{len(ids) - len(cell['different'])} "
     f"of {len(ids)}", "margins where ids part": ", ".join(
       f"{x['margin']:.4f}" for x in cell["different"]) or "-"}
    for cell in cells
  ]  # fmt: skip
  report.publish(config, {"cells": cells, "tokens": sum(map(len, ours))}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
