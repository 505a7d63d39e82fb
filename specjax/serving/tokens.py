"""Texts to ids and back, in the fields of vLLM's protocol."""

from collections.abc import Mapping
from typing import Any

from specjax import checks
from specjax.serving.engine import Engine
from specjax.serving.fields import check_name, of_json
from specjax.serving.prompts import of_chat


def tokenize(engine: Engine, name: str, body: bytes) -> dict[str, Any]:
  """The ids that a `prompt`, or a chat's `messages`, have here.

  Raises:
    Refused: a field or value that is not accepted.
  """

  def use(given: dict[str, Any]) -> dict[str, Any]:
    _check(given, name, "prompt", "messages")
    model = engine.decoder.model
    if ("prompt" in given) == ("messages" in given):
      raise ValueError("the request has either 'prompt' or 'messages'.")
    if "prompt" in given:
      ids = model.encode(checks.text("prompt", given["prompt"]))
    else:
      ids = of_chat(model, given["messages"])
    return {"count": len(ids), "max_model_len": engine.max_length, "tokens": ids}

  return of_json(body, use)


def detokenize(engine: Engine, name: str, body: bytes) -> dict[str, Any]:
  """The text of `tokens`, without special ones.

  Raises:
    Refused: a field or value that is not accepted.
  """

  def use(given: dict[str, Any]) -> dict[str, Any]:
    _check(given, name, "tokens")
    if "tokens" not in given:
      raise ValueError("the request lacks 'tokens'.")
    model = engine.decoder.model
    return {"prompt": model.decode(checks.ids("tokens", given["tokens"], model.config.vocab_size))}

  return of_json(body, use)


def _check(given: Mapping[str, Any], name: str, *fields: str) -> None:
  known = {"model", *fields}
  for field in given:
    if field not in known:
      checks.refuse("field", field, f"one of {', '.join(sorted(known))}")
  check_name(given, name)
