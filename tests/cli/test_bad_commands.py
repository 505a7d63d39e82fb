"""What a user may do wrong with `chat`, `denoise`, `bench`, `tune`, `convert` and `info`.

Every row is refused with one sentence and exit status 2 before anything is decoded or compiled, and
leaves every file as it was. `generate` has its rows in test_cli.py and test_bad_arguments.py.
"""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sentences import says

from specjax import load
from specjax.checkpoints import heads, hf
from specjax.cli.main import main
from specjax.data.chat import TEMPLATES
from specjax.data.tokenizer import END, MASK, train_words
from specjax.decoding.conversation import Conversation
from specjax.decoding.decoder import Decoder
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.eval import fillers
from specjax.heads.eagle import EagleConfig, eagle
from specjax.heads.medusa import MedusaConfig, medusa
from specjax.models.config import Config
from specjax.models.transformer import Transformer

DEEP = "[" * 100_000
SURROGATE = "a \ud800 b"
HUGE = str(2**40)
FILES = {
  "ids.jsonl": '{"tokens": [1, 2, 3]}\n', "empty.jsonl": "", "blank.jsonl": "\n \n",
  "broken.jsonl": '{"tokens": [1]\n', "deep.jsonl": f"{DEEP}\n",
  "binary.jsonl": b"\xff\xfe\x00\x01",
  "list.jsonl": "[1]\n", "keys.jsonl": '{"text": "Ann"}\n', "kind.jsonl": '{"prompt": 7}\n',
  "outside.jsonl": '{"tokens": [1]}\n{"tokens": [4096]}\n', "nested.jsonl": '{"tokens": [[1]]}\n',
  "long.jsonl": json.dumps({"tokens": [1] * 200}) + "\n", "blank_prompt.jsonl": '{"prompt": ""}\n',
  "tree.json": '{"static": {"choices": [[0, 0]]}}', "short.bin": b"abc", "noise.bin": b"\x07" * 400,
  "noise.gguf": b"GGUF" * 100,
  "asked.jsonl": '{"category": "qa", "turns": ["Ann", "Bob"]}\n',
  "poem.jsonl": '{"category": "poem", "turns": ["Ann"]}\n',
  "turnless.jsonl": '{"category": "qa", "turns": []}\n', "held/run.json": '{"seed": 7}\n',
  "file": "mine\n", "copy.jsonl": '{"messages": [], "label": 7}\n', "riddle.jsonl": "{}\n",
  "deep/config.json": DEEP, "nothing/config.json": "", "listed/config.json": "[1]",
  "family/config.json": '{"model_type": "bert"}', "bytes/config.json": b"\xff\xfe",
  "nan/config.json": '{"model_type": "llama", "hidden_size": NaN}',
}  # fmt: skip


def network(config: Config):
  """Weights of zeros: nothing here is decoded."""
  z, mask = jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2, 2), bool)
  return zeros(Transformer(config).init, jax.random.key(0), z, z, mask)


