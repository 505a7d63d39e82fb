"""What a server counts, in Prometheus's text form."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from specjax.decoding.batching import Rounds
from specjax.serving.engine import Engine
from specjax.serving.ticket import Ticket

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0)


class Metrics:
  """Counts of one engine's requests, from now on; each prompt's answer is one.

  Tokens a pass are `specjax_generated_tokens_total` over `specjax_passes_total`, and the share of
  drafts that is accepted is `specjax_accepted_tokens_total` over `specjax_drafted_tokens_total`; at
  a position from 1 on, `specjax_accepted_at_total` over `specjax_drafted_at_total`.
  """

  def __init__(self, engine: Engine):
    self._held = held = CollectorRegistry()
    self.ended = Counter("specjax_requests", "Requests that ended, by how.", ["how"], registry=held)
    self.refused = Counter("specjax_refused", "Requests refused.", ["status"], registry=held)
    running = Gauge("specjax_running", "Requests that hold a row.", registry=held)
    running.set_function(lambda: engine.load[0])
    waiting = Gauge("specjax_waiting", "Requests that wait for a row.", registry=held)
    waiting.set_function(lambda: engine.load[1])
    self._prompt = Counter("specjax_prompt_tokens", "Tokens of prompts.", registry=held)
    self._reused = Counter(
      "specjax_reused_tokens", "Tokens of prompts whose reading was kept.", registry=held
    )
    self._hits = Counter(
      "specjax_prefix_hits", "Requests whose prompt's beginning was kept.", registry=held
    )
    pieces, paging = engine.pieces, engine.paging
    if paging is not None:
      free, again = "Pages that nobody uses.", "Times that a request was put back."
      lasting = "Pages that hold beginnings of prompts, of which requests may use some."
      Gauge("specjax_free_pages", free, registry=held).set_function(lambda: paging.pool.free)
      Gauge("specjax_kept_pages", lasting, registry=held).set_function(
        lambda: len(paging.pieces.kept)
      )
      Gauge("specjax_put_back", again, registry=held).set_function(lambda: paging.put_back)
    elif pieces is not None:
      lasting = "Bytes of what is kept of prompts."
      Gauge("specjax_prefix_bytes", lasting, registry=held).set_function(lambda: pieces.kept.bytes)
    self._new = Counter("specjax_generated_tokens", "Tokens of answers.", registry=held)
    self._passes = Counter("specjax_passes", "Passes of the model, by row.", registry=held)
    self._drafted = Counter("specjax_drafted_tokens", "Depths of drafts.", registry=held)
    self._accepted = Counter("specjax_accepted_tokens", "Accepted of drafts.", registry=held)
    self._lengths = Counter(
      "specjax_drafts", "Rounds, by the depth of their drafts.", ["length"], registry=held
    )
    self._offered = Counter(
      "specjax_drafted_at", "Drafts that had a token here.", ["position"], registry=held
    )
    self._taken = Counter(
      "specjax_accepted_at", "Drafts of which the token here was accepted.", ["position"],
      registry=held,
    )  # fmt: skip
    self._first = Histogram(
      "specjax_time_to_first_token_seconds",
      "Until the first token, waiting included.",
      buckets=SECONDS,
      registry=held,
    )
    self._whole = Histogram(
      "specjax_request_seconds", "Until the end, waiting included.", buckets=SECONDS, registry=held
    )
    engine.watchers.append(self._count)

  def _count(self, ticket: Ticket) -> None:
    self.ended.labels("failed" if ticket.reason is None else ticket.reason).inc()
    self._prompt.inc(len(ticket.ids))
    self._reused.inc(ticket.reused)
    self._hits.inc(ticket.reused > 0)
    self._new.inc(len(ticket.tokens))
    self._passes.inc(ticket.passes)
    self._count_drafts(ticket.rounds)
    if ticket.first is not None:
      self._first.observe(ticket.first - ticket.begun)
    self._whole.observe(ticket.finished - ticket.begun)

  def _count_drafts(self, rounds: Rounds) -> None:
    accepted, offered = rounds.accepted, rounds.offered
    for length, number in enumerate(offered):
      self._lengths.labels(length).inc(number)
    for place in range(1, len(offered)):
      self._offered.labels(place).inc(sum(offered[place:]))
      self._taken.labels(place).inc(sum(accepted[place:]))
    self._drafted.inc(sum(place * number for place, number in enumerate(offered)))
    self._accepted.inc(sum(place * number for place, number in enumerate(accepted)))

  def text(self) -> bytes:
    """All of it."""
    return generate_latest(self._held)
