"""The command line, in process: what it prints, what it refuses, and how."""

import json
import re
import shutil
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import tokenizers
from sentences import says
from tokenizers import processors

import specjax
from specjax.checkpoints import heads, hf, parts
from specjax.cli import load_model
from specjax.cli.main import COMMANDS, main
from specjax.data.chat import TEMPLATES
from specjax.data.tokenizer import Tokenizer, train_bpe
from specjax.draft_length.specdecpp import AcceptanceHead
from specjax.heads.medusa import MedusaConfig, medusa
from specjax.models.config import Config
from specjax.models.transformer import Transformer

KEYS = {
  "prompt", "text", "tokens", "log_probs", "passes", "emitted", "seconds", "prefill_seconds",
  "method", "verifier", "exactness",
}  # fmt: skip


def save_model(path, tokenizer, vocab_size, **options):
  config = Config(vocab_size, 32, 1, 2, 1, 16, 48, max_length=256)
  z = jnp.zeros((1, 2), jnp.int32)
  params = jax.jit(Transformer(config).init)(jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool))
  hf.save(path, config, params, tokenizer, dtype=jnp.float32, **options)
  return str(path)


@pytest.fixture(scope="module")
def ids_model(tmp_path_factory):
  """A random Llama without a tokenizer."""
  return save_model(tmp_path_factory.mktemp("ids"), None, 64)


@pytest.fixture(scope="module")
def text_model(tmp_path_factory):
  """A random Llama with a tokenizer and a chat template."""
  tokenizer = train_bpe(["the cat sat on the mat, Question: Answer: the dog"] * 2, 280)
  path = tmp_path_factory.mktemp("text")
  return save_model(path, tokenizer, tokenizer.vocab_size, template=TEMPLATES["qa"])


@pytest.fixture
def write(tmp_path):
  """Writes a JSONL file of records or raw lines."""

  def file(*lines):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return str(path)

  return file


@pytest.fixture
def run(capsys):
  """Runs a command; (exit code, stdout, stderr)."""

  def command(*arguments):
    code = main([str(a) for a in arguments])
    return code, *capsys.readouterr()

  return command


@pytest.fixture
def refused(run):
  """Runs a command that must fail with one sentence; returns the sentence."""

  def command(*arguments):
    code, out, err = run(*arguments)
    assert code == 2 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1 and "Traceback" not in err
    return err

  return command


BOXES = {
  "": (), "convert": (), "list": (), "info": (), "corpus": (), "bench-serve": (),
  "generate": ("prompt", "sampling", "model"), "denoise": ("prompt", "sampling", "model"),
  "search": ("prompt", "model"), "chat": ("model",), "serve": ("http", "model"),
  "memory": ("model",), "tune": ("measure", "model"), "bench": ("measure", "denoising", "model"),
}  # fmt: skip


@pytest.mark.parametrize("command", BOXES)
def test_help(command, capsys):
  assert set(COMMANDS) | {""} == set(BOXES)
  with pytest.raises(SystemExit) as stop:
    main([*command.split(), "--help"])
  assert stop.value.code == 0
  out = capsys.readouterr().out
  usage = out.partition("\n\n")[0]
  assert usage.startswith("usage: specjax") and len(" ".join(usage.split())) < 120
  assert [x for x in re.findall(r"(\w+) options", out) if x != "GENERATE"] == [*BOXES[command]]
  assert not any(odd in out for odd in ("default: None", "default: )", "{[", "default: True"))


@pytest.mark.parametrize(("typed", "said"), [
  ("generate --promt x",
   "`option` must be one that --help lists, got '--promt' (did you mean --prompt?)."),
  ("tune --drafters x --model-revision y",
   "`option` must be one that --help lists, got '--model-revision' (did you mean --revision?)."),
  ("generate oops", "`option` must be one that --help lists, got 'oops'."),
  ("genrate --prompt x", "`command` must be one of .. got 'genrate' (did you mean generate?)."),
])  # fmt: skip
def test_a_misspelt_option_or_command_is_refused(typed, said, capsys):
  with pytest.raises(SystemExit) as stop:
    main(typed.split())
  assert stop.value.code == 2
  out, err = capsys.readouterr()
  assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and says(err, said)


