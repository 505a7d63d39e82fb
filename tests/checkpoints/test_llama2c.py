"""llama2.c files against its pass and its tokenizer, both written anew here in numpy."""

import pathlib
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from llama2c_reference import greedy

from specjax.checkpoints import hf, llama2c
from specjax.models.config import Config
from specjax.models.transformer import Transformer, attention_mask


@jax.jit(static_argnums=0)
def logits_of(config: Config, params, ids):
  model = Transformer(config)
  position = jnp.arange(ids.shape[1])[None]
  mask = attention_mask(jnp.zeros_like(ids), config.causal)
  hidden, _ = model.apply(params, ids, position, mask)
  return model.apply(params, hidden, method="head")


@pytest.fixture(scope="module")
def stories(shared_data):
  return llama2c.load(shared_data / "stories260K.bin", shared_data / "tok512.bin")


@pytest.fixture
def random_file(tmp_path):
  """Writes a tiny model with random weights."""

  def write(header=(32, 48, 2, 4, 2, 40, 16), extra=b""):
    E, F, L, H, K, V, T = header
    C = E // H
    norms = 2 * L * E + E
    size = abs(V) * E + norms + L * (2 * E * E + 2 * K * C * E + 3 * E * F) + T * C
    size += abs(V) * E if V < 0 else 0
    weights = np.random.default_rng(0).normal(0, 0.3, size).astype("<f4")
    file = tmp_path / "model.bin"
    file.write_bytes(struct.pack("<7i", *header) + weights.tobytes() + extra)
    return file

  return write


def pieces_of(path: pathlib.Path) -> list[tuple[float, bytes]]:
  data, at, pieces = path.read_bytes(), 4, []
  while at < len(data):
    score, size = struct.unpack_from("<fi", data, at)
    pieces.append((score, data[at + 8 : at + 8 + size]))
    at += 8 + size
  return pieces


def reference_encode(pieces, text: str) -> list[int]:
  """llama2.c's encode without BOS: characters or bytes, then the best pair until none is left."""
  ids_of = {piece: i for i, (_, piece) in enumerate(pieces)}
  ids = [ids_of[b" "]] if text else []
  for character in text:
    raw = character.encode()
    ids += [ids_of[raw]] if raw in ids_of else [byte + 3 for byte in raw]
  while True:
    best = None
    for i in range(len(ids) - 1):
      merged = ids_of.get(pieces[ids[i]][1] + pieces[ids[i + 1]][1])
      if merged is not None and (best is None or pieces[merged][0] > best[0]):
        best = (pieces[merged][0], merged, i)
    if best is None:
      return ids
    ids[best[2] : best[2] + 2] = [best[1]]


def reference_decode(pieces, ids) -> str:
  """llama2.c's decode: no space at the start of the piece after BOS; byte tokens are bytes."""
  out = b""
  for at, i in enumerate(ids):
    if i in (1, 2):
      continue
    piece = bytes([i - 3]) if 3 <= i < 259 else pieces[i][1]
    after_bos = at > 0 and ids[at - 1] == 1
    out += piece[1:] if after_bos and piece.startswith(b" ") else piece
  return out.decode(errors="replace")


@pytest.mark.slow
def test_logits_over_a_greedy_decode(stories, shared_data):
  prompt = [*stories.start, *stories.tokenizer.encode("Once upon a time")]
  assert prompt[0] == 1
  ids, want = greedy(shared_data / "stories260K.bin", prompt, 200)
  assert len(ids) == len(prompt) + 200
  got = np.asarray(logits_of(stories.config, stories.params, np.array([ids], np.int32)))[0]
  np.testing.assert_allclose(got, want, atol=1e-4)
  top = np.sort(want, -1)
  sure = top[:, -1] - top[:, -2] > 1e-3
  assert sure.mean() > 0.95
  np.testing.assert_array_equal(got.argmax(-1)[sure], want.argmax(-1)[sure])
  assert stories.tokenizer.decode(ids).startswith("Once upon a time, there was a little girl")


@pytest.mark.parametrize(
  "header", [(32, 48, 2, 4, 2, 40, 16), (32, 48, 2, 4, 4, 40, 16), (32, 48, 3, 2, 1, -40, 16)]
)
def test_logits_of_random_weights(header, random_file):
  file = random_file(header)
  checkpoint = llama2c.load(file)
  assert checkpoint.config.tied == (header[5] > 0)
  assert (checkpoint.start, checkpoint.stop) == ((1,), (1, 2))
  ids, want = greedy(file, [1, 7, 30], 10)
  got = logits_of(checkpoint.config, checkpoint.params, np.array([ids], np.int32))[0]
  np.testing.assert_allclose(got, want, atol=1e-4)


