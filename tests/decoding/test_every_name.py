"""Every part that `specjax list` shows is built by name, and every knob reaches what is compiled.

A method is fingerprinted by the program it is traced to and by its weights. Of two names that
differ in one number, the fingerprints must differ too, and writing out a default must change
nothing. Tracing is cheap and covers every part; compiling is left to one method of each kind.
"""

import dataclasses
import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import speculate
from specjax.checkpoints import heads, hf, parts
from specjax.data.tokenizer import END, MASK, train_words
from specjax.decoding import catalogue, spec
from specjax.decoding.decoder import Decoder
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.decoding.model import load
from specjax.diffusion import denoise, draft_verify
from specjax.diffusion.guidance import Guided
from specjax.diffusion.policies import Filter
from specjax.draft_length.specdecpp import AcceptanceHead
from specjax.drafters import HEADS
from specjax.models.config import Config
from specjax.models.transformer import Transformer
from specjax.sampling import Noise, request_keys
from specjax.verifiers.judge import Judge

TOKENIZER = train_words(["copy : Ann Bob Cy Dan = ."])
TOKENIZER.inner.add_special_tokens([END, MASK])
V, W = TOKENIZER.vocab_size, 6
CONFIG = Config(
  vocab_size=V, width=16, layers=4, heads=2, kv_heads=1, head_dim=8, mlp_width=24, max_length=160
)
PROMPT = "copy : Ann Bob ="


def weights_of(init, *arguments, seed: int = 9):
  """Random weights of the shapes that `init` makes."""
  rng = np.random.default_rng(seed)
  shapes = jax.eval_shape(init, *arguments)
  return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) / 4, x.dtype), shapes)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
  """A directory with everything that names point to."""
  path = tmp_path_factory.mktemp("parts")
  z, mask = jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2, 2), bool)
  for seed, (name, config) in enumerate({
    "target": CONFIG, "small": dataclasses.replace(CONFIG, layers=1),
    "other": dataclasses.replace(CONFIG, layers=1),
    "denoiser": dataclasses.replace(CONFIG, causal=False, layers=2),
    "denoiser-student": dataclasses.replace(CONFIG, causal=False, layers=1),
  }.items()):  # fmt: skip
    params = weights_of(Transformer(config).init, jax.random.key(0), z, z, mask, seed=seed)
    hf.save(path / name, config, params, TOKENIZER, template="plain", dtype=jnp.float32,
            mask=None if config.causal else TOKENIZER.id(MASK))  # fmt: skip
  target = load(str(path / "target"))
  for name, (build, config) in HEADS.items():
    head = build(target.target, config())
    choices = [[0] * d for d in range(1, head.depth + 1)] + [[1], [2], [3], [4], [5], [6], [7], [8]]
    params = weights_of(head.init, jax.random.key(0), target.params, None)
    heads.save(path / name, name, config(), params, choices, None, base="target", dtype=jnp.float32)
  E = CONFIG.width
  parts.save(path / "judge", Judge(jnp.ones(E), jnp.float32(0.1)), base="target")
  params = weights_of(AcceptanceHead(1).init, jax.random.key(0), jnp.zeros((1, E)))
  parts.save(path / "acceptance", parts.Acceptance(1, params), target="target", draft="small")
  eye, zeros = jnp.eye(W), jnp.zeros(W)
  parts.save(path / "filter", Filter(eye, zeros, eye, zeros, jnp.float32(0.55)), base="denoiser")
  (path / "tree.json").write_text(json.dumps({"static": {"choices": [[0], [1], [0, 0]]}}))
  (path / "texts.jsonl").write_text(json.dumps({"text": "copy : Ann Bob = Ann Bob"}) + "\n")
  return path


