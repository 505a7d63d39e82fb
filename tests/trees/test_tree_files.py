"""Trees in files and words: what was written is read, and nothing else."""

import json

import pytest

from specjax.names.build.tree import build_tree
from specjax.trees import (
  IID,
  TREES,
  Beam,
  Dynamic,
  DySpec,
  Graph,
  Mixed,
  Static,
  StochasticBeam,
  WithoutReplacement,
  files,
)


@pytest.mark.parametrize(
  ("tree", "raw"),
  [
    (Static(((0,), (2,), (0, 1))), {"static": {"choices": [[0], [2], [0, 1]]}}),
    (Dynamic(16, 5, 4), {"dynamic": {"nodes": 16, "depth": 5, "beam": 4}}),
    (Beam(9, 4, 3), {"beam": {"nodes": 9, "depth": 4, "width": 3}}),
    (
      Graph(9, 4, 3, 0),
      {"graph": {"nodes": 9, "depth": 4, "beam": 3, "repeat": 0, "sibling": 0.0, "least": 0.0}},
    ),
    (
      WithoutReplacement(((0,), (1,), (0, 0))),
      {"without_replacement": {"choices": [[0], [1], [0, 0]]}},
    ),
    (IID(((0,),)), {"iid": {"choices": [[0]]}}),
    (Mixed(((0,),)), {"mixed": {"choices": [[0]]}}),
    (StochasticBeam(4, 3), {"stochastic_beam": {"width": 4, "depth": 3}}),
    (DySpec(6, 3, 2, 3), {"dyspec": {"nodes": 6, "depth": 3, "children": 2, "width": 3}}),
    (Static(()), {"static": {"choices": []}}),
  ],
)
def test_a_tree_is_what_was_saved(tmp_path, tree, raw):
  path = tmp_path / "tree.json"
  files.save(path, tree, {"batch": 2})
  assert json.loads(path.read_text()) == raw | {"about": {"batch": 2}}
  loaded = files.load(path)
  assert loaded == tree and type(loaded) is type(tree) and hash(loaded) == hash(tree)
  path.write_text(json.dumps(raw))
  assert build_tree(f"tree[{path}]") == (f"/tree[{path}]", tree)


WORDS = {
  "static-2-1": Static(((0,), (1,), (0, 0), (1, 0))),
  "dynamic-16,depth=5,beam=4": Dynamic(16, 5, 4),
  "beam-9,depth=4,width=3": Beam(9, 4, 3),
  "graph-9,depth=4,beam=3": Graph(9, 4, 3),
  "graph-9,depth=4,beam=3,repeat=2,sibling=0.1": Graph(9, 4, 3, 2, 0.1),
  "iid-1-1": IID(((0,), (0, 0))),
  "without_replacement-2-1": WithoutReplacement(((0,), (1,), (0, 0), (1, 0))),
  "mixed-2": Mixed(((0,), (1,))),
  "stochastic_beam-4,depth=3": StochasticBeam(4, 3),
  "dyspec-4,depth=3,children=2": DySpec(4, 3, 2),
  "dyspec-6,depth=3,children=2,width=3": DySpec(6, 3, 2, 3),
}


def test_every_tree_has_a_name():
  assert {words.split("-")[0] for words in WORDS} == set(TREES)


@pytest.mark.parametrize("words", WORDS)
def test_a_tree_in_words(words):
  _, tree = build_tree(words)
  assert tree == WORDS[words] and type(tree) is type(WORDS[words])


def test_shapes_of_equal_numbers_are_not_equal():
  """Drafters are cached by their tree."""
  assert Dynamic(6, 2, 3) != Beam(6, 2, 3) != Graph(6, 2, 3)
  assert len({Static(((0,),)), IID(((0,),)), Mixed(((0,),)), WithoutReplacement(((0,),))}) == 4
  assert Static([[0], [1]]) == Static(((0,), (1,)))


