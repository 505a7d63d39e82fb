"""What a client may ask for, in the fields of OpenAI's protocol.

A field that would change the text and is not known here is refused: an answer that quietly leaves
it out would be wrong.
"""

import dataclasses
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from specjax import checks
from specjax.decoding.scores import MOST
from specjax.names.load import Model
from specjax.processors import Penalties
from specjax.sampling import SamplingParams
from specjax.serving.engine import Engine
from specjax.serving.prompts import of_chat, of_prompts
from specjax.serving.tools import Tools
from specjax.serving.tools import read as read_tools

CHOICES = 16  # of one prompt
STOP_WORDS = 16
STREAM_OPTIONS = {"include_usage", "include_obfuscation", "continuous_usage_stats"}
COMPLETION = 16  # tokens of a completion that names no number, as at OpenAI

Read = TypeVar("Read")

SAMPLING = {field.name for field in dataclasses.fields(SamplingParams)} | {"seed"}
_COMMON = SAMPLING | {"model", "stop", "stop_token_ids", "stream", "stream_options", "max_tokens",
                      "max_completion_tokens"}  # fmt: skip
STRENGTHS: dict[str, dict[str, Any]] = {
  "presence_penalty": {"least": -2, "most": 2},
  "frequency_penalty": {"least": -2, "most": 2},
  "repetition_penalty": {"above": 0, "note": "1 is off"},
}
_COMMON |= STRENGTHS.keys() | {"logit_bias", "min_tokens"}
_COMMON |= {"n", "logprobs"}
CHAT = _COMMON | {"messages", "response_format", "top_logprobs", "tools", "tool_choice"}
CHAT |= {"chat_template_kwargs"}
COMPLETIONS = _COMMON | {"prompt", "echo", "best_of"}
# Fields that say who asks, or how; they change no text.
IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
           "prompt_cache_retention", "parallel_tool_calls", "prediction", "request_id",
           "cache_salt", "spaces_between_special_tokens"}  # fmt: skip
# Fields of OpenAI's and vLLM's protocols that are accepted where their value asks for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
  "best_of": (1,), "echo": (False,), "top_logprobs": (0,),
  "suffix": ("",), "length_penalty": (1, 1.0), "bad_words": ([],), "logits_processors": ([],),
  "ignore_eos": (False,),
  "use_beam_search": (False,), "include_stop_str_in_output": (False,),
  "skip_special_tokens": (True,), "add_generation_prompt": (True,),
  "continue_final_message": (False,), "chat_template_kwargs": ({},), "documents": ([],),
  "return_token_ids": (False,), "return_tokens_as_token_ids": (False,), "priority": (0,),
  "response_format": ({"type": "text"},), "modalities": (["text"],), "tools": ([],),
  "functions": ([],), "tool_choice": ("none", "auto"), "function_call": ("none", "auto"),
  "presence_penalty": (0, 0.0), "frequency_penalty": (0, 0.0), "repetition_penalty": (1, 1.0),
  "logit_bias": ({},), "min_tokens": (0,), "logprobs": (False,),
}  # fmt: skip


class Refused(Exception):
  """A request that is not answered.

  Attributes:
    status: of HTTP.
    sentence: what was wrong.
    kind, code, field: OpenAI's `type` and `code`, and the field at fault.
  """

  status: int
  sentence: str
  kind: str
  code: str | None
  field: str | None

  def __init__(
    self,
    status: int,
    sentence: str,
    kind: str = "invalid_request_error",
    code: str | None = None,
    field: str | None = None,
  ):
    super().__init__(sentence)
    self.status, self.sentence, self.kind, self.code, self.field = (
      status, sentence, kind, code, field,
    )  # fmt: skip

  @property
  def body(self) -> dict[str, Any]:
    """The error in OpenAI's form."""
    said = {"message": self.sentence, "type": self.kind, "param": self.field, "code": self.code}
    return {"error": said}


def field_of(sentence: str) -> str | None:
  """The field at fault, with which a sentence about it begins: "`stop[0]` must be text, got 7."."""
  found = re.match(r"`([a-z_]+)[`\[]|([a-z_]+)\[\d", sentence)
  return found and (found[1] or found[2])


class Asked(NamedTuple):
  """A request that can be answered.

  Attributes:
    prompts: ids of each; those of one that has several answers are repeated.
    budgets: new tokens of each.
    choices: answers to each prompt.
    kept: how many of these are shown, the likeliest per token.
    settings: keyword arguments of `Engine.submit`.
    stop_words: texts that end a text.
    stream: whether the text is sent as it comes.
    usage: whether a stream ends with its counts.
    top: how many likely tokens are named with the log-probability of each; None is neither.
    echo: whether a text begins with its prompt.
    chat: whether it is a chat, or a completion.
    tools: functions that an answer may call.
  """

  prompts: list[list[int]]
  budgets: list[int]
  choices: int
  kept: int
  settings: dict[str, Any]
  stop_words: tuple[str, ...]
  stream: bool
  usage: bool
  top: int | None
  echo: bool
  chat: bool
  tools: Tools


