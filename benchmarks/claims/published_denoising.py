r"""Our denoising beside the published programs, on the same weights.

    python benchmarks/claims/published_denoising.py --llada LLaDA --fast-dllm Fast-dLLM

The options are checkouts of ML-GSAI/LLaDA (`generate.py`) and NVlabs/Fast-dLLM (`llada/generate.py`
or `v1/llada/generate.py`); nothing is fetched, and what is not given is left out. Their samplers
run as they are, in torch. In the place of their network stands our denoiser of random weights, so
that both sides get the same logits: what is compared is which slots are committed when, and what
is kept of earlier passes. The logit of the mask token is out of reach for both, as ours never
commits it.

Every cell decodes the same prompts greedily by both sides. "slots" says whether every pass
committed the same slots. In a cell that differs as documented, each text that differs was followed
to its first other pass, and the reason holds there:

- `factor`: where only the last of the slots of a block fails the rule, Fast-dLLM's loop ends on it
  and commits it all the same; ours does not.
"""

import dataclasses
import functools
import importlib.util
import pathlib
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import specjax
from specjax import checks, command_line
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.diffusion.base import Earlier
from specjax.eval import report, table
from specjax.models import transformer
from specjax.models.config import Config as NetworkConfig
from specjax.sampling import new_key

NEW = 32  # slots of a text
NETWORK = NetworkConfig(
  vocab_size=48,
  width=32,
  layers=2,
  heads=4,
  kv_heads=2,
  head_dim=8,
  mlp_width=48,
  max_length=128,
  causal=False,
)
FILES = {
  "llada": ("generate.py",),
  "fast_dllm": ("llada/generate.py", "v1/llada/generate.py"),
}


@dataclasses.dataclass(frozen=True)
class Config:
  """What is compared."""

  llada: str | None = None  # checkout of ML-GSAI/LLaDA
  fast_dllm: str | None = None  # checkout of NVlabs/Fast-dLLM
  prompts: int = 4  # number of prompts, of 7 random tokens each
  seed: int = 0  # seed of the weights and the prompts
  out: str = "results/published_denoising"


class Setting(NamedTuple):
  """A cell: a function of a published program with its options, and the same by our names."""

  program: str
  function: str
  options: dict[str, Any]
  ours: str


class Decoded(NamedTuple):
  """A text: its tokens, the passes it took, and the pass that committed each slot, from 0."""

  tokens: list[int]
  passes: int
  when: list[int]


def settings() -> list[Setting]:
  """All cells; `steps` divide the slots, so that every pass commits as many."""
  cells = []
  for block, steps in ((32, 32), (32, 8), (16, 16), (8, 32), (8, 8), (4, 32)):
    options: dict[str, Any] = {"block_length": block, "steps": steps}
    name = f"confidence-{NEW // steps}/fixed-{block}"
    cells.append(Setting("llada", "generate", options, name))
    if block < 32:
      cells.append(
        Setting("llada", "generate", options | {"cfg_scale": 0.5}, f"{name}/guidance-0.5")
      )
    cells += _cached(options, name)
  for block in (32, 8):
    for key, values in (("threshold", (0.9, 0.6, 0.3)), ("factor", (1.0, 1.9))):
      for value in values:
        options = {"block_length": block, "steps": NEW, key: value}
        cells += _cached(options, f"{key}-{value}/fixed-{block}")
  return cells


def _cached(options: dict[str, Any], name: str) -> list[Setting]:
  """A setting of Fast-dLLM without a cache and with either of its two."""
  return [
    Setting("fast_dllm", "generate", options, name),
    Setting("fast_dllm", "generate_with_prefix_cache", options, f"{name}/prefix"),
    Setting("fast_dllm", "generate_with_dual_cache", options, f"{name}/dual"),
  ]


