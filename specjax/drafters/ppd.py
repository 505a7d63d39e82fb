"""PPD, parallel prompt decoding: trained prompt tokens after every candidate guess its successors.

Letters: K prompt tokens, E width, V vocabulary, G candidates.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from specjax.base import Target
from specjax.drafters import draft_vocabulary
from specjax.drafters.base import Head, LossWeights, Pseudo


@dataclasses.dataclass(frozen=True)
class PPDConfig:
  """Number of prompt tokens.

  Attributes:
    depth: K; prompt token k guesses depth k.
  """

  depth: int = 3


@functools.cache
def ppd(target: Target, config: PPDConfig) -> Head:
  """K trained embeddings, at which the target predicts the tokens after the next.

  Chen et al. 2024 (arXiv 2405.18628, section 3). Prompt token k of a candidate is a pseudo row that
  enters before the first layer; see `drafters.pseudo`. Each has one embedding, as in the published
  decoding code (training may average several). The published loss is the divergence from the
  target's distribution at the true token, soft cross-entropy up to a constant.

  The dynamic sparse tree (section 3.2) is the pair (tree, counts) of `drafting.drafter`, whose
  counts `trees.prompt_token_budget.allocate` finds. The published trees after m prompts are
  optimised one by one; here they are the first m levels of one tree.

  The embeddings start as those of random tokens. The published start, the words of a phrase, would
  need a tokenizer.
  """
  D, loss = config.depth, LossWeights(hard=0.0, soft=1.0, decay=0.8)

  def init(key, target_params, vocabulary=None):
    tokens = jax.random.choice(key, target.vocab_size, (1, D), replace=False)
    params = {"prompt": target.embed(target_params, tokens)[0]}
    return {"params": params} | draft_vocabulary.collection(vocabulary)

  def enter(params, k, stream):
    prompt = params["params"]["prompt"][k - 1].astype(stream.dtype)
    return jnp.broadcast_to(prompt, stream.shape)

  read = draft_vocabulary.through(target)
  return Head("ppd", target, D, loss, init, read, pseudo=Pseudo((0,) * D, enter))
