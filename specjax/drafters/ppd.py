"""PPD, parallel prompt decoding: trained prompt tokens after every candidate guess what follows.

Letters: K prompt tokens, E width, V vocabulary, G candidates.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Head
from specjax.drafters import pseudo_head
from specjax.models.config import Config
from specjax.models.transformer import target


@dataclasses.dataclass(frozen=True)
class PPDConfig:
  """Number of prompt tokens.

  Attributes:
    depth: K; prompt token k guesses depth k.
  """

  depth: int = 3


@functools.cache
def ppd(model: Config, config: PPDConfig) -> Head:
  """K embeddings, all that is trained, which ask the target for the tokens after the next.

  Chen et al. 2024 (arXiv 2405.18628, section 3). Prompt token k of a candidate is a pseudo row that
  enters below the first layer, see `drafters.pseudo`; what is carried between rounds, and the rules
  that are exact, are in `drafters.pseudo_head`. One embedding per prompt token, as in the published
  decoding code (training may average several). The published loss is the divergence from the
  target's distribution at the true token, soft cross-entropy up to a constant.

  The dynamic sparse tree (section 3.2) is the pair (tree, counts) of `Head.drafter`:
  `trees.prompt_token_budget.allocate` finds the counts. The published trees after m prompts are each optimised
  for themselves; here they are the first m levels of one.

  The embeddings start as those of random tokens, where the published start is the words of a
  phrase: a phrase would need a tokenizer.

  Args:
    model: the target's network.
    config: number of prompt tokens.
  """
  D = config.depth

  def init(key, target_params):
    tokens = jax.random.choice(key, model.vocab_size, (1, D), replace=False)
    return {"prompt": target(model).embed(target_params, tokens)[0]}

  def enter(params, k: int, stream: Array) -> Array:
    prompt = params["params"]["prompt"][k - 1].astype(stream.dtype)
    return jnp.broadcast_to(prompt, stream.shape)

  return pseudo_head.head("ppd", model, (0,) * D, (), init, enter)