def program(name: str, checkout: str) -> types.ModuleType:
  """A published file as a module; the network and the tokenizer that it imports are stand-ins.

  It raises ValueError where the checkout lacks the file.
  """
  paths = [pathlib.Path(checkout) / file for file in FILES[name]]
  found = [path for path in paths if path.is_file()]
  if not found:
    raise ValueError(
      f"`{name}` must be a checkout with {' or '.join(FILES[name])}, got {checkout!r}."
    )
  spec = importlib.util.spec_from_file_location(f"published_{name}.generate", found[0])
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  absent = ("transformers", "model", "model.modeling_llada")
  own = ("", ".model", ".model.modeling_llada")
  names = [*absent, *(f"published_{name}{part}" for part in own)]
  importlib.import_module("torch")  # it stays imported, unlike what is first imported below
  with mock.patch.dict(sys.modules, {each: mock.MagicMock() for each in names}):
    spec.loader.exec_module(module)
  return module


@functools.cache
def _evaluate(denoiser) -> Callable[..., Any]:
  """(params, tokens i32[B, N], position i32[B, N], earlier) -> (logits f32[B, N, V], kv)."""

  def run(params, tokens, position, earlier):
    states, kv = denoiser.evaluate(params, tokens, position, jnp.ones(tokens.shape, bool), earlier)
    logits = denoiser.head(params, states)
    # Finite, because guidance subtracts logits.
    return jnp.where(jnp.arange(denoiser.vocab_size) == denoiser.mask, -1e9, logits), kv

  return jax.jit(run)


class Network:
  """Our denoiser as a published program calls its network, with torch's tensors.

  Keys and values are handed out as pairs of [1, K, L, C] by layer. Of those that come back, all are
  seen but the ones of the slots that are read again.
  """

  device = "cpu"

  def __init__(self, model: specjax.Model):
    self.model, self.passes = model, 0
    self.structure: Any = None  # of the keys and values of a pass
    self.when: dict[int, int] = {}  # the last pass that read a slot as masked

  def __call__(self, x, past_key_values=None, replace_position=None, **_: Any):
    import torch

    tokens = x.numpy().astype(np.int32)
    slots, earlier = np.arange(tokens.shape[1]), None
    if past_key_values is not None:
      kv = jax.tree.map(lambda pair: jnp.asarray(pair.numpy()), [*map(tuple, past_key_values)])
      seen = np.ones((1, kv[0][0].shape[2]), bool)
      if replace_position is None:  # the slots after those that are kept
        slots = slots + seen.shape[1]
      else:
        slots, seen = replace_position[0].numpy().nonzero()[0], ~replace_position.numpy()
      kv = jax.tree.unflatten(self.structure, jax.tree.leaves(kv))
      earlier = Earlier(kv, jnp.asarray(seen))
    position = jnp.broadcast_to(jnp.asarray(slots, jnp.int32), tokens.shape)
    run = _evaluate(self.model.denoiser)
    logits, kv = run(self.model.params, jnp.asarray(tokens), position, earlier)
    leaves, self.structure = jax.tree.flatten(kv)
    self.when |= {int(slots[i]): self.passes for i in (tokens[0] == self.model.mask).nonzero()[0]}
    self.passes += 1
    kept = [torch.tensor(np.asarray(leaf)) for leaf in leaves]
    return types.SimpleNamespace(
      logits=torch.tensor(np.asarray(logits)),
      past_key_values=[tuple(kept[i : i + 2]) for i in range(0, len(kept), 2)],
    )


def theirs(
  model: specjax.Model, generate: Callable[..., Any], options: dict[str, Any], prompt: list[int]
) -> Decoded:
  """A prompt decoded by a published program."""
  import torch

  network = Network(model)
  found = generate(
    network,
    torch.tensor([prompt]),
    gen_length=NEW,
    temperature=0.0,
    remasking="low_confidence",
    mask_id=model.mask,
    **options,
  )
  canvas = (found[0] if isinstance(found, tuple) else found)[0].tolist()
  new = range(len(prompt), len(canvas))
  return Decoded([canvas[i] for i in new], network.passes, [network.when[i] for i in new])


def ours(model: specjax.Model, name: str, prompts: Sequence[list[int]]) -> list[Decoded]:
  """The prompts decoded by us."""
  results = DiffusionDecoder(model, name, batch=len(prompts))(prompts, NEW)
  return [
    Decoded(r.tokens, r.passes, r.filling.when[len(r.prompt) : NEW + len(r.prompt)])
    for r in results
  ]


