"""ParallelBench's own layouts: records written here in the published forms, read and judged."""

import json

import pytest

from specjax.data.parallelbench import read
from specjax.data.parallelbench_score import Score, score

NAMES = ["Ann Roe", "Bob Poe", "Cy Doe"]
STRICT, LENIENT, WRONG = Score(True, True), Score(True, False), Score(False, False)


def line(label, **more) -> str:
  turns = [("user", "an example"), ("assistant", "its answer"), ("user", "the question")]
  messages = [{"role": role, "content": text} for role, text in turns]
  return json.dumps({"messages": messages, "label": label, **more})


SQUARE = ["A,B,C,4", "B,A,4,C", "C,4,A,B", "4,C,B,A"]
SPACED = [row.replace(",", " , ") for row in SQUARE]
CASES = [  # file, label, answers by their score
  ("waiting_line/copy.jsonl", json.dumps(NAMES), {
    STRICT: [json.dumps(NAMES), "Sure [here]:\n" + json.dumps(NAMES) + ".",
             '["x"] or ["Ann Roe", "Bob Poe", "Cy Doe"] as "said"'],
    LENIENT: ["Ann Roe, Bob Poe, Cy Doe", "[Ann Roe,Bob Poe,Cy Doe]",
              '["Ann Roe","Bob Poe" ,"Cy Doe",]',
              '["Ann Roe", "Bob Poe", "Cy Doe"', '"Ann Roe", "Bob Poe", "Cy Doe"] done'],
    WRONG: ["", json.dumps(NAMES[::-1]), json.dumps(NAMES).lower(), "[Ann]", "[1, 2]",
            "Here: Ann Roe, Bob Poe, Cy Doe", '["Ann Roe",\n"Bob Poe", "Cy Doe"]'],
  }),
  ("samples_parallelbench_waiting_line_shuffle.jsonl", {"input": NAMES}, {
    STRICT: ['["Cy Doe", "Bob Poe", "Ann Roe"]'], LENIENT: ["[Cy Doe, Bob Poe, Ann Roe]"],
    WRONG: [json.dumps(NAMES), '["Cy Doe", "Bob Poe"]'],
  }),
  ("samples_parallelbench_waiting_line_replace_random.jsonl", {"input": NAMES, "word": "Di Moe"}, {
    STRICT: ['["Ann Roe", "Di Moe", "Cy Doe"]'], LENIENT: ["Ann Roe, Di Moe, Cy Doe"],
    WRONG: [json.dumps(NAMES), '["Di Moe", "Di Moe", "Cy Doe"]'],
  }),
  ("waiting_line_n15/insert_random.jsonl", {"input": NAMES, "word": "Di Moe"}, {
    STRICT: ['["Ann Roe", "Bob Poe", "Cy Doe", "Di Moe"]'], WRONG: [json.dumps(NAMES)],
  }),
  ("waiting_line_remove_random.jsonl", {"input": NAMES}, {
    STRICT: ['["Ann Roe", "Cy Doe"]'], LENIENT: ["[Ann Roe, Cy Doe]"], WRONG: ["[]"],
  }),
  ("puzzles_latin_square_n4.jsonl", {"symbols": ["A", "B", "C", "4"]}, {
    STRICT: ["\n".join(SQUARE), "\n\n".join(SPACED),
             "A square:\n\n" + "\n".join(SQUARE) + "\nthat is all",
             "```csv\n" + "\n".join(SQUARE) + "\n```", "\n".join([*SQUARE, SQUARE[0]]),
             "\n".join([*SQUARE[:3], "4,C,B,A,A"])],  # the published program takes the last one too
    WRONG: ["A,B,C,4\n" * 4, "A,B,C,4", "", ",".join(SQUARE), "\n".join(SQUARE).lower(),
            "\n".join([*SQUARE[:3], "4,C,B"]), "\n".join([SQUARE[0], *SQUARE])],
  }),
  ("puzzles_sudoku_n4.jsonl", "1234\n3412\n2143\n4321", {
    STRICT: ["1234\n3412\n2143\n4321", " 1234\n\n3412 \n2143\n4321\n"],
    LENIENT: ["1,2,3,4\n3,4,1,2\n2,1,4,3\n4,3,2,1", "Solved:\n1 2 3 4\n3412\n| 2143 |\n4321"],
    WRONG: ["1234\n3412\n2143\n4312", "1234\n3412\n2143", "1234 3412 2143 4321", ""],
  }),
  ("puzzle/sudoku_n4_12.jsonl", "12\n21", {STRICT: ["12\n21"], WRONG: ["21\n12"]}),
  ("text_writing_words_to_sentence_easy.jsonl", {"words": ["dog", "park"]}, {
    STRICT: ["The dog runs in the park."], WRONG: ["The dog runs.", "The dog runs in the Park."],
  }),
  ("text_writing/words_to_sentence_hard_n1.jsonl", {"words": ["dog"]}, {STRICT: ["dogs"]}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "label", "answers"), CASES, ids=[c[0] for c in CASES])
