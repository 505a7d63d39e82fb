"""Published draft heads in torch, for a comparison with ours on the same weights.

Nothing of them is here: `program` imports the files of a checkout, and the classes call them as
their own loops do, one text at a time.

Letters: N nodes, T tokens, E width, L layers that a head reads, V vocabulary.
"""

import functools
import importlib
import json
import pathlib
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

PLACES = {"eagle": "eagle/model", "medusa": "medusa/model"}
FILES = {"eagle": ("cnets", "cnets1", "utils"), "medusa": ("medusa_model", "utils")}
_NETWORKS = ("modeling_llama_kv", "modeling_mistral_kv")  # that Medusa's import


class Drafted(NamedTuple):
  """A tree: tokens and depth [N], and bool[N, N], which nodes each is or lies below."""

  tokens: np.ndarray
  depth: np.ndarray
  above: np.ndarray


class Published(Protocol):
  """A published head with random weights, in the rounds of a text."""

  def save(self, directory: pathlib.Path) -> None:
    """Writes the weights and config.json, under the published names."""

  def begin(self, prompt: list[int], states: np.ndarray) -> None:
    """Starts a text, whose last token is the root; states f32[T - 1, L * E] are of those before."""

  def draft(self) -> Drafted:
    """The tree of a round."""
    ...

  def accept(self, logits: np.ndarray) -> list[int]:
    """The accepted nodes, the root first, given the target's logits f32[N, V]."""
    ...

  def go_on(self, tokens: list[int], states: np.ndarray) -> None:
    """Adds accepted tokens and the next root, and the states of the accepted nodes."""


def program(name: str, checkout: str) -> dict[str, types.ModuleType]:
  """The files of a checkout as modules; the networks that Medusa's import are stand-ins.

  It raises ValueError where the checkout lacks one.
  """
  place = pathlib.Path(checkout) / PLACES[name]
  if absent := [file for file in FILES[name] if not (place / f"{file}.py").is_file()]:
    files = " and ".join(f"{PLACES[name]}/{file}.py" for file in absent)
    raise ValueError(f"`{name}` must be a checkout with {files}, got {checkout!r}.")
  package = types.ModuleType(f"published_{name}")
  package.__path__ = [str(place)]  # the files import their neighbours
  for old in [each for each in sys.modules if each.partition(".")[0] == package.__name__]:
    del sys.modules[old]  # of another checkout
  sys.modules[package.__name__] = package
  for network in _NETWORKS:
    sys.modules[f"{package.__name__}.{network}"] = _Anything(network)
  return {file: importlib.import_module(f"{package.__name__}.{file}") for file in FILES[name]}


class _Anything(types.ModuleType):
  """A module that has a class of every name."""

  def __getattr__(self, name: str) -> type:
    if name.startswith("__"):
      raise AttributeError(name)
    return type(name, (), {})


class Eagle:
  """EAGLE-1, 2 and 3.

  Args:
    cnets, utils: modules of its program.
    raw: config.json.
    shape: `total_tokens`, `depth` and `top_k` of its trees.
    embedding, lm_head: the target's f32[V, E].
    seed: of the weights.
  """

  def __init__(
    self,
    cnets: types.ModuleType,
    utils: types.ModuleType,
    raw: Mapping[str, Any],
    shape: tuple[int, ...],
    embedding: np.ndarray,
    lm_head: np.ndarray,
    seed: int,
  ):
    import torch

    self.raw, self.utils = raw, utils
    nodes, depth, top_k = shape
    self.module = cnets.Model(
      types.SimpleNamespace(**raw),
      bias=raw.get("bias", True),
      total_tokens=nodes,
      depth=depth,
      top_k=top_k,
    ).eval()
    rng = _randomise(self.module, seed)
    self.module.embed_tokens.weight.data = torch.tensor(embedding)
    if words := raw.get("draft_vocab_size"):
      ids = torch.tensor(np.sort(rng.permutation(len(embedding))[:words]))
      self.module.d2t[:] = ids - torch.arange(words)
      self.module.t2d[ids] = True
    self.module.init_tree()
    self.head = functools.partial(torch.nn.functional.linear, weight=torch.tensor(lm_head))

  def save(self, directory: pathlib.Path) -> None:
    _save(self.module, self.raw, directory, "model.safetensors")

  def begin(self, prompt: list[int], states: np.ndarray) -> None:
    self.module.reset_kv()
    self.text, self.states = prompt, states

  def draft(self) -> Drafted:
    import torch

    # EAGLE-3's is misspelled.
    run = getattr(self.module, "topK_generate", None) or self.module.topK_genrate
    found = run(torch.tensor(self.states[None]), torch.tensor([self.text]), self.head, None)
    tokens, self.paths, mask, depth = found
    self.tokens = torch.cat([tokens[0], torch.tensor([-1])])  # -1 fills up short paths
    return Drafted(tokens[0].numpy(), depth.numpy(), mask[0, 0].numpy() > 0)

  def accept(self, logits: np.ndarray) -> list[int]:
    import torch

    rule = self.utils.evaluate_posterior
    # Greedily no further argument counts; older programs have more of them.
    rest = [None] * (rule.__code__.co_argcount - 2)
    best, count, *_ = rule(torch.tensor(logits)[self.paths], self.tokens[self.paths], *rest)
    return self.paths[best, : count + 1].tolist()

  def go_on(self, tokens: list[int], states: np.ndarray) -> None:
    self.text, self.states = self.text + tokens, states


