"""Every part that `specjax list` shows is built and decoded by name, and every parameter counts.

A method is fingerprinted by the program it is traced to and by its weights. Of two names that
differ in one number, the fingerprints must differ too, and writing out a default must change
nothing. Tracing is cheap. Decoding a few tokens with random models shows what a parameter does:
another draft, other tokens, another order. Where a part is lossless, the tokens must stay.
"""

import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from specjax import speculate
from specjax.base import Drafter
from specjax.checkpoints import duo, heads, hf, parts, routers
from specjax.data import datastore
from specjax.data.chat import TEMPLATES
from specjax.data.tokenizer import END, MASK, train_words
from specjax.decoding.decoder import Decoder
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.diffusion.guidance import Guided
from specjax.diffusion.policies import Filter
from specjax.draft_length.specdecpp import AcceptanceHead
from specjax.drafters import none
from specjax.drafters.layers import skipped_layers
from specjax.heads import HEADS
from specjax.models import lora
from specjax.models.config import Config
from specjax.models.skipping.duo import Beside
from specjax.models.skipping.first import Routers
from specjax.models.transformer import Transformer
from specjax.names import catalogue
from specjax.names import grammar as spec
from specjax.names.load import load
from specjax.sampling import Noise
from specjax.verifiers.judge import Judge

TOKENIZER = train_words(["copy : Ann Bob Cy Dan = ."])
TOKENIZER.inner.add_special_tokens([END, MASK])
DIGITS = train_words(["0 1 2 3 4 5 6 7"])  # as many, for texts in JSON
V, W = TOKENIZER.vocab_size, 6
CONFIG = Config(
  vocab_size=V, width=16, layers=4, heads=2, kv_heads=1, head_dim=8, mlp_width=24, max_length=160
)
PROMPT, NEW = "copy : Ann Bob =", 10
REPEATS = "Ann Bob Cy Bob Dan Ann Bob"  # what followed Bob is not what followed Ann Bob


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
  noise = np.random.default_rng(1)
  for seed, (name, config) in enumerate({
    "target": CONFIG, "small": dataclasses.replace(CONFIG, layers=1),
    "denoiser": dataclasses.replace(CONFIG, causal=False, layers=2),
    "denoiser-student": dataclasses.replace(CONFIG, causal=False, layers=1),
    "blocks": dataclasses.replace(CONFIG, causal=False, layers=2, block_length=W),
    "any": dataclasses.replace(CONFIG, causal=False, layers=2, any_order=True),
    "last": dataclasses.replace(CONFIG, causal=False, layers=2, masks_last=True),
  }.items()):  # fmt: skip
    params = weights_of(Transformer(config).init, jax.random.key(0), z, z, mask, seed=seed)
    params = jax.tree.map(lambda x: 4 * x, params)  # so that they are sure of some tokens
    written = {name: params}
    if name == "small":  # a draft model that is right now and then
      written["near"] = jax.tree.map(lambda x: x + noise.normal(size=x.shape) / 4, params)
    for kind, weights in written.items():
      hf.save(path / kind, config, weights, TOKENIZER, template=TEMPLATES["plain"],
              mask=1 if kind == "near" else None if config.causal else TOKENIZER.id(MASK),
              dtype=jnp.float32)  # fmt: skip
  target = load(str(path / "target"))
  for name, (build, config) in HEADS.items():
    head = build(target.target, config())
    choices = [[0] * d for d in range(1, head.depth + 1)] + [[1], [2], [3], [4], [5], [6], [7], [8]]
    params = weights_of(head.init, jax.random.key(0), target.params, None)
    rates = np.tile(0.5 ** np.arange(1, 11), (head.depth, 1))
    heads.save(
      path / name, name, config(), params, choices, rates, base="target", dtype=jnp.float32
    )
  E = CONFIG.width
  parts.save(path / "judge", Judge(jnp.ones(E), jnp.float32(0.1)), base="target")
  params = weights_of(AcceptanceHead(1).init, jax.random.key(0), jnp.zeros((1, E)))
  parts.save(path / "acceptance", parts.Acceptance(1, params), target="target", draft="small")
  eye, zeros = jnp.eye(W), jnp.zeros(W)
  parts.save(path / "filter", Filter(eye, zeros, eye, zeros, jnp.float32(0.55)), base="denoiser")
  routed = weights_of(lambda: Routers(jnp.zeros((CONFIG.layers, E)), jnp.zeros(CONFIG.layers)))
  updates = lora.start(jax.random.key(0), target.params, 2)
  routers.save(path / "routers", updates, routed, base="target")
  beside = Beside(jnp.zeros((3, E)), jnp.zeros(3), jnp.zeros((8, E)), jnp.zeros((E, 4)))._asdict()
  small = weights_of(lambda: {f"layer_{i}": beside for i in range(CONFIG.layers)})
  duo.save(path / "duo", small, base="target")
  (path / "tree.json").write_text(json.dumps({"static": {"choices": [[0], [1], [0, 0]]}}))
  (path / "wide.json").write_text(json.dumps({"static": {"choices": [[0], [1], [2]]}}))
  run = np.ones((CONFIG.layers, 2), bool)
  run[2], run[1, 0] = False, False
  skipped_layers.save(path / "skipped.json", run, {})
  (path / "texts.jsonl").write_text(json.dumps({"text": "copy : Ann Bob = Ann Bob"}) + "\n")
  (path / "names.lark").write_text('start: ("Ann" | "Bob" | "Cy")+')
  (path / "others.lark").write_text('start: "Dan" ("Ann" | "Bob")+')
  (path / "source.txt").write_text("Ann Bob Cy Dan Ann Bob Bob Ann")
  texts = [target.encode(REPEATS), *noise.integers(V, size=(20, 8)).tolist()]
  datastore.save(path / "store.npz", datastore.build(texts), V)
  return path


