"""The choice of a tree: right where the answer is known, and what a run writes."""

import dataclasses
import functools
import itertools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.base import Draft, Drafter, Evaluation, Features
from specjax.checkpoints import heads, hf
from specjax.drafters import draft_tree
from specjax.eval import (
  bench,
  choice,
  draft_cost,
  fillers,
  length_cost,
  sequoia,
  tune,
  verify_cost,
)
from specjax.heads import HEADS, drafting, medusa
from specjax.heads.medusa import MedusaConfig
from specjax.models.config import Config
from specjax.models.transformer import Transformer
from specjax.names import grammar
from specjax.names.build.tree import build_tree
from specjax.trees import Dynamic, WithoutReplacement, files
from specjax.trees.static import expected_length

RATES = np.array([[0.5, 0.2, 0.1], [0.4, 0.3, 0.0]])
HEAD = MedusaConfig(depth=2, shared=True)
EAGLE = grammar.parse_one("drafter", "eagle")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  """A random Llama without a tokenizer."""
  config = Config(48, 32, 1, 2, 1, 16, 48, max_length=128)
  z = jnp.zeros((1, 2), jnp.int32)
  params = jax.jit(Transformer(config).init)(jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool))
  path = tmp_path_factory.mktemp("tiny")
  hf.save(path, config, params, None, dtype=jnp.float32)
  return specjax.load(str(path))


@pytest.fixture(scope="module")
def head(model, tmp_path_factory):
  """Directory of an untrained medusa whose table is one deep, so that there is little to time."""
  path = tmp_path_factory.mktemp("head")
  params = medusa(model.target, HEAD).init(jax.random.key(1), model.params)
  heads.save(path, "medusa", HEAD, params, [[0], [0, 0]], RATES[:1], base="tiny")
  return str(path)


@pytest.fixture(scope="module")
def prompt_file(tmp_path_factory):
  path = tmp_path_factory.mktemp("prompts") / "ids.jsonl"
  path.write_text("".join(json.dumps({"tokens": t}) + "\n" for t in ([5, 6, 7], [9], [1, 2, 1, 2])))
  return str(path)


def all_trees(rates):
  """Every (nodes, expected accepted tokens) of a tree with these ranks, by plain loops."""
  D, R = rates.shape
  paths = [p for d in range(1, D + 1) for p in itertools.product(range(R), repeat=d)]
  for size in range(len(paths) + 1):
    for tree in itertools.combinations(paths, size):
      if all(len(p) == 1 or p[:-1] in tree for p in tree):
        accepted = 0.0
        for path in tree:
          chance = 1.0
          for d, r in enumerate(path):
            chance = chance * rates[d, r]
          accepted += chance
        yield size + 1, accepted


@functools.cache
def best_of_all(rates: tuple) -> dict[int, float]:
  """The most that any tree of each size expects."""
  best: dict[int, float] = {}
  for nodes, accepted in all_trees(np.array(rates)):
    best[nodes] = max(best.get(nodes, 0.0), accepted)
  return best


def as_tuple(rates):
  return tuple(map(tuple, rates.tolist()))


TABLES = {
  "usual": RATES[:, :2],
  "deep": np.array([[0.6], [0.5], [0.5]]),
  "wide": np.array([[0.3, 0.3, 0.2, 0.1]]),
  "out of order": np.array([[0.1, 0.5], [0.3, 0.2]]),
}
COSTS = {
  "free": lambda n: 1.0,
  "proportional": lambda n: 1.0 * n,
  "flat, then steep": lambda n: 1.0 if n <= 4 else 2.0 * n,
  "a little": lambda n: 1 + 0.05 * n,
  "with a drafter": lambda n: 1 + 0.02 * n + (0.3 if n > 1 else 0.0),
}


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("table", TABLES)
def test_the_most_promising_is_the_best_of_all_trees(table, cost):
  """Of all trees, drawn or not, that have the size of a candidate that is no chain."""
  rates, seconds = TABLES[table], COSTS[cost]
  options = [c for c in choice.candidates(EAGLE, rates) if "static" not in c.name]
  if not options:
    return
  most = max(choice.expected(c, seconds(c.nodes), 3) for c in options)
  best = best_of_all(as_tuple(rates))
  known = max((1 + best[c.nodes]) / seconds(c.nodes) for c in options)
  assert most == pytest.approx(3 * known)


