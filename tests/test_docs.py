"""The documentation is true: its code runs, its commands parse, what it names exists."""

import ast
import dataclasses
import importlib.util
import itertools
import pathlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib

import pytest

import specjax
from specjax import command_line
from specjax.eval.prompts import OUR_QUESTIONS
from specjax.names import catalogue, grammar
from specjax.names.grammar import Part
from specjax.search import SEARCHES

ROOT = pathlib.Path(__file__).parents[1]
PAGES = {
  str(path.relative_to(ROOT)): path.read_text()
  for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "specjax/zoo/*/*.md")
  for path in sorted(ROOT.glob(pattern))
}
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")


def sections(page: str) -> dict[str, str]:
  """The text below each heading of a page."""
  text = FENCE.sub(lambda block: re.sub("^#", " #", block[0], flags=re.MULTILINE), PAGES[page])
  starts = [*HEADING.finditer(text)]
  ends = [*(h.start() for h in starts[1:]), len(text)]
  return {h[1]: text[h.end() : end] for h, end in zip(starts, ends, strict=True)}


# --- Python


def plain_and_fast_agree(scope, out):
  assert "same tokens: True" in out


def the_canvas_is_reversed(scope, out):
  slow, fast = map(str.split, out.splitlines())
  assert slow[:-1] == fast[:-1] == ["Leo", "Kim", "Bob", "Ada"]
  assert int(slow[-1]) == 16 > 2 * int(fast[-1])


def the_drafter_is_lossless(scope, out):
  model = specjax.load()
  own = specjax.drafters.stateless("repeat", 3, scope["repeat"])
  prompts = [model.chat(question) for question in OUR_QUESTIONS[:3]]
  plain, drafted = (
    specjax.Decoder(model, drafter, batch=2, temperature=0.8)(prompts, 24)
    for drafter in ("none", own)
  )
  assert [r.tokens for r in drafted] == [r.tokens for r in plain]


def it_is_exact(scope, out):
  assert out == "exact: True\n"


def the_list_is_reversed(scope, out):
  assert out.split() == ["Leo", "Kim", "Bob", "Ada"]


def it_runs(scope, out):
  pass


BLOCKS = {
  ("README.md", "Autoregressive models"): plain_and_fast_agree,
  ("README.md", "Masked diffusion models"): the_canvas_is_reversed,
  ("README.md", "A method of your own"): the_drafter_is_lossless,
  ("docs/how_to/prompts.md", "Prompts"): it_runs,
  ("docs/how_to/search.md", "Several samples, and search"): it_runs,
  ("docs/how_to/serve.md", "In Python"): it_runs,
  ("docs/how_to/devices.md", "Several devices"): plain_and_fast_agree,
  ("docs/methods.md", "Names"): it_runs,
  ("docs/add_a_method.md", "A drafter"): plain_and_fast_agree,
  ("docs/add_a_method.md", "A head"): plain_and_fast_agree,
  ("docs/add_a_method.md", "A verifier"): it_is_exact,
  ("docs/add_a_method.md", "A policy"): the_list_is_reversed,
  ("docs/proofs.md", "Enumeration through the shipped loop"): it_runs,
}


def test_every_block_is_run():
  found = {(page, name) for page in PAGES for name, text in sections(page).items()
           if "```python" in text}  # fmt: skip
  assert found == set(BLOCKS)


@pytest.mark.slow
@pytest.mark.full(
  but=["README.md-Autoregressive*", "README.md-Masked*", "docs/methods.md-*", "docs/proofs.md-*"]
)
@pytest.mark.parametrize(("page", "heading"), BLOCKS)
def test_a_block_runs(page, heading, capsys):
  (block,) = FENCE.findall(sections(page)[heading])
  scope: dict = {}
  exec(block, scope)
  BLOCKS[page, heading](scope, capsys.readouterr().out)


# --- Commands


def commands(text: str) -> list[list[str]]:
  """The commands of the indented lines of a page, each in words, without files that they fill."""
  lines = "".join(line[4:] for line in text.splitlines(keepends=True) if line.startswith("    "))
  lines = re.sub(r" > \S+$", "", lines.replace("\\\n", " "), flags=re.MULTILINE)
  split = [shlex.split(line, comments=True) for line in lines.splitlines()]
  return [words for words in split if words and words[0] in ("specjax", "python", "make", "pip")]


