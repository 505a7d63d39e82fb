"""Operations on lists: drawn answers are right, others are not."""

import collections

import numpy as np
import pytest

from specjax.data.lists import KNOWN, NAMES, TASKS, Question, ask, is_right, parse, records

ITEMS = ("Ann", "Bob", "Cy", "Dee")
RIGHT = {
  "copy": ["Ann Bob Cy Dee"],
  "sort": ["Ann Bob Cy Dee"],
  "reverse": ["Dee Cy Bob Ann"],
  "shuffle": ["Bob Ann Cy Dee", "Dee Cy Bob Ann"],
  "replace_index": ["Ann Kim Cy Dee"],
  "insert_index": ["Ann Kim Bob Cy Dee"],
  "remove_index": ["Ann Cy Dee"],
  "replace_random": ["Kim Bob Cy Dee", "Ann Bob Cy Kim"],
  "insert_random": ["Kim Ann Bob Cy Dee", "Ann Bob Cy Dee Kim"],
  "remove_random": ["Bob Cy Dee", "Ann Bob Cy"],
  "latin_square": ["Ann Bob Cy Dee Bob Ann Dee Cy Cy Dee Ann Bob Dee Cy Bob Ann"],
  "sentence": ["Bob met Ann and Dee and Cy", "Cy and Ann and Bob called Dee"],
}
WRONG = {
  "copy": ["Ann Bob Cy", "Bob Ann Cy Dee", ""],
  "sort": ["Dee Cy Bob Ann"],
  "reverse": ["Ann Bob Cy Dee"],
  "shuffle": ["Ann Bob Cy Dee", "Bob Bob Cy Dee", "Bob Ann Cy"],
  "replace_index": ["Kim Bob Cy Dee", "Ann Kim Bob Cy Dee"],
  "insert_index": ["Ann Bob Kim Cy Dee", "Ann Kim Cy Dee"],
  "remove_index": ["Bob Cy Dee", "Ann Bob Cy Dee"],
  "replace_random": ["Ann Bob Cy Dee", "Kim Kim Cy Dee"],
  "insert_random": ["Ann Bob Cy Dee", "Kim Ann Bob Cy Dee Kim"],
  "remove_random": ["Ann Bob Cy Dee", "Ann Bob"],
  "latin_square": [
    "Ann Bob Cy Dee Ann Bob Cy Dee Ann Bob Cy Dee Ann Bob Cy Dee",
    "Ann Bob Cy Dee Bob Ann Dee Cy Cy Dee Ann Bob",
    "",
    "Ann Bob Cy Dee Bob Ann Dee Cy Cy Dee Ann Bob Dee Cy Bob Ann Ann Bob Cy Dee",
  ],
  "sentence": [
    "Bob met Ann and Dee and Dee",
    "Bob met Ann met Dee and Cy",
    "Bob and Ann and Dee and Cy",
    "Bob met Ann and Dee",
    "met Bob and Ann and Dee and Cy",
    "Bob met Ann Dee and Cy",
    "",
  ],
}


@pytest.mark.parametrize("task", KNOWN)
def test_what_is_right(task):
  kind = KNOWN[task]
  question = Question(task, ITEMS, "Kim" if kind.needs_word else "", 2 if kind.needs_index else 0)
  for answer in RIGHT[task]:
    assert kind.right(question, answer.split()), answer
  for answer in WRONG[task]:
    assert not kind.right(question, answer.split()), answer


@pytest.mark.parametrize("task", KNOWN)
def test_drawn_answers_are_right_and_questions_can_be_read_back(task):
  rng = np.random.default_rng(0)
  for length in (2, 3, 6, 15):
    question = ask(rng, task, length)
    assert parse(question.text) == question
    answer = " ".join(KNOWN[task].answer(rng, question))
    assert is_right(question.text, answer)
    assert len(set(question.items)) == length and question.word not in question.items


def test_random_answers_are_equally_likely():
  rng = np.random.default_rng(0)
  question = Question("replace_random", ITEMS, "Kim")
  count = collections.Counter(
    tuple(TASKS["replace_random"].answer(rng, question)) for _ in range(4000)
  )
  assert len(count) == 4 and all(abs(n - 1000) < 150 for n in count.values())


def test_records_take_turns_and_repeat_with_their_seed():
  made = records(3, 80)
  assert made == records(3, 80) != records(4, 80)
  assert collections.Counter(parse(r["question"]).task for r in made) == dict.fromkeys(TASKS, 8)
  assert {len(parse(r["question"]).items) for r in made} == {3, 4, 5, 6}
  assert len({r["question"] for r in made}) == 80


@pytest.mark.parametrize("text", ["copy Ann Bob =", "fold : Ann Bob =", "copy : Ann Bob"])
def test_no_question(text):
  with pytest.raises(ValueError, match=r"`question` must be .*, got '(copy|fold) "):
    is_right(text, "Ann")


def test_an_unknown_task():
  with pytest.raises(
    ValueError, match=(r"`tasks` must be one of copy, sort, reverse, shuffle.*got 'fold'\.")
  ):
    records(0, 1, tasks=("fold",))


def test_names_are_single_words():
  assert len(set(NAMES)) == len(NAMES) >= 60
  assert all(name.isalpha() for name in NAMES)
