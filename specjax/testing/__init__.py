"""What proves a decoding method: a table language model, scripted drafts, enumeration, samples.

A new verifier or drafter is proven in a few lines, by exact enumeration and by samples; `method` is
that of `decoding.method`:

    case = Case(np.asarray(random_table(0, 3)["logits"]), temperature=0.7, top_p=0.8)
    proven = method(table_model(3), fixed_draft([[0], [1]], [2, 0]), my_rule())
    assert total_variation(emitted_distribution(case, proven), target_distribution(case)) < 1e-6
    assert p_value(case, proven) > 1e-6

That the proof would fail for a wrong method is shown by breaking the method, see `faults`:

    cases = [Case(np.asarray(random_table(s, 3)["logits"])) for s in range(3)]
    found = faults.distances(cases, proven, faults=["row of the child", "last token redrawn"])
    assert min(found.values()) > 1e-3

A `Source` with a flaw is given to `p_value` as `source=`; tests/testing has examples of all.
"""

from specjax.testing import faults
from specjax.testing.drafts import fixed_draft, random_draft
from specjax.testing.enumerate import (
  Case,
  emitted_distribution,
  target_distribution,
  total_variation,
)
from specjax.testing.samples import p_value
from specjax.testing.table import random_table, table_model

__all__ = [
  "Case", "emitted_distribution", "faults", "fixed_draft", "p_value", "random_draft",
  "random_table", "table_model", "target_distribution", "total_variation",
]  # fmt: skip