COMMANDS = {
  f"{page}: {' '.join(words)}": words for page, text in PAGES.items() for words in commands(text)
}
for code in sorted({code for text in PAGES.values() for code in CODE.findall(text)}):
  if re.match(r"python (-m specjax\.\S+ -|benchmarks/)|specjax \w+ -", code):
    COMMANDS[code] = shlex.split(code)


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
# a module that is run has been imported before
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_a_command_is_understood(words, monkeypatch, tmp_path):
  if words[0] == "make":
    assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
  elif words[0] == "pip":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert set(filter(None, re.split(r"[\[\],.]", words[2]))) <= set(extras)
  elif words[:3] == ["python", "-m", "pytest"]:
    known = (ROOT / "tests/conftest.py").read_text()
    assert all(f'"{x}"' in known if x.startswith("-") else (ROOT / x).exists() for x in words[3:])
  else:
    (config,) = parsed(words, monkeypatch, tmp_path)
    options = vars(config)
    for group in filter(dataclasses.is_dataclass, vars(config).values()):
      options = options | vars(group)
    for option in ("drafter", "drafters", "verifier", "processors", "policy", "methods"):
      names = options.get(option) or ()
      for name in (names,) if isinstance(names, str) else names:
        for one in grammar.alternatives(name):
          grammar.parse(option, one)


def parsed(words, monkeypatch, tmp_path) -> list:
  """What a command's `main` would be called with."""
  calls: list = []
  run = command_line.run
  monkeypatch.setattr(
    command_line, "run", lambda main, *rest, **more: run(calls.append, *rest, **more)
  )
  (tmp_path / "my_file.py").write_text("from specjax.heads.medusa import medusa as my_head\n")
  words = ["python", "-m", "specjax.cli", *words[1:]] if words[0] == "specjax" else words
  by_module = words[1] == "-m"
  name, arguments = (words[2], words[3:]) if by_module else (str(ROOT / words[1]), words[2:])
  main = "specjax.cli.main" if name == "specjax.cli" else name
  source = importlib.util.find_spec(main).origin if by_module else name
  (tmp_path / "run.yaml").write_text(YAML.findall(PAGES["docs/how_to/train.md"])[0])
  code = pathlib.Path(source).read_text()
  assert re.search(r"command_line\.run\(|options\.command\(", code), "it would really run"
  monkeypatch.setattr(sys, "argv", [name, *arguments])
  monkeypatch.chdir(tmp_path)
  with pytest.raises(SystemExit) as end:
    (runpy.run_module if by_module else runpy.run_path)(name, run_name="__main__")
  assert not end.value.code
  return calls


# --- Names

GENERATED = [page for page in PAGES if page.startswith("docs/methods/")]
# What the first column of a table holds, by its title, and what such a name needs before it.
NAMES = {
  "drafter": "", "head": "", "verifier": "", "processor": "", "denoising policy": "", "name": "",
  "tree, after a head or a draft model": "eagle/", "draft length, after a draft model": "eagle/",
  "after a policy": "threshold",
}  # fmt: skip


def named(page: str) -> set[Part]:
  """The parts that the tables of a page name, each by itself."""
  found: set[Part] = set()
  for title, before in NAMES.items():
    for first, *_ in table_rows(PAGES[page], title):
      for code in CODE.findall(first):
        for one in grammar.alternatives(code.replace(r"\|", "|")):
          # On a page of one kind N is a number, and decorations stand alone.
          alone = re.sub(r"\bN\b", "1", f"eagle{one}" if one[0] in "/+" else one)
          for part in grammar.parse("name", before + alone):
            found |= {part._replace(decorations=()), *part.decorations}
  return found


@pytest.mark.parametrize("page", ["README.md", "docs/methods.md", *GENERATED])
def test_names_are_those_of_the_list(page):
  known: dict[str, set[str]] = {}  # parameters of a name, which parts of two kinds may share
  for rows in catalogue.parts().values():
    for label, parameters, *_ in rows:
      name = re.sub(r"^[/+]|\[.*", "", label)
      known.setdefault(name, set()).update(re.findall(r"\w+", re.sub("=[^,]*", "", parameters)))
  if page == "docs/methods/searches.md":
    rows = table_rows(PAGES[page], "name")
    assert [re.sub(r"\[.*", "", first.strip("`")) for first, *_ in rows] == [*SEARCHES]
    return
  parts = named(page)
  assert {part.name for part in parts} <= set(known)
  for part in parts:
    assert {key for key, _ in part.labelled} <= known[part.name], part
    assert len(part.numbers) < 2 or "children" in known[part.name], part


