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
    (
      "dynamic-16,depth=5",
      "tree='dynamic-16,depth=5': it needs beam, as in "
      r"dynamic-NODES,depth=NUMBER,beam=NUMBER\.",
    ),
    (
      "dynamic-16",
      "tree='dynamic-16': it needs depth and beam, as in "
      r"dynamic-NODES,depth=NUMBER,beam=NUMBER\.",
    ),
    (
      "dynamic-16-5-4",
      r"`tree` must have one number without a name, as in.*got 'dynamic-16-5-4'\.",
    ),
    ("iid-2,depth=5", r"`tree` must be iid-CHILDREN-CHILDREN-\.\., got 'iid-2,depth=5'\."),
    (
      "without_replacement-2-0",
      r"tree='without_replacement-2-0': a number must be between 1 and 2147483647, got 0\.",
    ),
    ("dyspec-4-3-2-1-1", "dyspec takes nodes, depth, children, width=0"),
    ("dyspec-4,depth=3,children=2.5", r"`children` must be a whole number, got 2\.5\."),
    ("iid", r"`tree` must be iid-CHILDREN-CHILDREN-\.\., got 'iid'\."),
    ("iid-2-a", r"`tree` must be NAME, NAME-NUMBER or.*got 'iid-2-a'\."),
    (
      "iid-2-0.5",
      r"tree='iid-2-0\.5': a number must be a whole number between 1 and 2147483647, got "
      r"0\.5\.",
    ),
    (
      "stochastic_beam-0,depth=3",
      r"`tree` must have numbers of at least 1, got StochasticBeam\(width=0, depth=3\)\.",
    ),
    (
      "stochastic-4-3",
      r"`tree` must be a name that `specjax list` shows, got 'stochastic' \(did you mean "
      r"stochastic_beam\?\)\.",
    ),
    ("16", r"`tree` must be NAME, NAME-NUMBER or.*got '16'\."),
    ("graph-9,depth=2,beam=2", r"at most 1 . beam .* = 7"),
    ("eagle-16-5-4", r"`tree` must be one of static, dynamic, beam, graph, iid.*got 'eagle'\."),
    ("tree[no_such.json]", "'no_such.json' cannot be read: No such file"),
    ("dynamic-4,depth=5,beam=4", "more nodes than depth"),
    (
      "dynamic-16,depth=0,beam=4",
      r"`tree` must have depth and beam of at least 1, and more.*got Dynamic\(nodes=16, "
      r"depth=0, beam=4\)\.",
    ),
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
    ("{}", "is no tree: it must be an object with one of static, dynamic, beam, graph, iid,"),
    ('{"choices": [[0]]}', "is no tree"),
    ('{"static": {"choices": [[0]]}, "beam": {}}', "is no tree"),
    ('{"static": true}', r"`static` must be an object with choices, got True\."),
    ('{"static": {"choices": 3}}', r"`choices` must be a list, got 3\."),
    ('{"static": {"choices": [0]}}', r"`choices\[0\]` must be a list, got 0\."),
    (
      '{"static": {"choices": [[0.0]]}}',
      r"`choices\[0\]\[0\]` must be a whole number between 0 and 2147483647, got 0\.0\.",
    ),
    (
      '{"static": {"choices": [[true]]}}',
      r"`choices\[0\]\[0\]` must be a whole number between 0 and 2147483647, got True\.",
    ),
    ('{"static": {"choices": [[0], [1, 0]]}}', r"the path \[1, 0\] but not its parent"),
    (
      '{"static": {"choices": [[0], []]}}',
      r"`choices` must be paths of one or more ranks of at least 0, got \[\]\.",
    ),
    ('{"iid": {"choices": []}}', r"`choices` must be at least one path, got \(\)\."),
    ('{"dynamic": [16, 5, 4]}', r"must be an object with nodes, depth, beam, got \[16"),
    ('{"dynamic": {"nodes": 16, "depth": 5}}', "must be an object with nodes, depth, beam, got {"),
    (
      '{"dynamic": {"nodes": "a", "depth": 5, "beam": 4}}',
      r"`nodes` must be a whole number between 0 and 2147483647, got 'a'\.",
    ),
    ('{"dynamic": {"nodes": 4, "depth": 5, "beam": 4}}', "more nodes than depth"),
    (
      '{"beam": {"nodes": 4, "depth": 5, "width": 1, "beam": 4}}',
      r"beam: a key must be one of nodes, depth, width, got 'beam'\.",
    ),
    ('{"dyspec": {"nodes": 4, "depth": 5, "children": 1, "width": NaN}}', "a whole number"),
  ],
)
def test_a_malformed_file_is_refused(tmp_path, text, message):
  path = tmp_path / "tree.json"
  path.write_text(text)
  with pytest.raises(ValueError, match=message) as error:
    files.load(path)
  assert "tree.json" in str(error.value)