def test_the_candidates_reach_as_far_as_the_table():
  sizes = {c.name: c.nodes for c in choice.candidates(EAGLE, RATES[:, :2])}
  assert sizes == {"eagle/static-1": 2, "eagle/static-1-1": 3, "eagle-4": 4, "eagle-6": 6}
  many = choice.candidates(EAGLE, np.linspace(0.5, 0.01, 40).reshape(4, 10))
  assert [c.name for c in many[4:]] == [f"eagle-{n}" for n in (4, 6, 8, 12, 16, 24, 32, 48, 64)]
  for c in many:
    assert len(set(c.tree)) == c.nodes - 1 and len(c.tree) == c.nodes - 1
  # Four deep and one wide there is nothing but chains, and none is there twice.
  names = [c.name for c in choice.candidates(EAGLE, np.full((4, 1), 0.5))]
  assert names == ["eagle/static" + "-1" * d for d in range(1, 5)]


def test_pseudo_rows_are_shared_out():
  """Fewer rows never expect more, and all of them as much as where guesses cost nothing."""
  head = grammar.parse_one("drafter", "ppd[runs/a]")
  options = {c.name: c for c in choice.candidates(head, np.full((3, 4), 0.2), pseudo=True)}
  tree = [options[f"ppd-8{rows}"] for rows in ("[runs/a]/rows-8", "[runs/a]/rows-12", "[runs/a]")]
  assert [sum(c.guesses) for c in tree] == [8, 12, 16]
  assert tree[0].accepted < tree[1].accepted <= tree[2].accepted
  assert tree[2].accepted == pytest.approx(expected_length(tree[2].tree, np.full((3, 4), 0.2)))


def test_times_between_measured_sizes():
  """Exact where the time is linear in depth and nodes."""
  options = choice.candidates(EAGLE, np.linspace(0.5, 0.01, 40).reshape(4, 10))
  seconds = [0.1 + 0.2 * c.depth + 0.01 * c.nodes for c in options]
  known = choice.spread(range(len(options)), 4)
  assert known[0] == 0 and known[-1] == len(options) - 1 and len(known) == 4
  found = choice.fitted([options[i] for i in known], [seconds[i] for i in known], options)
  assert found == pytest.approx(seconds)
  assert choice.spread([7], 4) == [7]


