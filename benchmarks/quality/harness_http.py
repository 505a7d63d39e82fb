r"""Tasks of lm-evaluation-harness over HTTP beside the same in this process.

    python benchmarks/quality/harness_http.py --model gsm8k-7m --limit 16

The harness's own client of OpenAI's protocol (`local-completions`) asks a server of ours for texts
and for likelihoods, and our adapter (`specjax.eval.harness`) answers the same tasks here. Both
tasks are made of our own questions: to answer one, and to tell a question's own end from that of
another. It needs `pip install specjax[serve,harness] tenacity`.
"""

import dataclasses
import json
import os
import pathlib
import sys
import tempfile
import threading
import time

import specjax
from specjax import checks, command_line
from specjax.eval import report, table
from specjax.eval.prompts import OUR_QUESTIONS
from specjax.names.load import resolve
from specjax.serving.engine import Engine
from specjax.serving.run import Uvicorn, bound, configured

TASKS = {
  "texts": """
task: texts
output_type: generate_until
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["Question:"], max_gen_toks: 48, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
  "choices": """
task: choices
output_type: multiple_choice
doc_to_text: "{{begin}}"
doc_to_choice: "{{ends}}"
doc_to_target: "{{right}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """What is asked.

  Attributes:
    model: the target, a zoo name or a directory with a tokenizer.
    drafter: how the server and the adapter guess.
    limit: questions of each task.
    batch: rows of both.
    out: directory of the report.
  """

  model: str = "gsm8k-7m"
  drafter: str = "prompt_lookup-4"
  limit: int = 16
  batch: int = 4
  out: str = "results/harness_http"


def write(folder: pathlib.Path, count: int) -> None:
  """The tasks and their questions."""
  texts = OUR_QUESTIONS[:count]
  halves = [(text[: text.rfind(" ", 0, -8)], text[text.rfind(" ", 0, -8) :]) for text in texts]
  records = [
    {"question": text, "answer": "", "begin": begin, "ends": [end, other], "right": 0}
    for text, (begin, end), (_, other) in zip(texts, halves, [*halves[1:], halves[0]], strict=True)
  ]
  file = folder / "questions.jsonl"
  file.write_text("".join(json.dumps(record) + "\n" for record in records))
  where = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {file}}}}}\ntest_split: test"
  for name, text in TASKS.items():
    (folder / f"{name}.yaml").write_text(where + text)


def main(config: Config) -> None:
  try:
    import lm_eval
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from lm_eval.tasks import TaskManager

    from specjax.eval.harness import Harness
  except ModuleNotFoundError as error:
    raise ValueError(f"{error.name} is not installed: pip install specjax[harness].") from None
  report.check(config, "limit", "batch")
  count = checks.whole("limit", config.limit, 2, len(OUR_QUESTIONS))
  model = specjax.load(config.model, weights="float")
  decoder = specjax.Decoder(model, config.drafter, "target_only", batch=config.batch)
  report.directory(config.out)
  found, seconds = {}, {}
  with tempfile.TemporaryDirectory() as held:
    folder = pathlib.Path(held)
    os.environ["HF_DATASETS_CACHE"] = str(folder / "cache")
    write(folder, count)

    def evaluate(answering: object) -> dict:
      manager = TaskManager(include_path=held, include_defaults=False)
      return lm_eval.simple_evaluate(
        answering, tasks=[*TASKS], task_manager=manager, bootstrap_iters=0, log_samples=True
      )

    begin = time.perf_counter()
    found["here"] = evaluate(Harness(decoder))
    seconds["here"] = time.perf_counter() - begin
    with Engine(decoder, max_length=256, queue=64) as engine, bound("127.0.0.1", 0) as place:
      server = Uvicorn(configured(engine, 300.0), engine)
      thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
      thread.start()
      try:
        url = f"http://127.0.0.1:{place.getsockname()[1]}/v1/completions"
        begin = time.perf_counter()
        found["http"] = evaluate(
          LocalCompletionsAPI(
            base_url=url,
            model=pathlib.PurePath(model.name).name,
            num_concurrent=4,
            tokenizer_backend="huggingface",
            tokenizer=str(resolve(config.model)),
            max_length=255,
          )
        )
        seconds["http"] = time.perf_counter() - begin
      finally:
        server.should_exit = True
        thread.join()
  rows, differ, tokens = [], {}, 0
  for name in TASKS:
    pairs = list(zip(*(found[way]["samples"][name] for way in found), strict=True))
    if name == "texts":
      differ[name] = sum(x["resps"] != y["resps"] for x, y in pairs)
      tokens = sum(len(model.encode(x["resps"][0][0] or " ")) for x, _ in pairs)
      far = 0.0
    else:
      each = [
        (float(a[0][0]), float(b[0][0]))
        for x, y in pairs for a, b in zip(x["resps"], y["resps"], strict=True)
      ]  # fmt: skip
      far = max(abs(a - b) for a, b in each)
      differ[name] = sum(x["acc"] != y["acc"] for x, y in pairs)
    key = "exact_match,none" if name == "texts" else "acc,none"
    rows.append(
      {
        "task": name,
        "here": f"{found['here']['results'][name][key]:.4f}",
        "over HTTP": f"{found['http']['results'][name][key]:.4f}",
        "answers that differ": f"{differ[name]} of {len(pairs)}",
        "log-likelihoods differ by at most": f"{far:.1e}",
      }
    )
  figures = {"tasks": rows, "seconds": seconds, "tokens": tokens}
  report.publish(config, figures, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
