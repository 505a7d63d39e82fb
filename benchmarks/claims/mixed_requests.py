r"""48 mixed requests to a server with few rows, against each decoded alone without drafts.

    python benchmarks/claims/mixed_requests.py --batch 3 --drafter prompt_lookup-4

They differ in temperature, filters, seed, penalties, biases, schemas, calls of functions, number of
answers, log-probabilities, stop words and ids, and in whether they are streams; all come at once,
so that most wait for a row. Log-probabilities are compared with those of a loop in float64 over the
logits of one pass.
"""

import concurrent.futures
import dataclasses
import json
import sys
import threading
from typing import Any

import httpx2
import numpy as np

import specjax
from specjax import command_line
from specjax.data.jinja_chat import JinjaTemplate
from specjax.eval import report, table
from specjax.eval.prompts import OUR_QUESTIONS
from specjax.models.transformer import Transformer
from specjax.names.load import Model
from specjax.serving.engine import Engine
from specjax.serving.run import Uvicorn, bound, configured

TEMPLATE = JinjaTemplate(
  "{% for t in tools or [] %}{{ t.function.name }} <tool_call>{% endfor %}"
  "{% for m in messages %}Question: {{ m.content }}\nAnswer:{% endfor %}"
)
PET = {
  "type": "object",
  "properties": {"kind": {"enum": ["cat", "dog"]}},
  "required": ["kind"],
  "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "pet", "parameters": PET}}
CALL = {
  "type": "object",
  "properties": {"name": {"const": "pet"}, "arguments": PET},
  "required": ["name", "arguments"],
  "additionalProperties": False,
}
COUNT = {
  "type": "object",
  "properties": {"count": {"type": "integer"}, "sure": {"type": "boolean"}},
  "required": ["count", "sure"],
  "additionalProperties": False,
}
NEW = 40
HOT = {"temperature": 0.9}
# What a request asks for, and the keyword arguments of the decoder that is given the same.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
  "greedy": ({"temperature": 0}, {}),
  "sampled": (HOT, HOT),
  "filtered": (
    {"temperature": 1.2, "top_p": 0.8, "top_k": 20, "min_p": 0.02},
    {"temperature": 1.2, "top_p": 0.8, "top_k": 20, "min_p": 0.02},
  ),
  "penalties": (
    HOT | {"presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.25},
    HOT | {"processors": ["penalties-1.25,presence=0.5,frequency=0.25"]},
  ),
  "min_tokens": (
    HOT | {"min_tokens": 30}, HOT | {"processors": ["penalties,min_tokens=30"]},
  ),
  "schema": (
    HOT | {"response_format": {"type": "json_schema", "json_schema": {"schema": COUNT}}},
    HOT | {"json_schema": COUNT},
  ),
  "function": (HOT | {"tools": [TOOL], "tool_choice": "required"}, HOT | {"json_schema": CALL}),
  "answers": (HOT | {"n": 3}, HOT),
  "logprobs": (HOT | {"logprobs": True, "top_logprobs": 2}, HOT),
  "greedy logprobs": ({"temperature": 0, "logprobs": True}, {}),
  "stop word": (HOT | {"stop": ["."]}, HOT | {"stop_words": ["."]}),
  "stop id": (HOT | {"stop_token_ids": [5, 60, 99, 130]}, HOT | {"stop": [5, 60, 99, 130]}),
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """What is asked.

  Attributes:
    model: the target.
    drafter: the server's.
    batch: rows of the server.
    requests: how many, of each kind in turn.
    prefixes: MB (1e6 bytes) of its store of prompts' beginnings.
    pages: in which it keeps all texts; with few of them requests are put back.
    out: directory of the report.
  """

  model: str = "gsm8k-7m"
  drafter: str = "prompt_lookup-4"
  batch: int = 3
  requests: int = 48
  prefixes: float = 0.0
  pages: int = 0
  out: str = "results/mixed_requests"


def body(i: int, kind: str) -> dict[str, Any]:
  question = OUR_QUESTIONS[i % len(OUR_QUESTIONS)]
  return {
    "messages": [{"role": "user", "content": question}], "seed": i, "max_tokens": NEW,
    "stream": i // len(KINDS) % 2 == 1, **KINDS[kind][0],
  }  # fmt: skip


def ask(url: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
  """(text, calls' names and arguments, log-probabilities) of each answer."""
  found = [{"text": "", "calls": [], "logprobs": []} for _ in range(asked.get("n", 1))]
  answer = httpx2.post(f"{url}/chat/completions", json=asked, timeout=600)
  answer.raise_for_status()
  if asked["stream"]:
    lines = (x.removeprefix("data: ") for x in answer.text.split("\n") if x.startswith("data: {"))
    parts = [choice for line in lines for choice in json.loads(line)["choices"]]
    said = [(choice["index"], choice["delta"], choice["logprobs"]) for choice in parts]
  else:
    said = [(x["index"], x["message"], x["logprobs"]) for x in answer.json()["choices"]]
  for i, message, logprobs in said:
    found[i]["text"] += message.get("content") or ""
    for call in message.get("tool_calls", []):
      found[i]["calls"].append(
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
      )
    found[i]["logprobs"] += [x["logprob"] for x in (logprobs or {"content": []})["content"]]
  return found


def alone(model: Model, asked: dict[str, Any], kind: str) -> list[dict[str, Any]]:
  """The same of decoders that answer nothing else, one token a pass."""
  values = {"tools": asked["tools"]} if "tools" in asked else {}
  ids = model.chat(asked["messages"], **values)
  options = {"verifier": "target_only", "seed": asked["seed"], **KINDS[kind][1]}
  decoder = specjax.Decoder(model, "none", **options)
  found = []
  for result in decoder([ids] * asked.get("n", 1), NEW):
    calls, text = [], result.text
    if "tools" in asked:
      value = json.loads(text)
      calls, text = [(value["name"], value["arguments"])], ""
    scored = plain_log_probs(model, ids, result.tokens, asked) if asked.get("logprobs") else []
    found.append({"text": text, "calls": calls, "logprobs": scored})
  return found


def plain_log_probs(
  model: Model, ids: list[int], new: list[int], asked: dict[str, Any]
) -> list[float]:
  """Of each new token, in float64, from the logits of one pass over the text."""
  text = np.array([[*ids, *new]], np.int32)
  N = text.shape[1]
  position = np.arange(N, dtype=np.int32)[None]
  x, _ = Transformer(model.config).apply(model.params, text, position, np.tri(N, dtype=bool)[None])
  rows = np.asarray(model.target.head(model.params, x), np.float64)[0, len(ids) - 1 : -1]
  rows /= asked["temperature"] or 1.0
  top = rows.max(-1, keepdims=True)
  rows -= top + np.log(np.exp(rows - top).sum(-1, keepdims=True))
  return rows[np.arange(len(new)), new].tolist()


def main(config: Config) -> None:
  report.check(config, "batch", "requests")
  model = dataclasses.replace(specjax.load(config.model, weights="float"), template=TEMPLATE)
  decoder = specjax.Decoder(
    model, config.drafter, "target_only", batch=config.batch,
    processors=["penalties", "json_schema"],
  )  # fmt: skip
  kinds = [[*KINDS][i % len(KINDS)] for i in range(config.requests)]
  asked = [body(i, kind) for i, kind in enumerate(kinds)]
  report.directory(config.out)
  held = round(1e6 * config.prefixes)
  with (
    Engine(
      decoder, max_length=256, queue=3 * config.requests, prefixes=held, pages=config.pages
    ) as engine,
    bound("127.0.0.1", 0) as place,
  ):
    server = Uvicorn(configured(engine, 600.0), engine)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
    thread.start()
    try:
      url = f"http://127.0.0.1:{place.getsockname()[1]}/v1"
      with concurrent.futures.ThreadPoolExecutor(config.requests) as clients:
        found = list(clients.map(lambda one: ask(url, one), asked))
    finally:
      server.should_exit = True
      thread.join()
  wanted = [alone(model, one, kind) for one, kind in zip(asked, kinds, strict=True)]
  rows, differ, far = [], 0, 0.0
  for kind in KINDS:
    own = [i for i, x in enumerate(kinds) if x == kind]
    pairs = [pair for i in own for pair in zip(found[i], wanted[i], strict=True)]
    wrong = sum((x["text"], x["calls"]) != (y["text"], y["calls"]) for x, y in pairs)
    gaps = [
      abs(a - b)
      for x, y in pairs
      for a, b in zip(x["logprobs"], y["logprobs"], strict=True)
    ]  # fmt: skip
    differ, far = differ + wrong, max([far, *gaps])
    rows.append(
      {
        "kind": kind,
        "answers": str(len(pairs)),
        "differ": str(wrong),
        "log-probabilities": f"{len(gaps)}, within {max(gaps):.1e}" if gaps else "",
      }
    )
  result: dict[str, Any] = {"differ": differ, "log_probs_within": far, "kinds": rows}
  if engine.paging is not None:
    free = engine.paging.pool.free + len(engine.paging.pieces.kept)
    result |= {"put_back": engine.paging.put_back, "free_at_the_end": free}
  report.publish(config, result, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
