"""Our schemas are sound, and the engine takes them."""

import json

import jsonschema
import pytest

from specjax.data.json_schemas import BY_HAND, KINDS, published, samples
from specjax.names.load import load
from specjax.processors.matchers import Matchers
from specjax.processors.schemas import LEAST, of_json_schema


def test_samples_are_schemas():
  model = load()
  matchers = Matchers(model.tokenizer, model.config.vocab_size, model.stop)
  made = samples(30)
  assert made == samples(30) and samples(3) == made[:3] and made[6:] != samples(30, 1)[6:]
  assert {x.kind for x in made} == {"by hand", *KINDS} and len(made) == 30 > len(BY_HAND)
  for sample in made:
    jsonschema.Draft202012Validator.check_schema(sample.schema)
    assert of_json_schema(sample.schema, matchers).shape == (LEAST,)
    assert all(name in sample.prompt for name in sample.schema["properties"])


def test_published_schemas_are_read_in_both_layouts(tmp_path):
  files = {"Easy/b": {"type": "object"}, "Easy/a": {"enum": [1]}, "Hard/c": {"type": "null"}}
  for name, schema in files.items():
    (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "data" / f"{name}.json").write_text(json.dumps(schema))
  found = published(str(tmp_path))
  assert [x.kind for x in found] == ["Easy", "Easy", "Hard"]
  assert [x.schema | {"x-guidance": 0} for x in found] == [
    files[name] | {"x-guidance": 0} for name in ("Easy/a", "Easy/b", "Hard/c")
  ]
  lines = [{"json_schema": json.dumps(x), "unique_id": name} for name, x in files.items()]
  (tmp_path / "Mixed.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
  same = published(str(tmp_path / "Mixed.jsonl"))
  assert {x.kind for x in same} == {"Mixed"}
  assert [x[1:] for x in same] == [found[i][1:] for i in (1, 0, 2)]
  assert json.dumps(files["Easy/a"]) in found[0].prompt


@pytest.mark.parametrize("name, text, said", [
  ("none.txt", "x", "`published` must be a directory with files"),
  ("a.json", "[1]", "`json_schema` must be an object, got"),
  ("a.json", "{", "a.json is not JSON"),
])  # fmt: skip
def test_what_is_no_schema_is_refused(tmp_path, name, text, said):
  (tmp_path / name).write_text(text)
  with pytest.raises(ValueError, match=said):
    published(str(tmp_path))