# What a part is given in brackets: its own entry, or that of the word `specjax list` shows there.
TEXTS = {
  "MODEL": "near", "HEAD": "{name}", "FILTER": "filter", "FILE.json": "tree.json",
  "FILE.jsonl": "texts.jsonl", "FILE.npz": "store.npz", "FILE.txt": "source.txt", "TEXT": "Ann",
  "REGEX": "Ann( Bob)*", "SCHEMA": '{{"type": "integer"}}', "FILE.lark": "names.lark",
  "BIASES": '{{"5": 0.5}}',
  "forced": "others.lark", "DELIMITER": ".", "TOKEN": "=",
  "head": "clover", "denoiser": "denoiser", "specdecpp": "acceptance", "end_last": "Dan",
  "student": "denoiser-student", "ROUTERS": "routers", "duo": "duo",
  "ensemble": "target", "self_speculative": "skipped.json", "DRAFTER": "prompt_lookup",
}  # fmt: skip
DRAWN = "draft_model[near]"
DRAFTER_OF = dict.fromkeys(("target_only", "token", "block", "typical", "judge", "transfer"), DRAWN)
DRAFTER_OF["unverified"] = DRAWN
DRAFTER_OF |= dict.fromkeys(("recursive", "traversal", "k_seq"), f"{DRAWN}/iid-2-1")
TREES = {
  "static": (2, 1), "dynamic": (6, 2, 3), "beam": (6, 3, 3), "graph": (6, 2, 3), "iid": (2, 1),
  "without_replacement": (2, 1), "mixed": (2, 1), "stochastic_beam": (3, 2), "dyspec": (3, 2, 3),
}  # fmt: skip
# Numbers that have no default, or whose defaults change nothing of what is traced here.
NEEDED = TREES | {
  "rapid": (3, 1), "sinks": (1, 2), "token_select": (1, 0, 1), "actqkv": (1, 0, 0, 0),
  "minference": (1, 0, 0, 16), "skip_decode": (2, 8, 1),
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
  "seeded": 0,
  "exit": 3,
  "size": 5,
  "bits": 2,
  "outliers": 0.2,
  "rest": 3,
  "masks": 2,
}
KINDS, ROWS = catalogue.kinds(), catalogue.parts()
DECORATING = ("additions to a policy", "blocks", "cache", "stopping", "transform", "draws",
              "confidence", "guidance", "reweighting", "guesses", "student")  # fmt: skip