@pytest.mark.parametrize(
  ("words", "message"),
  [
    ("dynamic-16,depth=5", "it needs beam; accepted is dynamic-NODES,depth=NUMBER,beam=NUMBER"),
    ("dynamic-16", "tree='dynamic-16': it needs depth and beam; accepted is dynamic-NODES,"),
    ("dynamic-16-5-4", "accepted is one number without a name, dynamic-16,depth=5,beam=4"),
    ("iid-2,depth=5", "tree='iid-2,depth=5': accepted is iid-CHILDREN-CHILDREN-"),
    ("without_replacement-2-0", "tree='without_replacement-2-0': a number=0: accepted is a whole"),
    ("dyspec-4-3-2-1-1", "dyspec takes nodes, depth, children, width=0"),
    ("dyspec-4,depth=3,children=2.5", "children of dyspec is a whole number"),
    ("iid", "tree='iid': accepted is iid-CHILDREN-CHILDREN-"),
    ("iid-2-a", "accepted is NAME, NAME-NUMBER or NAME-NUMBER,KEY=NUMBER"),
    ("iid-2-0.5", "a number=0.5: accepted is a whole number"),
    ("stochastic_beam-0,depth=3", "accepted are numbers of 1 or more"),
    ("stochastic-4-3", r"tree='stochastic': did you mean stochastic_beam\? accepted are static"),
    ("16", "tree='16': accepted is NAME"),
    ("graph-9,depth=2,beam=2", r"at most 1 . beam .* = 7"),
    ("eagle-16-5-4", "tree='eagle': accepted are static, dynamic"),
    ("tree[no_such.json]", "'no_such.json' cannot be read: No such file"),
    ("dynamic-4,depth=5,beam=4", "more nodes than depth"),
    ("dynamic-16,depth=0,beam=4", "depth and beam of 1 or more"),
    ("dynamic-99,depth=2,beam=3", "at most 1 .* = 13"),
  ],
)
def test_other_words_are_refused(words, message):
  with pytest.raises(ValueError, match=message):
    build_tree(words)


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("{", "is not JSON"),
    ("[[0]]", "is no JSON object"),
    ("{}", "is no tree: accepted is an object with one of static, dynamic, beam, graph, iid"),
    ('{"choices": [[0]]}', "is no tree"),
    ('{"static": {"choices": [[0]]}, "beam": {}}', "is no tree"),
    ('{"static": true}', "static=True: accepted is an object with choices"),
    ('{"static": {"choices": 3}}', "choices=3: accepted is a list"),
    ('{"static": {"choices": [0]}}', r"choices\[0\]=0: accepted is a list"),
    ('{"static": {"choices": [[0.0]]}}', r"choices\[0\]\[0\]=0.0: accepted is a whole number"),
    ('{"static": {"choices": [[true]]}}', "=True: accepted is a whole number"),
    ('{"static": {"choices": [[0], [1, 0]]}}', r"the path \[1, 0\] but not its parent"),
    ('{"static": {"choices": [[0], []]}}', r"the path \[\]"),
    ('{"iid": {"choices": []}}', "a drawn tree has one path or more"),
    ('{"dynamic": [16, 5, 4]}', "accepted is an object with nodes, depth, beam"),
    ('{"dynamic": {"nodes": 16, "depth": 5}}', "accepted is an object with nodes, depth, beam"),
    ('{"dynamic": {"nodes": "a", "depth": 5, "beam": 4}}', "nodes='a': accepted is a whole number"),
    ('{"dynamic": {"nodes": 4, "depth": 5, "beam": 4}}', "more nodes than depth"),
    ('{"beam": {"nodes": 4, "depth": 5, "width": 1, "beam": 4}}', "has the key 'beam'"),
    ('{"dyspec": {"nodes": 4, "depth": 5, "children": 1, "width": NaN}}', "a whole number"),
  ],
)
def test_a_malformed_file_is_refused(tmp_path, text, message):
  path = tmp_path / "tree.json"
  path.write_text(text)
  with pytest.raises(ValueError, match=message) as error:
    files.load(path)
  assert "tree.json" in str(error.value)