def read(engine: Engine, name: str, body: bytes, chat: bool) -> Asked:
  """The request in a body of JSON, to the model of this name.

  Raises:
    Refused: a field or value that is not accepted.
  """
  return of_json(body, lambda given: _read(engine, name, given, chat))


def of_chat_fields(engine: Engine, name: str, given: dict[str, Any]) -> Asked:
  """The request in the fields of a chat; ValueError or Refused for one that is not accepted."""
  return _read(engine, name, given, chat=True)


def of_json(
  body: bytes, use: Callable[[dict[str, Any]], Read], renamed: Iterable[tuple[str, str]] = ()
) -> Read:
  """What `use` makes of the fields in a body of JSON, of which null is none.

  Args:
    renamed: fields as a sentence of `use` may name them, and as the body does.

  Raises:
    Refused: no object of JSON, or a ValueError of `use`.
  """
  raw = None
  try:
    raw = checks.parse_json(body, "the request")
    if not isinstance(raw, dict):
      checks.refuse("request", raw, "a JSON object")
    return use({k: v for k, v in raw.items() if v is not None})
  except ValueError as error:
    words = str(error)
    for theirs, ours in renamed:
      words = words.replace(theirs, ours)
    field = field_of(words)
    known = isinstance(raw, dict) and field in raw
    raise Refused(400, words, field=field if known else None) from None


def _read(engine: Engine, name: str, given: dict[str, Any], chat: bool) -> Asked:
  known = CHAT if chat else COMPLETIONS
  lacks = engine.half.lacks
  for field, value in given.items():
    if (field in known and field not in lacks) or field in IGNORED:
      continue
    accepted = NEUTRAL.get(field)
    if accepted is None:
      checks.refuse("field", field, f"one of {', '.join(sorted(known))}")
    if not any(value == x and type(value) is type(x) for x in accepted):
      checks.refuse(field, value, f"{json.dumps(accepted[0])} {lacks.get(field, '')}".strip())
  check_name(given, name)
  needed = "messages" if chat else "prompt"
  if needed not in given:
    raise ValueError(f"the request lacks {needed!r}.")
  model = engine.decoder.model
  tools = read_tools(model, given) if chat else Tools()
  if chat:
    prompts = [of_chat(model, given["messages"], _values(given, tools))]
  else:
    prompts = of_prompts(model, given["prompt"])
  kept = checks.whole("n", given.get("n", 1), 1, CHOICES)
  tried = kept if chat else given.get("best_of", kept)
  choices = checks.whole("best_of", tried, kept, CHOICES, "n at least")
  prompts = [ids for ids in prompts for _ in range(choices)]
  budgets = [_budget(engine, len(ids), given, chat) for ids in prompts]
  words, ends = _stop(model, given)
  stream = checks.boolean("stream", given.get("stream", False))
  if choices > kept and stream:
    checks.refuse("best_of", choices, f"{kept}, which is n, in a stream")
  settings = _sampling(given) | {"stop": ends}
  if (own := _penalties(given, min(budgets))) is not None:
    settings["penalties"] = own
  if chat and (form := _form(given.get("response_format", {"type": "text"}))) is not None:
    settings["json_schema"] = form
  if tools.forced:
    if "json_schema" in settings:
      checks.refuse("tool_choice", given["tool_choice"], "auto or none beside a response_format")
    settings["json_schema"] = tools.schema
  usage, top = _usage(given, stream), _top(engine, given, chat)
  if choices > kept and engine.half.unscored:
    checks.refuse("best_of", choices, f"{kept}, which is n, {engine.half.unscored}")
  echo = checks.boolean("echo", given.get("echo", False))
  return Asked(
    prompts, budgets, choices, kept, settings, words, stream, usage, top, echo, chat, tools
  )


def _values(given: Mapping[str, Any], tools: Tools) -> dict[str, Any]:
  """What a request gives to the chat template."""
  values = given.get("chat_template_kwargs", {})
  if not isinstance(values, Mapping):
    checks.refuse("chat_template_kwargs", values, "an object")
  return {**values, **({"tools": tools.offered} if tools.offered else {})}


def check_name(given: Mapping[str, Any], name: str) -> None:
  """Refuses a model of another name."""
  if "model" in given and given["model"] != name:
    sentence = f"`model` must be {name!r}, got {checks.shown(given['model'])}."
    raise Refused(404, sentence, code="model_not_found", field="model")


def _stop(model: Model, given: Mapping[str, Any]) -> tuple[tuple[str, ...], list[int]]:
  """The texts and the ids that end an answer; a text that is a special token is an id."""
  stop = given.get("stop", [])
  words = checks.texts("stop", [stop] if isinstance(stop, str) else stop)
  if len(words) > STOP_WORDS or max(map(len, words), default=0) > 256:
    checks.refuse("stop", stop, f"up to {STOP_WORDS} texts of up to 256 characters")
  ends = checks.ids("stop_token_ids", given.get("stop_token_ids", []), model.config.vocab_size)
  assert model.tokenizer is not None
  return words, [*ends, *model.tokenizer.special_ids("stop", words)]