WRITTEN = [
  "", " ", "  ", "a", "Once upon a time", " leading", "trailing ", "two  spaces", "line\nline\n",
  "<s>", "</s> <unk>", "<0x41>", "naïve café — “quoted” …", "字😀", "the" * 40, "a" * 16,
  "Lily and Ben went to the park. They saw a big dog!", "1234567890 + 42 = $99", "\r\n\ttab",
]  # fmt: skip
ALPHABET = list("aaabcdeeeeghilmnorsttuw   .,\"'!?TLO\néñ字😀\t<\0")


def strings() -> list[str]:
  rng = np.random.default_rng(0)
  drawn = ["".join(rng.choice(ALPHABET, rng.integers(1, 60))) for _ in range(60)]
  return WRITTEN + drawn


@pytest.mark.parametrize("text", strings(), ids=range(len(strings())))
def test_ids_and_text_are_those_of_llama2c(text, stories, shared_data):
  pieces = pieces_of(shared_data / "tok512.bin")
  ids = stories.tokenizer.encode(text)
  assert ids == reference_encode(pieces, text)
  assert stories.tokenizer.decode([1, *ids]) == reference_decode(pieces, [1, *ids]) == text
  rest = ids[len(ids) // 2 :]
  if "\ufffd" not in reference_decode(pieces, rest):  # a character cut in two has no one spelling
    assert stories.tokenizer.decode(rest) == reference_decode(pieces, rest)


def test_long_text_is_that_of_llama2c(stories, shared_data):
  text = (shared_data / "tinyshakespeare.txt").read_text()[:1500]
  pieces = pieces_of(shared_data / "tok512.bin")
  assert stories.tokenizer.encode(text) == reference_encode(pieces, text)


def test_markers_leave_no_text(stories):
  ids = stories.tokenizer.encode("Hi there")
  assert stories.tokenizer.decode([1, *ids, 2]) == "Hi there"


def test_export_to_hugging_face_comes_back_equal(stories, tmp_path):
  hf.save(
    tmp_path, stories.config, stories.params, stories.tokenizer, stop=stories.stop,
    dtype=jnp.float32,
  )  # fmt: skip
  again = hf.load(tmp_path)
  assert again.config == stories.config
  assert (again.start, again.stop) == (stories.start, stories.stop)
  assert again.tokenizer.encode("Lily saw é") == stories.tokenizer.encode("Lily saw é")
  assert jax.tree.all(jax.tree.map(jnp.array_equal, again.params, stories.params))


def test_truncated_and_oversized_files_are_named(random_file):
  file = random_file()
  whole = file.read_bytes()
  for content in (whole[:-4], whole[:1000], whole + b"\0"):
    file.write_bytes(content)
    words = rf"model\.bin has {len(content)} bytes, its header calls for {len(whole)}"
    with pytest.raises(ValueError, match=words):
      llama2c.load(file)
  file.write_bytes(whole[:10])
  with pytest.raises(ValueError, match=r"model\.bin has 10 bytes, less than a llama2\.c header"):
    llama2c.load(file)


@pytest.mark.parametrize(
  "header",
  [
    (0x616B3432, 1, 32, 48, 2, 4, 2),
    (32, 48, 0, 4, 2, 40, 16),
    (32, 48, 2, 4, 3, 40, 16),
    (30, 48, 2, 4, 2, 40, 16),
    (32, 48, 2, 4, 2, 0, 16),
  ],
)
def test_an_impossible_header_is_named(header, tmp_path):
  file = tmp_path / "model.bin"
  file.write_bytes(struct.pack("<7i", *header) + bytes(64))
  with pytest.raises(ValueError, match=rf"model\.bin is no llama2\.c .*\({header[0]}, "):
    llama2c.load(file)


def test_a_tokenizer_of_another_size_is_named(tmp_path):
  names = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % i for i in range(256)), b"a", b"b", b"ab"]
  whole = struct.pack("<i", 6) + b"".join(struct.pack("<fi", 0, len(n)) + n for n in names)
  file = tmp_path / "tok.bin"
  file.write_bytes(whole)
  assert llama2c.load_tokenizer(file, 262).encode("ab") == [35, 261]
  for size, content, words in [
    (263, whole, r"tok\.bin ends before token 262 of 263"),
    (261, whole, r"tok\.bin has 10 bytes after the last of 261 tokens"),
    (262, whole[:-1], r"tok\.bin: token 261 of 262 has length 2"),
    (262, whole[:-1] + b"\xff", r"tok\.bin: token 261 of 262 is not UTF-8"),
    (263, whole + struct.pack("<fi", 0, 1) + b"a", r"tok\.bin has 262 different tokens"),
  ]:
    file.write_bytes(content)
    with pytest.raises(ValueError, match=words):
      llama2c.load_tokenizer(file, size)