def zeros(init, *arguments):
  return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(init, *arguments))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A folder with models of both kinds, heads, and files that are no such thing."""
  path = tmp_path_factory.mktemp("place")
  tokenizer = train_words(["copy : Ann Bob = ."])
  tokenizer.inner.add_special_tokens([END, MASK])
  config = Config(tokenizer.vocab_size, 16, 1, 2, 1, 8, 24, max_length=64)
  seen = dataclasses.replace(config, causal=False)
  mask = tokenizer.id(MASK)
  hf.save(path / "causal", config, network(config), tokenizer, template=TEMPLATES["plain"])
  hf.save(path / "ids", config, network(config), None)
  hf.save(path / "both", seen, network(seen), tokenizer, template=TEMPLATES["plain"], mask=mask)
  hf.save(path / "untaught", seen, network(seen), tokenizer, mask=mask)
  hf.save(path / "maskless", seen, network(seen), tokenizer, template=TEMPLATES["plain"])
  other = dataclasses.replace(config, vocab_size=config.vocab_size + 1)
  hf.save(path / "other", other, network(other), None)
  target = load(str(path / "causal"))
  small = MedusaConfig(depth=2, shared=True)
  for name, head, own, rates in (
    ("medusa", medusa(target.target, small), small, np.array([[0.5]])),
    ("eagle", eagle(target.target, EagleConfig(depth=2)), EagleConfig(depth=2), None),
  ):
    params = zeros(head.init, jax.random.key(0), target.params, None)
    heads.save(path / name, head.name, own, params, [[0], [0, 0]], rates, base="causal")
  for name, content in FILES.items():
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
  weights = (path / "causal" / "model.safetensors").read_bytes()
  (path / "cut").mkdir()
  (path / "cut" / "config.json").write_bytes((path / "causal" / "config.json").read_bytes())
  (path / "cut" / "model.safetensors").write_bytes(weights[:-8])
  (path / "bare").mkdir()
  (path / "bare" / "config.json").write_bytes((path / "causal" / "config.json").read_bytes())
  return path


@pytest.fixture
def refused(place, capsys, monkeypatch):
  """Runs a command that must fail; returns its sentence."""
  monkeypatch.chdir(place)

  def never(*_, **__):
    raise AssertionError("something was decoded or timed")

  for owner, name in (
    (Decoder, "__call__"), (Decoder, "stream"), (DiffusionDecoder, "__call__"),
    (Conversation, "ask"), (fillers, "costs"),
  ):  # fmt: skip
    monkeypatch.setattr(owner, name, never)

  def contents():
    return {p: p.is_file() and p.read_bytes() for p in place.rglob("*")}

  def command(*arguments: str) -> str:
    before = contents()
    try:
      code = main(arguments)
    except SystemExit as stop:  # of the parser, which draws a box about its sentence
      code, boxed = stop.code, True
    else:
      boxed = False
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") and "Traceback" not in err, (code, out, err)
    assert contents() == before
    if boxed:
      return " ".join(re.sub("[│╭╮╰╯─]", " ", err).split())
    assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith(".\n"), err
    return err

  return command


DENOISE = [
  ("--prompt Ann --model causal", "model='causal' is causal and cannot fill masks: use Decoder"),
  ("--prompt Ann --model maskless",
   "`model` must be a masked diffusion model, with is_causal .. got 'maskless'."),
  ("--prompt Ann --model no_such", "'no_such' is no directory with a config.json"),
  ("--prompt Ann --model file", "'file' is no directory with a config.json"),
  ("", "expected either --prompt TEXT or --prompts FILE"),
  ("--prompt Ann --prompts ids.jsonl", "expected either --prompt TEXT or --prompts FILE"),
  (("--prompt", ""), "prompt is empty"),
  (("--prompt", SURROGATE), "must be text without lone surrogates, got "),
  ("--prompt Ann --chat --model untaught", "untaught has no chat template"),
  ("--prompts ids.jsonl --chat", "--chat goes with --prompt"),
  ("--prompts empty.jsonl", "'empty.jsonl' holds no records"),
  ("--prompts blank.jsonl", "'blank.jsonl' holds no records"),
  ("--prompts broken.jsonl", "broken.jsonl: record 1 is not JSON"),
  ("--prompts deep.jsonl", "deep.jsonl: record 1 is not JSON that can be read: it is nested too"),
  ("--prompts binary.jsonl", "binary.jsonl: record 1 is not JSON"),
  ("--prompts outside.jsonl", "`prompt[0]` must be between 0 and 8, got 4096."),
  ("--prompts nested.jsonl", "`tokens` must be a list of ids, got [[1]]."),
  ("--prompts kind.jsonl", "`prompt` must be text, got 7."),
  ("--prompts deep", "`data` must be a .jsonl file, tfds:NAME:SPLIT or lists:SEED:COUNT."),
  ("--prompts long.jsonl", "together at most 64"),
  ("--prompt Ann --max-new-tokens 0", "`max_new_tokens` must be at least 1, got 0."),
  (f"--prompt Ann --max-new-tokens {HUGE}",
   "`max_new_tokens` must be together at most 64, the positions .. got 1 and "
   "1099511627776."),
  ("--prompt Ann --max-new-tokens 1.5", "--max-new-tokens: invalid literal for int()"),
  ("--prompt Ann --temperature nan",
   "`temperature` must be a finite number at least 0 (0 is greedy), got nan."),
  ("--prompt Ann --temperature -1", "`temperature` must be at least 0 (0 is greedy), got -1.0."),
  ("--prompt Ann --stop 4096", "`stop[0]` must be between 0 and 8, got 4096."),
  ("--prompt Ann --seed -1", "`seed` must be between 0 and 4294967295, got -1."),
  (f"--prompt Ann --batch {HUGE}", "`batch` must be between 1 and 65536, got 1099511627776."),
  ("--prompts ids.jsonl --batch 0", "`batch` must be between 1 and 65536, got 0."),
  ("--prompt Ann --policy oracle",
   "`policy` must be one of random, confidence, margin .. got 'oracle'."),
  ("--prompt Ann --policy medusa",
   "`policy` must be one of random, confidence, margin .. got 'medusa'."),
  ("--prompt Ann --policy threshold/oracle",
   "policy/oracle: after policy/ may follow fixed, adaptive, streaming, none, dual,"),
  ("--prompt Ann --policy threshold/dual/free", "`cache` must be given once, and dual is one"),
  ("--prompt Ann --policy threshold-0.9-1", "threshold takes least=0.9"),
  ("--prompt Ann --policy confidence-0.5", "`slots` must be a whole number, got 0.5."),
  (f"--prompt Ann --policy confidence-{HUGE}", "`slots` must be below 2**31, got 1099511627776."),
  ("--prompt Ann --policy threshold/guesses-0",
   "`guesses` must be between 1 and 4096 (1 is off), got 0."),
  ("--prompt Ann --policy learned[no_such]", "'no_such' is no directory with a config.json"),
  ("--prompt Ann --policy threshold/student", "'both-student' is not in the zoo"),
  ("--prompt Ann --picture no/such/a.png",
   "`picture` must be a file in a directory that is there, of .. got 'no/such/a.png'."),
  ("--prompt Ann --picture deep",
   "`picture` must be a file in a directory that is there, of .. got 'deep'."),
  ("--prompt Ann --picture file/a.png",
   "`picture` must be a file in a directory that is there, of .. got 'file/a.png'."),
  ("--prompt Ann --picture a.docx",
   "`picture` must be a file in a directory that is there, of .. got 'a.docx'."),
  (("--prompt", "Ann", "--picture", ""),
   "`picture` must be a file in a directory that is there, of .. got ''."),
  (("--prompt", "Ann", "--picture", "a\0b.png"),
   r"`picture` must be a file in a directory that is there, of .. got 'a\x00b.png'."),
  ("--prompt Ann --policy random/reweighted[both]",
   "reweighted[both] must be a causal model: this one sees both sides of a token"),
  ("--prompt Ann --policy guided[both]",
   "guided[both] must be a causal model: this one sees both sides of a token"),
  ("--prompt Ann --policy guided-5", "guided: it needs a model, guided[PATH]"),
]  # fmt: skip
CHAT = [
  ("--model causal --weights int3", "invalid choice 'int3' for argument '--weights'"),
  ("--model no_such", "'no_such' is no directory with a config.json"),
  ("--model both --drafter eagle",
   "`drafter` must be left out for both, which is a denoiser, got 'eagle'."),
  ("--model both --stop-words Ann",
   "`stop_words` must be left out for both, which is a denoiser, got ('Ann',)."),
  ("--model both --policy oracle", "`policy` must be one of random .. got 'oracle'."),
  ("--policy threshold", "`policy` must be left out for causal, which is causal, got 'threshold'."),
  ("--model ids", "ids has no chat template"),
  ("--drafter oracle",
   "`drafter` must be one of none, prompt_lookup, draft_model .. got 'oracle'."),
  ("--drafter draft_model[other]",
   "draft_model[other] must have the vocabulary of causal, 9 tokens, got 10."),
  ("--temperature nan", "`temperature` must be a finite number at least 0 (0 is greedy), got nan."),
  ("--temperature x", "Error parsing --temperature"),
  ("--max-new-tokens 0", "`max_new_tokens` must be between 1 and 2147483647, got 0."),
  (f"--max-new-tokens {HUGE}",
   "`max_new_tokens` must be between 1 and 2147483647, got 1099511627776."),
  (f"--seed {2**64}", "`seed` must be between 0 and 4294967295, got 18446744073709551616."),
  ("--stop 4096", "`stop[0]` must be between 0 and 8, got 4096."),
  (("--stop-words", f"{END}Ann"), f"`stop_words` must be text without special .. got '{END}Ann'"),
  ("--system Ann", "role='system': this template has turns of user, assistant"),
  (("--system", SURROGATE), "must be text without lone surrogates, got "),
  ("--prompt Ann", "--prompt"),
]  # fmt: skip
BENCH = [
  ("--model causal --dtype int8", "invalid choice 'int8' for argument '--dtype'"),
  ("--model both", "model='both' sees both sides of a token"),
  ("--model ids", "has no tokenizer"),
  ("--model no_such", "'no_such' is no directory with a config.json"),
  ("--drafters oracle",
   "`drafter` must be one of none, prompt_lookup, draft_model .. got 'oracle'."),
  ("--drafters draft_model", "it needs a model, draft_model[PATH]"),
  ("--drafters draft_model[other]",
   "draft_model[other] must have the vocabulary of causal, 9 tokens, got 10."),
  ("--drafters draft_model[both]",
   "draft_model[both] must be a causal model: this one sees both sides of a token"),
  ("--drafters medusa[medusa]/local[both]",
   "local[both] must be a causal model: this one sees both sides of a token"),
  ("--drafters draft_model[causal]/ensemble[both]",
   "ensemble[both] must be a causal model: this one sees both sides of a token"),
  ("--drafters denoiser[causal]",
   "`model` must be a masked diffusion model, with is_causal .. got 'causal'."),
  ("--drafters medusa[eagle]", "eagle is a head of eagle"),
  ("--drafters medusa[medusa]/tree[tree.json]", "tree.json"),
  ("--drafters prompt_lookup prompt_lookup",
   "`drafters` must name each method once, got prompt_lookup prompt_lookup."),
  (f"--drafters prompt_lookup-{HUGE}", "`nodes` must be below 2**31, got 1099511627776."),
  ("--drafters threshold",
   "`drafter` must be one of none, prompt_lookup, draft_model .. got 'threshold'."),
  ("--verifier oracle", "`verifier` must be one of greedy, target_only, token .. got 'oracle'."),
  ("--verifier token", "is not exact for"),
  ("--repeats 0", "`repeats` must be between 1 and 2147483647, got 0."),
  ("--limit 0", "`limit` must be between 1 and .. got 0."),
  ("--limit x", "--limit: no type matching INT"),
  ("--batch 0", "`batch` must be between 1 and .. got 0."),
  (f"--batch {HUGE}", "`batch` must be between 1 and .. got 1099511627776."),
  ("--max-new-tokens 0", "`max_new_tokens` must be between 1 and 2147483647, got 0."),
  (f"--max-new-tokens {HUGE}",
   "`max_new_tokens` must be between 1 and 2147483647, got 1099511627776."),
  ("--temperature nan", "`temperature` must be a finite number at least 0 (0 is greedy), got nan."),
  (f"--seed {2**64}", "`seed` must be between 0 and 4294967295, got 18446744073709551616."),
  ("--prompts no_such.jsonl", "`data` must be a .jsonl file, tfds:NAME:SPLIT or lists:SEED:COUNT."),
  ("--prompts deep.jsonl", "nested too deeply"),
  ("--prompts binary.jsonl", "record 1 is not JSON"),
  ("--prompts keys.jsonl",
   "keys.jsonl: record 1: a line must have one of prompt .. got the keys text."),
  ("--prompts tfds:x", "expected tfds:NAME:SPLIT"),
  ("--out file", "`out` must be a directory that can be written or made, got 'file'."),
  ("--out file/within",
   "`out` must be a directory that can be written or made, got 'file/within'."),
  ("--out /proc/no/such",
   "`out` must be a directory that can be made (No such file or directory), got "
   "'/proc/no/such'."),
  (("--out", ""), "`out` must be a directory that can be written or made, got ''."),
  (("--out", "a\0b"), r"`out` must be a directory that can be written or made, got 'a\x00b'."),
  ("--stop 4096", "`stop[0]` must be between 0 and 8, got 4096."),
  ("--methods threshold-0.5", "--suite prompts does not read this option"),
  ("--published copy.jsonl", "--suite prompts does not read this option"),
  ("--suite oracle", "invalid choice 'oracle' for argument '--suite'"),
]  # fmt: skip
SPECBENCH = [
  ("--model both", "model='both' sees both sides of a token"),
  ("--model ids", "ids has no chat template"),
  ("--model no_such", "'no_such' is no directory with a config.json"),
  ("--drafters oracle",
   "`drafter` must be one of none, prompt_lookup, draft_model .. got 'oracle'."),
  ("--drafters prompt_lookup prompt_lookup",
   "`drafters` must name each method once, got prompt_lookup prompt_lookup."),
  ("--verifier token", "is not exact for"),
  ("--repeats 0", "`repeats` must be between 1 and 2147483647, got 0."),
  ("--limit 0", "`limit` must be between 1 and .. got 0."),
  ("--batch 0", "`batch` must be between 1 and .. got 0."),
  (f"--batch {HUGE}", "`batch` must be between 1 and .. got 1099511627776."),
  ("--max-new-tokens 0", "`max_new_tokens` must be between 1 and 2147483647, got 0."),
  ("--max-new-tokens 60", "max_new_tokens=60: no question of asked.jsonl leaves room"),
  (f"--max-new-tokens {HUGE}",
   "`max_new_tokens` must be between 1 and 2147483647, got 1099511627776."),
  ("--temperature nan", "`temperature` must be a finite number at least 0 (0 is greedy), got nan."),
  (f"--seed {2**64}", "`seed` must be between 0 and 4294967295, got 18446744073709551616."),
  ("--prompts no_such.jsonl", "`data` must be a .jsonl file, tfds:NAME:SPLIT or lists:SEED:COUNT."),
  ("--prompts empty.jsonl", "'empty.jsonl' holds no records"),
  ("--prompts deep.jsonl", "nested too deeply"),
  ("--prompts ids.jsonl", "ids.jsonl: record 1 lacks 'category'"),
  ("--prompts poem.jsonl", "`category` must be one of writing, roleplay, reasoning .. got 'poem'."),
  ("--prompts turnless.jsonl", "`turns` must be a list of one text or more, got []."),
  ("--methods threshold-0.5", "--suite specbench does not read this option"),
  ("--tasks copy", "--suite specbench does not read this option"),
  ("--out held", "out='held' holds a run with batch=None (now 1)"),
  ("--out file", "`out` must be a directory that can be written or made, got 'file'."),
  (("--out", ""), "`out` must be a directory that can be written or made, got ''."),
]  # fmt: skip
LISTS = [
  ("--model causal", "model='causal' is causal and cannot fill masks"),
  ("--model untaught", "untaught has no chat template"),
  ("--drafters eagle", "--drafters ('eagle',): --suite parallelbench does not read this option"),
  ("--prompts ids.jsonl", "--suite parallelbench does not read this option"),
  ("--stop 1", "--suite parallelbench does not read this option"),
  ("--methods oracle", "`policy` must be one of random, confidence, margin .. got 'oracle'."),
  ("--methods", "methods"),
  ("--methods threshold threshold",
   "`methods` must be one or more names, each once, got 'threshold threshold'."),
  ("--tasks fold", "`tasks` must be one of copy, sort, reverse, shuffle .. got 'fold'."),
  ("--tasks", "tasks"),
  ("--lengths 1", "`lengths` must be between 2 and 63, got 1."),
  (f"--lengths {HUGE}", "`lengths` must be between 2 and 63, got 1099511627776."),
  ("--lengths", "lengths"),
  ("--lengths x", "--lengths"),
  ("--limit 0", "`limit` must be between 1 and .. got 0."),
  (f"--limit {10**9}", "`limit` must be between 1 and 100000, got 1000000000."),
  ("--batch 0", "`batch` must be between 1 and .. got 0."),
  (f"--batch {HUGE}", "`batch` must be between 1 and .. got 1099511627776."),
  ("--repeats 0", "`repeats` must be between 1 and 2147483647, got 0."),
  ("--temperature inf", "`temperature` must be a finite number at least 0 (0 is greedy), got inf."),
  ("--max-new-tokens 0", "`max_new_tokens` must be between 1 and 2147483647, got 0."),
  ("--max-new-tokens 400",
   "`max_new_tokens` must be together at most 64, the positions of both, got 6 and 400."),
  (f"--max-new-tokens {HUGE}",
   "`max_new_tokens` must be between 1 and 2147483647, got 1099511627776."),
  ("--lengths 60", "together at most 64"),
  ("--published no_such", "no_such: no .jsonl file there"),
  ("--published copy.jsonl", "`label` must be an object with input, the `label` of copy, got 7."),
  ("--published riddle.jsonl", "ends with none of copy"),
  ("--published causal", "causal: no .jsonl file there"),
  ("--published empty.jsonl", "empty.jsonl"),
  ("--published copy.jsonl --tasks sort",
   "`published` must be left out beside --tasks and --lengths .. got 'copy.jsonl'."),
  ("--published copy.jsonl --lengths 3",
   "`published` must be left out beside --tasks and --lengths .. got 'copy.jsonl'."),
  ("--out file", "`out` must be a directory that can be written or made, got 'file'."),
  (("--out", ""), "`out` must be a directory that can be written or made, got ''."),
]  # fmt: skip
TUNE = [
  ("", "Missing from specjax tune: --drafters [STR"),
  ("--drafters oracle",
   "`drafter` must be one of none, prompt_lookup, draft_model .. got 'oracle'."),
  ("--drafters none",
   "`drafters` must be one or more names, each once (none is always there), got 'none'."),
  ("--drafters jacobi-4 jacobi-4",
   "`drafters` must be one or more names, each once (none is .. got 'jacobi-4 jacobi-4'."),
  ("--drafters medusa-9000[medusa]",
   "`drafter` must have between 2 and 4096 nodes, or be 'none', got 'medusa-9000[medusa]'."),
  ("--drafters medusa[medusa]/dynamic-6,depth=5,beam=3", "tree is 5 deep: the head guesses"),
  ("--drafters medusa[no_such]", "'no_such' is no directory with a config.json"),
  ("--drafters medusa[eagle]", "eagle is a head of eagle"),
  ("--drafters medusa[causal]", "causal/model.safetensors lacks tensor fc.bias"),
  ("--drafters draft_model", "draft_model: it needs a model"),
  ("--drafters draft_model[other] --method sequoia --temperature 1",
   "draft_model[other] must have the vocabulary of causal, 9 tokens, got 10."),
  ("--drafters medusa[medusa] --model both", "model='both' sees both sides of a token"),
  ("--drafters medusa[medusa] --method sequoia",
   "`temperature` must be above 0 for method='sequoia', got 0.0."),
  ("--drafters medusa[medusa] --method oracle", "invalid choice 'oracle' for argument '--method'"),
  ("--drafters medusa[medusa] --temperature nan",
   "`temperature` must be a finite number at least 0, got nan."),
  ("--drafters medusa[medusa] --temperature -1", "`temperature` must be at least 0, got -1.0."),
  ("--drafters eagle[eagle] --method sequoia --temperature inf",
   "`temperature` must be a finite number at least 0, got inf."),
  ("--drafters medusa[medusa] --repeats 0", "`repeats` must be between 1 and 2147483647, got 0."),
  ("--drafters medusa[medusa] --batch 0", "`batch` must be between 1 and .. got 0."),
  ("--drafters medusa[medusa] --batch 2000000000",
   "`batch` must be between 1 and 65536, got 2000000000."),
  (
    "--drafters draft_model[both] --method sequoia --temperature 1",
    "draft_model[both] must be a causal model: this one sees both sides of a token",
  ),
  ("--drafters medusa[medusa] --limit 0", "`limit` must be between 1 and .. got 0."),
  ("--drafters eagle[eagle] --method sequoia --temperature 1 --limit -1",
   "`limit` must be between 1 and 2147483647, got -1."),
  ("--drafters medusa[medusa] --decode -1", "`decode` must be between 1 and 2147483647, got -1."),
  ("--drafters medusa[medusa] --max-new-tokens 0",
   "`max_new_tokens` must be between 1 and 2147483647, got 0."),
  (f"--drafters medusa[medusa] --max-new-tokens {HUGE}",
   "`max_new_tokens` must be between 1 and 2147483647, got 1099511627776."),
  ("--drafters medusa[medusa] --prompts deep.jsonl", "nested too deeply"),
  ("--drafters medusa[medusa] --prompts empty.jsonl", "holds no records"),
  ("--drafters medusa[medusa] --prompts no_such.jsonl",
   "`data` must be a .jsonl file, tfds:NAME:SPLIT or lists:SEED:COUNT."),
  (
    "--drafters eagle[eagle] --method sequoia --temperature 1 --prompts ids.jsonl "
    "--max-new-tokens 4",
    "`prompts` must hold more than the 8 questions on which .. got 1 in 'ids.jsonl'; "
    "--method best_first needs no held-ou",
  ),
  ("--drafters medusa[medusa] --out file",
   "`out` must be a directory that can be written or made, got 'file'."),
  ("--drafters medusa[medusa] --out file/within",
   "`out` must be a directory that can be written or made, got 'file/within'."),
  (("--drafters", "medusa[medusa]", "--out", ""),
   "`out` must be a directory that can be written or made, got ''."),
]  # fmt: skip
CONVERT = [
  ("", "Missing from specjax convert: --format"),
  ("--format onnx --model causal --out new", "invalid choice 'onnx' for argument '--format'"),
  ("--format gguf --model causal --out new", "causal' cannot be read"),
  ("--format gguf --model no_such.gguf --out new", "'no_such.gguf' is no directory with"),
  ("--format gguf --model noise.gguf --out new", "noise.gguf is truncated or no GGUF file"),
  ("--format gguf --model noise.gguf --tokenizer file --out new", "brings its own"),
  ("--format hf --model no_such --out new", "'no_such' is no directory with a config.json"),
  ("--format hf --model file --out new", "'file' is no directory with a config.json"),
  ("--format hf --model medusa --out new", "`model_type` must be one of llama .. got None."),
  ("--format hf --model deep --out new", "nested too deeply"),
  ("--format hf --model nothing --out new", "nothing/config.json is not JSON"),
  ("--format hf --model listed --out new", "listed/config.json is no JSON object"),
  ("--format hf --model bytes --out new", "bytes/config.json is not JSON"),
  ("--format hf --model nan --out new", "nan/config.json"),
  ("--format hf --model family --out new",
   "`model_type` must be one of llama, mistral, qwen2, qwen3 .. got 'bert'."),
  ("--format hf --model bare --out new", "bare has neither model.safetensors nor"),
  ("--format hf --model cut --out new", "model.safetensors is truncated or no safetensors file"),
  ("--format hf --model causal --out causal", "out='causal' is the model itself"),
  ("--format hf --model causal --out ./deep/../causal", "is the model itself"),
  ("--format hf --model causal --out file",
   "`out` must be a directory that can be written or made, got 'file'."),
  ("--format hf --model causal --out file/within",
   "`out` must be a directory that can be written or made, got 'file/within'."),
  ("--format hf --model causal --out /proc/no/such", "'/proc/no': No such file or directory"),
  (("--format", "hf", "--model", "causal", "--out", ""),
   "`out` must be a directory that can be written or made, got ''."),
  (("--format", "hf", "--model", "causal", "--out", "a\0b"),
   r"`out` must be a directory that can be written or made, got 'a\x00b'."),
  (("--format", "hf", "--model", "", "--out", "new"), "config.json"),
  ("--format hf --model causal --out ids",
   "`out` must be a directory without a model or a head (it has a config.json), got 'ids'."),
  ("--format hf --model causal --out new --tokenizer t", "brings its own"),
  ("--format hf --model causal --out new --to medusa", "to='medusa' are for --format head"),
  ("--format hf --model causal --out new --target causal", "target='causal' and to="),
  ("--format llama2c --model causal --out new", "'causal' cannot be read: Is a directory"),
  ("--format llama2c --model no_such --out new", "'no_such' cannot be read: No such file"),
  ("--format llama2c --model short.bin --out new", "less than a llama2.c header"),
  ("--format llama2c --model noise.bin --out new", "is no llama2.c version 0 checkpoint"),
  ("--format llama2c --model short.bin --out short.bin",
   "`out` must be a directory that can be written or made, got 'short.bin'."),
  ("--format head --model medusa --target no_such --out new", "'no_such' is no directory"),
  ("--format head --model no_such --target causal --out new", "'no_such' is no directory"),
  ("--format head --model causal --target causal --out new", "lacks tensor fc.bias"),
  ("--format head --model medusa --target both --out new", "model='both' sees both sides"),
  ("--format head --model medusa --target causal --out new --to eagle",
   "`to` must be specjax or medusa for a head of medusa, got 'eagle'."),
  ("--format head --model medusa --target causal --out new --to gguf", "invalid choice 'gguf'"),
  ("--format head --model eagle --target causal --out causal",
   "`out` must be a directory without a model or a head (it has a config.json), got "
   "'causal'."),
  ("--format head --model medusa --target causal --out new --to medusa --weights int8",
   "`weights` must be left out without --to specjax, got 'int8'."),
  ("--format head --model medusa --target causal --out medusa", "is the model itself"),
]  # fmt: skip
INFO = [
  ("--model no_such", "'no_such' is no directory with a config.json, no GGUF file, and no"),
  ("--model noise.gguf", "noise.gguf is truncated or no GGUF file"),
  ("--model causal --revision main",
   "`revision` must be left out for 'causal', which is no model ORG/NAME of the hub, got "
   "'main'."),
  ("--model file", "'file' is no directory with a config.json"),
  ("--model .", "'.' is no directory with a config.json"),
  (("--model", ""), "'' is no directory with a config.json"),
  (("--model", "a\0b"), "is no directory with a config.json"),
  (("--model", "x" * 5000), "is no directory with a config.json"),
  (("--model", SURROGATE), "must be text without lone surrogates, got "),
  ("--model", "Missing value for argument '--model'"),
  ("--model causal both", "`option` must be one that --help lists, got 'both'."),
  ("--model deep", "deep/config.json is not JSON that can be read: it is nested too deeply"),
  ("--model nothing", "nothing/config.json is not JSON"),
  ("--model listed", "listed/config.json is no JSON object"),
  ("--model bytes", "bytes/config.json is not JSON"),
  ("--model family", "`model_type` must be one of llama, mistral, qwen2, qwen3 .. got 'bert'."),
  ("--model nan", "nan/config.json"),
  ("--model bare", "bare has neither model.safetensors nor"),
  ("--model cut", "cut/model.safetensors is truncated or no safetensors file"),
  ("--model medusa", "`model_type` must be one of llama .. got None."),
  ("--model lists-3m-filter", "`model_type` must be one of llama .. got None."),
]  # fmt: skip
DOORS = {
  "chat": ("chat --model causal", CHAT), "denoise": ("denoise --model both", DENOISE),
  "bench": ("bench --model causal --drafters prompt_lookup --max-new-tokens 4 --out new", BENCH),
  "specbench": ("bench --suite specbench --model causal --drafters prompt_lookup --prompts "
                "asked.jsonl --max-new-tokens 4 --out new", SPECBENCH),
  "parallelbench": ("bench --suite parallelbench --model both --out new", LISTS),
  "tune": ("tune --model causal --max-new-tokens 4 --out new", TUNE),
  "convert": ("convert", CONVERT), "info": ("info", INFO),
}  # fmt: skip
ROWS = [
  pytest.param(common, arguments, words, id=f"{door} {i}: {words[:40]}")
  for door, (common, rows) in DOORS.items()
  for i, (arguments, words) in enumerate(rows)
]


@pytest.mark.parametrize(("common", "arguments", "words"), ROWS)
def test_refused(refused, common, arguments, words):
  given = arguments.split() if isinstance(arguments, str) else arguments
  sentence = refused(*common.split(), *given)
  assert says(sentence, words), sentence
