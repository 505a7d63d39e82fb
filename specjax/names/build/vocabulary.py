"""A smaller vocabulary for a draft model or a trained head, by the tokens that texts have.

This is VocabTrim (Goel et al. 2025, arXiv 2506.22694), which trains nothing.

Letters: V vocabulary, W tokens that are drafted.
"""

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks
from specjax.base import Params
from specjax.checkpoints.heads import LoadedHead, abstract
from specjax.data import sources
from specjax.heads import draft_vocabulary
from specjax.heads.draft_vocabulary import choose
from specjax.names import grammar
from specjax.names.grammar import Part
from specjax.names.load import Model


def chosen(model: Model, part: Part, among: np.ndarray | None = None) -> tuple[str, np.ndarray]:
  """(canonical name, i32[W]): the most frequent tokens of the texts that `part` names, rising.

  Args:
    among: i32[W'], the tokens that are drafted so far; None is all.
  """
  label, numbers = grammar.bind("drafter", part, grammar.parameters(choose))
  source = sources.open_source(grammar.text_of(part, "texts", "FILE.jsonl"))
  counts = np.zeros(model.config.vocab_size, np.int64)
  for i in range(len(source)):
    np.add.at(counts, model.encode(sources.text_of(source[i], "text", i)), 1)
  every = np.arange(len(counts), dtype=np.int32) if among is None else np.asarray(among)
  usual = min(int(grammar.parameters(choose)["size"] or 0), len(every))
  size = checks.whole(f"drafter={label!r}: size", numbers.get("size", usual), 1, len(every))
  return label, every[choose(counts[every], size)]


def trim_head(model: Model, loaded: LoadedHead, part: Part) -> tuple[str, LoadedHead]:
  """(canonical name of the part, the head with the rows of its most frequent tokens)."""
  known = draft_vocabulary.ids(loaded.params)
  own = None if known is None else np.asarray(known)
  label, ids = chosen(model, part, own)
  place = ids if own is None else np.searchsorted(own, ids)
  before, after = (
    abstract(loaded.head, model.config, size, model.params)["params"]
    for size in (None if own is None else len(own), len(ids))
  )

  def cut(x: Params, whole: jax.ShapeDtypeStruct, less: jax.ShapeDtypeStruct) -> Params:
    axes = [i for i, (a, b) in enumerate(zip(whole.shape, less.shape, strict=True)) if a != b]
    return jnp.take(x, jnp.asarray(place), axes[0]) if axes else x

  params = jax.tree.map(cut, loaded.params["params"], before, after)
  return label, loaded._replace(params={"params": params} | draft_vocabulary.collection(ids))