def test_answers_are_judged(tmp_path, name, label, answers):
  file = tmp_path / name
  file.parent.mkdir(exist_ok=True)
  file.write_text(line(label) + "\n")
  (record,) = read(file)
  assert record.messages[-1]["content"] == "the question" and record.task in name
  got = {said: score(record.kind, record.label, said) for each in answers.values() for said in each}
  assert got == {said: wanted for wanted, each in answers.items() for said in each}


SORT = {
  "input": {"names": '["b", "a"]', "where": "the hall",
            "icl_examples": [{"input": {"names": "[d, c]", "where": "x"}, "answer": "[c, d]"}]},
  "answer": '["a", "b"]', "output_format": None, "metadata": {"length": 2},
}  # fmt: skip
PROMPT = "Sort {names} in {where}.\\nOnly the list."
ASKED = [
  {"role": "user", "content": "Sort [d, c] in x.\nOnly the list."},
  {"role": "assistant", "content": "[c, d]"},
  {"role": "user", "content": 'Sort ["b", "a"] in the hall.\nOnly the list.'},
]
YAML = (
  "waiting_line/copy:\n  prompt: no\nwaiting_line/sort:\n  type: sort\n  prompt: '" + PROMPT + "'\n"
)


@pytest.mark.parametrize("form", ["older", "hub"])
def test_records_whose_prompt_is_filled(tmp_path, form):
  """The prompt is the folder's, or the record's, whose values may be JSON texts."""
  if form == "older":
    (tmp_path / "task_config.yaml").write_text(YAML)
    raw = SORT
  else:
    texts = {key: json.dumps(SORT[key]) for key in ("input", "answer", "metadata")}
    raw = SORT | texts | {"prompt": PROMPT, "metric": "list_match_score"}
  (tmp_path / "sort.jsonl").write_text(json.dumps(raw) + "\n")
  (record,) = read(tmp_path)
  assert record.messages == ASKED
  assert score(record.kind, record.label, "[a, b]") == LENIENT


def test_an_example_with_many_answers(tmp_path):
  example = {"input": {"size": 2}, "answer": {"symbols": ["A", "B"], "example": "A,B\nB,A"}}
  raw = {"prompt": "Size {size}.", "input": {"size": 2, "icl_examples": [example]},
         "answer": {"symbols": ["C", "D"], "example": "C,D\nD,C"}}  # fmt: skip
  (tmp_path / "latin_square_n4.jsonl").write_text(json.dumps(raw))
  (record,) = read(tmp_path)
  assert [turn["content"] for turn in record.messages] == ["Size 2.", "A,B\nB,A", "Size 2."]
  assert score(record.kind, record.label, "D,C\nC,D") == STRICT


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
    (
      "waiting_line_copy.jsonl",
      line("no list"),
      r"`label` must be a list of names, got 'no list'\.",
    ),
    ("puzzles_latin_square_n4.jsonl", line("A,B"), "the `label` of latin_square_n4"),
    (
      "puzzles_sudoku_n4.jsonl",
      line("1,2\n2,1"),
      r"`label` must be n lines of n digits, got '1,2\\n2,1'\.",
    ),
    ("sort.jsonl", json.dumps(SORT), "lacks 'prompt', and no task_config.yaml"),
    ("sort.jsonl", json.dumps(SORT | {"prompt": "{who}"}), "input lacks 'who'"),
    ("sort.jsonl", json.dumps(SORT | {"prompt": 7}), r"`prompt` must be text, got 7\."),
    (
      "sort.jsonl",
      json.dumps(SORT | {"prompt": "x", "input": "x"}),
      r"`input` must be an object, got 'x'\.",
    ),
    (
      "sort.jsonl",
      json.dumps(SORT | {"prompt": "x", "input": {"icl_examples": ["x"]}}),
      r"`icl_examples` must be an object with `input` and `answer`, got 'x'\.",
    ),
    ("words_to_sentence_easy.jsonl", line("dog"), "the `label` of words_to_sentence_easy"),
    ("other.txt", "", "no .jsonl file there"),
  ],
)
def test_what_is_no_record_is_refused(tmp_path, name, text, problem):
  (tmp_path / name).write_text(text)
  with pytest.raises(ValueError, match=problem):
    read(tmp_path if name.endswith(".txt") else tmp_path / name)


def test_a_file_of_prompts_that_is_no_yaml(tmp_path):
  (tmp_path / "task_config.yaml").write_text("a: [")
  (tmp_path / "sort.jsonl").write_text(json.dumps(SORT))
  with pytest.raises(ValueError, match=r"task_config\.yaml is not YAML"):
    read(tmp_path)
