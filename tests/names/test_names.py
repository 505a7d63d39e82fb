"""The grammar of names: what is printed is read again, and what is no name is told what is."""

import numpy as np
import pytest

from specjax.names import catalogue
from specjax.names import grammar as spec
from specjax.names.grammar import Part
from specjax.trees.prompt_token_budget import share_rows

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
    tuple((f"key{i}", numbers[rng.integers(len(numbers))]) for i in range(rng.integers(3))),
  )


def types(part: Part) -> list[type]:
  return [type(n) for n in (*part.numbers, *(n for _, n in part.labelled))]


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
      assert list(map(types, again)) == list(map(types, parts))


def test_alternatives_are_cut_outside_brackets():
  assert spec.alternatives("a-1[x|y]/b[z]+c|d|e") == ["a-1[x|y]/b[z]+c", "d", "e"]
  assert spec.alternatives("a") == ["a"] and spec.alternatives("a|") == ["a", ""]


def test_precedence():
  assert spec.parse("x", "a-1[p]/b-2.5+c/d/e") == (
    Part("a", (1,), "p", (Part("b", (2.5,)),)),
    Part("c", (), None, (Part("d"), Part("e"))),
  )
  assert spec.parse("x", "a-1,x=2,y_z=1e-05[p]/b,c=0.5") == (
    Part("a", (1,), "p", (Part("b", labelled=(("c", 0.5),)),), (("x", 2), ("y_z", 1e-05))),
  )
  assert spec.parse("x", "a+b/my.py:f-4[p]/d") == (
    Part("a"), Part("b/my.py:f", (4,), "p", (Part("d"),)),
  )  # fmt: skip


@pytest.mark.parametrize(
  ("text", "problem"),
  [
    ("", "^`drafter` must be NAME, .*, got '"),
    ("Medusa", "^`drafter` must be NAME, .*, got '"),
    ("medusa-", "^`drafter` must be NAME, .*, got '"),
    ("medusa-x", "^`drafter` must be NAME, .*, got '"),
    ("medusa--1", "^`drafter` must be NAME, .*, got '"),
    ("medusa/", "^`drafter` must be NAME, .*, got '"),
    ("+medusa", "^`drafter` must be NAME, .*, got '"),
    ("medusa[a]b", "^`drafter` must be NAME, .*, got '"),
    ("my.py:", "^`drafter` must be NAME, .*, got '"),
    ("my.py", "^`drafter` must be NAME, .*, got '"),
    ("medusa[a", "a bracket is not closed"),
    ("medusa:16", "^`drafter` must be NAME, .*, got '"),
    ("medusa-8,", "^`drafter` must be NAME, .*, got '"),
    ("medusa-8,depth", "^`drafter` must be NAME, .*, got '"),
    ("medusa-8,depth=", "^`drafter` must be NAME, .*, got '"),
    ("medusa-8,depth=-1", "^`drafter` must be NAME, .*, got '"),
    ("medusa,depth=2-8", "^`drafter` must be NAME, .*, got '"),
    ("medusa[a],depth=2", "^`drafter` must be NAME, .*, got '"),
  ],
)
def test_what_is_no_name_is_refused(text, problem):
  with pytest.raises(ValueError, match=problem):
    spec.parse("drafter", text)


def builder(
  model: list, nodes: int = 8, least: float = 0.5, keep: bool = True, cut: int | None = None
):
  """What `parameters` reads."""


PARAMETERS = spec.parameters(builder)


def test_the_signature_is_the_table_of_parameters():
  assert PARAMETERS == {"nodes": 8, "least": 0.5, "keep": True, "cut": None}
  assert list(spec.parameters(builder, without=("nodes",))) == ["least", "keep", "cut"]


@pytest.mark.parametrize(
  ("text", "canonical", "arguments"),
  [
    ("b", "b", {}),
    ("b-8", "b", {"nodes": 8}),
    ("b-9,least=1", "b-9,least=1.0", {"nodes": 9, "least": 1.0}),
    ("b,nodes=9", "b-9", {"nodes": 9}),
    ("b-8,keep=1,least=0.50", "b", {"nodes": 8, "keep": True, "least": 0.5}),
    ("judge,keep=0[p]", "judge,keep=0[p]", {"keep": False}),
    ("b-9,cut=4,keep=0", "b-9,keep=0,cut=4", {"nodes": 9, "cut": 4, "keep": False}),
  ],
)
def test_a_name_binds_its_parameters(text, canonical, arguments):
  (part,) = spec.parse("x", text)
  name, given = spec.bind("x", part, PARAMETERS)
  assert name == canonical and given == arguments
  assert [type(v) for v in given.values()] == [type(v) for v in arguments.values()]
  again, twice = spec.bind("x", *spec.parse("x", name), PARAMETERS)
  assert again == name and {**PARAMETERS, **twice} == {**PARAMETERS, **given}


def test_pseudo_rows_may_have_trees_of_their_own():
  known, part = spec.parameters(share_rows), spec.parse_one("x", "rows-12,own=1")
  assert spec.bind("x", part, known) == ("rows-12,own=1", {"budget": 12, "own": True})
  with pytest.raises(ValueError, match=r"^x='rows-12,own=2': `own` must be 0 or 1, got 2\.$"):
    spec.bind("x", spec.parse_one("x", "rows-12,own=2"), known)


@pytest.mark.parametrize(
  ("text", "problem"),
  [
    ("b-8.5", r"`nodes` must be a whole number, got 8\.5\."),
    ("b-8,keep=2", r"`keep` must be 0 or 1, got 2\."),
    ("b-8[p]", "x='b-8\\[p\\]': b takes nothing in brackets"),
    ("b,cut=0.5", r"`cut` must be a whole number, got 0\.5\."),
    ("b-1-1-1-1-1", "b takes nodes=8, least=0.5, keep=True, cut"),
    (
      "b-9-1,cut=4",
      "`x` must have one number without a name, as in b-9,least=1,cut=4, got "
      r"'b-9-1,cut=4'\.",
    ),
    ("b-8,nodes=9", r"`nodes` must be given once, got 'b-8,nodes=9'\."),
    (
      "b,leest=0.5",
      r"x='b,leest=0\.5': b takes nodes=8, least=0\.5, keep=True, cut, not leest \(did you",
    ),
    ("b,zzz=0.5", r"x='b,zzz=0\.5': b takes nodes=8, least=0\.5, keep=True, cut, not zzz\."),
  ],
)
def test_numbers_that_do_not_fit_are_refused(text, problem):
  (part,) = spec.parse("x", text)
  with pytest.raises(ValueError, match=problem):
    spec.bind("x", part, PARAMETERS)
