"""`specjax chat` through a pipe, and what a terminal is shown."""

import io
import signal
import sys

import jax
import jax.numpy as jnp
import pytest
from sentences import says

import specjax
from specjax.checkpoints import hf
from specjax.cli import terminal
from specjax.cli.main import main
from specjax.data.chat import TEMPLATES
from specjax.data.tokenizer import train_words
from specjax.decoding import conversation
from specjax.decoding.conversation import Conversation, Piece
from specjax.decoding.decoder import Decoder
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.models.config import Config
from specjax.models.transformer import Transformer

NEW = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  """Directory of a random model with a chat template that has no system turn."""
  tokenizer = train_words(["the cat sat on the mat with a dog and the bird"])
  path = tmp_path_factory.mktemp("model")
  config = Config(tokenizer.vocab_size, 16, 1, 2, 1, 8, 24, max_length=128)
  z, mask = jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2, 2), bool)
  params = Transformer(config).init(jax.random.key(0), z, z, mask)
  hf.save(path, config, params, tokenizer, template=TEMPLATES["plain"], dtype=jnp.float32)
  return str(path)


@pytest.fixture
def talk(model, monkeypatch, capsys):
  """Runs a chat with these lines; (stdout, stderr)."""

  def run(*lines: str, options=()):
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    assert main(["chat", "--model", model, "--max-new-tokens", str(NEW), *options]) == 0
    return capsys.readouterr()

  return run


def answers(model: str, *questions: str, **options) -> list[str]:
  """What new decoders say to each question, given all turns before it."""
  loaded, turns, said = specjax.load(model), [], []
  for question in questions:
    turns.append({"role": "user", "content": question})
    (result,) = Decoder(loaded, **options)([loaded.chat(turns)], NEW)
    turns.append({"role": "assistant", "content": result.text.strip()})
    said.append(result.text.rstrip("\ufffd"))
  return said


def in_order(out: str, *texts: str) -> bool:
  """Whether the texts follow each other in `out`."""
  at = 0
  for text in texts:
    at = out.find(text, at) + len(text)
    if at < len(text):
      return False
  return True


@pytest.mark.slow
def test_a_pipe_is_answered_line_by_line(talk, model):
  out, err = talk("the cat", "", "the dog sat", options=["--drafter", "prompt_lookup-4"])
  first, second = answers(model, "the cat", "the dog sat")
  assert in_order(out, first, f"{NEW} tokens", "GREEDY-EXACT]", second, f"{NEW} tokens")
  assert err == "" and out.count("per pass") == out.count("tokens/s") == 2
  assert out.count("times plain decoding") == 2 and "\x1b" not in out and ">" not in out


@pytest.mark.slow
def test_stops_end_an_answer(talk, model):
  loaded = specjax.load(model)
  decoder = Decoder(loaded, temperature=1.0)
  for decoder.seed in range(50):  # until as many words as there are tokens are said
    ids = decoder([loaded.chat("the cat")], NEW, first=1)[0].tokens  # a chat begins with a reset
    if len({*ids}) == NEW and all(words := [loaded.decode([token]) for token in ids]):
      break
  drawn, place = ["--temperature", "1", "--seed", str(decoder.seed)], 3
  for options in (["--stop", str(ids[place])], ["--stop-words", words[place]]):
    out, _ = talk("the cat", options=[*drawn, *options])
    shown = words[:place] if "--stop-words" in options else words[: place + 1]
    assert out.splitlines()[0].split() == shown
    assert f"{place + 1} tokens" in out


@pytest.mark.slow
def test_commands(talk, model):
  out, err = talk(
    "/drafter oracle", "/temperature x", "/oracle", "the cat", "/temperature 0.8",
    "/drafter prompt_lookup-4", "the dog", "/reset", "/help", "/quit", "the mat",
  )  # fmt: skip
  refused = err.splitlines()
  assert len(refused) == 3 and all(line.startswith("error: ") for line in refused)
  assert says(
    refused[0], "`drafter` must be one of none, prompt_lookup, draft_model .. got 'oracle'."
  )
  assert "`temperature` must be a finite number at least 0 (0 is greedy), got 'x'." in refused[1]
  assert says(refused[2], "`command` must be one of /drafter, /temperature .. got '/oracle'.")
  assert in_order(out, "greedy [GREEDY-EXACT]", "target_only [EXACT]", "/reset", "Ctrl-C")
  assert out.count("per pass") == 2


