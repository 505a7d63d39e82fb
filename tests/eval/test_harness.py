"""lm-evaluation-harness's own loop asks our decoders the questions of a file."""

import json
import pathlib

import pytest

lm_eval = pytest.importorskip("lm_eval")

from cut import cut  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

import specjax  # noqa: E402
from specjax.eval import likelihood, metrics  # noqa: E402
from specjax.eval.harness import Harness  # noqa: E402

GENERATE = """
task: our_sums
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 24}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
CHOOSE = """
task: our_choices
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{right}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture(scope="module")
def causal():
  return cut()


@pytest.fixture(scope="module")
def denoiser():
  return specjax.load("lists-3m")


def evaluate(harness, folder, task, text, records, monkeypatch):
  monkeypatch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
  file = folder / "questions.jsonl"
  file.write_text("".join(json.dumps(record) + "\n" for record in records))
  (folder / f"{task}.yaml").write_text(text.replace("FILE", str(file)))
  manager = TaskManager(include_path=str(folder), include_defaults=False)
  found = lm_eval.simple_evaluate(harness, tasks=[task], task_manager=manager, bootstrap_iters=0)
  return found["results"][task]


def ask(kind, *arguments):
  return [Instance(kind, {}, each, i) for i, each in enumerate(arguments)]


@pytest.mark.slow
@pytest.mark.full(but=["prompt_lookup-4"])
@pytest.mark.parametrize("drafter", ["none", "prompt_lookup-4"])
def test_a_file_of_questions_is_answered(causal, drafter, tmp_path, monkeypatch):
  questions = ["Ann has 3 pens and buys 4.", "A bus carries 28 people."]
  (first, _) = plain = specjax.Decoder(causal, batch=2)(questions, 24)
  answers = [first.text.split("\n")[0], "nothing of the kind"]
  harness = Harness(specjax.Decoder(causal, drafter, batch=2))
  records = [{"question": q, "answer": a} for q, a in zip(questions, answers, strict=True)]
  figures = evaluate(harness, tmp_path, "our_sums", GENERATE, records, monkeypatch)
  assert figures["exact_match,none"] == 0.5
  assert harness.emitted <= sum(r.emitted for r in plain) and harness.passes > 0


@pytest.mark.slow
def test_the_task_of_the_guide_takes_the_last_number(tmp_path, monkeypatch):
  causal = specjax.load()  # which writes numbers
  page = pathlib.Path(__file__).parents[2] / "docs" / "how_to" / "tune_and_measure.md"
  task = page.read_text().split("```yaml\n")[1].split("```")[0].replace("gsm8k_test.jsonl", "FILE")
  task = task.replace("max_gen_toks: 256", "max_gen_toks: 64")
  questions = ["Ann has 3 pens and buys 4. How many has she?", "A bus carries 28 people. 9 leave."]
  plain = specjax.Decoder(causal, batch=2)(questions, 64)
  numbers = [metrics.last_number(r.text) for r in plain]
  assert None not in numbers
  records = [{"question": q, "answer": f"So.\n#### {n}"}
             for q, n in zip(questions, (numbers[0], numbers[1] + "1"), strict=True)]  # fmt: skip
  figures = evaluate(Harness(specjax.Decoder(causal)), tmp_path, "sums", task, records, monkeypatch)
  assert figures["exact_match,last-number"] == 0.5


def test_choices_are_told_by_their_likelihood(causal, tmp_path, monkeypatch):
  question = "Ann has 3 pens and buys"
  choices = [" 4 more", " zebra zebra"]
  ids = causal.encode(question)
  pairs = [(ids, causal.tokenizer.encode(choice)) for choice in choices]
  likely, unlikely = likelihood.causal(causal, pairs)
  assert likely.log_prob > unlikely.log_prob
  records = [{"question": question, "choices": choices, "right": right} for right in (0, 0, 1)]
  harness = Harness(specjax.Decoder(causal, batch=2))
  figures = evaluate(harness, tmp_path, "our_choices", CHOOSE, records, monkeypatch)
  assert figures["acc,none"] == pytest.approx(2 / 3)


@pytest.mark.slow
def test_a_denoiser_answers_and_chooses(denoiser, tmp_path, monkeypatch):
  question = "reverse : Ada Bob Kim Leo ="
  harness = Harness(specjax.DiffusionDecoder(denoiser, "threshold-0.9", batch=2), samples=4)
  (said,) = harness.generate_until(
    ask("generate_until", (question, {"until": ["Bob"], "max_gen_toks": 16}))
  )
  assert said.split() == ["Leo", "Kim"]
  records = [
    {"question": question, "choices": [" Leo Kim Bob Ada", " Kim Kim Kim Kim"], "right": 0}
  ]
  figures = evaluate(harness, tmp_path, "our_choices", CHOOSE, records, monkeypatch)
  assert figures["acc,none"] == 1


def test_a_whole_text_is_scored_token_by_token(causal):
  text = "Ann has 3 pens."
  ids = causal.tokenizer.encode(text)
  harness = Harness(specjax.Decoder(causal))
  (found,) = harness.loglikelihood_rolling(ask("loglikelihood_rolling", (text,)))
  (want,) = likelihood.causal(causal, [([harness.eot_token_id], ids)])
  assert found == pytest.approx(want.log_prob, abs=1e-4)


def test_a_conversation_is_read_as_the_model_reads_it(causal):
  turns = [{"role": "user", "content": "Ann has 3 pens."}]
  harness = Harness(specjax.Decoder(causal))
  assert harness.tok_encode(harness.apply_chat_template(turns)) == causal.chat(turns)


@pytest.mark.slow
def test_a_draw_needs_a_rule_that_draws(causal):
  wanted = ask("generate_until", ("Ann", {"do_sample": True, "temperature": 0.7}))
  with pytest.raises(ValueError, match="target_only takes any"):
    Harness(specjax.Decoder(causal, "prompt_lookup-4")).generate_until(wanted)
  decoder = specjax.Decoder(causal, "prompt_lookup-4", "target_only", temperature=0.7)
  (text,) = Harness(decoder, max_new_tokens=8).generate_until(wanted)
  assert text
