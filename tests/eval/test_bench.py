"""The benchmark on a tiny random model: what it writes, and that it counts what was decoded."""

import dataclasses
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.base import KV, Cache
from specjax.checkpoints import hf
from specjax.data.chat import TEMPLATES
from specjax.data.tokenizer import train_bpe
from specjax.eval import bench, divergence, prompts, verify_cost
from specjax.models.config import Config
from specjax.models.transformer import Transformer, attention_mask


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  """A random Llama with a tokenizer and a chat template."""
  tokenizer = train_bpe(prompts.OUR_QUESTIONS, 300)
  config = Config(tokenizer.vocab_size, 32, 1, 2, 1, 16, 48, max_length=256)
  z = jnp.zeros((1, 2), jnp.int32)
  params = jax.jit(Transformer(config).init)(jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool))
  path = tmp_path_factory.mktemp("tiny")
  hf.save(path, config, params, tokenizer, template=TEMPLATES["qa"], dtype=jnp.float32)
  return specjax.load(str(path))


@pytest.fixture(scope="module")
def prompt_file(tmp_path_factory):
  path = tmp_path_factory.mktemp("prompts") / "mixed.jsonl"
  records = [
    {"tokens": [5, 6, 7, 5, 6, 7, 5, 6]},
    {"prompt": "a train of a train of a train"},
    {"question": "How many?"},
    {"question_id": 1, "category": "writing", "turns": ["Say something.", "And more."]},
    {"tokens": [9]},
  ]
  path.write_text("".join(json.dumps(r) + "\n" for r in records))
  return str(path)


@pytest.fixture(scope="module")
def greedy(model, prompt_file, tmp_path_factory):
  """(directory, summary) of a run with a batch that does not divide the prompts."""
  out = tmp_path_factory.mktemp("bench")
  config = bench.Config(
    drafters=("prompt_lookup", "prompt_lookup-4"), prompts=prompt_file, max_new_tokens=24, batch=2,
    repeats=2,
  )  # fmt: skip
  return out, bench.run(model, config, out)


@pytest.mark.slow
def test_files_and_methods(greedy):
  out, summary = greedy
  assert {p.name for p in out.iterdir()} == {
    "results.jsonl", "summary.json", "table.md", "speedup.png", "acceptance.png", "verify_cost.png",
  }  # fmt: skip
  assert list(summary["methods"]) == ["none", "prompt_lookup", "prompt_lookup-4"]
  assert json.loads((out / "summary.json").read_text()) == json.loads(json.dumps(summary))
  assert summary["config"]["max_new_tokens"] == 24
  assert summary["versions"]["jax"] == jax.__version__
  table = (out / "table.md").read_text()
  assert "| prompt_lookup-4 |" in table and "GREEDY-EXACT" in table


def test_counts_are_those_of_the_ids(greedy, model):
  out, summary = greedy
  lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
  assert len(lines) == 3 * 5
  for name, figures in summary["methods"].items():
    mine = [line for line in lines if line["method"] == name]
    tokens = sum(len(m["tokens"]) for m in mine)
    passes = sum(m["passes"] for m in mine)
    assert figures["tokens"] == tokens and figures["passes"] == passes
    assert figures["tau"] == pytest.approx(tokens / passes)
    # Rows of a batch share their time, and it is counted once: batches (0, 1), (2, 3), (4).
    assert [m["batch"] for m in mine] == [0, 0, 1, 1, 2]
    assert mine[0]["seconds"] == mine[1]["seconds"]
    assert figures["seconds"] == pytest.approx(sum(mine[i]["seconds"] for i in (0, 2, 4)))
  assert [line["category"] for line in lines[:5]] == [None, None, None, "writing", None]


def test_plain_is_the_unit_and_the_others_equal_it(greedy):
  _, summary = greedy
  plain = summary["methods"]["none"]
  assert plain["tau"] == plain["speed_up"] == plain["speed_up_with_prefill"] == 1.0
  assert plain["acceptance_by_depth"] == []
  for name in ("prompt_lookup", "prompt_lookup-4"):
    method = summary["methods"][name]
    assert method["must_equal_plain"] and method["divergences"] == []
    assert method["tau"] > 1 and method["mbsu"] == method["tau"]
    assert len(method["speed_up_repeats"]) == 2
  assert summary["methods"]["prompt_lookup-4"]["depth"] == 3


def test_verify_cost_is_measured(greedy):
  cost = greedy[1]["verify_cost"]
  assert cost["nodes"] == [1, 2, 4, 8, 16, 32] and cost["relative"][0] == 1.0
  low, middle, high = (np.array(cost[k]) for k in ("low", "seconds", "high"))
  assert (low > 0).all() and (low <= middle).all() and (middle <= high).all()
  assert cost["context"] == 128 and cost["batch"] == 2