def busy(products: int, verifying: int | None = None) -> Drafter:
  """Drafts one token by so many matrix products on its state, which only `update` sets anew.

  With `verifying` it brings an `evaluate` of its own, of so many products.
  """

  def work(params, x, count: int):
    x = jnp.tile(x, (1, len(params) // x.shape[1]))
    return jax.lax.fori_loop(0, count, lambda _, x: jnp.tanh(x @ params), x)

  def init(params, target_params, context, features, capacity):
    return features.hidden[:, -1]

  def propose(params, target_params, state, context, settings, noise):
    guess = jnp.argmax(work(params, state, products), -1).astype(jnp.int32)
    tokens = jnp.stack([jnp.zeros_like(guess), guess], 1)
    depth = jnp.broadcast_to(jnp.arange(2, dtype=jnp.int32)[None], tokens.shape)
    return Draft(tokens, jnp.zeros_like(tokens), depth, jnp.ones(tokens.shape, bool)), state

  def update(params, target_params, state, draft, evaluation, verdict, rows):
    return evaluation.features.hidden[:, 0]

  def evaluate(params, target_params, state, cache, draft, mask):
    x = work(params, state + draft.tokens[:, 1:].astype(jnp.float32), verifying)
    features = Features(x[:, None, : state.shape[1]])
    return Evaluation(jnp.zeros((len(x), 2, 8)), features, cache.kv)

  own = None if verifying is None else evaluate
  return Drafter("busy", "deterministic", 2, 1, init, propose, update, own)


@pytest.mark.slow
def test_what_a_drafter_computes_is_timed(model):
  """Neither dropped nor taken out of the loop: a thousand times the work takes far longer."""
  params = jax.random.normal(jax.random.key(0), (512, 512))
  drafters = [busy(1), busy(1000), busy(1, verifying=1000)]
  little, *much = draft_cost.measure(
    model.target, model.params, drafters, params, 16, batch=4, repeats=3
  )
  assert 0 < 3 * little < min(much)


@pytest.fixture(scope="module")
def tuned(model, head, prompt_file, tmp_path_factory):
  """(directory, summary)."""
  out = tmp_path_factory.mktemp("tune")
  config = tune.Config(
    drafters=(f"medusa[{head}]", "prompt_lookup-4"), prompts=prompt_file, max_new_tokens=12,
    batch=2, decode=1, repeats=1,
  )  # fmt: skip
  return out, tune.run(model, config, out)


@pytest.mark.slow
def test_what_is_expected_follows_from_the_measured_times(tuned, head):
  figures = tuned[1]["candidates"]
  names = [f"medusa[{head}]/static-1", f"medusa-4[{head}]"]
  assert list(figures) == ["none", *names, "prompt_lookup-4"]
  best = best_of_all(as_tuple(RATES[:1]))
  for name in names:
    f = figures[name]
    seconds = f["target_seconds"] + f["draft_seconds"]
    assert f["expected_tau"] == pytest.approx(1 + best[f["nodes"]], abs=1e-4)
    assert f["expected"] == pytest.approx(2 * f["expected_tau"] / seconds)
    assert f["draft_seconds"] > 0 and f["target_seconds"] > 0


def test_the_fastest_that_was_decoded_is_chosen(tuned, head):
  figures = tuned[1]["candidates"]
  drafted = sorted(list(figures)[1:3], key=lambda k: -figures[k]["expected"])
  decoded = {k: f for k, f in figures.items() if "tokens_per_second" in f}
  assert set(decoded) == {"none", drafted[0], "prompt_lookup-4"}
  for f in decoded.values():
    assert f["divergences"] == [] and f["tau"] >= 1
  assert figures["none"]["tau"] == 1
  most = max(f["tokens_per_second"] for f in decoded.values())
  assert figures[tuned[1]["chosen"]]["tokens_per_second"] == most


def test_what_a_run_writes(tuned):
  out, summary = tuned
  chosen = summary["candidates"][summary["chosen"]]
  own = {"tree.json"} if "choices" in chosen else set()
  assert {p.name for p in out.iterdir()} == own | {
    "summary.json", "table.md", "tune.png", "speedup.png",
  }  # fmt: skip
  assert json.loads((out / "summary.json").read_text()) == json.loads(json.dumps(summary))
  for path in (out / name for name in own):
    assert files.load(path).choices == chosen["choices"]
    about = json.loads(path.read_text())["about"]
    assert about["drafter"] == summary["chosen"] and about["batch"] == 2


def test_the_choice_is_a_name(tuned, model):
  """As it is printed, and with the tree that was measured."""
  _, summary = tuned
  said = tune.verdict(summary)
  name = said.removeprefix('chosen: --drafter "').partition('"')[0]
  assert name == summary["chosen"] and "of plain decoding" in said
  for label, f in summary["candidates"].items():
    assert specjax.Decoder(model, label).method.drafter.nodes == f["nodes"]
  rows = tune.rows(summary)
  assert [row["draft"] for row in rows] == list(summary["candidates"])
  tau = [str(row["expected tokens/pass"]) for row in rows]
  assert tau == ["", "1.50", "1.80", ""]


def test_a_benchmark_is_tuned_first(model, head, prompt_file, tmp_path, monkeypatch):
  """What leaves its size open is replaced by the choice, or left out where plain is faster."""
  asked = []

  def run(model, config, out):
    asked.append((config.drafters, config.batch, out))
    return {"chosen": "none" if "token_recycling" in config.drafters else "prompt_lookup-16"}

  monkeypatch.setattr(tune, "run", run)
  config = bench.Config(drafters=("prompt_lookup", "token_recycling", "jacobi-4"), batch=2)
  assert tune.tuned(model, config, tmp_path).drafters == ("prompt_lookup-16", "jacobi-4")
  assert [a[:2] for a in asked] == [(("prompt_lookup",), 2), (("token_recycling",), 2)]
  assert len({a[2] for a in asked}) == 2


@pytest.mark.slow
def test_sequoia_counts_which_child_was_accepted(model):
  """The target drafts for itself: the first child is always accepted, and there is no second."""

  def fill(choices):
    return draft_tree(model.target, WithoutReplacement(choices))

  rates, rounds = sequoia.acceptance(model, fill, model.params, [[5, 6, 7], [9]], 6, 1.0)
  assert rates.tolist() == [1.0] + [0.0] * (sequoia.WIDTH - 1)
  assert rounds == 6  # of two rows, which gain two tokens a round


@pytest.mark.full
def test_sequoia_chooses_a_drawn_tree(model, tmp_path, monkeypatch):
  monkeypatch.setattr(choice, "NODES", (4,))
  monkeypatch.setattr(fillers, "DEPTH", 2)
  path = tmp_path / "ids.jsonl"
  path.write_text("".join(json.dumps({"tokens": [i, i + 1]}) + "\n" for i in range(9)))
  name = f"draft_model[{model.name}]"
  config = tune.Config(
    drafters=(name,), method="sequoia", prompts=str(path), max_new_tokens=6, temperature=1.0,
    decode=1, repeats=1,
  )  # fmt: skip
  summary = tune.run(model, config, tmp_path / "out")
  assert summary["rates"][name]["acceptance"][0] == 1.0 and summary["prompts"] == 1
  found = summary["candidates"]
  assert [f.get("nodes") for f in found.values()] == [1, 2, 3, 4, 4]
  assert list(found.values())[2]["expected_tau"] == 3
  label, changing = (k for k, f in found.items() if "tau" in f and k != "none")
  assert changing == f"{name}/dyspec-4,depth=2,children=4"
  tree = specjax.Decoder(model, label, temperature=1.0).method.drafter
  assert tree.proposal in ("without_replacement", "chain")  # whichever is faster here
  assert tree.nodes == found[label]["nodes"]


@pytest.mark.parametrize(
  ("raw", "name", "nodes"),
  [
    ({"static": {"choices": [[0], [1], [1, 0]]}}, "medusa", 4),
    ({"dynamic": {"nodes": 5, "depth": 2, "beam": 2}}, "medusa", 5),
    ({"static": {"choices": []}}, "none", 1),
  ],
)
def test_a_benchmark_takes_a_tree(model, head, tmp_path, raw, name, nodes):
  path = tmp_path / "tree.json"
  path.write_text(json.dumps(raw))
  method = bench.make_decoder(model, f"medusa[{head}]/tree[{path}]", bench.Config()).method
  assert (method.drafter.name, method.drafter.nodes) == (name, nodes)


def test_a_benchmark_takes_a_tree_by_name(model, head):
  config, name = bench.Config(), f"medusa[{head}]"
  drafter = bench.make_decoder(model, f"{name}/dynamic-6,depth=2,beam=3", config).method.drafter
  assert drafter is drafting.drafter(medusa(model.target, HEAD), Dynamic(6, 2, 3))
  for label, message in (
    (f"{name}/dynamic-6,depth=2", "tree='dynamic-6,depth=2': it needs beam"),
    (f"{name}/tree[no_such.json]", "'no_such.json' cannot be read"),
    (f"{name}/dynamic-6,depth=5,beam=3", "tree is 5 deep: the head guesses 2"),
    (
      "medusa:dynamic-6,depth=2,beam=3",
      r"`drafter` must be NAME, NAME-NUMBER or.*got 'medusa:dynamic-6,depth=2,beam=3'\.",
    ),
    (
      "prompt_lookup/dynamic-6,depth=2,beam=3",
      r"prompt_lookup/dynamic: after prompt_lookup/ may follow none\.",
    ),
  ):
    with pytest.raises(ValueError, match=message):
      bench.make_decoder(model, label, config)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (
      {"drafters": ("no_such",)},
      r"`drafter` must be one of none, prompt_lookup, draft_model.*got 'no_such'\.",
    ),
    ({"drafters": ("rest",)}, "rest: it needs a datastore"),
    (
      {"drafters": ("none",)},
      r"`drafters` must be one or more names, each once \(none is always there\), got "
      r"'none'\.",
    ),
    (
      {"drafters": ()},
      r"`drafters` must be one or more names, each once \(none is always there\), got ''\.",
    ),
    ({"drafters": ("eagle[HEAD]",)}, "is a head of medusa"),
    ({"drafters": ("medusa[no_such]",)}, "'no_such' is no directory"),
    ({"repeats": 0}, r"`repeats` must be between 1 and 2147483647, got 0\."),
    ({"batch": 0}, r"`batch` must be between 1 and 65536, got 0\."),
    ({"decode": 0}, r"`decode` must be between 1 and 2147483647, got 0\."),
    ({"max_new_tokens": 127}, "together at most 128"),
    ({"temperature": -0.5}, r"`temperature` must be at least 0, got -0\.5\."),
    (
      {"method": "sequoia", "temperature": 1.0, "drafters": ("jacobi",)},
      r"`drafter` must be a head or draft_model, without numbers.*got 'jacobi'\.",
    ),
    ({"method": "sequoia"}, r"`temperature` must be above 0 for method='sequoia', got 0\.0\."),
    (
      {"method": "sequoia", "temperature": 1.0},
      "`prompts` must hold more than the 8 questions on which acceptance is measured, got 3 in",
    ),
    ({"method": "sequoia", "temperature": 1.0, "drafters": ("draft_model",)}, "it needs a model"),
  ],
)
def test_bad_config(model, head, prompt_file, tmp_path, change, message):
  config = tune.Config(drafters=(f"medusa[{head}]",), prompts=prompt_file, max_new_tokens=8)
  if names := change.get("drafters"):
    change = {**change, "drafters": tuple(name.replace("HEAD", head) for name in names)}
  with pytest.raises(ValueError, match=message):
    tune.run(model, dataclasses.replace(config, **change), tmp_path / "out")
  assert not (tmp_path / "out").exists()