def took_the_last(a: Decoded, b: Decoded, block: int) -> bool:
  """Whether in the first pass that differs a fills its block, and b all of it but one slot."""
  for now in range(max(a.passes, b.passes)):
    mine, other = ({i for i, w in enumerate(x.when) if w == now} for x in (a, b))
    if mine != other:
      first = min(mine | other) // block * block
      full = all(w <= now for w in a.when[first : first + block])
      return full and other < mine and len(mine - other) == 1
  return False


def compare(setting: Setting, a: Sequence[Decoded], b: Sequence[Decoded]) -> dict[str, Any]:
  """A cell: what is equal in the published program's texts a and in ours b, and if not, why."""
  pairs = list(zip(a, b, strict=True))
  equal = {
    key: all(getattr(x, key) == getattr(y, key) for x, y in pairs) for key in Decoded._fields
  }
  block = setting.options["block_length"]
  known = "factor" in setting.options and all(
    x == y or took_the_last(x, y, block) for x, y in pairs
  )
  verdict = "equal" if all(equal.values()) else "as documented" if known else "DIFFERENT"
  mean = [float(np.mean([x.passes for x in side])) for side in (a, b)]
  same = sum(x == y for x, y in pairs)
  return {**setting._asdict(), **equal, "mean_passes": mean, "texts": [same, len(pairs)],
          "verdict": verdict}  # fmt: skip


def rows(cells: Sequence[dict[str, Any]]) -> list[dict[str, object]]:
  """The table, a row per cell."""
  said = {True: "equal", False: "differ"}
  return [
    {
      "program": c["program"],
      "function": c["function"],
      "options": ", ".join(f"{k}={v}" for k, v in c["options"].items()),
      "ours": c["ours"],
      "tokens": said[c["tokens"]],
      "passes": "{:.1f}, {:.1f}".format(*c["mean_passes"]),
      "slots": said[c["when"]],
      "texts": "{} of {}".format(*c["texts"]),
      "verdict": c["verdict"],
    }
    for c in cells
  ]


def make_model(seed: int) -> specjax.Model:
  """A denoiser of random weights, large enough that some tokens are nearly certain."""
  params = transformer.init(NETWORK, new_key(seed))
  params = jax.tree.map(lambda x: x * 40 if x.ndim > 1 else x, params)
  return specjax.Model("random", NETWORK, params, None, (), (), None, mask=NETWORK.vocab_size - 1)


def main(config: Config) -> None:
  checks.whole("seed", config.seed, 0, checks.SEED)
  report.check(config, "prompts")
  given = {name: getattr(config, name) for name in FILES}
  for name, checkout in given.items():
    if checkout is None:
      print(f"{name}: left out, for --{name.replace('_', '-')} is not given")
    elif not pathlib.Path(checkout).is_dir():
      checks.refuse(name, checkout, "the directory of a checkout")
  if importlib.util.find_spec("torch") is None:
    print("torch is not installed: nothing is compared")
    return
  programs = {name: program(name, x) for name, x in given.items() if x is not None}
  turns = [s for s in settings() if s.program in programs]
  if not turns:
    return
  report.directory(config.out)
  model = make_model(config.seed)
  rng = np.random.default_rng(config.seed)
  prompts = rng.integers(NETWORK.vocab_size - 1, size=(config.prompts, 7)).tolist()
  cells = []
  for setting in report.progress(turns, "decoding"):
    generate = getattr(programs[setting.program], setting.function)
    published = [theirs(model, generate, setting.options, prompt) for prompt in prompts]
    cells.append(compare(setting, published, ours(model, setting.ours, prompts)))
  verdicts = [cell["verdict"] for cell in cells]
  counts = {verdict: verdicts.count(verdict) for verdict in ("equal", "as documented", "DIFFERENT")}
  told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
  text = f"{table.markdown(rows(cells))}\n\n{len(cells)} cells: {told}"
  report.publish(config, {"cells": cells, "counts": counts}, text, packages=("torch",))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