def changed(parameter: str, value):
  """Another number that the parameter accepts."""
  if parameter in OTHER:
    return OTHER[parameter]
  return value + 1 if isinstance(value, int) else round(value / 2 or 0.25, 4)


def numbers_of(kind: str, name: str) -> tuple[list, list]:
  """(the numbers of a name at their defaults, each with one of them changed)."""
  known = KINDS[kind][1][name][1]
  needed = list(NEEDED.get(name, ()))
  optional = list(known.items())[len(needed) :]
  defaults = [*needed, *(int(v) if isinstance(v, bool) else v for k, v in optional)]
  if kind.startswith("trees") and len(known) < len(needed):
    defaults = needed
  others = [[*defaults[:i], n + 1] for i, n in enumerate(needed)]
  for i, (parameter, value) in enumerate(optional, len(needed)):
    others.append([*defaults[:i], changed(parameter, value)])
  for other, count in zip(others, range(len(needed)), strict=False):
    other += defaults[count + 1 : len(needed)]
  return [x for x in defaults if x is not None], others


def part_of(kind: str, name: str, numbers: Sequence, text: str = "") -> str:
  """The name of a part with these numbers, in the order of its parameters."""
  known = [*KINDS[kind][1][name][1]]
  if known[:1] == ["children of a node at each depth"]:
    return "-".join([name, *map(str, numbers)]) + text
  others = "".join(f",{k}={n}" for k, n in zip(known[1:], numbers[1:], strict=False))
  return "-".join([name, *map(str, numbers[:1])]) + others + text


loaded = functools.cache(load)


GRAMMARS = {"json_schema", "grammar", "forced"}
OWN_LAYERS = ("self_speculative", "swift", "layerskip", "del")


def decoder_of(home, kind: str, part: str, temperature: float = 1.0, of: str = ""):
  """The decoder of a method that has the part; on an empty one, that of the method without it.

  Args:
    of: the part that is tested, whose model is also that of the method without it.
  """
  door, bare = kind.split(",")[0], re.match(r"\w*", part)[0]
  files = "|".join(re.escape(p.name) for p in home.iterdir())

  def placed(name: str) -> str:
    return re.sub(rf"\[({files})\]", lambda m: f"[{home / m[1]}]", name)

  def causal(
    drafter: str, verifier: str = "", temperature: float = temperature, skipping=None, **more
  ):
    deep = "heads", "rescoring", "pseudo rows", "processors", "caches", "skipping"
    large = door in deep or of in OWN_LAYERS
    name = "target" if large else "small"
    model = loaded(str(home / name), skipping=skipping)
    # A grammar's text ends with a token of its own.
    model = dataclasses.replace(model, stop=(TOKENIZER.id(END),) if {bare, of} & GRAMMARS else ())
    if bare == "json_schema":
      model = dataclasses.replace(model, tokenizer=DIGITS)
    rule = placed(verifier) or None
    return Decoder(model, placed(drafter) or "none", rule, temperature=temperature, **more)

  def fills(policy: str):
    # A random model says one of its words often, and hardly ever that the text ends.
    stop = (TOKENIZER.id("="),) if door == "stopping" else ()
    name = {"committed": "blocks", "assd": "any", "streamed": "last"}.get(of, "denoiser")
    model = dataclasses.replace(loaded(str(home / name)), stop=stop)
    drawn = 2.0 if door in ("draws", "confidence") else 0.0
    return DiffusionDecoder(model, placed(policy.rstrip("/")), temperature=drawn)

  if not part and door not in DECORATING:
    return causal("")
  if door in ("drafters", "drafters by load", "heads"):
    return causal(part)
  if door in ("trees", "ensembles", "prompts", "passes", "bridges", "vocabularies"):
    return causal(f"{DRAWN}/{part}")
  if door == "exits":  # which need more than one layer
    return causal(f"draft_model[target]/{part}".rstrip("/"))
  if door == "caches":
    return causal("", cache=part)
  if door == "skipping":
    return causal("", skipping=placed(part))
  if door == "sources":
    return causal(f"jacobi-3+prompt_lookup/{part}")
  if door == "draft lengths":
    return causal(f"draft_model-{8 if bare == 'heuristic' else 4}[near]/{part}")
  if door == "rescoring":
    return causal(f"medusa[medusa]/{part}")
  if door == "pseudo rows":
    return causal(f"hidden_transfer-{4 if bare == 'units' else 12}[hidden_transfer]/{part}")
  if door == "verifiers":
    return causal(DRAFTER_OF.get(bare, "prompt_lookup"), part, temperature * (bare != "greedy"))
  if door == "reflection":
    return causal("prompt_lookup", f"target_only/{part}")
  if door == "processors":
    return causal("prompt_lookup", processors=[placed(part)])
  if door == "denoising policies":
    return fills(f"{part}/fixed-{W}")
  if door == "any-subset decoding":
    return fills(part)
  if door == "additions to a policy":
    return fills(f"threshold+{part}/fixed-{W}" if part else f"threshold/fixed-{W}")
  if door == "blocks":  # this policy alone looks ahead
    return fills(f"explore-0.9,ahead=0.3/{part}")
  if door == "reweighting":
    return fills(f"random/fixed-{W}/{part}")
  return fills(f"threshold/fixed-{W}/{part}")