def test_a_head_without_hit_rates_is_tried_with_several_sizes(tmp_path):
  config, model = tune.Config(drafters=("medusa",)), specjax.load()
  asked = tune._asked(model, "medusa", config)
  found = tune._considered(model, asked, [], config, 8, tmp_path)
  assert found.promising == ["medusa-4", "medusa-8", "medusa-16"] and not found.rates


@pytest.mark.parametrize(
  ("method", "trees", "want"),
  [
    ("best_first", [(4, 2), (16, 4)], ["eagle[runs/a]/dynamic-4,depth=2,beam=4"]),
    ("sequoia", [(3, 2), (2, 1), (9, 1), (16, 4)], ["eagle[runs/a]/dyspec-16,depth=4,children=4"]),
    ("best_first", [(64, 2)], ["eagle[runs/a]/dynamic-64,depth=2,beam=8"]),
    ("sequoia", [(64, 2)], ["eagle[runs/a]/dyspec-64,depth=2,children=8"]),
    ("best_first", [(3, 2), (2, 1)], []),
  ],
)
def test_a_tree_of_a_new_shape_has_the_size_that_promises_most(method, trees, want):
  """Chains and stars of children have no other shape."""
  part = grammar.parse_one("drafter", "eagle[runs/a]")

  def tree(nodes: int, depth: int) -> choice.Candidate:
    chain = [(0,) * d for d in range(1, depth + 1)]
    return choice.Candidate("", (*chain, *((i,) for i in range(1, nodes - depth))), 1.0)

  best = [tree(*each) for each in trees]
  assert [(c.nodes, c.depth) for c in best] == trees
  names = fillers._changing(part, method, best)
  assert names == want
  for name in names:
    build_tree(grammar.parse("drafter", name)[0].decorations[0])


