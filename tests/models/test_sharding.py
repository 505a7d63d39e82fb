"""A loop spread over devices says what it says on one."""

import dataclasses
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from sentences import says

from specjax import Decoder, drafters, load, speculate
from specjax.checkpoints import hf, hf_layout
from specjax.cli import main
from specjax.decoding.method import method as pair
from specjax.models import sharding, transformer
from specjax.models.config import Config
from specjax.models.transformer import Transformer, target
from specjax.sampling import Settings, request_keys
from specjax.verifiers import target_only

CONFIG = Config(
  vocab_size=32, width=16, layers=1, heads=4, kv_heads=2, head_dim=8, mlp_width=24, max_length=64
)


def two_by(n, names=("data", "model"), kind=AxisType.Auto):
  return jax.make_mesh((2, n), names, (kind,) * 2, devices=jax.devices()[: 2 * n])


@pytest.mark.parametrize(
  ("N", "spread"), [(6, PartitionSpec("data", "model")), (5, None)], ids=["6 nodes", "5 nodes"]
)
def test_nodes_are_spread_where_they_divide(N, spread):
  logits = jnp.arange(2.0 * N * 8).reshape(2, N, 8)
  devices = two_by(2)
  with jax.set_mesh(devices):
    got = jax.jit(sharding.spread_nodes)(logits)
  np.testing.assert_array_equal(got, logits)
  if spread is not None:
    assert got.sharding.is_equivalent_to(NamedSharding(devices, spread), 3)


def decode(params):
  """Tokens [2, 40] after two prompts, sampled, with a top-k and a top-p."""
  method = pair(target(CONFIG), drafters.prompt_lookup(4), target_only())
  settings = Settings(*(jnp.array(x) for x in ([1.0, 0.7], [8, 0], [1.0, 0.9], [0.0, 0.0])))
  limit = jnp.full(2, 30, jnp.int32)
  request = speculate.DecodeRequest(
    settings, request_keys(0, jnp.arange(2)), limit, jnp.array([-1])
  )
  weights = speculate.Weights(params, ())
  prompt = jnp.array([[1, 2, 3, 1, 2], [7, 8, 7, 0, 0]], jnp.int32), jnp.array([5, 3], jnp.int32)
  state = speculate.compiled_start(method, weights, *prompt, request, 40)
  cached = state.cache.kv.k[0].sharding
  state = speculate.compiled_advance(method, weights, request, state, jnp.int32(40))
  return state.context.tokens, cached


def random_params(config=CONFIG):
  params = transformer.init(config, jax.random.key(1))
  return jax.tree.map(lambda x: x * 10 if x.ndim > 1 else x, params)


@pytest.mark.slow
def test_tokens_do_not_depend_on_the_mesh():
  params = random_params()
  alone, _ = decode(params)
  devices = two_by(2)
  with jax.set_mesh(devices):
    spread, cached = decode(sharding.place(params, devices))
  np.testing.assert_array_equal(spread[:, :30], np.array(alone)[:, :30])
  assert cached.is_equivalent_to(NamedSharding(devices, PartitionSpec("data", "model")), 4)


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
def test_a_split_network_is_the_same_function(bias):
  config = dataclasses.replace(CONFIG, qkv_bias=bias)
  params = jax.tree.map(lambda x: x + 0.1, random_params(config))
  tokens = jnp.arange(10, dtype=jnp.int32)[None]
  arguments = tokens, tokens, jnp.tril(jnp.ones((1, 10, 10), bool))
  whole, parts = (
    Transformer(config).apply(p, *arguments) for p in (params, sharding.split(params))
  )
  for x, y in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_checkpoint_is_read_in_the_parts_that_devices_hold(bias, dtype, tmp_path, monkeypatch):
  config = dataclasses.replace(CONFIG, qkv_bias=bias)
  hf.save(tmp_path, config, transformer.init(config, jax.random.key(1)), dtype=jnp.float32)
  devices, asked = two_by(2), {}
  plain = load(str(tmp_path), dtype)
  inner = hf_layout._spread

  def spied(layout, read, *rest):
    def seen(name, index):
      found = read(name, index)
      asked.setdefault(name, set()).add(found.shape)
      return found

    return inner(layout, seen, *rest)

  monkeypatch.setattr(hf_layout, "_spread", spied)
  spread = load(str(tmp_path), dtype, mesh=devices)
  want = jax.tree_util.tree_leaves_with_path(plain.on(devices).params)
  got = jax.tree_util.tree_leaves_with_path(spread.params)
  assert [path for path, _ in got] == [path for path, _ in want]
  for (path, x), (_, y) in zip(got, want, strict=True):
    assert x.dtype == y.dtype and x.sharding.is_equivalent_to(y.sharding, x.ndim), path
    np.testing.assert_array_equal(x, y)
  whole = {name: shapes for name, shapes in asked.items() if ".norm" in name or "_norm" in name}
  assert {shape for name in asked.keys() - whole for shape in asked[name]} <= {
    (16, 16),
    (8, 16),
    (12, 16),
    (16, 12),
    (16,),
    (8,),
  }  # of q and out, k and v, gate and up, down, the embedding, and biases: half of each
  assert plain.params["params"]["embedding"].shape == (32, 16)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["float", "int8"])