@pytest.mark.slow
def test_generate_json_of_ids(ids_model, write, run):
  prompts = [[1, 2, 3, 1, 2, 3, 1], [7], [4, 5]]
  path = write(*({"tokens": p} for p in prompts))
  code, out, _ = run(
    "generate", "--model", ids_model, "--prompts", path, "--max-new-tokens", 12, "--batch", 2,
    "--drafter", "prompt_lookup-4", "--json",
  )  # fmt: skip
  records = [json.loads(line) for line in out.splitlines()]
  expected = specjax.generate(specjax.load(ids_model), prompts, max_new_tokens=12)
  assert code == 0 and [set(r) for r in records] == [KEYS] * 3
  assert [r["prompt"] for r in records] == prompts
  assert [r["tokens"] for r in records] == [e.tokens for e in expected]
  assert all(r["emitted"] == len(r["tokens"]) >= r["passes"] > 0 for r in records)
  assert {r["text"] for r in records} == {""}
  assert {(r["method"], r["verifier"], r["exactness"]) for r in records} == {
    ("prompt_lookup-4", "greedy", "GREEDY-EXACT")
  }


def test_generate_json_of_text(text_model, run):
  code, out, _ = run(
    "generate", "--model", text_model, "--prompt", "the cat", "--max-new-tokens", 6, "--json"
  )
  record = json.loads(out)
  model = specjax.load(text_model)
  assert code == 0 and record["prompt"] == "the cat"
  assert record["tokens"] == specjax.generate(model, ["the cat"], max_new_tokens=6)[0].tokens
  assert record["text"] == model.decode(record["tokens"])


def test_chat_writes_the_template(text_model, write, run):
  common = ("generate", "--model", text_model, "--max-new-tokens", 4, "--json")
  plain, asked, in_file = (
    json.loads(run(*common, *arguments)[1])["tokens"]
    for arguments in (
      ("--prompt", "Question: the cat\nAnswer:"),
      ("--prompt", "the cat", "--chat"),
      ("--prompts", write({"question": "the cat"})),
    )
  )
  assert asked == in_file == plain


@pytest.mark.slow
def test_the_seed_decides_sampled_tokens(ids_model, write, run):
  path = write({"tokens": [1, 2, 3]}, {"tokens": [4]})

  def tokens(*arguments):
    out = run("generate", "--model", ids_model, "--prompts", path, "--max-new-tokens", 10,
              "--temperature", 0.9, "--json", *arguments)[1]  # fmt: skip
    return [json.loads(line)["tokens"] for line in out.splitlines()]

  one = tokens("--seed", 1)
  assert one == tokens("--seed", 1, "--drafter", "prompt_lookup", "--batch", 2)
  assert one != tokens("--seed", 2)


def test_best_of_shows_one_of_several(ids_model, write, run):
  path = write({"tokens": [1, 2, 3]}, {"tokens": [4]})
  for select in ("likelihood", "first_finish"):
    code, out, _ = run("generate", "--model", ids_model, "--prompts", path, "--max-new-tokens", 6,
                       "--temperature", 0.9, "--best-of", 3, "--batch", 3, "--select", select,
                       "--json")  # fmt: skip
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(lines) == 2
    for line in lines:
      assert line["select"] == select and len(line["samples"]) == len(line["scores"]) == 3
      assert line["scores"][line["chosen"]] == max(x for x in line["scores"] if x is not None)


def test_one_prompt_is_streamed(text_model, run):
  arguments = ("generate", "--model", text_model, "--prompt", "the cat", "--max-new-tokens", 8)
  code, out, err = run(*arguments)
  expected = specjax.generate(specjax.load(text_model), ["the cat"], max_new_tokens=8)[0]
  assert code == 0 and err == ""
  assert out.startswith("the cat" + expected.text.rstrip("\ufffd"))
  assert "8 tokens, 1.00 per pass" in out and "GREEDY-EXACT" in out


def test_several_prompts_are_shown(text_model, write, run):
  path = write({"prompt": "the [bold]cat"}, {"prompt": "the dog"})
  code, out, _ = run("generate", "--model", text_model, "--prompts", path, "--max-new-tokens", 4)
  assert code == 0 and "the [bold]cat" in out and "the dog" in out
  assert out.count("4 tokens") == 2