# What a part is given in brackets: its own entry, or that of the word `specjax list` shows there.
TEXTS = {
  "MODEL": "small", "HEAD": "{name}", "FILTER": "filter", "FILE.json": "tree.json",
  "FILE.jsonl": "texts.jsonl", "TEXT": "Ann", "REGEX": "Ann( Bob)*", "DELIMITER": ".",
  "head": "clover", "denoiser": "denoiser", "specdecpp": "acceptance",
  "student": "denoiser-student",
}  # fmt: skip
DRAWN = "draft_model[small]"
DRAFTER_OF = {"token": DRAWN, "block": DRAWN, "k_seq": f"{DRAWN}/iid-2-1"} | dict.fromkeys(
  ("recursive", "traversal"), f"{DRAWN}/without_replacement-2-1"
)
TREES = {
  "static": (2, 1), "dynamic": (6, 2, 3), "beam": (6, 3, 3), "graph": (6, 2, 3), "iid": (2, 1),
  "without_replacement": (2, 1), "mixed": (2, 1), "stochastic_beam": (3, 2), "dyspec": (3, 2, 3),
}  # fmt: skip
OTHER = {
  "threshold": 0.4,
  "weight": 0.6,
  "answers": 8,
  "canvas": 20,
  "guesses": 3,
  "keep": 0,
  "top": 4,
  "paths": 4,
}
KINDS = catalogue.kinds()


def changed(knob: str, value):
  """Another number that the knob accepts."""
  if knob in OTHER:
    return OTHER[knob]
  return value + 1 if isinstance(value, int) else round(value / 2 or 0.25, 4)


def numbers_of(kind: str, name: str) -> tuple[list, list]:
  """(the numbers of a name at their defaults, each with one of them changed)."""
  known = KINDS[kind][1][name][1]
  needed = list(TREES[name]) if kind.startswith("trees") and name in TREES else []
  optional = list(known.items())[len(needed) :]
  defaults = [*needed, *(int(v) if isinstance(v, bool) else v for k, v in optional)]
  if kind.startswith("trees") and len(known) < len(needed):
    defaults = needed
  others = [[*defaults[:i], n + 1] for i, n in enumerate(needed)]
  for i, (knob, value) in enumerate(optional, len(needed)):
    others.append([*defaults[:i], changed(knob, value)])
  for other, count in zip(others, range(len(needed)), strict=False):
    other += defaults[count + 1 : len(needed)]
  return [x for x in defaults if x is not None], others


loaded = functools.cache(load)


def decoder_of(home, kind: str, part: str):
  """The decoder of a method that has the part."""
  door, bare = kind.split(",")[0], re.match(r"\w+", part)[0]
  files = "|".join(re.escape(p.name) for p in home.iterdir())

  def placed(name: str) -> str:
    return re.sub(rf"\[({files})\]", lambda m: f"[{home / m[1]}]", name)

  def causal(drafter: str, verifier: str | None = None, temperature: float = 1.0, **more):
    of_heads = door in ("heads", "rescoring")
    model = loaded(str(home / ("target" if of_heads else "small")))
    rule = None if verifier is None else placed(verifier)
    return Decoder(model, placed(drafter), rule, temperature=temperature, **more)

  def fills(policy: str):
    return DiffusionDecoder(loaded(str(home / "denoiser")), placed(policy))

  if door in ("drafters", "heads"):
    return causal(part)
  if door in ("trees", "ensembles"):
    return causal(f"{DRAWN}/{part}")
  if door == "draft lengths":
    return causal(f"draft_model-{8 if bare == 'heuristic' else 4}[small]/{part}")
  if door == "rescoring":
    return causal(f"medusa[medusa]/{part}")
  if door == "verifiers":
    return causal(DRAFTER_OF.get(bare, "prompt_lookup"), part, float(bare != "greedy"))
  if door == "reflection":
    return causal("prompt_lookup", f"target_only/{part}")
  if door == "processors":
    return causal("prompt_lookup", processors=[part])
  if door == "denoising policies":
    return fills(part)
  if door == "additions to a policy":
    return fills(f"threshold+{part}")
  return fills(f"threshold/{part}" if door == "blocks" else f"threshold/fixed-{W}/{part}")