@pytest.mark.parametrize(
  ("prompts", "batch", "want"), [(6, 1, 1), (6, 2, 2), (6, 8, 6), (16, 8, 3), (40, 1, 1)]
)
def test_a_draft_is_timed_in_several_turns_at_any_batch_size(prompts, batch, want):
  assert tune.repeats(prompts, batch) == want


@pytest.mark.parametrize(
  ("name", "depth", "deepest"), [("medusa", 2, 2), ("medusa", 7, fillers.DEPTH), ("ctc", 5, 0)]
)
def test_drawn_trees_are_no_deeper_than_the_head(name, depth, deepest, model, tmp_path):
  """Of a head that speaks in frames none is drawn, and the other trees are still tried."""
  network, make = HEADS[name]
  config = make(depth=depth)
  params = network(model.target, config).init(jax.random.key(1), model.params)
  heads.save(tmp_path / "head", name, config, params, [[0], [0, 0]], RATES, base="tiny")
  part = grammar.parse_one("drafter", f"{name}[{tmp_path / 'head'}]")
  found = fillers.filler(model, part)
  assert found is not None and found.deepest == deepest
  asked = tune._asked(model, grammar.show([part]), tune.Config(drafters=(), temperature=1.0))
  assert {*asked.fillers} == {"best_first", "sequoia"} - ({"sequoia"} if name == "ctc" else set())


