"""Heads in the programs that they are for: speculators and SpecForge load what is written here,
have the same logits at every depth, and save what is read here again. docs/formats.md says how to
install both and has the differences, which `-s` prints.
"""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_published_heads as published
import test_speculators
from test_published_heads import IDS, MODEL, NORMED, E, V, target_params

from specjax.base import Features
from specjax.checkpoints import formats, hf
from specjax.heads import drafting
from specjax.heads.base import Examples
from specjax.heads.dflash import DFlashConfig
from specjax.heads.domino import DominoConfig
from specjax.heads.dspark import DSparkConfig
from specjax.heads.eagle3 import Eagle3Config
from specjax.heads.peagle import PEagleConfig

pytestmark = pytest.mark.filterwarnings("ignore")  # of these programs
T, AT = 14, np.arange(2, 8)
FORGE = {
  "eagle3": ("eagle3", Eagle3Config(3), IDS),
  "eagle3.1": ("eagle3", Eagle3Config(3, fc_norm=True), IDS),
  "peagle": ("peagle", PEagleConfig(3, 3, 5), IDS),
  "dflash": ("dflash", DFlashConfig(2, 3, (7, 1), mask_token=0), None, NORMED),
  "dspark": ("dspark", DSparkConfig(3, 2, (7, 1), mask_token=2, rank=5), None, NORMED),
  "dspark, a confidence of the state": (
    "dspark", DSparkConfig(3, 2, (5,), mask_token=2, rank=3, confidence_of_token=False), None,
    NORMED,
  ),
  "domino": (
    "domino", DominoConfig(3, 2, (7, 1), mask_token=2, state=6, rank=5, plain=1), None, NORMED
  ),
  "domino, the root guesses": (
    "domino", DominoConfig(3, 2, (4,), mask_token=2, from_root=True), None, NORMED
  ),
}  # fmt: skip
CASES = {("speculators", name): x for name, x in test_speculators.OWN.items()}
CASES |= {("specforge", name): x for name, x in FORGE.items()}


@pytest.fixture
def torch():
  for name in ("torch", "speculators", "specforge"):
    pytest.importorskip(name, reason=f"{name} is not installed, see docs/formats.md")
  module = importlib.import_module("torch")
  with module.no_grad():
    yield module


@pytest.mark.parametrize("case", CASES, ids=", ".join)
def test_their_logits_are_ours_and_what_they_save_is_read(tmp_path, torch, monkeypatch, case):
  program, own = case[0], published.made(*CASES[case])
  own = own._replace(params=jax.tree.map(lambda x: x * 0.3 if x.ndim > 1 else x, own.params))
  base, ours, head = tmp_path / "target", tmp_path / "ours", own.head
  hf.save(base, MODEL, target_params(), dtype=jnp.float32)
  form = program if program == "speculators" or head.name == "dspark" else head.name
  formats.save(ours, form, own, MODEL, target_params(), base=str(base), dtype=jnp.float32)

  rng = np.random.default_rng(5)
  tokens = rng.integers(0, V, (1, T)).astype(np.int32)
  hidden, *layers = rng.normal(size=(9, 1, T, E)).astype(np.float32)
  layers = tuple(layers[i] for i in head.hidden_layers)
  place, one = np.arange(T, dtype=np.int32)[None], np.zeros((1, T), np.int32)
  examples = Examples(tokens, place, one, Features(hidden, layers), AT[None].astype(np.int32))
  states = drafting.unroll(head, own.params, target_params(), examples)
  want = [head.read(own.params, target_params(), x, d)[0] for d, x in enumerate(states, 1)]
  if head.log_odds is not None:
    want += [head.log_odds(own.params, x)[0] for x in states]

  load = of_speculators if program == "speculators" else of_specforge
  model = load(torch, ours, base, getattr(own.config, "own_embedding", False))
  kind = {"eagle3": "eagle3", "peagle": "peagle"}.get(head.name, "block")
  run = globals()[f"{kind}_of_{program}"]
  text = map(torch.tensor, (np.int64(tokens), np.concatenate(layers, -1), hidden))
  got = run(torch, model, head.depth, base, monkeypatch, *text)
  assert all(np.std(x) > 0.01 for x in want)
  worst = max(float(abs(x - y.numpy()).max()) for x, y in zip(want, got, strict=True))
  print(f"{case}: {worst:.1e} of {max(float(abs(x).max()) for x in want):.1f}")
  assert worst < 1e-5

  model.save_pretrained(tmp_path / "theirs")
  back = published.load(tmp_path / "theirs")
  assert (back.config, back.network) == (own.config, own.network)
  published.same(back.params, own.params)


