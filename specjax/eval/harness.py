"""A decoder as a model of lm-evaluation-harness, whose tasks then measure any method.

    from specjax.eval.harness import Harness
    lm_eval.simple_evaluate(Harness(specjax.Decoder(model, "prompt_lookup-8")), tasks=["gsm8k"])

It needs lm_eval: `pip install specjax[harness]`; nothing else imports this file. The harness is
Gao et al., https://github.com/EleutherAI/lm-evaluation-harness.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from specjax import checks
from specjax.decoding.decoder import Decoder
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.decoding.texts import Text
from specjax.eval import likelihood, report
from specjax.serving.engine import Engine


class Asked(NamedTuple):
  """A text that a task wants: after `ids`, of `budget` tokens at most, up to one of `until`."""

  ids: list[int]
  budget: int
  until: Sequence[str]
  temperature: float


class Harness(TemplateLM):
  """What the harness asks of a model, answered by a decoder.

  Texts are those of the decoder, with its drafter or policy. An autoregressive one follows what a
  task says of its temperature; a denoiser has its own, and fills the task's most tokens. A text
  ends before the first of the task's `until`. Likelihoods are those of the model, for nothing is
  drafted in them; a denoiser's are estimates of lower bounds, see `likelihood.masked`, and a
  continuation is its greedy one where the decoder says it. Contexts are cut on the left.

  Attributes:
    passes, emitted: passes of the model and tokens of all texts so far.

  Args:
    max_new_tokens: of tasks that do not say it.
    samples: passes of a denoiser for each likelihood.

  Raises:
    ValueError: a number is below 1, or the model has no tokenizer.
  """

  passes: int
  emitted: int

  def __init__(
    self, decoder: Decoder | DiffusionDecoder, *, max_new_tokens: int = 256, samples: int = 128
  ):
    super().__init__()
    self.decoder, self.model = decoder, decoder.model
    if self.model.tokenizer is None:
      checks.refuse("decoder", self.model.name, "the decoder of a model with a tokenizer")
    self.max_new_tokens = checks.whole("max_new_tokens", max_new_tokens, 1)
    self.samples = checks.whole("samples", samples, 1)
    self.passes = self.emitted = 0

  @property
  def eot_token_id(self) -> int:
    """What stands for no context."""
    return (*self.model.start, *self.model.stop, 0)[0]

  @property
  def tokenizer_name(self) -> str:
    """By which the harness tells apart what it keeps of requests."""
    return self.model.name.replace("/", "__")

  def chat_template(self, chat_template: bool | str = False) -> str:
    """What the harness keeps beside its results."""
    return "the model's own" if chat_template and self.model.template is not None else ""

  def apply_chat_template(
    self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
  ) -> str:
    """A conversation as the text that the model reads; ValueError without a template."""
    inner = self.model.tokenizer.inner  # type: ignore[union-attr]
    if not add_generation_prompt:
      checks.refuse("add_generation_prompt", False, "True, for the model begins its answers itself")
    return inner.decode(self.model.chat(chat_history), skip_special_tokens=False)

  def tok_encode(
    self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
  ) -> list[int]:
    """The ids of a text, after the model's first ids unless it begins with them."""
    ids, start = self.model.tokenizer.encode(string), list(self.model.start)  # type: ignore[union-attr]
    begun = add_special_tokens is False or ids[: len(start)] == start
    return ids if begun else start + ids

  def _loglikelihood_tokens(
    self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **kwargs: Any
  ) -> list[tuple[float, bool]]:
    return list(self._scored([(context, said) for _, context, said in requests]))

  def loglikelihood_rolling(
    self, requests: list[Instance], disable_tqdm: bool = False
  ) -> list[float]:
    """The log-probability of each text, in windows of all positions of the model."""
    owners, pairs = [], []
    for i, request in enumerate(requests):
      ids = self.tok_encode(request.args[0], add_special_tokens=False)
      most = self.model.config.max_length - 1
      for window in get_rolling_token_windows(ids, self.eot_token_id, most, 1):
        owners.append(i)
        pairs.append(make_disjoint_window(window))
    found = [0.0] * len(requests)
    for i, (log_prob, _) in zip(owners, self._scored(pairs, False), strict=True):
      found[i] += log_prob
    return found

  def _scored(
    self, pairs: Sequence[likelihood.Pair], decoded: bool = True
  ) -> Sequence[tuple[float, bool]]:
    """(log-probability, whether it is the greedy continuation) of each; the second if `decoded`."""
    B, most = self.decoder.batch, self.model.config.max_length
    if isinstance(self.decoder, Decoder):
      return list(likelihood.causal(self.model, pairs, B))
    scores = likelihood.masked(self.model, pairs, self.samples, B, self.decoder.seed)
    if not decoded:
      return [(score, False) for score in scores]
    prompts = [list(context[max(len(context) + len(said) - most, 0) :]) for context, said in pairs]
    filled = self.decoder(prompts, [len(said) for _, said in pairs])
    return [
      (score, result.tokens == list(said))
      for score, result, (_, said) in zip(scores, filled, pairs, strict=True)
    ]

  def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
    """The text that follows each context, up to the first of the request's `until`."""
    asked = [self._asked(*request.args) for request in requests]
    return self._drafted(asked) if isinstance(self.decoder, Decoder) else self._filled(asked)

  def _asked(self, context: str, options: dict[str, Any]) -> Asked:
    budget = int(options.get("max_gen_toks", self.max_new_tokens))
    most, until = self.model.config.max_length, options.get("until") or []
    if budget >= most:
      checks.refuse("max_gen_toks", budget, f"less than {most}, the positions of the model")
    temperature = float(options.get("temperature") or 0) if options.get("do_sample") else 0.0
    ids = self.tok_encode(context)[budget - most :]
    return Asked(ids, budget, [until] if isinstance(until, str) else until, temperature)

  def _drafted(self, asked: Sequence[Asked]) -> list[str]:
    assert isinstance(self.decoder, Decoder)
    longest, texts = max(len(x.ids) + x.budget for x in asked), []
    with Engine(self.decoder, max_length=longest, queue=len(asked)) as engine:
      tickets = [
        engine.submit(x.ids, x.budget, temperature=x.temperature, number=i)
        for i, x in enumerate(asked)
      ]
      for ticket, x in report.progress(list(zip(tickets, asked, strict=True)), "texts"):
        text = Text(self.model, x.until, x.ids)
        for new in ticket:
          text.add(new)
          if text.stopped:
            ticket.cancel()
        text.end()
        texts.append(text.shown)
    self.passes += sum(ticket.passes for ticket in tickets)
    self.emitted += sum(len(ticket.tokens) for ticket in tickets)
    return texts

  def _filled(self, asked: Sequence[Asked]) -> list[str]:
    assert isinstance(self.decoder, DiffusionDecoder)
    texts, B = [], self.decoder.batch
    for first in report.progress(range(0, len(asked), B), "texts"):
      part = asked[first : first + B]
      results = self.decoder([x.ids for x in part], [x.budget for x in part], first=first)
      for result, x in zip(results, part, strict=True):
        text = Text(self.model, x.until, x.ids)
        text.add(result.tokens)
        text.end()
        texts.append(text.shown)
      self.passes += sum(result.passes for result in results)
      self.emitted += sum(result.emitted for result in results)
    return texts
