r"""Mixed traffic against `specjax serve` for a while: what was lost, and what is left at the end.

    python benchmarks/claims/traffic.py --seconds 3600 --model gsm8k-7m --drafter prompt_lookup-4
    python benchmarks/claims/traffic.py --seconds 3600 --rate 3 --prefixes 0 --pages 40

The server is a process of its own. Its clients send chats and completions, whole and as streams,
with several settings and long beginnings in common; some hang up before, while or after they are
answered, read slowly, or send what is no request, or too much. At the end all is waited for, the
server is asked what still runs and which pages somebody uses, and it is ended by SIGTERM while one
more answer comes. A request is lost where nothing came back that says how it ended.
"""

import collections
import dataclasses
import json
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2

from specjax import checks, command_line
from specjax.eval import report, table
from specjax.eval.prompts import OUR_QUESTIONS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """What is sent, and to what.

  Attributes:
    model, drafter, batch, prefixes, pages: the server's.
    max_length: the most tokens of a prompt and its answer.
    queue: how many requests may wait there; fewer than the clients, so that some are refused.
    clients: how many send at a time.
    rate: requests a second of all clients, at most; 0 sends each as soon as the last has ended.
    seconds: for how long.
    seed: of the traffic.
    out: directory of the report.
  """

  model: str = "gsm8k-7m"
  drafter: str = "prompt_lookup-4"
  batch: int = 4
  prefixes: float = 8.0
  pages: int = 0
  max_length: int = 256
  queue: int = 6
  clients: int = 16
  rate: float = 0.0
  seconds: float = 180.0
  seed: int = 0
  out: str = "results/traffic"


BEGINNING = "You know arithmetic and explain each step. " * 6
SETTINGS: tuple[dict[str, Any], ...] = (
  {"temperature": 0}, {"temperature": 0.8, "top_p": 0.9}, {"temperature": 1.1, "n": 2},
  {"temperature": 0.7, "presence_penalty": 0.5}, {"temperature": 0, "logprobs": True},
  {"temperature": 0, "stop": ["."]},
  {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["a", "b"]}}}},
  {},  # a schema that no other request has
)  # fmt: skip
WRONG: tuple[bytes, ...] = (
  b"", b"{", b"[" * 10_000, b"\xff\xfe", b'{"messages": []}', b'{"messages": 1, "n": 99}',
  b'{"messages": [{"role": "user", "content": "x"}], "temperature": -1}', b"x" * 200_000,
)  # fmt: skip


class Client:
  """One client: a request after the other, of kinds drawn by its own seed, `rate` of them a second
  at most."""

  def __init__(self, address: tuple[str, int], seed: int, rate: float):
    self.address, self.draw, self.rate = address, random.Random(seed), rate
    self.http = httpx2.Client(
      base_url="http://{}:{}".format(*address), timeout=300,
      limits=httpx2.Limits(keepalive_expiry=2.0),  # a server ends what idles for 5 seconds
    )  # fmt: skip
    self.counts: collections.Counter[str] = collections.Counter()
    self.kinds: tuple[tuple[Callable[[], str], int], ...] = (
      (self.whole, 6), (self.streamed, 6), (self.response, 2), (self.gone, 3), (self.slow, 1),
      (self.wrong, 2),
    )  # fmt: skip

  def body(self, stream: bool) -> dict[str, Any]:
    question = self.draw.choice(OUR_QUESTIONS)
    text = self.draw.choice(("", BEGINNING)) + question
    own = {"schema": {"const": f"{self.draw.getrandbits(32):x}"}}
    schema = {"response_format": {"type": "json_schema", "json_schema": own}, "max_tokens": 60}
    return {
      "messages": [{"role": "user", "content": text}], "max_tokens": self.draw.randint(1, 60),
      "seed": self.draw.randrange(2**32), "stream": stream,
      **(self.draw.choice(SETTINGS) or schema),
    }  # fmt: skip

  def run(self, until: float) -> None:
    ways, weights = zip(*self.kinds, strict=True)
    while True:
      if self.rate:
        time.sleep(self.draw.expovariate(self.rate))
      if time.monotonic() >= until:
        break
      (way,) = self.draw.choices(ways, weights)
      self.counts["sent"] += 1
      try:
        said = way()
      except (httpx2.HTTPError, OSError, ValueError, LookupError) as error:
        said = f"lost: {type(error).__name__}"
      self.counts[said] += 1
      if said.startswith("refused: 429"):
        time.sleep(0.05)

  def whole(self) -> str:
    found = self.http.post("/v1/chat/completions", json=self.body(False))
    return self.judged(found.status_code, lambda: found.json()["choices"][0]["finish_reason"])

  def response(self) -> str:
    asked = {"input": self.draw.choice(OUR_QUESTIONS), "max_output_tokens": 20}
    found = self.http.post("/v1/responses", json=asked)
    return self.judged(found.status_code, lambda: found.json()["output"])

  def judged(self, status: int, ended: Callable[[], Any]) -> str:
    if status != 200:
      return f"refused: {status}"
    return "answered" if ended() else "lost: no end"

  def events(self, wait: float = 0.0) -> Iterator[str]:
    path = "/v1/chat/completions"
    with self.http.stream("POST", path, json=self.body(True)) as found:
      if found.status_code != 200:
        found.read()
        yield f"refused: {found.status_code}"
        return
      for line in found.iter_lines():
        time.sleep(wait)
        yield line
    yield "lost: no end"

  def streamed(self, wait: float = 0.0) -> str:
    for line in self.events(wait):
      if line.startswith(("refused", "lost")):
        return line
      if line == "data: [DONE]":
        return "answered"
      if line.startswith('data: {"error"'):
        return "lost: an error in a stream"
    return "lost: no end"

  def slow(self) -> str:
    return self.streamed(0.1)

  def gone(self) -> str:
    """Hangs up: at the first event, or on a raw line before the request or its answer is whole."""
    if self.draw.random() < 0.4:
      for line in self.events():
        return line if line.startswith("refused") else "hung up"
    raw = json.dumps(self.body(self.draw.random() < 0.5)).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(self.address, timeout=60) as link:
      link.sendall(head % len(raw) + raw[: self.draw.choice((0, 9, len(raw)))])
      time.sleep(self.draw.random() / 10)
    return "hung up"

  def wrong(self) -> str:
    found = self.http.post("/v1/chat/completions", content=self.draw.choice(WRONG))
    said = found.json()["error"]["message"]
    refused = 400 <= found.status_code < 500 and said.endswith(".")
    return f"refused: {found.status_code}" if refused else "lost: a body that is no request"


