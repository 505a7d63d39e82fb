"""Proofs for decoding methods: a table language model, scripted drafts and exact enumeration."""

from specjax.testing.drafts import fixed_draft, random_draft
from specjax.testing.enumerate import Case, emitted_law, target_law, total_variation
from specjax.testing.table import random_table, table_model

__all__ = [
  "Case", "emitted_law", "fixed_draft", "random_draft", "random_table", "table_model",
  "target_law", "total_variation",
]  # fmt: skip