@pytest.mark.full
def test_above_temperature_0_drawn_trees_are_tried_as_well(model, tmp_path, monkeypatch):
  monkeypatch.setattr(choice, "NODES", (4,))
  path, head = tmp_path / "ids.jsonl", tmp_path / "head"
  path.write_text("".join(json.dumps({"tokens": [i, i + 1]}) + "\n" for i in range(9)))
  params = medusa(model.target, HEAD).init(jax.random.key(1), model.params)
  heads.save(head, "medusa", HEAD, params, [[0], [0, 0]], RATES, base="tiny")
  config = tune.Config(
    drafters=(f"medusa[{head}]",), prompts=str(path), max_new_tokens=6, temperature=1.0, repeats=1
  )  # fmt: skip
  summary = tune.run(model, config, tmp_path / "out")
  decoded = [k for k, f in summary["candidates"].items() if "tau" in f and k != "none"]
  proposals = {specjax.Decoder(model, k, temperature=1.0).method.drafter.proposal for k in decoded}
  assert proposals >= {"deterministic", "without_replacement"}
  assert {"acceptance", "hit_rates"} <= {*summary["rates"][config.drafters[0]]}
  assert summary["prompts"] == 1


@pytest.mark.parametrize(
  ("name", "priced"),
  [
    ("draft_model[{}]/marginal", "draft_model[{}]/marginal-0.25,node_cost=0.125"),
    ("draft_model-3[{}]/marginal", "draft_model-3[{}]/marginal-0.25,node_cost=0.125"),
    ("draft_model[{}]/marginal-0.5", None),
    ("draft_model-3[{}]", None),
    ("prompt_lookup|draft_model[{}]/marginal", None),
  ],
)
def test_marginal_gets_the_costs_of_the_device(name, priced, model, tmp_path, monkeypatch):
  """A draft of 1 + k tokens takes 2 + k / 2 seconds, and a pass over n nodes 1.75 + n / 4."""
  asked = []

  def drafts(target, params, drafters, own, context, batch):
    asked.append((context, batch))
    return [1.5 + d.depth / 2 for d in drafters]

  def passes(target, params, context, batch, nodes):
    return verify_cost.VerifyCost(list(nodes), [1.75 + n / 4 for n in nodes], *[[]] * 2, 0, 1, [])

  monkeypatch.setattr(draft_cost, "measure", drafts)
  monkeypatch.setattr(verify_cost, "measure", passes)
  hf.save(tmp_path / "lm", model.config, model.params, None, dtype=jnp.float32)
  given = name.format(tmp_path / "lm")
  want = given if priced is None else priced.format(tmp_path / "lm")
  assert length_cost.priced(model, given, 40, 2) == want
  assert asked == ([] if priced is None else [(40, 2)])
  assert specjax.Decoder(model, want).name


@pytest.mark.full
def test_a_draft_model_is_tuned_with_its_costs(model, prompt_file, tmp_path):
  hf.save(tmp_path / "lm", model.config, model.params, None, dtype=jnp.float32)
  config = tune.Config(
    drafters=(f"draft_model-3[{tmp_path}/lm]/marginal",), prompts=prompt_file, max_new_tokens=8,
    repeats=1,
  )  # fmt: skip
  (_, name) = tune.run(model, config, tmp_path / "out")["candidates"]
  assert re.fullmatch(r"draft_model-3\[.*\]/marginal-[0-9.]+,node_cost=[0-9.e-]+", name)