@pytest.mark.slow
@pytest.mark.parametrize("how", [["--json"], []])
def test_a_stop_ends_a_text(text_model, run, how):
  common = ("generate", "--model", text_model, "--prompt", "the cat", "--max-new-tokens", 12,
            "--temperature", 1, "--seed", 3)  # fmt: skip
  plain = json.loads(run(*common, "--json")[1])
  token = next(i for i in plain["tokens"][3:] if i not in plain["tokens"][:3])
  count = plain["tokens"].index(token) + 1
  model = specjax.load(text_model)
  whole = model.decode(plain["tokens"][:count])
  pairs = (plain["text"][i : i + 2] for i in range(3, 12))
  word = next(pair for pair in pairs if "\ufffd" not in pair)
  for option, text in ((("--stop", token), whole), (("--stop-words", word),
                       plain["text"].partition(word)[0])):  # fmt: skip
    code, out, err = run(*common, *how, *option)
    assert (code, err) == (0, "")
    if how:
      assert json.loads(out)["text"] == text
    else:
      assert out.startswith(f"the cat{text}\n")
  sentence = run(*common, "--stop-words", "<|end|>Question:")[2]
  assert says(
    sentence, "`stop_words` must be text without special tokens, or one .. got '<|end|>Question:'."
  )


@pytest.mark.parametrize(("options", "said"), [
  (["--top-k", 5, "--min-p", 0.1], "note: --top-k, --min-p has no effect at temperature 0.\n"),
  (["--top-p", 0.9, "--typical-p", 0.5], "note: --top-p, --typical-p has no effect at"),
  (["--top-p", 0.9, "--temperature", 1], ""), ([], ""),
])  # fmt: skip
def test_options_without_effect_are_said(text_model, run, options, said):
  common = ("generate", "--model", text_model, "--prompt", "the cat", "--max-new-tokens", 2)
  code, _, err = run(*common, *options)
  assert code == 0 and err.startswith(said) and err.count("\n") == bool(said)


def test_list_names_everything(run):
  code, out, _ = run("list")
  assert code == 0
  for name in ("none", "prompt_lookup", "draft_model", "medusa", "greedy", "target_only", "token"):
    assert name in out
  assert "GREEDY-EXACT" in out and "LOSSY" in out


@pytest.mark.parametrize(
  ("what", "inside", "outside"),
  [
    (["heads"], ["medusa[HEAD]", "arXiv 2401.10774; nodes=8"], ["prompt_lookup"]),
    (["draft", "lengths"], ["/constant", "length=4"], ["medusa"]),
    (["medusa"], ["medusa[HEAD]"], ["eagle3[HEAD]", "zoo"]),
    (["zoo"], ["gsm8k-7m-medusa"], ["prompt_lookup"]),
    (["searches"], ["beam_search", "arXiv 1610.02424; beams=4", "33.3 % right"], ["medusa"]),
  ],
)
def test_list_names_a_kind_or_a_part(run, monkeypatch, what, inside, outside):
  monkeypatch.setenv("COLUMNS", "80")
  code, out, _ = run("list", *what)
  assert code == 0 and "\u2026" not in out and max(map(len, out.splitlines())) <= 80
  assert all(word in out for word in inside) and not any(word in out for word in outside)


def test_list_asks_what_was_meant(refused):
  said = refused("list", "egale")
  assert says(
    said,
    "the part must be a name, or one of the kinds drafters .. got 'egale' (did you mean eagle?).",
  )


def test_version(run):
  code, out, _ = run("--version")
  assert code == 0 and out == f"specjax {specjax.__version__}\n"


def test_info(text_model, run):
  code, out, _ = run("info", "--model", text_model)
  assert code == 0 and "parameters" in out and "vocab_size" in out and "qa" in out


@pytest.mark.slow
def test_bench_writes_and_prints(ids_model, write, run, tmp_path):
  path = write({"tokens": [1, 2, 1, 2, 1]}, {"tokens": [3]})
  code, out, _ = run(
    "bench", "--model", ids_model, "--drafters", "prompt_lookup", "--prompts", path, "--repeats", 1,
    "--max-new-tokens", 8, "--out", tmp_path / "out",
  )  # fmt: skip
  assert code == 0 and "prompt_lookup" in out and "speed-up" in out
  assert (tmp_path / "out" / "summary.json").exists()


@pytest.fixture(scope="module")
def medusa_head(ids_model, tmp_path_factory):
  """An untrained medusa for `ids_model` whose table of hit rates has one entry."""
  path, config = tmp_path_factory.mktemp("head"), MedusaConfig(depth=2, shared=True)
  model = specjax.load(ids_model)
  params = medusa(model.target, config).init(jax.random.key(1), model.params)
  heads.save(path, "medusa", config, params, [[0], [0, 0]], np.array([[0.5]]), base="ids")
  return str(path)


