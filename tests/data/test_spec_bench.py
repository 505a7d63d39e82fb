"""Spec-Bench's questions: what is read, and what a limit takes."""

import collections
import json

import numpy as np
import pytest

from specjax.data import spec_bench
from specjax.data.spec_bench import Question


def test_the_published_file_has_six_categories_of_eighty(shared_data):
  asked = spec_bench.read(str(shared_data / "spec_bench.jsonl"))
  assert collections.Counter(q.category for q in asked) == dict.fromkeys(
    ("MT-Bench", "translation", "summarization", "QA", "math", "RAG"), 80
  )
  assert all(len(q.turns) == (2 if q.category == "MT-Bench" else 1) for q in asked)


@pytest.mark.parametrize(
  ("sizes", "limit", "shares"),
  [
    ({"MT-Bench": 80, "QA": 80, "RAG": 80}, 6, {"MT-Bench": 2, "QA": 2, "RAG": 2}),
    ({"MT-Bench": 80, "QA": 80, "RAG": 80}, 8, {"MT-Bench": 3, "QA": 3, "RAG": 2}),
    ({"MT-Bench": 1, "QA": 80, "RAG": 3}, 12, {"MT-Bench": 1, "QA": 8, "RAG": 3}),
    ({"MT-Bench": 2, "QA": 1}, None, {"MT-Bench": 2, "QA": 1}),
    ({"MT-Bench": 2, "QA": 1}, 99, {"MT-Bench": 2, "QA": 1}),
    ({"MT-Bench": 2, "QA": 1}, 1, {"MT-Bench": 1}),
  ],
)
def test_a_limit_takes_evenly(sizes, limit, shares):
  asked = [Question(i, c, ("x",)) for c, n in sizes.items() for i in range(n)]
  taken = spec_bench.evenly(asked[::-1], limit)
  assert collections.Counter(q.category for q in taken) == shares
  assert len(set(taken)) == len(taken)


def test_a_limit_asks_each_subject():
  asked = [Question(i, "MT-Bench", (name,)) for i, name in enumerate(np.repeat([*"abcdefgh"], 10))]
  assert "".join(q.turns[0] for q in spec_bench.evenly(asked, 8)) == "abcdefgh"


@pytest.mark.parametrize(
  ("record", "words"),
  [
    ({"turns": ["x"]}, "record 1 lacks 'category'"),
    ({"category": "qa"}, "record 1 lacks 'turns'"),
    (
      {"category": "poem", "turns": ["x"]},
      r"`category` must be one of writing, roleplay, reasoning.*got 'poem'\.",
    ),
    ({"category": "qa", "turns": "x"}, r"`turns` must be a list of texts, got 'x'\."),
    (
      {"category": "qa", "turns": [""]},
      r"`turns` must be a list of texts that are not empty, got \[''\]\.",
    ),
    ({"category": "qa", "turns": []}, r"`turns` must be a list of one text or more, got \[\]\."),
  ],
)
def test_a_bad_record_is_named(tmp_path, record, words):
  (tmp_path / "bad.jsonl").write_text(json.dumps(record) + "\n")
  with pytest.raises(ValueError, match=words):
    spec_bench.read(str(tmp_path / "bad.jsonl"))
