"""Trees in files and words: what was written is read, and nothing else."""

import json

import pytest

from specjax.trees import files
from specjax.trees.drawn import Drawn
from specjax.trees.frontier import StochasticBeam, Threshold
from specjax.trees.graph import Graph
from specjax.trees.grow import Dynamic
from specjax.trees.paths import Beam


@pytest.mark.parametrize(
  ("tree", "raw"),
  [
    (((0,), (2,), (0, 1)), {"choices": [[0], [2], [0, 1]]}),
    (Dynamic(16, 5, 4), {"dynamic": {"nodes": 16, "depth": 5, "beam": 4}}),
    (Beam(9, 4, 3), {"beam": {"nodes": 9, "depth": 4, "width": 3}}),
    (
      Graph(9, 4, 3, 0),
      {"graph": {"nodes": 9, "depth": 4, "beam": 3, "repeat": 0, "sibling": 0.0, "least": 0.0}},
    ),
    (
      Drawn(((0,), (1,), (0, 0)), "without_replacement"),
      {"without_replacement": [[0], [1], [0, 0]]},
    ),
    (Drawn(((0,),), "iid"), {"iid": [[0]]}),
    (StochasticBeam(4, 3), {"stochastic": {"width": 4, "depth": 3}}),
    (
      Threshold(4, 3, 2, 0.1),
      {"dyspec": {"width": 4, "depth": 3, "children": 2, "least": 0.1}},
    ),
    ((), {"none": True}),
  ],
)
def test_a_tree_is_what_was_saved(tmp_path, tree, raw):
  path = tmp_path / "tree.json"
  files.save(path, tree, {"batch": 2})
  assert json.loads(path.read_text()) == raw | {"about": {"batch": 2}}
  loaded = files.load(path)
  assert loaded == tree and type(loaded) is type(tree) and hash(loaded) == hash(tree)
  path.write_text(json.dumps(raw))
  assert files.parse(str(path)) == tree


@pytest.mark.parametrize(
  ("words", "tree"),
  [
    ("dynamic-16-5-4", Dynamic(16, 5, 4)),
    ("beam-9-4-3", Beam(9, 4, 3)),
    ("graph-9-4-3", Graph(9, 4, 3)),
    ("without_replacement-2-1", Drawn(((0,), (1,), (0, 0), (1, 0)), "without_replacement")),
    ("mixed-2", Drawn(((0,), (1,)), "mixed")),
    ("stochastic-4-3", StochasticBeam(4, 3)),
    ("dyspec-4-3-2", Threshold(4, 3, 2)),
  ],
)
def test_a_tree_in_words(words, tree):
  assert files.recognises(words)
  assert files.parse(words) == tree and type(files.parse(words)) is type(tree)


@pytest.mark.parametrize(
  ("words", "message"),
  [
    ("dynamic-16-5", "tree='dynamic-16-5': accepted is FILE.json, dynamic-NODES-DEPTH-BEAM"),
    ("without_replacement-2-0", "widths=.2, 0.: accepted are numbers of 1 or more"),
    ("dyspec-4-3-2-1", "accepted is FILE.json"),
    ("stochastic-0-3", "accepted are numbers of 1 or more"),
    ("16", "tree='16': accepted is FILE.json"),
    ("graph-9-2-2", r"at most 1 . beam .* = 7"),
    ("eagle-16-5-4", "accepted is FILE.json"),
    ("no_such.json", "tree='no_such.json': there is no such file"),
    ("dynamic-4-5-4", "more nodes than depth"),
    ("dynamic-16-0-4", "depth and beam of 1 or more"),
    ("dynamic-99-2-3", "at most 1 .* = 13"),
  ],
)
def test_other_words_are_refused(words, message):
  with pytest.raises(ValueError, match=message):
    files.parse(words)


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("{", "is not JSON"),
    ("[[0]]", "is no tree: expected an object with one of choices, dynamic, beam, graph, stoch"),
    ("{}", "is no tree"),
    ('{"choices": [[0]], "none": true}', "is no tree"),
    ('{"none": false}', "none=false: accepted is true"),
    ('{"choices": 3}', "choices=3: accepted are lists of ranks"),
    ('{"choices": [0]}', r"choices=\[0\]: accepted are lists of ranks"),
    ('{"choices": [[0.0]]}', "accepted are lists of ranks"),
    ('{"choices": [[true]]}', "accepted are lists of ranks"),
    ('{"choices": [[0], [1, 0]]}', r"the path \[1, 0\] but not its parent"),
    ('{"choices": [[0], []]}', r"the path \[\]"),
    ('{"dynamic": [16, 5, 4]}', "accepted are the numbers nodes, depth, beam"),
    ('{"dynamic": {"nodes": 16, "depth": 5}}', "accepted are the numbers nodes, depth, beam"),
    ('{"dynamic": {"nodes": "a", "depth": 5, "beam": 4}}', "accepted are the numbers"),
    ('{"dynamic": {"nodes": 4, "depth": 5, "beam": 4}}', "more nodes than depth"),
    ('{"beam": {"nodes": 4, "depth": 5, "beam": 4}}', "accepted are the numbers nodes, depth, w"),
  ],
)
def test_a_malformed_file_is_refused(tmp_path, text, message):
  path = tmp_path / "tree.json"
  path.write_text(text)
  with pytest.raises(ValueError, match=message) as error:
    files.load(path)
  assert "tree.json" in str(error.value)
