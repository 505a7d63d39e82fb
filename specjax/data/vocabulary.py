"""Which tokens a tokenizer has: two models read each other's ids only where these are the same."""

import functools
import hashlib
import json
import re

from specjax.data.tokenizer import Tokenizer

_PADDING = re.compile(r"\[PAD\d+\]")  # what llama.cpp calls the rows that no token has
_MARKER = re.compile(r"<.*>|\[.*\]")  # files of one tokenizer differ in which of these are added


def _tokens(tokenizer: Tokenizer) -> tuple[dict[int, str], set[int]]:
  """(the text of every id, the ids that were added to the tokenizer's own words)."""
  texts = {i: text for text, i in tokenizer.inner.get_vocab().items()}
  padding = {i for i, text in texts.items() if _PADDING.fullmatch(text)}
  return texts, padding | set(tokenizer.inner.get_added_tokens_decoder())


def difference(a: Tokenizer, b: Tokenizer) -> tuple[int, str | None, str | None] | None:
  """The first id that stands for different texts, None being none: (id, that in a, that in b).

  Tokens that were added to the words of one alone, such as a mask or those of tools, are no
  difference.
  """
  (first, added), (second, more) = _tokens(a), _tokens(b)
  for i in sorted(first.keys() | second.keys()):
    texts = first.get(i), second.get(i)
    only_one = None in texts and i in added | more
    if texts[0] != texts[1] and not only_one:
      return i, *texts
  return None


@functools.cache
def digest(tokenizer: Tokenizer) -> str:
  """16 hex digits that tell tokenizers apart by their words, without markers and added tokens."""
  texts, added = _tokens(tokenizer)
  words = sorted(
    (i, text) for i, text in texts.items() if i not in added and not _MARKER.fullmatch(text)
  )
  return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]