def memory(pid: int) -> float:
  """What a process holds, MB (1e6 bytes)."""
  status = pathlib.Path(f"/proc/{pid}/status").read_text()
  found = re.search(r"VmRSS:\s+(\d+) kB", status)
  assert found is not None
  return int(found[1]) * 1024 / 1e6


def ran_out(http: httpx2.Client) -> tuple[dict[str, Any], dict[str, float]]:
  """/health as soon as nothing runs or waits, or after a minute; and /metrics then."""
  for _ in range(600):
    health = http.get("/health").json()
    if health["running"] == health["waiting"] == 0:
      break
    time.sleep(0.1)
  return health, scraped(http)


def scraped(http: httpx2.Client) -> dict[str, float]:
  """The figures of /metrics without labels."""
  lines = http.get("/metrics").text.splitlines()
  return {
    name: float(value) for name, value in (x.split(" ") for x in lines if x[:1] not in ("#", ""))
  }


def stored(config: Config, seen: dict[str, float]) -> dict[str, str]:
  """What the server holds of texts when none runs."""
  if not config.pages:
    held = seen.get("specjax_prefix_bytes", 0) / 1e6
    return {"prefix store, MB of its limit": f"{held:.1f} of {config.prefixes:g}"}
  free, kept = seen["specjax_free_pages"], seen["specjax_kept_pages"]
  return {
    "pages free, pages of beginnings, of": f"{free:.0f}, {kept:.0f}, {config.pages}",
    "put back": f"{seen['specjax_put_back']:.0f}",
  }


def last(process: subprocess.Popen, http: httpx2.Client) -> str:
  """SIGTERM while an answer comes: how that ended."""
  body = {"messages": [{"role": "user", "content": "Ann"}], "max_tokens": 100, "stream": True}
  with http.stream("POST", "/v1/chat/completions", json=body) as found:
    lines = found.iter_lines()
    next(lines)
    process.send_signal(signal.SIGTERM)
    said = [*lines]
  code = process.wait(60)
  return f"finished, exit {code}" if "data: [DONE]" in said else f"cut, exit {code}"


def main(config: Config) -> None:
  report.check(config, "batch", "clients")
  checks.number("seconds", config.seconds, above=0)
  checks.number("rate", config.rate, 0)
  report.directory(config.out)
  command = [
    sys.executable, "-m", "specjax.cli", "serve", "--port", "0", "--model", config.model,
    "--drafter", config.drafter, "--batch", str(config.batch), "--queue", str(config.queue),
    "--prefixes", str(config.prefixes), "--pages", str(config.pages),
    "--max-length", str(config.max_length),
  ]  # fmt: skip
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
    try:
      assert process.stdout is not None
      found = re.search(r"http://([\d.]+):(\d+)/v1", process.stdout.readline())
      if found is None:
        raise ValueError("`model` and `drafter` must be served, and the server did not start.")
      address = found[1], int(found[2])
      rate = config.rate / config.clients
      clients = [Client(address, config.seed + i, rate) for i in range(config.clients)]
      warm = time.monotonic() + min(20.0, config.seconds / 4)
      begun, samples = time.monotonic(), list[float]()
      threads = [
        threading.Thread(target=client.run, args=(begun + config.seconds,)) for client in clients
      ]
      for thread in threads:
        thread.start()
      while any(thread.is_alive() for thread in threads):
        time.sleep(min(10.0, config.seconds / 10))
        if time.monotonic() > warm:
          samples.append(memory(process.pid))
      http = clients[0].http
      health, seen = ran_out(http)
      end = memory(process.pid)
      ending = last(process, http)
    finally:
      process.kill()
  counts: collections.Counter[str] = collections.Counter()
  for client in clients:
    counts.update(client.counts)
  size = max(len(samples) // 4, 1)
  quarters = [sum(samples[i * size :][:size]) / size for i in range(4)]
  figures = {
    **{name: str(counts[name]) for name in sorted(counts)},
    "lost": str(sum(n for name, n in counts.items() if name.startswith("lost"))),
    "running and waiting at the end": f"{health['running']} and {health['waiting']}",
    **stored(config, seen),
    "prefix hits": f"{seen.get('specjax_prefix_hits_total', 0):.0f}",
    "tokens": f"{seen['specjax_generated_tokens_total']:.0f}",
    "memory, MB: by quarters, and at the end": ", ".join(f"{x:.0f}" for x in (*quarters, end)),
    "an answer at SIGTERM": ending,
  }
  rows = [{"what": name, "count": value} for name, value in figures.items()]
  found_all = {"counts": dict(counts), "memory": samples, "figures": figures}
  report.publish(config, found_all, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
