"""ParallelBench's own layout: records written here in the published form, read and judged."""

import json

import pytest

from specjax.data.parallelbench import is_right, read

NAMES = ["Ann Roe", "Bob Poe", "Cy Doe"]


def line(label, **more) -> str:
  turns = [("user", "an example"), ("assistant", "its answer"), ("user", "the question")]
  messages = [{"role": role, "content": text} for role, text in turns]
  return json.dumps({"messages": messages, "label": label, **more})


CASES = [  # file, label, right answers, wrong ones
  ("waiting_line/copy.jsonl", json.dumps(NAMES),
   [json.dumps(NAMES), "Sure [here]:\n" + json.dumps(NAMES) + "."],
   ["", "Ann Roe, Bob Poe, Cy Doe", json.dumps(NAMES[::-1]), "[Ann]", "[1, 2]"]),
  ("samples_parallelbench_waiting_line_shuffle.jsonl", {"input": NAMES},
   ['["Cy Doe", "Bob Poe", "Ann Roe"]'], [json.dumps(NAMES), '["Cy Doe", "Bob Poe"]']),
  ("samples_parallelbench_waiting_line_replace_random.jsonl", {"input": NAMES, "word": "Di Moe"},
   ['["Ann Roe", "Di Moe", "Cy Doe"]'], [json.dumps(NAMES), '["Di Moe", "Di Moe", "Cy Doe"]']),
  ("waiting_line_remove_random.jsonl", {"input": NAMES}, ['["Ann Roe", "Cy Doe"]'], ["[]"]),
  ("puzzles_latin_square_n4.jsonl", {"symbols": ["A", "B", "C", "4"]},
   ["A,B,C,4\nB,A,4,C\nC,4,A,B\n4,C,B,A"], ["A,B,C,4\n" * 4, "A,B,C,4", ""]),
  ("puzzles_sudoku_n4.jsonl", "1,2\n2,1", ["1,2\n2,1\n"], ["2,1\n1,2"]),
  ("text_writing_words_to_sentence_easy.jsonl", {"words": ["dog", "park"]},
   ["The dog runs in the Park."], ["The dog runs."]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "label", "right", "wrong"), CASES, ids=[c[0] for c in CASES])
def test_answers_are_judged(tmp_path, name, label, right, wrong):
  file = tmp_path / name
  file.parent.mkdir(exist_ok=True)
  file.write_text(line(label) + "\n")
  (record,) = read(file)
  assert record.messages[-1]["content"] == "the question"
  assert [is_right(record, answer) for answer in right] == [True] * len(right)
  assert [is_right(record, answer) for answer in wrong] == [False] * len(wrong)


def test_a_directory_is_read_whole_and_records_may_be_wrapped(tmp_path):
  (tmp_path / "waiting_line").mkdir()
  wrapped = json.dumps({"doc": json.loads(line(json.dumps(NAMES)))})
  (tmp_path / "waiting_line" / "copy.jsonl").write_text(wrapped + "\n\n" + wrapped)
  (tmp_path / "waiting_line" / "shuffle.jsonl").write_text(line({"input": NAMES}))
  (tmp_path / "text_writing_paraphrasing.jsonl").write_text(line({"input": "no names"}))
  assert [r.task for r in read(tmp_path)] == ["copy", "copy", "shuffle"]


@pytest.mark.parametrize(
  ("name", "text", "problem"),
  [
    ("waiting_line_fold.jsonl", line("[]"), "ends with none of copy"),
    ("text_writing_paraphrasing.jsonl", line("[]"), "ends with none of copy"),
    ("waiting_line_copy.jsonl", "{", "copy.jsonl:1 is not JSON"),
    ("waiting_line_copy.jsonl", '{"messages": []}', "expected an object with `messages`"),
    ("waiting_line_copy.jsonl", line("no list"), "label='no list': accepted is a list of names"),
    ("puzzles_latin_square_n4.jsonl", line("A,B"), "the `label` of latin_square_n4"),
    ("words_to_sentence_easy.jsonl", line("dog"), "the `label` of words_to_sentence_easy"),
    ("other.txt", "", "no .jsonl file there"),
  ],
)
def test_what_is_no_record_is_refused(tmp_path, name, text, problem):
  (tmp_path / name).write_text(text)
  with pytest.raises(ValueError, match=problem):
    read(tmp_path if name.endswith(".txt") else tmp_path / name)
