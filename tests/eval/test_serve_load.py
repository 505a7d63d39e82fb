"""Load on a server: when requests arrive, what the figures are, and a server that is asked."""

import contextlib
import json
import threading
import time

import numpy as np
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from specjax.cli.main import main
from specjax.eval import serve_load
from specjax.eval.options import BenchServe
from specjax.eval.serve_load import Answer
from specjax.serving.run import bound


def test_arrivals_are_a_poisson_process():
  times = serve_load.arrivals(4.0, 40_000, 0)
  waits = np.diff(times)
  assert times[0] == 0 and waits.min() >= 0
  # An exponential wait's mean and deviation are both 1 / rate.
  np.testing.assert_allclose([waits.mean(), waits.std()], 0.25, rtol=0.02)


def test_figures_by_hand():
  config = BenchServe(first=0.5, between=0.1)
  answers = [
    Answer(0.0, 1.0, [0.2, 0.4, 1.0], 9),  # 0.1 a token: good
    Answer(1.0, 2.0, [1.6, 1.7], 2),  # begins after 0.6
    Answer(1.0, 4.0, [1.1, 3.9], 5),  # 0.7 a token
    Answer(2.0, 2.1, [], 0, "429: busy"),
  ]
  found = serve_load.figures(config, {"rate": 2.0}, answers)
  assert (found["answered"], found["failed"], found["errors"]) == (3, 1, ["429: busy"])
  assert found["requests_per_second"] == 3 / 4 and found["tokens_per_second"] == 16 / 4
  assert found["goodput"] == 1 / 4
  assert found["first_ms"][0] == 200 and found["token_ms"][0] == 100
  assert found["gap_ms"] == [400.0, pytest.approx(1e3 * np.percentile([0.2, 0.6, 0.1, 2.8], 99), 1)]


@contextlib.contextmanager
def server(wait: float, refuse: set[str] = frozenset(), counts: bool = True):
  """One that says three pieces of two tokens, a wait before each; (its url, what was asked)."""
  asked = []

  async def models(request):
    return JSONResponse({"data": [{"id": "stub"}]})

  async def chat(request):
    body = await request.json()
    asked.append(body)
    if body["messages"][0]["content"] in refuse:
      return JSONResponse({"error": "busy"}, 429)

    def events():
      for text in ("", "a b", "c d", "e f"):
        if text:
          time.sleep(wait)
        choice = {"index": 0, "delta": {"content": text}}
        yield f"data: {json.dumps({'choices': [choice]})}\n\n"
      if counts:
        yield f"data: {json.dumps({'choices': [], 'usage': {'completion_tokens': 6}})}\n\n"
      yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")

  routes = [Route("/v1/models", models), Route("/v1/chat/completions", chat, methods=["POST"])]
  with bound("127.0.0.1", 0) as place:
    own = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="error"))
    thread = threading.Thread(target=own.run, kwargs={"sockets": [place]})
    thread.start()
    try:
      yield f"http://127.0.0.1:{place.getsockname()[1]}/v1", asked
    finally:
      own.should_exit = True
      thread.join(10)


def test_a_piece_is_a_token_where_the_server_counts_none():
  with server(0.0, counts=False) as (url, _):
    config = BenchServe(url=url, rates=(50.0,), requests=2)
    (found,) = serve_load.run(config)
  ratio = found["tokens_per_second"] / found["requests_per_second"]
  assert found["answered"] == 2 and ratio == pytest.approx(3)


def test_a_server_is_asked_at_a_rate():
  texts = serve_load.questions(None, 6)
  with server(0.05, {texts[3]}) as (url, asked):
    config = BenchServe(url=url, rates=(50.0,), requests=6, max_new_tokens=9)
    (found,) = serve_load.run(config)
  assert sorted(body["messages"][0]["content"] for body in asked[1:]) == sorted(texts)
  assert asked[1]["model"] == "stub" and asked[1]["max_tokens"] == 9
  assert found["answered"] == 5 and found["errors"] == ['429: {"error":"busy"}']
  # It does not wait for answers: six of 150 ms each are over in less than their sum. The machine
  # may be busy, so that there is no tighter bound.
  assert found["tokens_per_second"] > 30 / 0.85
  assert found["first_ms"][0] >= 45 and found["token_ms"][0] >= 18


def test_clients_wait_for_their_answers():
  texts = serve_load.questions(None, 6)
  with server(0.05) as (url, asked):
    config = BenchServe(url=url, clients=(1, 3), requests=6)
    one, three = serve_load.run(config)
  assert [body["messages"][0]["content"] for body in asked[1:7]] == texts
  assert sorted(body["seed"] for body in asked[7:]) == [0, 1, 2, 3, 4, 5]
  assert (one["clients"], one["answered"], three["clients"], three["answered"]) == (1, 6, 3, 6)
  # An answer takes 150 ms.
  assert one["requests_per_second"] < 1 / 0.15 < three["requests_per_second"] < 3 / 0.15
  assert serve_load.rows([one])[0]["clients"] == "1"


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    (["--clients", "0"], "clients"),
    (["--url", "http://127.0.0.1:9/v1"], "url"),
    (["--rates", "0"], "rates"),
    (["--requests", "0"], "requests"),
  ],
)
def test_a_users_error_is_one_sentence(arguments, words, tmp_path, capsys):
  assert main(["bench-serve", *arguments, "--out", str(tmp_path / "out")]) == 2
  said = capsys.readouterr().err
  assert said.startswith("error: ") and words in said and said.count("\n") == 1
