"""The grammar of names: what is printed is read again, and what is no name is told what is."""

import numpy as np
import pytest

from specjax.names import catalogue
from specjax.names import grammar as spec
from specjax.names.grammar import Part

TEXTS = ("runs/a-b_c.d", "[0-9]+ apples/pears", "a[b[c]]", "x+y:z", " ", "")


def random_part(rng, name: str, deep: bool = True) -> Part:
  """A part with random numbers, of sizes from 1e-12 to 1e12, text and decorations."""
  floats = (10 ** rng.uniform(-12, 12, 3)).tolist()
  numbers = [*floats, *rng.integers(0, 99, 2).tolist(), 1.0, 1e-05, 1e16]
  count = rng.integers(3) if deep else 0
  more = [random_part(rng, f"x{rng.integers(9)}", False) for _ in range(count)]
  return Part(
    name,
    tuple(rng.permutation(np.array(numbers, object))[: rng.integers(4)]),
    rng.choice([None, *TEXTS]),
    tuple(more),
  )


def names() -> list[str]:
  rows = (row for rows in catalogue.parts().values() for row in rows)
  return [row[0].lstrip("/+").partition("[")[0] for row in rows]


def test_what_is_printed_is_read_again():
  rng = np.random.default_rng(0)
  for name in [*names(), "my_file.py:my_head", "/a-1/b.py:C"]:
    for _ in range(20):
      parts = tuple(random_part(rng, name) for _ in range(rng.integers(1, 4)))
      again = spec.parse("x", spec.show(parts))
      assert again == parts
      assert [type(n) for p in again for n in p.numbers] == [
        type(n) for p in parts for n in p.numbers
      ]


def test_alternatives_are_cut_outside_brackets():
  assert spec.alternatives("a-1[x|y]/b[z]+c|d|e") == ["a-1[x|y]/b[z]+c", "d", "e"]
  assert spec.alternatives("a") == ["a"] and spec.alternatives("a|") == ["a", ""]


def test_precedence():
  assert spec.parse("x", "a-1[p]/b-2.5+c/d/e") == (
    Part("a", (1,), "p", (Part("b", (2.5,)),)),
    Part("c", (), None, (Part("d"), Part("e"))),
  )
  assert spec.parse("x", "a+b/my.py:f-4[p]/d") == (
    Part("a"), Part("b/my.py:f", (4,), "p", (Part("d"),)),
  )  # fmt: skip


@pytest.mark.parametrize(
  ("text", "problem"),
  [
    ("", "accepted is NAME"),
    ("Medusa", "accepted is NAME"),
    ("medusa-", "accepted is NAME"),
    ("medusa-x", "accepted is NAME"),
    ("medusa--1", "accepted is NAME"),
    ("medusa/", "accepted is NAME"),
    ("+medusa", "accepted is NAME"),
    ("medusa[a]b", "accepted is NAME"),
    ("my.py:", "accepted is NAME"),
    ("my.py", "accepted is NAME"),
    ("medusa[a", "a bracket is not closed"),
    ("medusa:16", "medusa:16' is now medusa-16"),
    ("medusa:dynamic-16-5-4", "is now medusa/dynamic-16-5-4"),
    ("medusa:runs/tree.json", r"is now medusa/tree\[runs/tree.json\]"),
    ("draft_model:adaedl", "is now draft_model/adaedl"),
  ],
)
def test_what_is_no_name_is_refused(text, problem):
  with pytest.raises(ValueError, match=f"^drafter='.*{problem}"):
    spec.parse("drafter", text)


def builder(
  model: list, nodes: int = 8, least: float = 0.5, keep: bool = True, cut: int | None = None
):
  """What `knobs` reads."""


KNOBS = spec.knobs(builder)


def test_the_signature_is_the_table_of_knobs():
  assert KNOBS == {"nodes": 8, "least": 0.5, "keep": True, "cut": None}
  assert list(spec.knobs(builder, without=("nodes",))) == ["least", "keep", "cut"]


@pytest.mark.parametrize(
  ("text", "canonical", "arguments"),
  [
    ("b", "b", {}),
    ("b-8", "b", {"nodes": 8}),
    ("b-9-1", "b-9-1.0", {"nodes": 9, "least": 1.0}),
    ("b-8-0.50-1", "b", {"nodes": 8, "least": 0.5, "keep": True}),
    ("judge-8-0.5-0[p]", "judge-8-0.5-0[p]", {"nodes": 8, "least": 0.5, "keep": False}),
    ("b-8-0.5-1-4", "b-8-0.5-1-4", {"nodes": 8, "least": 0.5, "keep": True, "cut": 4}),
  ],
)
def test_a_name_is_settled(text, canonical, arguments):
  (part,) = spec.parse("x", text)
  name, given = spec.settle("x", part, KNOBS)
  assert name == canonical and given == arguments
  assert [type(v) for v in given.values()] == [type(v) for v in arguments.values()]
  again, twice = spec.settle("x", *spec.parse("x", name), KNOBS)
  assert again == name and {**KNOBS, **twice} == {**KNOBS, **given}


@pytest.mark.parametrize(
  ("text", "problem"),
  [
    ("b-8.5", "x='b-8.5': nodes of b is a whole number"),
    ("b-8-1-2", "keep of b is 0 or 1"),
    ("b-8[p]", "x='b-8\\[p\\]': b takes nothing in brackets"),
    ("b-8-1-1-0.5", "cut of b is a whole number"),
    ("b-1-1-1-1-1", "b takes the numbers nodes=8, least=0.5, keep=True, cut=None"),
  ],
)
def test_numbers_that_do_not_fit_are_refused(text, problem):
  (part,) = spec.parse("x", text)
  with pytest.raises(ValueError, match=problem):
    spec.settle("x", part, KNOBS)
