"""Greedy decoding of one prompt by specjax, transformers and llama.cpp, with the same clock.

Every program stops after the same stop ids or the same number of new tokens. The packages of the
other programs are no dependencies of specjax; ImportError is raised where one is absent.
"""

import dataclasses
import itertools
import pathlib
import time
import types
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax.decoding.decoder import Decoder
from specjax.eval import divergence, report
from specjax.names.load import Model


class Run(NamedTuple):
  """One decoded prompt.

  Attributes:
    tokens: the new ids, the stop token included.
    timed: number of those that came after the prompt's own pass.
    seconds: time of these.
    passes: passes of the model for these.
    total: seconds of the whole call, from the prompt on.
  """

  tokens: list[int]
  timed: int
  seconds: float
  passes: int
  total: float


@dataclasses.dataclass(frozen=True)
class Contender:
  """One method of one program.

  Attributes:
    run: decodes the ids of a prompt with a budget of new tokens.
    logits: f32[V] after ids.
    read: the ids of a question in the chat template, by the program's own tokenizer; None where
      it has no template.
    float32: whether weights, arithmetic and caches are in float32.
  """

  run: Callable[[Sequence[int], int], Run]
  logits: Callable[[Sequence[int]], np.ndarray]
  read: Callable[[str], list[int]] | None = None
  float32: bool = True


Contenders = dict[str, Contender]  # by "PROGRAM" for plain decoding, and "PROGRAM, METHOD"


def until_stop(
  came: Iterable[int], stop: Collection[int], budget: int
) -> tuple[list[int], list[float]]:
  """The first `budget` ids up to a stop id, which is included, and when each came."""
  tokens: list[int] = []
  times: list[float] = []
  for token in itertools.islice(came, budget):
    tokens.append(token)
    times.append(time.perf_counter())
    if token in stop:
      break
  return tokens, times


def specjax(model: Model, drafters: Sequence[str], label: str = "specjax") -> Contenders:
  """Plain decoding and the drafters, by their canonical names."""

  def contender(decoder: Decoder) -> Contender:
    def run(ids: Sequence[int], budget: int) -> Run:
      (r,) = decoder([ids], budget)
      return Run(r.tokens, r.emitted, r.seconds, r.passes, r.prefill_seconds + r.seconds)

    read = model.chat if model.template is not None else None
    return Contender(run, lambda ids: divergence.logits(model, ids), read, model.weights == "float")

  decoders = [Decoder(model, drafter) for drafter in drafters]
  return {label: contender(Decoder(model))} | {f"{label}, {d.name}": contender(d) for d in decoders}


def transformers(
  directory: str | pathlib.Path, stop: Collection[int], lookup: int, draft: str | None = None
) -> Contenders:
  """Plain decoding, prompt lookup of `lookup` tokens, and assistance by the model in `draft`.

  `directory` and `draft` are Hugging Face directories.
  """
  import torch
  import transformers as package

  torch.set_num_threads(report.cores())
  package.logging.set_verbosity_error()
  package.logging.disable_progress_bar()

  def loaded(path: str | pathlib.Path) -> Any:
    kind = package.AutoModelForCausalLM
    model = kind.from_pretrained(path, dtype=torch.float32).eval()
    ends = list(stop) or None
    model.generation_config = package.GenerationConfig(pad_token_id=0, eos_token_id=ends)
    return model

  model = loaded(directory)

  def logits(ids: Sequence[int]) -> np.ndarray:
    with torch.inference_mode():
      return model(torch.tensor([list(ids)])).logits[0, -1].numpy()

  def contender(**options: Any) -> Contender:
    def run(ids: Sequence[int], budget: int) -> Run:
      tokens = torch.tensor([list(ids)])
      came: list[tuple[float, int]] = []  # when, and how many tokens; the prompt comes first
      clock = types.SimpleNamespace(
        put=lambda ids: came.append((time.perf_counter(), ids.numel())), end=lambda: None
      )
      passes: list[None] = []
      hook = model.register_forward_hook(lambda *_: passes.append(None))
      begin = time.perf_counter()
      with torch.inference_mode():
        out = model.generate(
          tokens,
          attention_mask=torch.ones_like(tokens),
          max_new_tokens=budget,
          do_sample=False,
          streamer=clock,
          **options,
        )
      total = time.perf_counter() - begin
      hook.remove()
      timed = sum(count for _, count in came[2:])
      return Run(
        out[0, len(ids) :].tolist(), timed, came[-1][0] - came[1][0], len(passes) - 1, total
      )

    return Contender(run, logits, read)

  tokenizer = None
  if (pathlib.Path(directory) / "tokenizer.json").exists():
    tokenizer = package.AutoTokenizer.from_pretrained(directory)

  def chat(question: str) -> list[int]:
    assert tokenizer is not None
    turns = [{"role": "user", "content": question}]
    read: Any = tokenizer.apply_chat_template
    return read(turns, add_generation_prompt=True, return_dict=False)

  read = chat if tokenizer is not None and tokenizer.chat_template else None
  found = {
    "transformers": contender(),
    "transformers, prompt lookup": contender(prompt_lookup_num_tokens=lookup),
  }
  if draft is not None:
    found["transformers, draft model"] = contender(assistant_model=loaded(draft))
  return found