def traced(decoder):
  """(the program from the prompt to the end of a round, its weights but the networks')."""
  if isinstance(decoder, Decoder):
    method, request = decoder.method, decoder.request(np.zeros(1, int), np.array([40]))

    def run(weights, request, tokens, length):
      state = speculate.start(method, weights, tokens, length, request, 64)
      return speculate.decode_round(method, weights, request, state, Noise)

    tokens, length = jnp.zeros((1, 32), jnp.int32), jnp.ones(1, jnp.int32)
    program = jax.make_jaxpr(run)(decoder.weights, request, tokens, length)
    return program, (decoder.weights._replace(target=()), decoder._processors)

  ids, budgets = decoder._read([PROMPT], 40)
  arguments = decoder._arguments(ids, budgets, 0, None)

  def fill(weights, request, canvas):
    state = decoder.loop.start(weights, canvas)
    return decoder.loop.advance(weights, request, state, jnp.int32(1))

  own = arguments[0].denoiser
  weight = own.weight if isinstance(own, Guided) else ()
  return jax.make_jaxpr(fill)(*arguments), arguments[0]._replace(denoiser=weight)


def fingerprint(decoder) -> int:
  """Equal for methods of one program and one set of weights."""
  program, weights = traced(decoder)
  constants = [np.asarray(x).tobytes() for x in (*program.consts, *jax.tree.leaves(weights))]
  return hash((re.sub("0x[0-9a-f]+", "", str(program)), *constants))


@pytest.mark.slow
def test_a_text_that_is_sure_of_its_end_cannot_be_kept_from_it(home):
  model = loaded(str(home / "denoiser"))
  with pytest.raises(
    ValueError,
    match=(
      r"`transform` needs a denoiser that is not reweighted.*got 'end_suppressed': a reweighted "
      r"denoiser reads whole te"
    ),
  ):
    DiffusionDecoder(model, f"threshold/reweighted[{home}/small]/end_suppressed[=]")


OWN = """
import dataclasses

from specjax.heads.medusa import MedusaConfig, medusa

def mine(target, config: MedusaConfig):
  return dataclasses.replace(medusa(target, config), name="mine")
"""