def heard(module) -> list:
  """What a module says from now on."""
  said = []
  module.register_forward_hook(lambda module, inputs, output: said.append(output.clone()))
  return said


def of_speculators(torch, path, base, has_embedding):
  from speculators.config import SpeculatorModelConfig
  from speculators.model import SpeculatorModel

  importlib.import_module("speculators.models")
  config = SpeculatorModelConfig.from_pretrained(path)
  config.transformer_layer_config._attn_implementation = "eager"
  model = SpeculatorModel.from_pretrained(str(path), config=config).float().eval()
  if config.speculators_model_type in ("eagle3", "peagle") and not has_embedding:
    model._load_verifier_weights(overwrite_embed_tokens=True)  # nothing does, in transformers 5
  return model


def eagle3_of_speculators(torch, model, D, base, monkeypatch, tokens, layers, last):
  said = heard(model.lm_head)
  model(layers[:, :-1], tokens[:, 1:], torch.zeros(1, T - 1, dtype=torch.long), ttt_steps=D)
  return [x[0, AT] for x in said[:D]]


def peagle_rows(torch, D):
  """(the anchor, the depth) of every row: the text, then masks at `AT` by their depth."""
  anchors = torch.cat([torch.arange(T - 1), *[torch.tensor(AT)] * (D - 1)])
  return anchors, torch.arange(D).repeat_interleave(torch.tensor([T - 1, *[len(AT)] * (D - 1)]))


def peagle_logits(logits, D):
  return [logits[AT], *logits[T - 1 :].reshape(D - 1, len(AT), -1)]


def peagle_of_speculators(torch, model, D, base, monkeypatch, tokens, layers, last):
  core = importlib.import_module("speculators.models.peagle.core")
  rows = peagle_rows(torch, D)
  monkeypatch.setattr(core, "generate_cod_sample_indices", lambda **more: rows)
  monkeypatch.setattr(core, "compute_metrics", lambda **more: (torch.tensor(0.0), {}))
  said = heard(model.lm_head)
  model(
    hidden_states=layers[:, :-1], input_ids=tokens[:, 1:], num_depths=D,
    document_ids=torch.zeros(1, T - 1, dtype=torch.long), verifier_last_hidden_states=last[:, :-1],
  )  # fmt: skip
  return peagle_logits(said[0][0], D)


def block_of_speculators(torch, model, D, base, monkeypatch, tokens, layers, last):
  anchors, said = torch.tensor(AT) + 1, []

  def metrics(logits, targets, *rest, **more):
    said.extend([logits, *rest])
    return torch.tensor(0.0), {}

  for name in ("dflash", "dspark"):
    core = importlib.import_module(f"speculators.models.{name}.core")
    monkeypatch.setattr(core, "compute_metrics", metrics)
    monkeypatch.setattr(core, "select_anchors", lambda *_: (anchors, anchors > 0), raising=False)
  model(
    hidden_states=layers, input_ids=tokens, loss_mask=torch.ones(1, T), max_anchors=len(AT),
    verifier_last_hidden_states=last, document_ids=torch.zeros(1, T, dtype=torch.long),
  )  # fmt: skip
  sure = getattr(model, "confidence_head", None) is not None
  rows = [x.view(len(AT), model.block_size, -1)[:, -D:] for x in said[: 1 + sure]]
  return [*rows[0].unbind(1), *[x for y in rows[1:] for x in y[..., 0].unbind(1)]]


