"""Moves a model to the vocabulary of another, for which it then drafts without a bridge.

    python -m specjax.train.transplant --model gsm8k-7m --to smollm2-135m --out runs/moved
    specjax generate --model smollm2-135m --drafter "draft_model-4[runs/moved/model]" --prompt "Two"

TokenAdapt, Sharthak et al. 2025, arXiv 2505.09738: no weight is trained. Rows of the embedding, and
of the LM head, are those of the same tokens, or mixtures of old ones, see `data.transplant`. The
result is a NEW MODEL in `model`, with the tokenizer, the template and the ends of the other one;
`specjax.train.lm --start runs/moved/model` trains it further.
"""

import dataclasses
import sys

import jax

from specjax import distributed
from specjax.base import Params
from specjax.checkpoints import hf
from specjax.data.bridge import Vocabulary
from specjax.data.transplant import Mixture, mixed, mixture
from specjax.models.config import Config as Network
from specjax.names.load import Model, load
from specjax.train.recipe import options, run
from specjax.train.recipe.config import Count, Positive, Share

ROWS = ("embedding", "lm_head")  # a row for each token


@dataclasses.dataclass(frozen=True)
class Config:
  """A model in another's vocabulary.

  Attributes:
    model: zoo name or directory of the model that is moved.
    to: zoo name or directory of the model whose tokens it is to have.
    out: directory of report.json; the new model is in `model`.
    neighbours: number of similar old tokens that a new one is made of, beside its parts.
    weight: their share of it.
    temperature: how even the shares are; a high one gives parts equal shares.
  """

  model: str
  to: str
  out: str
  neighbours: Count = 3
  weight: Share = 0.3
  temperature: Positive = 0.3


def vocabulary(option: str, model: Model) -> Vocabulary:
  """The tokens of a model.

  Raises:
    ValueError: it has no tokenizer, or is not causal.
  """
  if model.tokenizer is None or not model.config.causal:
    raise ValueError(f"`{option}` must be a causal model with a tokenizer, got {model.name!r}.")
  return Vocabulary(model.tokenizer, model.config.vocab_size, model.start, model.stop)


def moved(config: Network, params: Params, own: Mixture) -> tuple[Network, Params]:
  """The network of a model with new tokens, and its weights.

  Raises:
    ValueError: it reads in streams, or its layers have embeddings of tokens, too.
  """
  if not isinstance(config, Network) or config.layer_embedding:
    raise ValueError("`model` must have no streams, and no embeddings of tokens in its layers.")
  rest = params["params"]
  rows = {name: mixed(own, rest[name]) for name in ROWS if name in rest}
  return dataclasses.replace(config, vocab_size=len(own.ids)), {"params": {**rest, **rows}}


def main(config: Config) -> None:
  out = run.begin(config)
  model, other = load(config.model, weights="float"), load(config.to)
  new, old = vocabulary("to", other), vocabulary("model", model)
  own = mixture(new, old, config.neighbours, config.weight, config.temperature)
  network, params = moved(model.config, jax.device_get(model.params), own)
  shared, known = int(own.shared.sum()), int(own.share.any(1).sum())
  run.report(
    out,
    {
      "exactness": "a new model: its texts are not those of the old one",
      "tokens": {"shared": shared, "mixed": known - shared, "mean": new.size - known},
    },
  )
  if distributed.first():
    hf.save(
      out / "model",
      network,
      params,
      other.tokenizer,
      template=other.template,
      stop=other.stop,
      start=other.start,
    )


if __name__ == "__main__":
  sys.exit(options.command(main, Config, __doc__, prog="python -m specjax.train.transplant"))
