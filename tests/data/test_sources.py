"""JSONL files and TFDS datasets are one kind of source; what is wrong with one is said plainly."""

import io
import json
import pathlib
import sys

import pytest

from specjax.data.sources import open_source, text_of

RECORDS = [{"question": f"What is {i} + {i}? é", "answer": f"{2 * i}\u2028."} for i in range(40)]


def write_jsonl(path: pathlib.Path, records) -> pathlib.Path:
  lines = [json.dumps(r, ensure_ascii=False) for r in records]
  path.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
  return path


@pytest.fixture(scope="module")
def tfds_directory(tmp_path_factory):
  """A TFDS dataset built from a JSONL file, without a network and without TensorFlow."""
  tfds = pytest.importorskip("tensorflow_datasets")
  root = tmp_path_factory.mktemp("tfds")
  file = write_jsonl(root / "questions.jsonl", RECORDS)

  class Questions(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
      text = tfds.features.Text()
      features = tfds.features.FeaturesDict({"question": text, "answer": text})
      return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
      return {"train": self._generate_examples()}

    def _generate_examples(self):
      source = open_source(str(file))
      yield from ((i, source[i]) for i in range(len(source)))

  builder = Questions(data_dir=root, file_format="array_record")
  builder.download_and_prepare()
  return str(builder.data_dir)


def test_jsonl_gives_every_record_at_any_index(tmp_path):
  source = open_source(str(write_jsonl(tmp_path / "a.jsonl", RECORDS)))
  assert len(source) == len(RECORDS)
  assert [source[i] for i in reversed(range(len(source)))] == RECORDS[::-1]
  assert list(source) == RECORDS


def test_tfds_gives_the_records_it_was_built_from(tfds_directory):
  source = open_source(f"tfds:{tfds_directory}:train")
  assert sorted(source, key=lambda r: RECORDS.index(r)) == RECORDS
  assert source[7] == source[7]
  half = open_source(f"tfds:{tfds_directory}:train[:50%]")
  assert list(half) == list(source)[:20]
  assert "tensorflow" not in sys.modules


def test_tfds_without_the_split_is_refused(tfds_directory):
  with pytest.raises(ValueError, match=r"data='tfds:.*:test': TFDS could not provide it"):
    open_source(f"tfds:{tfds_directory}:test")


@pytest.mark.parametrize("name", ["no_such_dataset", "{tmp_path}"])
def test_tfds_that_cannot_be_built_is_one_sentence(name, tmp_path):
  pytest.importorskip("tensorflow_datasets")
  spec = f"tfds:{name.format(tmp_path=tmp_path)}:train"
  with pytest.raises(ValueError, match=r"^data='tfds:.*': TFDS could not provide it") as caught:
    open_source(spec)
  assert "\n" not in str(caught.value)


def test_tfds_knows_the_catalogue_of_texts():
  pytest.importorskip("tensorflow_datasets")
  with pytest.raises(ValueError):
    open_source("tfds:no_such_dataset:train")
  import tensorflow_datasets as tfds

  assert "gsm8k" in tfds.list_builders(with_community_datasets=False)


def test_tfds_that_is_not_installed_says_how(monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
  with pytest.raises(ValueError, match=r"pip install 'specjax\[tfds\]'"):
    open_source("tfds:gsm8k:train")


@pytest.mark.parametrize("spec", ["tfds:gsm8k", "tfds:gsm8k:", "tfds::train"])
def test_tfds_spec_without_name_or_split_is_refused(spec):
  with pytest.raises(ValueError, match="expected tfds:NAME:SPLIT"):
    open_source(spec)


def test_unknown_file_is_refused():
  with pytest.raises(
    ValueError, match=(r"`data` must be a \.jsonl file, tfds:NAME:SPLIT or lists:SEED:COUNT\.")
  ):
    open_source("no.jsonl")


def test_empty_file_is_refused(tmp_path):
  (tmp_path / "a.jsonl").write_text("\n\n")
  with pytest.raises(ValueError, match=r"a\.jsonl' holds no records"):
    open_source(str(tmp_path / "a.jsonl"))


@pytest.mark.parametrize(
  ("line", "words"),
  [
    (b'{"text": "cut', "record 2 is not JSON"),
    (b'{"text": "\xff\xfe"}', "record 2 is not JSON"),
    (b'["a list"]', "record 2 is not an object"),
  ],
)
def test_malformed_line_names_file_and_record(tmp_path, line, words):
  path = tmp_path / "a.jsonl"
  path.write_bytes(b'{"text": "fine"}\n' + line + b'\n{"text": "fine"}\n')
  source = open_source(str(path))
  assert source[0] == source[2] == {"text": "fine"}
  with pytest.raises(ValueError, match=rf"a\.jsonl: {words}"):
    source[1]


@pytest.mark.parametrize("record", [{"title": "x", "n": 3}, {"title": "x", "question": 7}])
def test_missing_field_names_field_and_record(record):
  with pytest.raises(ValueError, match=r"record 5 has no text in field 'question'.*: title"):
    text_of(record, "question", 4)


def test_a_dash_is_the_standard_input(monkeypatch):
  lines = io.TextIOWrapper(io.BytesIO(b'{"question": "a"}\n\n{"question": "b"}\n'))
  monkeypatch.setattr("sys.stdin", lines)
  source = open_source("-")
  assert [record["question"] for record in source] == ["a", "b"]
