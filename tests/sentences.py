"""Sentences of errors, of which a test need not repeat all."""

import re


def says(sentence: str, words: str) -> bool:
  """Whether the words are in the sentence; " .. " stands for any others between them."""
  return re.search(".*".join(map(re.escape, words.split(" .. "))), sentence) is not None
