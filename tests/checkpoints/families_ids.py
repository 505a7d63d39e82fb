"""Compares greedy tokens of the fixtures' families with those of transformers:

    python tests/checkpoints/families_ids.py [FAMILY ...]

Needs torch. Prompts are 40 tokens long, and so longer than the windows, of 5; ours are decoded with
prompt lookup's drafts.
"""

import json
import pathlib
import sys
import tempfile
import warnings

import numpy as np
from test_families import MODELS, VOCAB, directory_of

import specjax
from specjax.checkpoints import hf
from specjax.names.load import Model

PROMPTS = np.random.default_rng(1).integers(0, VOCAB, (2, 40))
COUNT = 200


def stretched(name: str, directory: pathlib.Path) -> pathlib.Path:
  """The fixture's checkpoint for longer texts."""
  file = directory_of(name, directory) / "config.json"
  raw = json.loads(file.read_text())
  for own in (raw, raw.get("text_config", {})):
    own.update({key: 512 for key in own if key == "max_position_embeddings"})
  file.write_text(json.dumps(raw))
  return directory


def theirs(directory: pathlib.Path, pictures: bool) -> list[list[int]]:
  import torch
  import transformers

  kind = transformers.AutoModelForImageTextToText if pictures else transformers.AutoModelForCausalLM
  with warnings.catch_warnings(), torch.no_grad():
    warnings.simplefilter("ignore")
    model = kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    if model.config.model_type == "llama4":  # whose whole model fails over a text
      model = model.language_model
    model.generation_config.eos_token_id = None
    said = model.generate(
      torch.from_numpy(PROMPTS), attention_mask=torch.ones(PROMPTS.shape, dtype=torch.long),
      do_sample=False, max_new_tokens=COUNT, pad_token_id=0,
    )  # fmt: skip
  return said[:, PROMPTS.shape[1] :].tolist()


def main() -> None:
  for name in sys.argv[1:] or MODELS:
    with tempfile.TemporaryDirectory() as path:
      directory = stretched(name, pathlib.Path(path))
      found = hf.load(directory)._replace(stop=())
      expected = theirs(directory, "vision_config" in MODELS[name])
    decoder = specjax.Decoder(Model(name, **found._asdict()), "prompt_lookup-4", batch=2)
    said = [list(result.tokens) for result in decoder(PROMPTS.tolist(), COUNT)]
    equal = sum(
      a == b for x, y in zip(said, expected, strict=True) for a, b in zip(x, y, strict=True)
    )
    different = len({token for text in expected for token in text})
    print(f"{name}: {equal} of {2 * COUNT} tokens equal, {different} different ones", flush=True)


if __name__ == "__main__":
  main()