def test_the_pages_of_methods_name_every_part():
  pages = set(GENERATED) - {"docs/methods/searches.md"}
  listed = {row.name for rows in catalogue.parts().values() for row in rows}
  assert {part.name for page in pages for part in named(page)} == {
    re.sub(r"^[/+]|\[.*", "", name) for name in listed
  }


def test_what_is_left_out_points_to_names_of_the_list():
  rows = itertools.chain.from_iterable(catalogue.parts().values())
  listed = {re.sub(r"^[/+]|\[.*", "", name) for name, *_ in rows}
  assert set(CODE.findall(sections("docs/papers.md")["Left out, and why"])) <= listed


# --- Links, paths, modules


def slug(heading: str) -> str:
  return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def definitions(text: str) -> dict[str, str]:
  """Where the links lead that stand below the text, [NAME]: ADDRESS."""
  return dict(re.findall(r"^\[([\w.-]+)\]: (\S+)$", text, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
  beside = re.findall(r"\]\(([^)\s]+)\)", PAGES[page])
  below = definitions(PAGES[page])
  for target in [*beside, *below.values()]:
    if target.startswith("https://"):
      continue
    path, _, anchor = target.partition("#")
    file = (ROOT / page).parent / path if path else ROOT / page
    assert file.exists(), target
    if anchor:
      known = map(slug, sections(str(file.resolve().relative_to(ROOT))))
      assert anchor in known, target


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page):
  top = r"(?:specjax|kernels|train|configs|benchmarks|examples|tests|notebooks|docs)/[\w./]*"
  named = [code for code in CODE.findall(PAGES[page]) if re.fullmatch(top, code)]
  assert [path for path in named if not (ROOT / path).exists()] == []


def table_rows(text: str, *header: str) -> list[list[str]]:
  """The rows of the tables of a page whose header holds these titles."""
  rows = []
  for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
    first, _, *rest = [re.split(r"(?<!\\) \| ", line[2:-2].strip()) for line in table.splitlines()]
    rows += rest if set(header) <= set(first) else []
  return rows


# Of the last two nobody's weights are here.
UNMEASURED = (
  "`constrained`",
  "`superposed[FILE.npz]`",
  "`switching[MODEL]`",
  "`/survival`",
  "`gemma4_assistant[HEAD]`",
  "`domino[HEAD]`",
)


@pytest.mark.parametrize("page", ["docs/methods.md", *GENERATED])
def test_every_method_has_a_figure_and_a_command_that_measures_it(page):
  links = definitions(PAGES[page])
  rows = table_rows(PAGES[page], "measured")
  assert rows
  for row in rows:
    found = re.findall(r"\[([^]]+)\]\[(\w+)\]", row[-1])
    # Three ways of search are not measured, nor a policy that waits for a head of its own.
    assert found or row[0] in UNMEASURED, row
    for figure, link in found:
      (where,) = re.findall(r"benchmarks/results/\w+/README\.md$", links[link])
      assert commands(PAGES[where]), row
      number, *_ = re.findall(r"\d[\d.]*", re.sub(r"`[^`]*`|Hydra\+\+", "", figure))
      said = rf"(?<![\d.]){re.escape(number)}(?!\d|\.\d)"
      assert re.search(said, PAGES[where]), f"{row}: no {number} on {where}"


@pytest.mark.parametrize("page", GENERATED)
def test_the_pages_of_methods_are_those_of_the_docstrings(page):
  written = runpy.run_path(str(ROOT / "docs/pages.py"))
  assert {*GENERATED} == {f"docs/methods/{name}.md" for name in written["PAGES"]}
  fresh = written["page"](pathlib.Path(page).stem)
  assert PAGES[page] == fresh, "the page is stale: run `python docs/pages.py`"


@pytest.mark.parametrize("page", ["docs/methods.md", *GENERATED])
def test_a_method_is_a_short_row(page):
  assert [line for line in PAGES[page].splitlines() if line[:1] == "|" and len(line) > 160] == []


def test_every_experiment_has_its_command_and_machine():
  names = [page for page in PAGES if re.fullmatch(r"benchmarks/results/\w+/README\.md", page)]
  index = PAGES["benchmarks/results/README.md"]
  assert set(re.findall(r"\]\((\w+/README\.md)\)", index)) == {
    page.removeprefix("benchmarks/results/") for page in names
  }
  for page in names:
    assert re.search("^- Machine: .*\\.$", PAGES[page], re.MULTILINE), page
    assert commands(PAGES[page]), page


def test_the_page_of_results_is_short():
  lines = PAGES["docs/results.md"].splitlines()
  assert len(lines) <= 150 and max(map(len, lines)) <= 160


def test_papers_lead_to_their_files():
  rows = table_rows(PAGES["docs/papers.md"], "paper", "module")
  for paper, modules, _ in rows:
    sources = "".join((ROOT / path).read_text() for path in CODE.findall(modules))
    assert all(number in sources for number in re.findall(r"abs/([\d.]+)\)", paper)), paper
  cited = {
    number
    for folder in ("specjax", "train", "kernels")
    for path in (ROOT / folder).rglob("*.py")
    for number in re.findall(r"\b(\d{4}\.\d{5})\b", path.read_text())
  }
  assert cited <= set(re.findall(r"abs/([\d.]+)\)", PAGES["docs/papers.md"]))


# The papers that this project was founded on, as the page of papers calls them.
FOUNDED_ON = """
Medusa, Clover, Clover-2, Hidden Transfer, FIRP, Blockwise parallel decoding, Hydra, EAGLE, EAGLE-2,
EAGLE-3, Rescoring of blockwise drafts, MLPSpeculator, ReDrafter, Chimera, CTC drafter, Jakiro,
GRIFFIN, Parallel prompt decoding, PARD, VocabTrim, S2D, SpecMemo, M2R2, Lexical unit decoding,
Speculative sampling, SpecTr, Multi-candidate speculative decoding, Recursive speculative decoding,
Greedy drafting, Judge decoding, Reflective verification, Any-subset speculative decoding, DySpec,
Graph-structured speculative decoding, Sequoia, SpecDec++, AdaEDL, PEARL, DEL, Token Recycling,
ADED, Lookahead, REST, RASD, RAPID, Aggressive decoding, SWIFT,
Speculative Jacobi decoding, Superposed decoding, Draft&Verify, Learn2PD, dParallel, LocalLeap,
AdaBlock-dLLM, CreditDecoding, FreeDave, R2-dLLM, KLASS, From Bits to Rounds, Window-Diffusion,
FlashDLM, EDLM, ParallelBench, A survey on diffusion language models, LLaDA, Dream, SDAR, Fast-dLLM,
dInfer, dLLM-Cache, GEAR, Mustafar, Keyformer, TokenSelect, ActQKV, MInference, SkipDecode, FiRST,
Duo-LLM, BlockFFN, Entropy adaptive decoding, Cautious next token prediction, AdaDec,
Momentum decoding, Locally typical sampling, Diverse beam search, First Finish Search,
Adaptive weighted rejection sampling, JSONSchemaBench, When Life Gives You Samples,
Flover, Exact byte-level probabilities,
Correlation and navigation in the key space, Bridging the training-inference gap, ParScale,
Deliberation by cache augmentation, CoT2, Dynamic tokenization, TokenAdapt, Splitwise, TokenRing,
TokenWeave, SambaY, Word-pooled tokenization, Probabilistic circuits, CodecLM,
Confidence and critique, Needle threading, Sparse autoencoders for circuits, RetroMAE v2, ELECTRA,
IndicTrans2, Samanantar, Speech-text interleaving, Discrete audio tokens, Scene text recognition,
DivPrune, Correlation-guided document compression, MDGR, Next-frame diffusion,
Long video generation, Optical flow from video models, LAVA NAT
"""


def test_every_paper_stands_once_with_its_file_or_a_reason():
  page = PAGES["docs/papers.md"]
  found = re.findall(r"^- \*\*(.+?)\*\*", page, re.MULTILINE)
  for cell, *_ in table_rows(page, "paper", "module"):
    papers = re.sub(r", \[[\d.]+\]\(\S+\)", "", cell).split("; ")
    found += [re.sub(r"^.* \d{4}, | \d{4}$", "", paper) for paper in papers]
  names = [re.split(r": | \(", title)[0] for title in found]
  assert len(names) == len(set(names))
  assert {" ".join(name.split()) for name in FOUNDED_ON.split(",")} <= set(names)


VERDICTS = ("yes", "no", "not shown")


def test_claims_are_counted_and_lead_to_figures():
  page = PAGES["docs/claims.md"]
  rows = [row for row in table_rows(page, "the paper's claim") if len(row) == 4]
  counts = {said: sum(row[3] == said for row in rows) for said in VERDICTS}
  assert sum(counts.values()) == len(rows) > 90
  said = re.search(r"(\d+) methods: (\d+) yes, (\d+) no, (\d+) not shown", page)
  assert said and [*map(int, said.groups())] == [len(rows), *counts.values()]
  assert len({row[0] for row in rows}) == len(rows)
  assert max(map(len, page.splitlines())) <= 160
  links = definitions(page)
  for method, _, here, verdict in rows:
    found = re.findall(r"\[([^]]+)\]\[(\w+)\]", here)
    assert found or (verdict == "not shown" and here == "not measured"), method
    for figure, link in found:
      text = (ROOT / "docs" / links[link]).read_text()
      for number in re.findall(r"\.?\d[\d,.]*\d|\d", figure):
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d|\.\d)", text), (method, number)