def of_specforge(torch, path, base, has_embedding):
  from specforge.modeling.auto import AutoDraftModel

  model = AutoDraftModel.from_pretrained(
    str(path), torch_dtype=torch.float32, attn_implementation="eager"
  ).eval()
  if hasattr(model, "embed_tokens") and not has_embedding:
    model.load_embedding(str(base))
  if hasattr(model, "midlayer"):
    model.midlayer.self_attn._init_rope()  # its tables are in no file, and transformers 5 made none
  return model


def eagle3_of_specforge(torch, model, D, base, monkeypatch, tokens, layers, last):
  x, n = model.project_hidden_states(layers[:, :-1]), T - 1
  mask = model.prepare_decoder_attention_mask(torch.ones(1, n, dtype=torch.bool), x, 1, n, 0)
  cache, found = [[], []], []
  for d in range(1, D + 1):
    ids = torch.cat([tokens[:, d:], tokens.new_zeros(1, d - 1)], 1)
    x = model.backbone(model.embed_input_ids(ids), x, cache, mask, torch.arange(n)[None])
    found.append(model.compute_logits(x)[0, AT])
  return found


def peagle_of_specforge(torch, model, D, base, monkeypatch, tokens, layers, last):
  from torch.nn.attention.flex_attention import create_block_mask

  anchors, depth = peagle_rows(torch, D)
  ids = torch.where(depth == 0, tokens[0, 1:][anchors], model.config.mask_token_id)
  states = torch.where((depth == 0)[:, None], layers[0, anchors], model.mask_hidden[0])

  def sees(b, h, q, k):
    mine = (anchors[q] == anchors[k]) & (depth[q] >= depth[k])
    return mine | ((depth[k] == 0) & (anchors[q] >= anchors[k]))

  x = model.backbone(
    model.embed_input_ids(ids[None]), model.project_hidden_states(states[None]),
    attention_mask=create_block_mask(sees, None, None, len(ids), len(ids), device="cpu"),
    position_ids=(anchors + depth)[None],
  )  # fmt: skip
  return peagle_logits(model.compute_logits(x)[0], D)


def block_of_specforge(torch, model, D, base, monkeypatch, tokens, layers, last):
  """As its trainer runs them, whose labels are the tokens after the root."""
  trainers = importlib.import_module("specforge.algorithms.common.dflash_family_model")
  name = type(model).__name__.removesuffix("DraftModel")
  target = published.load_file(base / "model.safetensors")
  head, embed = torch.nn.Linear(E, V, bias=False), torch.nn.Embedding(V, E)
  head.weight.data = torch.tensor(target["lm_head.weight"])
  embed.weight.data = torch.tensor(target["model.embed_tokens.weight"])
  more = {"shift_label": model.shift_label} if name == "Domino" else {}
  trainer = getattr(trainers, f"Online{name}Model")(
    model, head, embed, model.mask_token_id, model.block_size, "eager", len(AT), **more
  )
  anchors, said, odds, chance = torch.tensor(AT)[None] + 1, [], [], model.predict_confidence
  trainer._sample_anchor_positions = lambda *_: (anchors, anchors > 0)
  model.predict_confidence = lambda *a, **b: odds.append(chance(*a, **b)) or odds[-1]

  def cross_entropy(logits, labels, reduction):
    said.extend([logits, labels])
    return torch.zeros(len(labels))

  monkeypatch.setattr(torch.nn.functional, "cross_entropy", cross_entropy)
  trainer(tokens, layers, torch.ones(1, T), *([last] if name == "DSpark" else []))
  logits, labels = (x.view(len(AT), model.block_size, -1)[:, -D:] for x in said[:2])
  for d in range(D):
    assert torch.equal(labels[:, d, 0], tokens[0, AT + 2 + d])
  return [*logits.unbind(1), *[x for y in odds if y is not None for x in y[0].unbind(1)]]