@pytest.mark.slow
def test_tune_chooses_prints_and_writes(ids_model, medusa_head, write, run, tmp_path):
  path = write({"tokens": [1, 2, 3]})
  code, out, err = run(
    "tune", "--drafters", f"medusa[{medusa_head}]", "--model", ids_model, "--prompts", path,
    "--max-new-tokens", 8, "--decode", 1, "--repeats", 1, "--out", tmp_path / "out",
  )  # fmt: skip
  assert code == 0, err
  assert "static-1" in out and "chosen: --drafter" in out and "tune.png" in out
  assert (tmp_path / "out" / "summary.json").exists()


@pytest.mark.parametrize(
  ("raw", "drafter"),
  [
    ({"static": {"choices": [[0], [1], [0, 0], [1, 0]]}}, "medusa"),
    ({"dynamic": {"nodes": 6, "depth": 2, "beam": 3}}, "medusa"),
    ({"static": {"choices": []}}, "none"),
  ],
)
def test_a_tree_changes_no_token(ids_model, medusa_head, write, run, tmp_path, raw, drafter):
  tree = tmp_path / "tree.json"
  tree.write_text(json.dumps(raw))
  prompts = [[1, 2, 3, 1, 2, 3, 1], [7]]
  code, out, err = run(
    "generate", "--model", ids_model, "--prompts", write(*({"tokens": p} for p in prompts)),
    "--max-new-tokens", 12, "--drafter", f"medusa[{medusa_head}]/tree[{tree}]", "--json",
  )  # fmt: skip
  records = [json.loads(line) for line in out.splitlines()]
  expected = specjax.generate(specjax.load(ids_model), prompts, max_new_tokens=12)
  assert code == 0, err
  assert [r["tokens"] for r in records] == [e.tokens for e in expected]
  assert {r["method"].partition("[")[0] for r in records} == {drafter}


@pytest.mark.parametrize(
  ("tree", "message"),
  [
    ("tree[no_such.json]", "'no_such.json' cannot be read"),
    ("tree", "it needs a file, tree[FILE.json]"),
    ("wide", "medusa/wide: after medusa/ may follow tree, static, dynamic, beam, graph, iid,"),
    (
      "dynamic-9",
      "tree='dynamic-9': it needs depth and beam, as in dynamic-NODES,depth=NUMBER,beam=NUMBER.",
    ),
    ("dynamic-9,depth=3,beam=3", "tree is 3 deep: the head guesses 2"),
    (
      "dynamic-6,depth=2,beam=3/beam-6,depth=2,width=3",
      "medusa/beam: `tree` must be given once, and dynamic is one",
    ),
  ],
)
def test_a_tree_is_refused(ids_model, medusa_head, write, refused, tree, message):
  path = write({"tokens": [1]})
  assert says(refused(
    "generate", "--model", ids_model, "--prompts", path, "--json", "--drafter",
    f"medusa[{medusa_head}]/{tree}",
  ), message)  # fmt: skip


@pytest.mark.parametrize(
  ("suite", "option", "value"),
  [
    ("parallelbench", "--drafters", "eagle"), ("parallelbench", "--verifier", "typical"),
    ("prompts", "--methods", "threshold"), ("prompts", "--lengths", "3"),
  ],
)  # fmt: skip
def test_a_suite_refuses_what_it_does_not_read(refused, suite, option, value):
  sentence = refused("bench", "--suite", suite, option, value)
  assert f"{option} " in sentence and f"--suite {suite} does not read this option" in sentence


def test_specbench_times_no_passes(refused):
  assert "--suite specbench does not measure this" in refused(
    "bench", "--suite", "specbench", "--no-verify-cost"
  )


@pytest.mark.slow
def test_each_half_refuses_the_models_of_the_other(refused):
  sentence = refused("generate", "--model", "lists-3m", "--prompt", "copy : Ada =")
  assert "sees both sides of a token" in sentence and "DiffusionDecoder" in sentence
  sentence = refused("denoise", "--model", "gsm8k-7m", "--prompt", "How many?")
  assert "is causal" in sentence and "use Decoder" in sentence


