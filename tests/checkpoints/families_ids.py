"""Texts of the fixtures' families, ours and those of transformers, which needs torch.

Prompts are 40 tokens long, and so longer than the windows, of 5.
"""

import json
import pathlib
import warnings

import numpy as np
from test_families import VOCAB, directory_of

import specjax
from specjax.checkpoints.hf import Checkpoint
from specjax.names.load import Model

PROMPTS = np.random.default_rng(1).integers(0, VOCAB, (2, 40))
COUNT = 200
Texts = list[list[int]]


def stretched(name: str, directory: pathlib.Path) -> pathlib.Path:
  """The fixture's checkpoint for longer texts."""
  file = directory_of(name, directory) / "config.json"
  raw = json.loads(file.read_text())
  for own in (raw, raw.get("text_config", {})):
    own.update({key: 512 for key in own if key == "max_position_embeddings"})
  file.write_text(json.dumps(raw))
  return directory


def theirs(directory: pathlib.Path, pictures: bool) -> Texts:
  """Greedy tokens of transformers."""
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


def ours(found: Checkpoint, drafter: str, **sampling: float) -> Texts:
  """What a decoder with a drafter says."""
  model = Model("family", **found._replace(stop=())._asdict())
  decoder = specjax.Decoder(model, drafter, batch=len(PROMPTS), **sampling)
  return [list(result.tokens) for result in decoder(PROMPTS.tolist(), COUNT)]


def equal(some: Texts, others: Texts) -> int:
  """How many tokens are."""
  pairs = zip(some, others, strict=True)
  return sum(a == b for x, y in pairs for a, b in zip(x, y, strict=True))