@pytest.mark.slow
def test_sampled_target_only_equals_plain_and_typical_is_marked(model, prompt_file, tmp_path):
  exact = bench.Config(
    drafters=("prompt_lookup",), prompts=prompt_file, max_new_tokens=16, temperature=0.8, repeats=1
  )
  method = bench.run(model, exact, tmp_path / "exact")["methods"]["prompt_lookup"]
  assert method["verifier"] == "target_only"
  assert method["must_equal_plain"] and method["divergences"] == []
  first = method["first"]
  assert 0 < first["optimum"] < 1 and first["reached"] == first["accepted"] / first["optimum"]
  assert " % |" in (tmp_path / "exact" / "table.md").read_text()

  lossy = bench.Config(
    drafters=("prompt_lookup",), prompts=prompt_file, limit=2, max_new_tokens=16, temperature=0.8,
    verifier="typical", repeats=1,
  )  # fmt: skip
  methods = bench.run(model, lossy, tmp_path / "lossy")["methods"]
  assert methods["prompt_lookup"]["lossy"] and not methods["prompt_lookup"]["must_equal_plain"]
  assert not methods["none"]["lossy"] and methods["prompt_lookup"]["first"] is None
  assert "prompt_lookup (LOSSY)" in (tmp_path / "lossy" / "table.md").read_text()


def test_a_run_that_was_stopped_goes_on(model, prompt_file, tmp_path, monkeypatch, capsys):
  """Three batches, two repeats and two methods make twelve calls, and what was whole makes none."""
  config = bench.Config(
    drafters=("prompt_lookup-4",), prompts=prompt_file, max_new_tokens=8, batch=2, repeats=2,
    verify_cost=False,
  )  # fmt: skip
  decode, calls = specjax.Decoder.__call__, []

  def run(config: bench.Config, out: str, stop: int = 0) -> dict:
    calls.clear()

    def counted(self, *args, **kwargs):
      calls.append(self.name)
      if len(calls) == stop:
        raise KeyboardInterrupt
      return decode(self, *args, **kwargs)

    monkeypatch.setattr(specjax.Decoder, "__call__", counted)
    return bench.run(model, config, tmp_path / out)["methods"]

  def counts(methods: dict) -> dict:
    return {
      k: [m[x] for x in ("tau", "tokens", "passes", "divergences")] for k, m in methods.items()
    }

  alone = run(config, "alone")
  assert len(calls) == 12
  with pytest.raises(KeyboardInterrupt):
    run(config, "stopped", stop=6)
  assert counts(run(config, "stopped")) == counts(alone) and len(calls) == 8
  assert not (tmp_path / "stopped" / "unfinished").exists() and not capsys.readouterr().out

  with pytest.raises(KeyboardInterrupt):
    run(config, "stopped", stop=12)
  run(dataclasses.replace(config, max_new_tokens=9), "stopped")
  assert len(calls) == 12 and "held a run with other settings" in capsys.readouterr().err


@pytest.mark.slow
def test_draft_model_pays_for_its_passes(model, prompt_file, tmp_path):
  config = bench.Config(
    drafters=(name := f"draft_model-3[{model.name}]",), prompts=prompt_file, limit=1,
    max_new_tokens=8, repeats=1,
  )  # fmt: skip
  method = bench.run(model, config, tmp_path)["methods"][name]
  # The target drafts for itself: all is accepted, and 3 passes of its own size are 3 passes.
  assert method["acceptance_by_depth"] == [1.0, 1.0]
  assert method["mbsu"] == pytest.approx(method["tau"] / 4)
  assert method["tau_interval"] is None


def test_our_questions_fit_the_template(model):
  assert len(prompts.OUR_QUESTIONS) == len(set(prompts.OUR_QUESTIONS)) == 24
  items = prompts.read(None, model, 8, 2)
  assert items[0].ids == model.chat(prompts.OUR_QUESTIONS[0])
  assert model.decode(items[0].ids).endswith("Answer:")


@pytest.mark.parametrize(
  ("line", "message"),
  [
    (
      '{"text": "x"}',
      r"record 2: a line must have one of prompt \(text\), tokens.*got the keys text\.",
    ),
    ("[1]", "record 2 is not an object"),
    ("{", "record 2 is not JSON"),
    ('{"prompt": ""}', "record 2: prompt is empty"),
    ('{"tokens": []}', "record 2: prompt is empty"),
    ('{"tokens": [1, "2"]}', r"`tokens` must be a list of ids, got \[1, '2'\]\."),
    ('{"tokens": [1, 100000]}', r"`prompt\[1\]` must be between 0 and 299, got 100000\."),
    ('{"question": 3}', r"`question` must be text, got 3\."),
    (
      '{"turns": []}',
      r"record 2: a line must have one of prompt \(text\), tokens.*got the keys turns\.",
    ),
  ],
)
def test_a_bad_line_is_named(model, tmp_path, line, message):
  path = tmp_path / "bad.jsonl"
  path.write_text('{"tokens": [1]}\n' + line + "\n")
  with pytest.raises(ValueError, match=message):
    prompts.read(str(path), model, 8)