def test_tune_refuses(ids_model, medusa_head, refused, write):
  assert "none is always there" in refused("tune", "--drafters", "none")
  common = ("tune", "--model", ids_model, "--drafters", f"medusa[{medusa_head}]")
  assert "has no tokenizer" in refused(*common)
  path = write({"tokens": [1]})
  assert ("`batch` must be between 1 and 65536, got 0.") in refused(
    *common, "--prompts", path, "--batch", 0
  )


def write_llama2c(directory):
  """A random llama2.c model and tokenizer; (model, tokenizer)."""
  dim, hidden, _, heads, kv, vocab, length = shape = (16, 24, 1, 2, 1, 264, 32)
  rng = np.random.default_rng(0)
  sizes = [vocab * dim, dim, dim * dim, kv * 8 * dim, kv * 8 * dim, dim * dim, dim]
  sizes += [3 * hidden * dim, dim, length * (dim // heads)]
  weights = rng.normal(0, 0.3, sum(sizes)).astype(np.float32)
  model = directory / "model.bin"
  model.write_bytes(struct.pack("<7i", *shape) + weights.tobytes())
  pieces = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{i:02X}>" for i in range(256))]
  pieces += [" ", "a", "b", " a", "ab"]
  data = struct.pack("<i", 8)
  for i, piece in enumerate(pieces):
    data += struct.pack("<fi", float(i), len(piece.encode())) + piece.encode()
  tokenizer = directory / "tokenizer.bin"
  tokenizer.write_bytes(data)
  return model, tokenizer


def test_convert_llama2c(run, tmp_path):
  binary, pieces = write_llama2c(tmp_path)
  out = tmp_path / "converted"
  code, _, err = run(
    "convert", "--format", "llama2c", "--model", binary, "--tokenizer", pieces, "--out", out
  )
  assert code == 0, err
  model = specjax.load(str(out))
  assert model.start == (1,) and model.encode("ab")[0] == 1
  assert set(model.stop) == {1, 2}
  assert run("generate", "--model", out, "--prompt", "ab", "--max-new-tokens", 3, "--json")[0] == 0


def test_convert_hf_keeps_everything(run, tmp_path, text_model):
  again = tmp_path / "again"
  assert run("convert", "--format", "hf", "--model", text_model, "--out", again)[0] == 0
  old, new = specjax.load(text_model), specjax.load(str(again))
  assert (old.config, old.stop, old.start, old.template) == (
    new.config, new.stop, new.start, new.template
  )  # fmt: skip
  jax.tree.map(np.testing.assert_array_equal, old.params, new.params)


@pytest.mark.slow
def test_convert_writes_a_model_in_8_bits(run, tmp_path):
  words = ["--format", "hf", "--model", "lists-3m", "--weights", "int8"]
  assert run("convert", *words, "--out", tmp_path)[0] == 0
  assert (tmp_path / "model.safetensors").stat().st_size < 3.3e6
  said = [run("denoise", "--model", m, "--chat", "--prompt", "copy : Leo Ada Kim =")[1]
          for m in ("lists-3m", tmp_path)]  # fmt: skip
  assert all("Leo Ada Kim\n16 slots" in each for each in said)


def test_convert_keeps_the_start_of_a_tokenizer(run, tmp_path):
  inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "a": 1, "b": 2}, "b"))
  inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
  path = save_model(tmp_path / "bos", Tokenizer(inner), 8)
  out = tmp_path / "again"
  assert run("convert", "--format", "hf", "--model", path, "--out", out)[0] == 0
  assert specjax.load(str(out)).start == (0,)