def test_pitfalls_lead_to_their_tests():
  named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGES["docs/pitfalls.md"])
  rows = re.findall(r"^\| (?!habit|-)", PAGES["docs/pitfalls.md"], re.MULTILINE)
  assert len(named) == len(rows) > 30
  for path, name in named:
    defined = {node.name for node in ast.parse((ROOT / path).read_text()).body
               if isinstance(node, ast.FunctionDef)}  # fmt: skip
    assert name in defined, f"{path} has no {name}"


@pytest.mark.skipif(not (ROOT / ".git").exists() or not shutil.which("git"), reason="no checkout")
def test_a_checkout_is_light():
  listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
  files = [ROOT / name.decode() for name in listed.stdout.split(b"\0") if name]
  assert 0 < sum(file.stat().st_size for file in files if file.is_file()) < 48e6


# --- The README and the reference


def test_the_readme_is_short():
  lines = PAGES["README.md"].splitlines()
  assert len(lines) <= 130 and max(map(len, lines)) <= 180


def documented(node: ast.AST) -> set[str]:
  """The arguments and fields that a docstring describes."""
  names: set[str] = set()
  inside = False
  for line in (ast.get_docstring(node) or "").splitlines():
    if line and line[0] != " ":
      inside = line in ("Args:", "Attributes:")
    elif inside and (entry := re.match(r"  (\w+(?:, \w+)*):", line)):
      names |= set(entry[1].split(", "))
  return names


