"""What both decoders share: checks of arguments, batches, timing, results."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from specjax import checks
from specjax.names.load import Model, Prompt


@dataclasses.dataclass(frozen=True)
class Rounds:
  """How a speculative method drafted for one prompt; empty for a masked diffusion model.

  Attributes:
    accepted: entry d counts the rounds that accepted d draft tokens.
    offered: entry d counts the rounds whose draft was d deep.
  """

  accepted: list[int] = dataclasses.field(default_factory=list)
  offered: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Filling:
  """How a masked diffusion model filled one canvas; empty for an autoregressive model.

  Attributes:
    canvas: all ids, those past the end too; the mask's id where nothing was filled.
    when: the round that filled each slot of the canvas, -1 where none did.
    log_probs: nats, of each filled token in the round that filled it; 0 elsewhere.
    filled: how many slots were filled.
    wasted: how many rounds filled nothing but slots past the stop token.
  """

  canvas: list[int] = dataclasses.field(default_factory=list)
  when: list[int] = dataclasses.field(default_factory=list)
  log_probs: list[float] = dataclasses.field(default_factory=list)
  filled: int = 0
  wasted: int = 0


@dataclasses.dataclass(frozen=True)
class Result:
  """One decoded prompt.

  Attributes:
    prompt: as given.
    text: the new text, up to the first stop word.
    tokens: the new ids, the stop token included; for a prompt with holes and no room for new
      tokens, the whole prompt filled.
    log_probs: nats, of each of these tokens under the model itself; with a masked diffusion model
      in the round that filled it, and 0 for what was given.
    passes: passes of the model, prefill excluded.
    seconds: decoding time of the prompt's batch, compilation excluded.
    prefill_seconds: time of the batch's prefill, compilation excluded.
    method: canonical name of the drafter, or of the denoising policy with its decorations.
    verifier: its canonical name; "" for a masked diffusion model.
    exactness: the verifier's label, with its parameter if it is LOSSY; "" where there is none.
    closing: the first of `tokens` at which a text of a regular expression, a JSON Schema or a
      grammar was kept from another choice, since no end would have fitted into its budget behind
      it; None where none was.
  """

  prompt: Prompt
  text: str
  tokens: list[int]
  log_probs: list[float]
  passes: int
  seconds: float
  prefill_seconds: float = 0.0
  method: str = ""
  verifier: str = ""
  exactness: str = ""
  closing: int | None = None
  rounds: Rounds = Rounds()
  filling: Filling = Filling()

  @property
  def emitted(self) -> int:
    """len(tokens)."""
    return len(self.tokens)


def check_model(model: Any, causal: bool) -> None:
  """Raises ValueError where a decoder is given no model, or one of the other kind."""
  if not isinstance(model, Model):
    raise ValueError(
      "`model` must be a specjax.Model, as specjax.load gives it or as Model(name, config, "
      f"params, ..) makes it of your own network, got {type(model).__name__}."
    )
  if causal and not model.config.causal:
    raise ValueError(
      f"model={model.name!r} sees both sides of a token (is_causal is false), and "
      "left to right its text means nothing: use DiffusionDecoder, or `specjax denoise`."
    )
  if model.config.causal and not causal:
    raise ValueError(
      f"model={model.name!r} is causal and cannot fill masks: use Decoder, or `specjax generate`."
    )


def read(
  model: Model, prompts: Sequence[Prompt], max_new_tokens: int | Sequence[int], least: int = 1
) -> tuple[list[list[int]], list[int]]:
  """Ids and budgets, all checked before any is decoded.

  Args:
    max_new_tokens: a budget for all, or one per prompt.
    least: the smallest budget that is accepted.

  Raises:
    ValueError: no prompts, a prompt that `Model.encode` refuses, or one without room.
  """
  if not len(checks.sequence("prompts", prompts, "a list of one prompt or more")):
    checks.refuse("prompts", prompts, "a list of one prompt or more")
  ids = [model.encode(p) for p in prompts]
  given: Any = max_new_tokens
  budgets = list(given) if isinstance(given, list | tuple) else [given] * len(ids)
  if len(budgets) != len(ids):
    checks.refuse("len(max_new_tokens)", len(budgets), f"{len(ids)}, the number of prompts")
  for prompt, budget in zip(ids, budgets, strict=True):
    checks.whole("max_new_tokens", budget, least)
    if len(prompt) + budget > model.config.max_length:
      raise ValueError(
        "a prompt's tokens and `max_new_tokens` must be together at most "
        f"{model.config.max_length}, the positions of {model.name}, got {len(prompt)} and {budget}."
      )
  return ids, budgets


def timed(run: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
  """(what `run` returns, once it is computed; seconds)."""
  begin = time.perf_counter()
  found = jax.block_until_ready(run(*arguments))
  return found, time.perf_counter() - begin