def test_convert_refuses(refused, tmp_path, text_model):
  assert "no_such" in refused(
    "convert", "--format", "llama2c", "--model", tmp_path / "no_such", "--out", tmp_path / "x"
  )
  assert "is the model itself" in refused(
    "convert", "--format", "hf", "--model", text_model, "--out", text_model
  )
  assert "brings its own" in refused(
    "convert", "--format", "hf", "--model", text_model, "--out", tmp_path / "x", "--tokenizer", "t"
  )
  binary, _ = write_llama2c(tmp_path)
  binary.write_bytes(binary.read_bytes()[:-4])
  assert "its header calls for" in refused(
    "convert", "--format", "llama2c", "--model", binary, "--out", tmp_path / "x"
  )
  assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ((), "either --prompt TEXT or --prompts FILE"),
    (("--prompt", "a", "--prompts", "b"), "either --prompt TEXT or --prompts FILE"),
    (("--prompt", ""), "prompt is empty"),
    (("--prompt", "", "--chat"), "prompt is empty"),
    (("--prompts", "no_such.jsonl"), "no such file"),
    (("--prompts", "no_such.jsonl", "--chat"), "--chat goes with --prompt"),
    (("--prompt", "the", "--max-new-tokens", "0"), "`max_new_tokens` must be at least 1, got 0."),
    (("--prompt", "the", "--max-new-tokens", "500"), "together at most 256"),
    (
      ("--prompt", "the", "--drafter", "oracle"),
      "`drafter` must be one of none, prompt_lookup, draft_model .. got 'oracle'.",
    ),
    (("--prompt", "the", "--drafter", "draft_model"), "it needs a model, draft_model[PATH]"),
    (("--prompt", "the", "--drafter", "medusa[no_such]"), "'no_such' is no directory"),
    (
      ("--prompt", "the", "--drafter", "prompt_lookup-1"),
      "`drafter` must have between 2 and 4096 nodes, or be 'none', got 'prompt_lookup-1'.",
    ),
    (
      ("--prompt", "the", "--drafter", "medusa/ensemble"),
      "medusa/ensemble: after medusa/ may follow tree, static, dynamic, beam, graph,",
    ),
    (
      ("--prompt", "the", "--drafter", "prompt_lookup:8"),
      "`drafter` must be NAME, NAME-NUMBER or .. got 'prompt_lookup:8'.",
    ),
    (("--prompt", "the", "--drafter", "none[x]"), "none takes nothing in brackets"),
    (
      ("--prompt", "the", "--top-k", str(1 << 40)),
      "`top_k` must be between 0 and 2147483647 (0 keeps all), got 1099511627776.",
    ),
    (("--prompt", "the", "--processors", "penalties-0"), "repetition is above 0"),
    (
      ("--prompt", "the", "--verifier", "oracle"),
      "`verifier` must be one of greedy, target_only, token .. got 'oracle'.",
    ),
    (
      ("--prompt", "the", "--verifier", "greedy", "--temperature", "1"),
      "`temperature` must be 0 for the verifier 'greedy' .. got 1.0; target_only is exact at "
      "any temperature.",
    ),
    (("--prompt", "the", "--drafter", "prompt_lookup", "--verifier", "token"), "is not exact for"),
    (("--prompt", "the", "--verifier", "judge"), "it needs a head, judge[PATH]"),
    (
      ("--prompt", "the", "--temperature", "-1"),
      "`temperature` must be at least 0 (0 is greedy), got -1.0.",
    ),
    (
      ("--prompt", "the", "--top-p", "0"),
      "`top_p` must be above 0 and at most 1 (1 keeps all), got 0.0.",
    ),
    (("--prompt", "the", "--batch", "0"), "`batch` must be between 1 and 65536, got 0."),
    (("--prompt", "the", "--best-of", "0"), "`n` must be between 1 and 65536, got 0."),
    (
      ("--prompt", "the", "--best-of", "2"),
      "`temperature` must be above 0 for several samples, got 0.",
    ),
    (("--prompt", "the", "--select", "mbr"), "--select mbr goes with --best-of"),
    (("--prompt", "the", "--hedged"), "--hedged goes with --best-of"),
  ],
)
def test_generate_refuses(text_model, refused, arguments, message):
  assert says(refused("generate", "--model", text_model, "--json", *arguments), message)


def test_a_bad_line_stops_before_anything_is_printed(ids_model, write, refused):
  path = write({"tokens": [1]}, {"tokens": [64]})
  sentence = refused("generate", "--model", ids_model, "--prompts", path, "--json")
  assert "`prompt[0]` must be between 0 and 63, got 64." in sentence
  sentence = refused("generate", "--model", ids_model, "--prompts", write({"prompt": "a"}))
  assert "has no tokenizer; pass token ids" in sentence
  sentence = refused("bench", "--model", ids_model, "--drafters", "prompt_lookup")
  assert "has no tokenizer" in sentence


def test_an_unknown_model(refused):
  assert "'no_such' is no directory" in refused("info", "--model", "no_such")


def test_a_draft_model_of_another_vocabulary(ids_model, text_model, refused):
  sentence = refused(
    "generate", "--model", text_model, "--prompt", "the", "--drafter", f"draft_model[{ids_model}]"
  )
  assert "must have the vocabulary of" in sentence and says(
    sentence, "must have the vocabulary of .. got 64."
  )