def test_a_head_of_ones_own_has_a_name(home):
  model, own = loaded(str(home / "target")), home / "own"
  mine = f"{home}/mine.py:mine"
  (home / "mine.py").write_text(OWN)
  head = heads.load(home / "medusa", model.config)
  heads.save(own, mine, head.config, head.params, head.choices, head.hit_rates,
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


TRACED = (
  "drafters: *", "heads: hydra", "trees: tree", "trees: dy*", "verifiers: *", "processors: *",
  "denoising policies: *", "stopping: *", "blocks: *", "guidance: *", "ensembles: *",
)  # fmt: skip


def names_of(decoder) -> tuple[str, ...]:
  """What results and reports say of a method."""
  of_rule = getattr(decoder, "verifier", ""), getattr(decoder, "label", "")
  return decoder.name, decoder.model.label, *of_rule


# Whose programs are traced in seconds.
LARGE = {"aded", "del", "dyspec", "ensemble", "layerskip", "swift"}


@pytest.mark.full(but=TRACED)
@pytest.mark.parametrize(
  ("kind", "name"),
  [
    pytest.param(*part.values, id=part.id, marks=pytest.mark.slow if LARGE & {*part.values} else ())
    for part in PARTS
  ],
)
def test_every_parameter_counts(home, kind, name):
  brackets = spec.BRACKETS.get(name)
  text = TEXTS.get(name, TEXTS.get(brackets, "")).format(name=name)
  text = f"[{text}]" if brackets else ""

  def decoder(numbers):
    return decoder_of(home, kind, part_of(kind, name, numbers, text), of=name)

  defaults, others = numbers_of(kind, name)
  written = decoder(defaults)
  base, label = fingerprint(written), names_of(written)
  if name not in NEEDED:
    bare = decoder(())
    assert names_of(bare) == label
  for numbers in others:
    changed = decoder(numbers)
    assert fingerprint(changed) != base, numbers
    if kind != "processors":  # results do not name them
      assert names_of(changed) != label, numbers


class Log(NamedTuple):
  """What a drafter proposed: count i32[]; tokens, parent, valid [R, N], a row per round."""

  count: Array
  tokens: Array
  parent: Array
  valid: Array


@functools.cache
def recorded(drafter: Drafter) -> Drafter:
  """The drafter, whose state holds a Log as well."""
  rows = (NEW + 1, drafter.nodes)

  def init(*weights, **more):
    nothing = jnp.zeros(rows, jnp.int32)
    return drafter.init(*weights, **more), Log(jnp.int32(0), nothing, nothing, nothing)

  def propose(*arguments, **more):
    *weights, (state, log) = arguments
    draft, state = drafter.propose(*weights, state, **more)
    said = (draft.tokens, draft.parent, draft.valid)
    rows = (
      x.at[log.count].set(new[0].astype(jnp.int32)) for x, new in zip(log[1:], said, strict=True)
    )
    return draft, (state, Log(log.count + 1, *rows))

  def inner(function):
    return lambda params, target, state, **more: function(params, target, state[0], **more)

  return drafter._replace(
    init=init, propose=propose,
    update=lambda p, t, s, **more: (drafter.update(p, t, s[0], **more), s[1]),
    evaluate=None if drafter.evaluate is None else inner(drafter.evaluate),
    sizes=(), chooser=None,
  )  # fmt: skip


def decoded(decoder) -> dict[str, Any]:
  """What a decoding by the shipped loop shows: tokens, and how they came about."""
  if isinstance(decoder, DiffusionDecoder):
    (r,) = decoder([PROMPT], NEW)
    return {"tokens": r.tokens, "passes": r.passes, "canvas": r.filling.canvas,
            "order": r.filling.when, "log_probs": np.round(r.log_probs, 2).tolist()}  # fmt: skip
  decoder.method = decoder.method._replace(drafter=recorded(decoder.method.drafter))
  ids = decoder.model.encode(REPEATS)
  request, state, _ = decoder._start([ids], [NEW], 0)
  state = decoder.advance(request, state, NEW)
  log = state.drafter[1]
  return {
    "tokens": state.context.tokens[0, len(ids) : int(state.context.length[0])].tolist(),
    "rounds": int(state.stats.passes[0]), "accepted": state.stats.accepted[0].tolist(),
    "offered": state.stats.offered[0].tolist(),
    "drafts": [x[: int(log.count)].tolist() for x in log[1:]],
  }  # fmt: skip


# Of a part, for each of its parameters in order, numbers (of `part_of`) that differ in this
# parameter alone, so far apart that a decoding of a few tokens shows it. Others differ as in
# `numbers_of`.
PAIRS = {
  "prompt_lookup": "8:4 8-3:8-1 8-3-1:8-3-2 8-3-1-0:8-3-1-1 8-3-1-0-1:8-3-1-0-2",
  "aded": "5:8 5-1:5-3 5-2-1:5-2-3 9-2-4-0:9-2-4-0.9 "
          "9-2-4-0.3-0:9-2-4-0.3-1",
  "trie": "8:2 8-3:8-1 8-2-1:8-2-2 8-2-1-1:8-2-1-999 8-2-1-4:8-2-1-4-9",
  "suffix_decoding": "8:2 8-8:8-1 8-8-1:8-8-2 8-8-1-4:8-8-1-1 8-8-1-4:8-8-1-4-9",
  "rest": "8:2 8-3-1:8-1-1 8-2-1:8-2-2 8-3-1-7:8-3-1-1", "denoiser": "9:4 9-14:9-20",
  "token_recycling": "8:4 8-1:8-0", "jacobi": "8:2", "speculative_jacobi": "8:2",
  "lookahead": "3-3-2:2-3-2 3-3-2:3-1-2 3-3-2:3-3-1 3-3-2-1:3-3-2-0",
  "self_speculative": "8:3 8-0.05:8-0.9", "swift": "8:2 8-2:8-5 8-2-0.3:8-2-0.9",
  "layerskip": "7:3 7-1:7-3", "del": "8:2 8-1:8-2",
  "dynamic": "6-2-3:4-2-3 6-2-3:6-3-3 6-2-3:6-2-2", "beam": "6-3-3:4-3-3 6-3-3:6-2-3 6-3-3:6-3-2",
  "graph": "6-2-3:4-2-3 6-2-3:6-3-3 6-2-3:6-2-2 9-3-3-0:9-3-3-2 6-2-3-1-0:6-2-3-1-0.5 "
           "6-2-3-1-0-0:6-2-3-1-0-0.5",
  "dyspec": "4-2-3:6-2-3 4-1-3:4-3-3 4-3-1:4-3-3 5-4-3-1:5-4-3-2",
  "constant": "4:1", "heuristic": "5:1",
  "draft lengths: confidence": "0.99:0.2 0.5-0-9:0.5-1-9 0.5-0.9-0:0.5-0.9-9 "
                               "0.8-0.9-0-1:0.8-0.9-0-0",
  "adaedl": "0.5:0.9 0.5-0:0.5-2 0.9-0.2-0-9:0.9-0.2-2-9 0.9-0.2-0.9-0:0.9-0.2-0.9-9 "
            "0.9-0.2-0.9-0-1:0.9-0.2-0.9-0-3",
  "specdecpp": "0.1:0.9 0.1-1:0.1-3", "marginal": "0.1:0.9 0.1:0.1-0.8 0.5-0-0:0.5-0-1",
  "ensemble": "0.1:0.9", "sorted": "0.1:0.99 0-1:0-3", "rapid": "3-1:7-1 3-1:3-2",
  "transfer": "0:9 90-0:90-1", "rows": "2:9 2-0:2-1", "units": "0.9:0.01",
  "typical": "0.01-3:0.9-3 0.9-0.01:0.9-3",
  "judge": "0.2:0.99", "reflective": "0.1:0.9", "reflective_once": "0.1:0.9",
  "penalties": "1:3 1-0:1-5 1-0-0:1-0-5 1-0-0-0:1-0-0-5", "momentum": "0:0.9 0.9-1:0.9-5",
  "entropy_bound": "0.1:2.0", "entropy_distance": "0.1:3.0 3.0-0:3.0-5", "streaming": "6:3",
  "local_leap": "0.9:0.45 0.6-0.6:0.6-0.1 0.6-0.1-4:0.6-0.1-0",
  "hierarchy": "0.92:0.46 0.92-0.99:0.92-0.01",
  "in_flight": "2:4 4-0.9:4-0.3 2-0.3-0.0:2-0.3-1.0 2-0.9-0.0-0.0:2-0.9-0.0-1.0",
  "frechet": "0.25:0.9", "entropy_threshold": "0.5:2.0",
  "guided": "1:3 0-0:0-0.9 0-0-0:0-0-0.5 1-0-0-1:1-0-0-0",
  "klass": "0.9:0.3 0.3-0.01:0.3-5.0 0.3-5.0-1:0.3-5.0-3",
  "explore": "0.9:0.4 0.9-0.97:0.9-0.3 0.9-0.97-2:0.9-0.97-0",
  "origin": "16:2 4:4-0.9", "steps": "16:4", "timesteps": "16:2 4:4-0.9",
  "remdm": "16:3 8-0:8-1.0", "wino": "0.6:0.1 0.1-0.9:0.1-0.01",
  "remask": "0.9:0.2", "delayed": "8:2 8-4:8-1",
  "dual_adaptive": "0-1.0:9-1.0 9-0.0:9-1.0 9-0.0-1.0-0-1:9-0.0-30.0-0-1 "
                   "9-0.0-10.0-0:9-0.0-10.0-30 9-0.0-10.0-0-1:9-0.0-10.0-0-6",
  "elastic": "0.0:2.0", "smoothed": "0.0:0.9 0.9-0.1:0.9-0.9 0.9-0.1-0.0:0.9-0.1-0.9",
  "scratchpad": "256:1 9:9-9.0 9:9-4.0-0.1",
  "edit": "0.0:0.99 0.0-16:0.0-0", "renoise": "48:3",
  "settled": "9-5.0:1-5.0 1-0.001:1-5.0",
  "cooling": "1.0-1.0:0.2-1.0 1.0-1.0:1.0-0.2 1.0-0.1-9:1.0-0.1-2",
  "r2": "0.8:0.4 0.9-0.8:0.9-0.4 0.9-0.9-0.9:0.9-0.9-0.2 0.9-0.9-0.2-2:0.9-0.9-0.2-4",
  "fixed": "6:3 3-0:3-3", "adaptive": "6:3 6-0.1:6-1.0 6-1.0-6:6-1.0-2 6-0.1-6-6:6-0.1-6-1",
  "vicinity": "1-1-0:4-1-0 1-1-0:1-4-0 1-1-0:1-1-9", "prefix": "2:1", "free": "2:1",
  "sliding": "2-4:8-4 8-4:8-1",
  "similar": "25:2 25-5:25-2 25-5-0.1:25-5-1.0 25-5-0.25:25-5-0.25-8", "sure_end": "0.9:0.2",
  "credit": "0.7:2.0 0.7-0.8:0.7-0.2 0.7-0.8-0.2:0.7-0.8-5.0", "guidance": "1.0:0.0",
  "guesses": "4:2",
  "keyformer": "0.6:0.01 0.05-0:0.05-0.9 0.05-0-0:0.05-0-9",
  "sinks": "1-1:9-1 1-1:1-9", "token_select": "1-0-1:9-0-1 1-0-1:1-9-1 1-0-1:1-0-9",
  "minference": "1-0-0-4:9-0-0-4 2-0-0-4:2-2-0-4 1-0-0-4:1-0-1-4 1-0-0-4:1-0-0-32",
  "skip_decode": "1-4-1:4-4-1 1-2-1:1-64-1 1-4-0:1-4-1", "first": "0:1",
  "duo": "0:9",
}  # fmt: skip
# Of a part without parameters, what it may hold in brackets instead, or the part to which it is
# compared ("" is the method without the part).
PEERS = {
  "tree": "tree[wide.json]", "constraint": "constraint[Cy( Dan)*]",
  "json_schema": 'json_schema[{"type": "integer", "maximum": 3}]',
  "grammar": "grammar[others.lark]", "stop_text": "stop_text[Cy]",
  "greedy": "", "target_only": "token", "token": "block", "block": "token",
  "unverified": "target_only", "recursive": "traversal", "traversal": "recursive",
  "k_seq": "recursive", "none": "dual", "dual": "none", "pruned": "",
  "whole": "after_end", "after_end": "whole", "student": "",
  "end_of_text_prediction": "after_end", "kept": "anew", "anew": "kept", "tempered": "",
  "end_suppressed": "", "end_last": "", "masks": "",
}  # fmt: skip
# Parameters that change the time of a pass and nothing that it computes.
SILENT = [("prefix", "lengths"), ("free", "lengths"), ("delayed", "lengths")]
SILENT += [("scratchpad", "lengths")]
# What a decoder learns shows in its next call, see the tests of these drafters.
SILENT += [("history", "longest"), ("history", "kept")]
# No text here ends so soon, see tests/processors/test_penalties.py.
SILENT += [("penalties", "min_tokens")]
# What a search has found shows later than in a few tokens, see the tests of the drafter.
SILENT += [("swift", parameter) for parameter in ("window", "skip")]
# Blocks of many rows are packed in longer texts, see tests/models/test_compressed_caches.py.
SILENT += [("int8", "rows"), ("gear", "bits"), ("gear", "rank"), ("gear", "outliers")]
SILENT += [("mustafar", "sparsity"), ("mustafar", "recent")]
SILENT += [("actqkv", parameter) for parameter in ("least", "more", "first", "recent")]
LOSSLESS = ("drafters", "heads", "trees", "draft lengths", "ensembles", "exits", "prompts",
            "passes", "bridges", "sources", "rescoring", "pseudo rows")  # fmt: skip


def pairs_of(kind: str, name: str) -> list[tuple[str, str]]:
  """Names of which something must tell the decodings apart, for each parameter in order."""
  brackets = spec.BRACKETS.get(name)
  text = TEXTS.get(name, TEXTS.get(brackets, "")).format(name=name)
  text = f"[{'Dan' if name == 'adaptive' else text}]" if brackets else ""
  if own := PAIRS.get(f"{kind.split(',')[0]}: {name}", PAIRS.get(name)):
    return [
      tuple(part_of(kind, name, x.split("-"), text) for x in pair.split(":"))
      for pair in own.split()
    ]
  defaults, others = numbers_of(kind, name)
  first, *more = (part_of(kind, name, x, text) for x in (defaults, *others))
  peers = [PEERS[name]] if name in PEERS and kind != "drafters" else []
  return [(first, other) for other in (more or peers or [first])]


QUICK = (
  "drafters: jacobi",
  "reflection: reflective_once", "processors: penalties",
  "denoising policies: threshold", "cache: dual", "stopping: sure_end", "transform: *",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.full(but=QUICK)
@pytest.mark.parametrize(("kind", "name"), PARTS)
def test_every_part_decodes(home, kind, name):
  """A decoding shows every parameter, and is that of the method without it where it must."""
  door, known = kind.split(",")[0], KINDS[kind][1][name][1]
  sampled = float(name == "dyspec" or (door == "verifiers" and name != "greedy"))

  @functools.cache
  def shown(part: str, temperature: float = 0.0) -> dict[str, Any]:
    return decoded(decoder_of(home, kind, part, temperature, name))

  pairs, wrong = pairs_of(kind, name), []
  for i, (one, other) in enumerate(pairs):
    if len(known) == len(pairs):
      first, second = (
        {**known, **dict(zip(known, part.numbers, strict=False)), **dict(part.labelled)}
        for part in (spec.parse_one("part", x) for x in (one, other))
      )
      assert [k for k in known if first[k] != second[k]] == [[*known][i]], (one, other)
    same = shown(one, sampled) == shown(other, sampled)
    if same != ((name, *[*known][i : i + 1]) in SILENT or one == other):
      wrong.append((one, other))
  assert not wrong
  label = next(row[2] for row in ROWS[kind] if row[0].strip("/+").partition("[")[0] == name)
  exact = door == "verifiers" and not label.startswith("LOSSY")
  if door in LOSSLESS or exact:
    for part in dict.fromkeys(itertools.chain(*pairs)):
      assert shown(part)["tokens"] == shown("")["tokens"], part
  if label == "EXACT" and door in DECORATING:
    assert shown(pairs[0][0])["tokens"] == shown("")["tokens"]
  if name == "target_only":
    assert shown(name, 1.0)["tokens"] == shown("", 1.0)["tokens"]
  if door == "processors":  # the draft changes nothing of what they do
    plain = decoder_of(home, kind, pairs[0][0], 0.0)
    plain.method = plain.method._replace(drafter=none())
    assert decoded(plain)["tokens"] == shown(pairs[0][0])["tokens"]
