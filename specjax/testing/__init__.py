"""Proofs for decoding methods: a table language model, scripted drafts, exact enumeration, samples.

A new rule or drafter is proven in a few lines, by all that can happen and by what does happen:

    case = Case(np.asarray(random_table(0, 3)["logits"]), temperature=0.7, top_p=0.8)
    method = speculate.method(table_model(3), fixed_draft([[0], [1]], [2, 0]), my_rule())
    assert total_variation(emitted_law(case, method), target_law(case)) < 1e-6
    assert p_value(case, method) > 1e-6

What should be seen can be broken on purpose: a `Source` with a flaw goes in as `source=`, a flawed
rule or drafter is one `_replace` away (tests/testing/test_negative_controls.py has a dozen).
"""

from specjax.testing.drafts import fixed_draft, random_draft
from specjax.testing.enumerate import Case, emitted_law, target_law, total_variation
from specjax.testing.samples import p_value
from specjax.testing.table import random_table, table_model

__all__ = [
  "Case", "emitted_law", "fixed_draft", "p_value", "random_draft", "random_table", "table_model",
  "target_law", "total_variation",
]  # fmt: skip