@pytest.mark.slow
def test_a_policy_ends_the_chain_of_a_draft_model(run, text_model, tmp_path):
  params = AcceptanceHead(2).init(jax.random.key(0), jnp.zeros((1, 32)))
  parts.save(tmp_path, parts.Acceptance(2, params), target=text_model, draft=text_model)

  def decoded(*arguments):
    code, out, err = run(
      "generate", "--model", text_model, "--prompt", "the", "--json", "--max-new-tokens", "12",
      *arguments,
    )  # fmt: skip
    assert code == 0, err
    return json.loads(out)

  plain = decoded()
  policy = f"specdecpp[{tmp_path}]"
  got = decoded("--drafter", f"draft_model-4[{text_model}]/{policy}")
  assert got["tokens"] == plain["tokens"] and got["method"].endswith(policy)
  assert got["passes"] < plain["passes"]


@pytest.mark.parametrize(
  ("policy", "words"),
  [
    ("oracle", "draft_model/oracle: after draft_model/ may follow ensemble, tree, static,"),
    ("specdecpp", "it needs an acceptance head, specdecpp[PATH]"),
    ("constant[x]", "constant takes nothing in brackets"),
    ("specdecpp[x]", "x has no config.json"),
    (
      "adaedl/iid-2-1",
      "`drafter` must have nodes, a tree, or a draft length with .. got 'draft_model[",
    ),
  ],
)
def test_a_policy_and_its_head_must_be_known(refused, text_model, policy, words):
  sentence = refused(
    "generate", "--model", text_model, "--prompt", "the", "--drafter",
    f"draft_model[{text_model}]/{policy}",
  )  # fmt: skip
  assert says(sentence, words)


def damaged(model, path, change):
  """A copy of a model's directory whose tensors went through `change`."""
  shutil.copytree(model, path)
  file = path / "model.safetensors"
  safetensors.numpy.save_file(change(safetensors.numpy.load_file(file)), file)
  return path


def test_damaged_weights(ids_model, refused, tmp_path, write):
  prompts = write({"tokens": [1]})

  def sentence(directory):
    return refused("generate", "--model", directory, "--prompts", prompts, "--json")

  norm = "model.norm.weight"
  missing = damaged(ids_model, tmp_path / "a", lambda t: {k: t[k] for k in t if k != norm})
  assert f"lacks tensor {norm}" in sentence(missing)
  misshapen = damaged(ids_model, tmp_path / "b", lambda t: t | {norm: t[norm][:3]})
  assert f"tensor {norm} has shape (3,)" in sentence(misshapen)
  nan = damaged(ids_model, tmp_path / "c", lambda t: t | {norm: t[norm] * np.float32("nan")})
  assert "became NaN" in sentence(nan)

  cut = tmp_path / "d"
  shutil.copytree(ids_model, cut)
  weights = cut / "model.safetensors"
  weights.write_bytes(weights.read_bytes()[:-8])
  assert "model.safetensors" in sentence(cut)


def test_generate_with_weights_in_8_bits(ids_model, write, run):
  prompts = [[1, 2, 3, 1, 2, 3, 1], [7]]
  path = write(*({"tokens": p} for p in prompts))
  code, out, _ = run(
    "generate", "--model", ids_model, "--prompts", path, "--max-new-tokens", 6, "--json",
    "--weights", "int8", "--dtype", "bfloat16",
  )  # fmt: skip
  model = specjax.load(ids_model, jnp.bfloat16, weights="int8")
  expected = specjax.generate(model, prompts, max_new_tokens=6)
  assert code == 0
  assert [json.loads(line)["tokens"] for line in out.splitlines()] == [r.tokens for r in expected]


@pytest.mark.parametrize(
  "command",
  ["generate --prompt a", "chat", "denoise --prompt a", "bench", "bench --suite specbench",
   "bench --suite parallelbench", "tune --drafters eagle"],
)  # fmt: skip
def test_every_command_passes_on_how_to_load(command, refused, monkeypatch):
  def load(name, dtype, *, revision, weights, activations, mesh, skipping, template):
    raise ValueError(f"{name} {dtype} {weights} {activations} {skipping} {template}.")

  monkeypatch.setattr(load_model, "load", load)
  options = ["--model", "x", "--weights", "int8", "--dtype", "float16", "--skipping", "first",
             "--template", "chatml", "--activations", "int8"]  # fmt: skip
  assert refused(*command.split(), *options) == "error: x float16 int8 int8 first chatml.\n"