def test_a_reset_forgets(talk, model):
  out, _ = talk("the dog", "/reset", "the cat sat")
  assert in_order(out, *answers(model, "the dog"), *answers(model, "the cat sat"))


def test_an_interrupted_answer_is_kept(talk, model, monkeypatch):
  check, asked = Decoder.check_logits, []

  def pressed(decoder, state, first):
    if len(asked) == 1 and int(state.stats.emitted[0]) == 2:
      signal.raise_signal(signal.SIGINT)  # as Ctrl-C does
    check(decoder, state, first)

  ask = Conversation.ask
  monkeypatch.setattr(Decoder, "check_logits", pressed)
  monkeypatch.setattr(Conversation, "ask", lambda *x: asked.append(x[1]) or ask(*x))
  before = signal.getsignal(signal.SIGINT)
  out, err = talk("the cat", "the dog")
  assert in_order(out, "2 tokens", f"{NEW} tokens") and err == ""
  assert [turn["role"] for turn in asked[1]] == ["user", "assistant", "user"]
  assert asked[1][1]["content"].strip() in out
  assert signal.getsignal(signal.SIGINT) is before


def test_a_full_conversation_says_so(talk):
  out, err = talk("the cat " * 60, "the cat")
  assert "error: the conversation is full: it has" in err and err.count("\n") == 1
  assert out.count("per pass") == 1


def test_the_caches_are_kept(talk, monkeypatch):
  read = []
  inner = Conversation._read

  def watched(self, *arguments):
    state = inner(self, *arguments)
    read.append((len(self.ids), self.read))
    return state

  monkeypatch.setattr(conversation.Conversation, "_read", watched)
  talk("the cat", "the dog")
  (first, all_of_it), (second, some) = read
  assert all_of_it == first - 1
  assert some == second - first - NEW == len(["<|end|>", "the", "dog"])


@pytest.mark.parametrize("terminal_or_not", [True, False])
def test_drafted_tokens_are_coloured_in_a_terminal(terminal_or_not, monkeypatch):
  out = io.StringIO()
  monkeypatch.setattr(out, "isatty", lambda: terminal_or_not)
  monkeypatch.setattr(sys, "stdout", out)
  monkeypatch.delenv("NO_COLOR", raising=False)
  model = specjax.load("gsm8k-7m")
  ids = model.encode("the café costs 12 dollars")
  answer = terminal.show(model, [Piece(ids[:3], 2), Piece(ids[3:4], 0), Piece(ids[4:], 1)])
  drafted = model.decode(ids[:2]).rstrip("\ufffd")
  begin = f"\x1b[36m{drafted}\x1b[0m" if terminal_or_not else drafted
  assert out.getvalue().startswith(begin)
  plain = out.getvalue().replace("\x1b[36m", "").replace("\x1b[0m", "")
  assert plain == "the café costs 12 dollars\n"
  assert answer.tokens == ids and answer.passes == 3
  assert terminal.summary(answer).startswith(f"{len(ids)} tokens, {len(ids) / 3:.2f} per pass")


@pytest.mark.slow
def test_a_denoiser_answers_by_blocks(list_denoiser, monkeypatch, capsys):
  lines = "copy : Leo Ada Kim =\n/policy confidence-4\n/drafter eagle\ncopy : Leo\n"
  monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
  options = ["--policy", "threshold-0.3/fixed-4", "--max-new-tokens", str(NEW)]
  assert main(["chat", "--model", list_denoiser, *options]) == 0
  out, err = capsys.readouterr()
  loaded = specjax.load(list_denoiser)
  decoder = DiffusionDecoder(loaded, "threshold-0.3/fixed-4")
  (result,) = decoder([loaded.chat("copy : Leo Ada Kim =")], NEW, first=1)
  first = result.text, f"{result.emitted} tokens, ", "per pass", "threshold-0.3/fixed-4"
  assert in_order(out, *first, " tokens, ", "confidence-4\n")
  assert err.startswith("error: `drafter` must be left out for ") and err.count("\n") == 1