def llama_cpp(
  file: str | pathlib.Path,
  stop: Collection[int],
  lookup: int,
  positions: int,
  label: str = "llama.cpp",
  float32: bool = True,
) -> Contenders:
  """Plain decoding and prompt lookup of `lookup` tokens with a GGUF file.

  The Python package has no other speculative decoding.

  Args:
    positions: room for a prompt with its new tokens.
    float32: whether the file is in float32, and keys and values are to be; by default they are
      in float16.
  """
  import llama_cpp as package
  from llama_cpp import llama_chat_format, llama_speculative

  whole = package.GGML_TYPE_F32
  cached: dict[str, Any] = {"type_k": whole, "type_v": whole} if float32 else {}

  def loaded(**options: Any) -> Any:
    return package.Llama(
      str(file),
      n_ctx=positions + lookup,
      n_threads=report.cores(),
      n_threads_batch=report.cores(),
      verbose=False,
      **cached,
      **options,
    )

  plain = loaded()
  # A draft needs the logits of all positions, for which only logits_all makes room. The package
  # does not cut a draft at the end of its room, so there is place for a whole one.
  lookups = llama_speculative.LlamaPromptLookupDecoding(num_pred_tokens=lookup)
  guessing = loaded(draft_model=lookups, logits_all=True)

  def logits(ids: Sequence[int]) -> np.ndarray:
    guessing.reset()
    guessing.eval(list(ids))
    return guessing.scores[len(ids) - 1].copy()

  template = plain.metadata.get("tokenizer.chat_template")

  def chat(question: str) -> list[int]:
    bos, eos = (
      plain.detokenize([i], special=True).decode() if i >= 0 else ""
      for i in (plain.token_bos(), plain.token_eos())
    )
    written = llama_chat_format.Jinja2ChatFormatter(template, eos, bos)
    found = written(messages=[{"role": "user", "content": question}])
    return plain.tokenize(found.prompt.encode(), add_bos=not found.added_special, special=True)

  def contender(llama: Any) -> Contender:
    evaluate, passes = llama.eval, list[None]()

    def counted(tokens: Sequence[int]) -> None:
      evaluate(tokens)
      passes.append(None)

    llama.eval = counted

    def run(ids: Sequence[int], budget: int) -> Run:
      llama.reset()
      passes.clear()
      begin = time.perf_counter()
      came = llama.generate(list(ids), temp=0.0, repeat_penalty=1.0)
      tokens, times = until_stop(came, stop, budget)
      return Run(tokens, len(tokens) - 1, times[-1] - times[0], len(passes) - 1, times[-1] - begin)

    return Contender(run, logits, chat if template else None, float32)

  return {label: contender(plain), f"{label}, prompt lookup": contender(guessing)}