def _sampling(given: Mapping[str, Any]) -> dict[str, Any]:
  """The settings of a request, in which a few values have OpenAI's and vLLM's meaning.

  As at OpenAI, a request that names no temperature is sampled, each time with other noise.
  """
  settings = {"temperature": 1.0} | {k: given[k] for k in SAMPLING if k in given}
  if _is(settings.get("top_k"), -1):  # off, at vLLM
    del settings["top_k"]
  # Nothing but the likeliest token is left: at OpenAI of no mass, at vLLM of that share of it.
  for field, value in (("top_p", 0), ("min_p", 1)):
    if _is(settings.get(field), value):
      del settings[field]
      settings["top_k"] = 1
  seed = settings.get("seed", -1)
  if _is(seed, -1):  # none, at vLLM
    settings["seed"] = secrets.randbelow(checks.SEED + 1)
  elif isinstance(seed, int) and -checks.SEED <= seed < 0:
    settings["seed"] = seed + checks.SEED + 1
  return settings


def _penalties(given: Mapping[str, Any], most: int) -> Penalties | None:
  """What makes tokens less likely, None where nothing does; `most` new tokens may come."""
  strengths = {
    field.removesuffix("_penalty"): checks.number(field, given[field], **accepted)
    for field, accepted in STRENGTHS.items()
    if field in given
  }
  least = checks.whole("min_tokens", given.get("min_tokens", 0), 0, most, "up to max_tokens")
  own = Penalties(**strengths, min_tokens=least, bias=given.get("logit_bias") or None)
  return None if own == Penalties() else own


def _is(value: Any, number: int) -> bool:
  """Whether a value of JSON is this number; `true` is none."""
  return value == number and not isinstance(value, bool)


def _usage(given: Mapping[str, Any], stream: bool) -> bool:
  """Whether a stream ends with its counts."""
  options = given.get("stream_options", {})
  if not isinstance(options, Mapping) or options.keys() - STREAM_OPTIONS:
    checks.refuse("stream_options", options, "an object with include_usage")
  if options and not stream:
    checks.refuse("stream_options", options, "left out without stream=true")
  for name, value in options.items():
    checks.boolean(f"stream_options[{name!r}]", value or False)
  if options.get("continuous_usage_stats"):
    checks.refuse(
      "stream_options", options, "without continuous_usage_stats, for counts come at the end"
    )
  return options.get("include_usage") or False


def _top(engine: Engine, given: Mapping[str, Any], chat: bool) -> int | None:
  """How many likely tokens are named beside each that is scored; None where none is scored."""
  wanted = given.get("logprobs", False)
  count = checks.whole("top_logprobs", given.get("top_logprobs", 0), 0, MOST)
  if chat:
    wanted = checks.boolean("logprobs", wanted)
    if count and not wanted:
      checks.refuse("top_logprobs", count, "0 without logprobs")
  elif wanted is not False:
    count = checks.whole("logprobs", wanted, 0, MOST)
  if wanted is False:
    return None
  if engine.half.unscored:
    checks.refuse("logprobs", wanted, f"false {engine.half.unscored}")
  return count


def _form(given: Any) -> Mapping[str, Any] | None:
  """The JSON Schema that an answer must follow, if any."""
  form = given if isinstance(given, Mapping) else {}
  match form.get("type"):
    case "text":
      return None
    case "json_object":
      return {"type": "object"}
    case "json_schema":
      inner = form.get("json_schema")
      # Nothing but an object: a text might name a file.
      if isinstance(inner, Mapping) and isinstance(inner.get("schema"), Mapping):
        return inner["schema"]
  return checks.refuse(
    "response_format", given, "an object of type text, json_object, or json_schema with its schema"
  )


def _budget(engine: Engine, length: int, given: Mapping[str, Any], chat: bool) -> int:
  """How many tokens may follow a prompt; a chat without a number goes on to the end."""
  numbers = {k: given[k] for k in ("max_tokens", "max_completion_tokens") if k in given}
  for name, number in numbers.items():
    checks.whole(name, number, 1)
  if len({*numbers.values()}) > 1:
    checks.refuse(
      "max_tokens", numbers["max_tokens"], "the same as max_completion_tokens, or left out"
    )
  name, asked = next(iter(numbers.items()), ("", None))
  room = engine.max_length - length
  budget = min(COMPLETION, room) if asked is None and not chat else room if asked is None else asked
  if not 1 <= budget <= room:
    more = "" if asked is None else f" and {name}={asked}"
    sentence = f"the prompt has {length} tokens{more}: together at most {engine.max_length}."
    raise Refused(400, sentence, code="context_length_exceeded")
  return budget