def test_a_long_prompt_is_found_before_decoding(model, tmp_path):
  path = tmp_path / "long.jsonl"
  path.write_text(json.dumps({"tokens": [1]}) + "\n" + json.dumps({"tokens": [1] * 250}) + "\n")
  with pytest.raises(
    ValueError, match=(r"`max_new_tokens` must be together at most 256, the.*got 250 and 8\.")
  ):
    prompts.read(str(path), model, 8)
  assert len(prompts.read(str(path), model, 8, limit=1)) == 1


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (
      {"drafters": ("prompt_lookup:16",)},
      r"`drafter` must be NAME, NAME-NUMBER or.*got 'prompt_lookup:16'\.",
    ),
    ({"drafters": ("none-4",)}, "none takes no number"),
    (
      {"drafters": ("prompt_lookup", "prompt_lookup-8")},
      "must name each method once, got prompt_lookup p",
    ),
    (
      {"drafters": ("prompt_lookup", "prompt_lookup")},
      "must name each method once, got prompt_lookup p",
    ),
    (
      {"drafters": ("oracle",)},
      r"`drafter` must be one of none, prompt_lookup, draft_model.*got 'oracle'\.",
    ),
    ({"repeats": 0}, r"`repeats` must be between 1 and 2147483647, got 0\."),
    ({"limit": 0}, r"`limit` must be between 1 and 2147483647, got 0\."),
    ({"max_new_tokens": 0}, r"`max_new_tokens` must be between 1 and 2147483647, got 0\."),
    ({"batch": 0}, r"`batch` must be between 1 and 65536, got 0\."),
    ({"verifier": "token", "drafters": ("prompt_lookup",)}, "not exact for drafter"),
  ],
)
def test_bad_config(model, tmp_path, change, message):
  with pytest.raises(ValueError, match=message):
    bench.run(model, bench.Config(**{"drafters": (), **change}), tmp_path / "out")
  assert not (tmp_path / "out").exists()


def test_margin_is_that_of_an_uncached_forward(model):
  ids = [5, 6, 7, 8, 9]
  network = Transformer(model.config)

  @jax.jit
  def logits(params, tokens):
    mask = attention_mask(jnp.zeros_like(tokens), causal=True)
    hidden, _ = network.apply(params, tokens, jnp.arange(5, dtype=jnp.int32)[None], mask)
    return network.apply(params, hidden, method="head")

  best = np.sort(logits(model.params, jnp.asarray([ids], jnp.int32))[0, -1])
  assert divergence.margin(model, ids) == pytest.approx(best[-1] - best[-2], abs=1e-5)


def test_verify_cost_keeps_the_order_of_nodes(model):
  cost = verify_cost.measure(model.target, model.params, 16, nodes=(1, 8), repeats=2)
  assert cost.nodes == [1, 8] and len(cost.relative) == 2


class Sums:
  """In place of a target: after a node comes the sum of the tokens it sees and of 32 per level."""

  def evaluate(self, params, cache, tokens, depth, mask):
    sums = jnp.where(mask, tokens[:, None], 0).sum(-1) + 32 * depth
    return types.SimpleNamespace(logits=jax.nn.one_hot(sums, 256), kv=())

  def commit(self, cache, kv, path, rows):
    return cache


@pytest.mark.parametrize(
  ("parent", "sums"),
  [
    (None, [1, 3 + 32, 7 + 64, 15 + 96, 31 + 128]),
    (verify_cost.chain(5), [1, 3 + 32, 7 + 64, 15 + 96, 31 + 128]),
    ((0, 0, 0, 1, 3), [1, 3 + 32, 5 + 32, 11 + 64, 27 + 96]),
  ],
  ids=["chain", "parents of a chain", "tree"],
)
def test_the_passes_that_are_timed_see_ancestors_alone(parent, sums):
  cache, tokens = Cache(KV((), ()), jnp.zeros(1, jnp.int32)), jnp.array([[1, 2, 4, 8, 16]])
  _, following = verify_cost.passes(Sums(), (), cache, tokens, jnp.int32(1), parent)
  assert following.tolist() == [sums]