def test_a_model_that_was_read_in_parts_decodes_the_same(weights, tmp_path):
  hf.save(tmp_path, CONFIG, random_params(), dtype=jnp.float32)
  devices, prompts = two_by(2), [[1, 2, 3, 1, 2], [7, 8, 7]]
  with jax.set_mesh(devices):
    parts, whole = (
      Decoder(model, "prompt_lookup-4", batch=2)(prompts, 12)
      for model in (
        load(str(tmp_path), weights=weights, mesh=devices),
        load(str(tmp_path), weights=weights).on(devices),
      )
    )
  assert [r.tokens for r in parts] == [r.tokens for r in whole]


@pytest.mark.slow
def test_a_draft_model_is_spread_as_its_target(tmp_path):
  for name in ("target", "draft"):
    hf.save(tmp_path / name, CONFIG, random_params(), dtype=jnp.float32)
  target_, drafter = str(tmp_path / "target"), f"draft_model-3[{tmp_path / 'draft'}]"
  prompts, devices = [[1, 2, 3, 1, 2], [7, 8, 7]], two_by(2)
  alone = Decoder(load(target_), drafter, batch=2)(prompts, 12)
  with jax.set_mesh(devices):
    decoder = Decoder(load(target_, mesh=devices), drafter, batch=2)
    spread = decoder(prompts, 12)
  leaves = jax.tree_util.tree_leaves_with_path(decoder.weights.drafter)
  whole = {path[-1].key for path, x in leaves if x.sharding.is_fully_replicated}
  assert whole == {"weight"}  # norms
  assert [r.tokens for r in spread] == [r.tokens for r in alone]


def test_what_does_not_divide_is_everywhere():
  placed = sharding.place(random_params(), two_by(3))["params"]
  assert placed["embedding"].sharding.is_fully_replicated  # 32 words over 3
  assert not placed["layer_0"]["gate"].sharding.is_fully_replicated  # 24 columns


@pytest.mark.parametrize(
  ("names", "kind"), [(("data", "tensor"), AxisType.Auto), (("data", "model"), AxisType.Explicit)]
)
def test_a_mesh_of_another_kind_is_refused(names, kind):
  with pytest.raises(ValueError, match=r"`mesh` must have the axes .*, got {"):
    sharding.place(random_params(), two_by(2, names, kind))


GENERATE = ("generate", "--drafter", "eagle-4", "--temperature", "0.8", "--json")


@pytest.mark.full
@pytest.mark.parametrize("command", [
  (*GENERATE, "--prompt", "Q: Ann has 3 apples.", "--max-new-tokens", "20", "--batch", "2"),
  (*GENERATE, "--weights", "int8", "--prompt", "Q: Ann has 3", "--max-new-tokens", "9"),
  ("denoise", "--policy", "threshold-0.9/dual", "--chat", "--prompt", "sort : Leo Ada =", "--json"),
], ids=["generate", "int8", "denoise"])  # fmt: skip
def test_commands_say_the_same_on_a_mesh(command, capsys):
  said = []
  for mesh in ((), ("--mesh", "data=2,model=2")):
    assert main.main([*command, *mesh]) == 0
    said.append(json.loads(capsys.readouterr().out)["tokens"])
  assert said[0] == said[1]
  assert jax.sharding.get_mesh().empty


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("data=2,model=9",
     "`data` and `model` must be at least 1, and together at most .. got 2 and "
     "9."), ("rows=2",
     "`mesh` must be data=ROWS,model=COLUMNS, such as data=2,model=4, got 'rows=2'."),
    ("data=2,data=3", "`mesh` must be data=ROWS .. got 'data=2,data=3'."),
    ("data", "`mesh` must be data=ROWS .. got 'data'."),
    ("", "`mesh` must be data=ROWS .. got ''."),
    ("model=-1", "`mesh` must be data=ROWS .. got 'model=-1'."), ("data=0",
     "`data` and `model` must be at least 1, and together at most .. got 0 and 1."),
  ],
)  # fmt: skip
def test_what_is_no_mesh_is_one_sentence(text, message, capsys):
  assert main.main(["generate", "--prompt", "1", "--mesh", text]) == 2
  assert says(capsys.readouterr().err, message)
  assert dict(sharding.named_mesh("model=4").shape) == {"data": 1, "model": 4}


@pytest.mark.parametrize(
  ("platform", "count", "asked"), [("tpu", 8, True), ("tpu", 1, False), ("gpu", 8, False)]
)
def test_what_a_compiler_is_asked_for(platform, count, asked):
  """Other compilers refuse a TPU's options, and one chip has nobody to wait for."""
  devices = np.full(count, types.SimpleNamespace(platform=platform), object)
  mesh = types.SimpleNamespace(size=count, devices=devices)
  options = sharding.compiler_options(mesh)
  assert bool(options) == asked
  assert set(options.values()) <= {"true"} and all(name.startswith("xla_") for name in options)