def traced(decoder):
  """(the program from the prompt to the end of a round, its weights but the networks')."""
  method = decoder.method
  if isinstance(decoder, Decoder):
    request = speculate.Request(
      decoder._settings, request_keys(0, [0]), jnp.array([40], jnp.int32), decoder._stop,
      decoder._processors,
    )  # fmt: skip

    def run(weights, request, tokens, length):
      state = speculate.start(method, weights, tokens, length, request, 64)
      return speculate.round_(method, weights, request, state, Noise)

    tokens, length = jnp.zeros((1, 32), jnp.int32), jnp.ones(1, jnp.int32)
    program = jax.make_jaxpr(run)(decoder.weights, request, tokens, length)
    return program, (decoder.weights._replace(target=()), decoder._processors)

  guesses = decoder._denoising.guesses
  ids, budgets, room = decoder._read([PROMPT], 40)
  decoder._warm.add(room)  # so nothing is compiled
  arguments = decoder._arguments(ids, budgets, 0, room, None)

  def fill(weights, request, canvas):
    if guesses == 1:
      return denoise.round_(method, weights, request, denoise.start(method, weights, canvas))
    state = draft_verify.start(method, weights, canvas)
    return draft_verify.round_(method, weights, request, state, guesses)

  own = arguments[0].denoiser
  weight = own.weight if isinstance(own, Guided) else ()
  return jax.make_jaxpr(fill)(*arguments), arguments[0]._replace(denoiser=weight)


def fingerprint(decoder) -> int:
  """Equal for methods of one program and one set of weights."""
  program, weights = traced(decoder)
  constants = [np.asarray(x).tobytes() for x in (*program.consts, *jax.tree.leaves(weights))]
  return hash((re.sub("0x[0-9a-f]+", "", str(program)), *constants))


OWN = """
from specjax.drafters.medusa import MedusaConfig, medusa

def mine(target, config: MedusaConfig):
  return medusa(target, config)._replace(name="mine")
"""


def test_a_head_of_ones_own_has_a_name(home):
  model, own = loaded(str(home / "target")), home / "own"
  mine = f"{home}/mine.py:mine"
  (home / "mine.py").write_text(OWN)
  head = heads.load(home / "medusa", model.config)
  heads.save(own, mine, head.config, head.params, head.choices, None,
             base="target", dtype=jnp.float32)  # fmt: skip
  decoder, known = Decoder(model, f"{mine}-4[{own}]"), Decoder(model, f"medusa-4[{home}/medusa]")
  assert (decoder.name, decoder.method.drafter.name) == (f"{mine}-4[{own}]", "mine")
  assert fingerprint(decoder) == fingerprint(known)
  for name, words in (
    ("head", "it needs a trained head"), (mine, "it needs a trained head"),
    (f"medusa[{own}]", f"use drafter='{mine}[{own}]'"), (f"head[{own}]", "run only where you name"),
    (f"{home}/absent.py:mine[{own}]", "there is no file"),
  ):  # fmt: skip
    with pytest.raises(ValueError, match=re.escape(words)):
      Decoder(model, name)


PARTS = [
  pytest.param(kind, name, id=f"{kind.split(',')[0]}: {name}")
  for kind, (_, rows) in KINDS.items()
  for name in rows
]


@pytest.mark.parametrize(("kind", "name"), PARTS)
def test_every_knob_counts(home, kind, name):
  brackets = spec.BRACKETS.get(name)
  text = TEXTS.get(name, TEXTS.get(brackets, "")).format(name=name)
  text = f"[{text}]" if brackets else ""

  def decoder(numbers):
    return decoder_of(home, kind, "-".join([name, *map(repr, numbers)]) + text)

  defaults, others = numbers_of(kind, name)
  written = decoder(defaults)
  base, label = fingerprint(written), (written.name, getattr(written, "verifier", ""))
  if not (kind.startswith("trees") and name in TREES):  # these have fields without defaults
    bare = decoder(())
    assert (bare.name, getattr(bare, "verifier", "")) == label
  for numbers in others:
    changed = decoder(numbers)
    assert fingerprint(changed) != base, numbers
    if kind != "processors":  # results do not name them
      assert (changed.name, getattr(changed, "verifier", "")) != label, numbers
