"""The command `search`: the ways of `specjax.search` to write a text, by name."""

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console

from specjax import checks
from specjax.cli.arguments import Search
from specjax.cli.load_model import named
from specjax.data import datastore
from specjax.decoding.decoder import Decoder
from specjax.eval.prompts import Item
from specjax.names import grammar
from specjax.names.catalogue import SEARCH_OPTIONS
from specjax.names.grammar import Part
from specjax.names.load import Model
from specjax.search import SEARCHES

ELSEWHERE = {
  "best_of": "`specjax generate --best-of`",
  "constrained": "Python, as it needs a function",
  "PearlDecoder": "`python benchmarks/speed/pearl.py`",
}


def _chosen(name: str) -> tuple[Part, Callable, dict[str, Any]]:
  """(the part, its function, the numbers that the name sets)."""
  part = grammar.parse_one("name", name)
  call = grammar.look_up("name", part, SEARCHES)
  if part.name in ELSEWHERE:
    checks.refuse("name", name, f"another search: of {part.name} the way is {ELSEWHERE[part.name]}")
  _, numbers = grammar.bind("name", part, grammar.parameters(call, without=SEARCH_OPTIONS))
  return part, call, numbers


def _options(args: Search, part: Part, call: Callable, numbers: dict[str, Any]) -> dict[str, Any]:
  """The arguments after the model and the prompts."""
  takes = inspect.signature(call).parameters
  budget = "max_new_bytes" if "max_new_bytes" in takes else "max_new_tokens"
  found = {**numbers, budget: args.prompt.max_new_tokens}
  if "seed" in takes:
    found["seed"] = args.seed
  if args.temperature is not None and part.name != "navigated":
    if "temperature" not in takes:
      checks.refuse("temperature", args.temperature, f"left out for {part.name}")
    found["temperature"] = args.temperature
  return found


def _written(args: Search, model: Model, items: Sequence[Item]) -> Iterator[list[Any]]:
  """What is written after each prompt, the best first."""
  part, call, numbers = _chosen(args.name)
  options = _options(args, part, call, numbers)
  if part.name == "navigated":
    decoder = Decoder(
      model, temperature=args.temperature or 0.0, seed=args.seed, batch=args.prompt.batch
    )
  elif args.prompt.batch != 1:
    checks.refuse(
      "batch", args.prompt.batch, f"1 for {part.name}, which takes one prompt at a time"
    )
  if part.name == "switching":
    small = named(grammar.text_of(part, "the small model", "MODEL"), causal=True)
  if part.name == "superposed":
    store = datastore.load(
      grammar.text_of(part, "a datastore", "FILE.npz"),
      model.config.vocab_size,
      model.identity.tokens,
    )
  for item in items:
    if part.name in ("navigated", "by_bytes"):
      given = checks.text("prompt", item.given)
      (found,) = call(decoder if part.name == "navigated" else model, [given], **options)
    elif part.name == "switching":
      (found,) = call(small, model, [item.ids], **options)
    elif part.name == "superposed":
      found = call(model, item.ids, store, **options)
    else:
      (found,) = call(model, [item.ids], **options)
    yield found if isinstance(found, list) else [found]


def show(args: Search, model: Model, items: Sequence[Item]) -> None:
  """Prints what is written after each prompt: as one JSON object each, or for people."""
  console = Console(highlight=False, markup=False)
  for item, found in zip(items, _written(args, model, items), strict=True):
    each = [{k: v for k, v in one._asdict().items() if k != "said"} for one in found]
    if args.prompt.json:
      print(json.dumps({"prompt": item.given, "search": args.name, "found": each}), flush=True)
      continue
    console.rule(style="dim")
    console.print(str(item.given), style="dim")
    for one in each:
      console.print("\n".join(one["answers"]) if "answers" in one else one["text"] or one["tokens"])