SOURCES = {
  path: ast.parse(path.read_text())
  for folder in ("specjax", "kernels", "train", "configs", "benchmarks")
  for path in sorted((ROOT / folder).rglob("*.py"))
}
CLASSES = {
  node.name: node
  for tree in SOURCES.values()
  for node in ast.walk(tree)
  if isinstance(node, ast.ClassDef)
}


def names_of(node: ast.AST) -> set[str]:
  """The arguments of a function; the fields and methods of a class, also of those below it."""
  if isinstance(node, ast.FunctionDef):
    a = node.args
    every = (*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg)))
    return {x.arg for x in every}
  assert isinstance(node, ast.ClassDef)
  found: set[str] = set()
  for child in node.body:
    if isinstance(child, ast.AnnAssign):
      found.add(ast.unparse(child.target))
    elif isinstance(child, ast.FunctionDef):
      found |= {child.name} | names_of(child)
  for base in node.bases:
    if ast.unparse(base) in CLASSES:
      found |= names_of(CLASSES[ast.unparse(base)])
  return found


def test_docstrings_describe_what_there_is():
  wrong = [
    f"{path.relative_to(ROOT)}:{node.lineno}: {', '.join(sorted(unknown))}"
    for path, tree in SOURCES.items()
    for node in ast.walk(tree)
    if isinstance(node, ast.FunctionDef | ast.ClassDef)
    if (unknown := documented(node) - names_of(node))
  ]
  assert wrong == []


def test_the_reference_is_whole():
  # Of the command line, --help is the reference.
  own = {"__init__", "zoo", "cache_dir", "cli", "command_line"}
  api = "".join(text for page, text in PAGES.items() if page.startswith("docs/api/"))
  there = {path.stem for path in (ROOT / "specjax").iterdir() if not path.stem.startswith("__py")}
  assert set(re.findall(r"^::: specjax\.(\w+)$", api, re.MULTILINE)) == there - own


@pytest.mark.slow
def test_the_reference_is_built(tmp_path):
  pytest.importorskip("mkdocs", reason="pip install .[docs]")
  pytest.importorskip("material", reason="pip install .[docs]")
  command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
  subprocess.run(command, cwd=ROOT, check=True)
  assert "the very tokens of plain sampling" in (tmp_path / "api/verifiers/index.html").read_text()