class Medusa:
  """Medusa, with its tokens numbered from 1 for what the benchmark says.

  Args:
    model, utils: modules of its program.
    raw: config.json.
    choices: its tree.
    rule: temperature, and for typical acceptance the threshold and alpha.
    sizes: V and E.
    seed: of the weights.
  """

  def __init__(
    self,
    model: types.ModuleType,
    utils: types.ModuleType,
    raw: Mapping[str, Any],
    choices: Sequence[Sequence[int]],
    rule: tuple[float, ...],
    sizes: tuple[int, int],
    seed: int,
  ):
    from torch import nn

    self.raw, self.utils, self.rule = raw, utils, rule
    V, E = sizes
    self.heads = nn.ModuleList(
      nn.Sequential(*[model.ResBlock(E)] * raw["medusa_num_layers"], nn.Linear(E, V, bias=False))
      for _ in range(raw["medusa_num_heads"])
    )
    _randomise(self.heads, seed)
    buffers = utils.generate_medusa_buffers([list(path) for path in choices], device="cpu")
    self.place, self.paths = buffers["tree_indices"], buffers["retrieve_indices"]
    self.depth, self.mask = buffers["medusa_position_ids"], buffers["medusa_attn_mask"]

  def save(self, directory: pathlib.Path) -> None:
    _save(self.heads, self.raw, directory, "medusa_lm_head.safetensors")

  def begin(self, prompt: list[int], states: np.ndarray) -> None:
    self.root, self.last = prompt[-1], states[-1]

  def draft(self) -> Drafted:
    import torch

    with torch.no_grad():
      guesses = torch.stack([head(torch.tensor(self.last)) for head in self.heads])
    root = torch.nn.functional.one_hot(torch.tensor(self.root), guesses.shape[1]).float()
    self.candidates, tokens = self.utils.generate_candidates(
      _from_1(guesses)[:, None, None], _from_1(root)[None, None], self.place, self.paths
    )
    return Drafted(tokens[0].numpy() - 1, self.depth.numpy(), self.mask[0, 0].numpy() > 0)

  def accept(self, logits: np.ndarray) -> list[int]:
    import torch

    each = _from_1(torch.tensor(logits))[self.paths]
    best, count = self.utils.evaluate_posterior(each, self.candidates, *self.rule)
    return self.paths[best, : count + 1].tolist()

  def go_on(self, tokens: list[int], states: np.ndarray) -> None:
    self.root, self.last = tokens[-1], states[-1]


def _from_1(logits: Any) -> Any:
  """A tensor of logits [.., V], for tokens that are numbered from 1."""
  import torch

  return torch.nn.functional.pad(logits, (1, 0), value=-1e9)


def _randomise(module: Any, seed: int) -> np.random.Generator:
  """Draws the weights of a module anew, and returns the generator behind them.

  Matrices are large enough for choices to be far from uniform; vectors, which are norms and biases,
  lie around 1.
  """
  import torch

  rng = np.random.default_rng(seed)
  for tensor in module.parameters():
    normal = rng.normal(size=tuple(tensor.shape))
    drawn = normal / tensor.shape[-1] ** 0.5 if tensor.ndim > 1 else 1 + normal / 10
    tensor.data = torch.tensor(drawn, dtype=torch.float32)
  return rng


def _save(module: Any, raw: Mapping[str, Any], directory: pathlib.Path, file: str) -> None:
  from safetensors.torch import save_file

  save_file({name: x.clone() for name, x in module.state_dict().items()}, directory / file)
  (directory / "config.json").write_text(json.dumps(raw))
