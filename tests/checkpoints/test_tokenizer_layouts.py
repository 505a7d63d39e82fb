"""Tokenizers without a tokenizer.json, against transformers and SentencePiece."""

import fnmatch
import json
import sys
import warnings

import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

from specjax.checkpoints import hf_tokenizer, hub
from specjax.data.tokenizer import Tokenizer

TEXTS = [
  "The cat's on the mat, isn't it? DON'T!", "  two   spaces ", "1234567 ¾", "line\n\n\nx\r\n\ty",
  "naïve café e\u0301 “quoted”…", "日本語 한국어", "👩\u200d🔬 ok", "", " ",
  "<|mask|><|im_end|>a<tool> b",
]  # fmt: skip
NAMED = ["<|im_end|>", "<|mask|>"]


@pytest.fixture(scope="module")
def trained():
  """Vocabulary and merges of a byte-level tokenizer."""
  inner = tokenizers.Tokenizer(models.BPE())
  inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  inner.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=340, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
  )
  inner.train_from_iterator(TEXTS * 3, trainer)
  model = json.loads(inner.to_str())["model"]
  return model["vocab"], [" ".join(pair) for pair in model["merges"]]


def write(directory, trained, **files):
  """Writes vocab.json, merges.txt, and JSON files by their names."""
  vocab, merges = trained
  (directory / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
  for name, raw in {"vocab": vocab, **files}.items():
    (directory / f"{name}.json").write_text(json.dumps(raw))
  return directory


def read(directory, family="llama"):
  file = directory / "tokenizer_config.json"
  raw = json.loads(file.read_text()) if file.exists() else {}
  if "added_tokens_decoder" in raw:
    tokens = hf_tokenizer.added_tokens("added_tokens_decoder", raw["added_tokens_decoder"])
    raw["added_tokens_decoder"] = tokens
  return hf_tokenizer.read(directory, raw, family)


def decoder_of(ids, **flags):
  flags = dict(lstrip=False, rstrip=False, normalized=False, single_word=False) | flags
  return {str(i): {"content": t, "special": t in NAMED, **flags} for t, i in ids.items()}


@pytest.mark.parametrize("where", ["added_tokens", "added_tokens_decoder"])
@pytest.mark.parametrize(
  ("named", "theirs"),
  [("DreamTokenizer", "Qwen2Tokenizer"), ("Qwen2TokenizerFast", "Qwen2Tokenizer"),
   ("GPT2Tokenizer", "GPT2Tokenizer")],
)  # fmt: skip
def test_vocab_and_merges_are_read_as_transformers_reads_them(named, theirs, where, trained,
                                                              tmp_path):  # fmt: skip
  size = len(trained[0])
  ids = {"<|im_end|>": size, "<|mask|>": size + 1, "<tool>": size + 2}
  config = {"tokenizer_class": named, "eos_token": "<|im_end|>", "mask_token": "<|mask|>",
            "unk_token": "<|im_end|>", "bos_token": "<|im_end|>", "pad_token": None}  # fmt: skip
  files = {"special_tokens_map": {"eos_token": "<|im_end|>", "mask_token": {"content": "<|mask|>"}}}
  if where == "added_tokens":
    files[where] = ids
  else:
    config[where] = decoder_of(ids)
  write(tmp_path, trained, tokenizer_config=config, **files)
  ours = read(tmp_path)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    oracle = getattr(transformers, theirs).from_pretrained(tmp_path)
  for text in TEXTS:
    want = oracle(text, add_special_tokens=False)["input_ids"]
    assert ours.encode(text) == want, text
    assert ours.decode(want) == oracle.decode(
      want, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
  assert ours.encode("<|mask|>") == [size + 1] and ours.decode([size + 1]) == ""


def test_the_class_is_the_familys_where_none_is_named(trained, tmp_path):
  write(tmp_path, trained)
  assert read(tmp_path, "Dream").encode("a") == [trained[0]["a"]]
  with pytest.raises(
    ValueError, match=(r"`tokenizer_class` must be one of Qwen2Tokenizer.*got None\.")
  ):
    read(tmp_path, "llama")


@pytest.mark.parametrize(
  ("files", "words"),
  [
    (dict(tokenizer_config={"tokenizer_class": "Bert"}),
     r"`tokenizer_class` must be one of Qwen2Tokenizer.*got 'Bert'\."),
    (dict(added_tokens={"a": 400}), "'a' has the id .* in vocab.json, and 400 among the added"),
    (dict(vocab={"a": -1}), r"`'a'` must be between 0 and 2147483647, got -1\."),
    (dict(vocab={"a": 0}), r"`.*got 'â Ģ'\."),
    (dict(tokenizer_config={"added_tokens_decoder": {"x": {}}}), "added_tokens_decoder"),
    (dict(tokenizer_config={"added_tokens_decoder": {"7": "x"}}),
     r"`added_tokens_decoder\[7\]` must be an object with content, got 'x'\."),
  ],
)  # fmt: skip
def test_tables_that_do_not_fit_are_named(files, words, trained, tmp_path):
  with pytest.raises(ValueError, match=words):
    read(write(tmp_path, trained, **files), "qwen2")


def test_merges_that_are_absent_are_named(trained, tmp_path):
  (write(tmp_path, trained) / "merges.txt").unlink()
  with pytest.raises(ValueError, match=r"merges\.txt' cannot be read"):
    read(tmp_path, "qwen2")


def test_a_tokenizer_of_the_folder_beside(trained, tmp_path):
  """`SHARED` names it; a way to another place is refused."""
  inner = tokenizers.Tokenizer(models.BPE(trained[0], []))
  for name in ("one", "other"):
    (tmp_path / name).mkdir()
  inner.save(str(tmp_path / "one" / "tokenizer.json"))
  found = hf_tokenizer.read(tmp_path / "other", {hf_tokenizer.SHARED: "one"}, "llama")
  assert found.inner.to_str() == inner.to_str()
  with pytest.raises(ValueError, match=r"specjax_tokenizer` must be a folder beside it with"):
    hf_tokenizer.read(tmp_path / "other", {hf_tokenizer.SHARED: "two"}, "llama")
  for way in ("../one", "a/b", "..", "", 3):
    with pytest.raises(ValueError, match="must be the name of a folder beside this one"):
      hf_tokenizer.shared("specjax_tokenizer", way)


def test_added_tokens_beside_a_tokenizer_json(trained, tmp_path):
  size = len(trained[0])
  inner = tokenizers.Tokenizer(models.BPE(trained[0], []))
  inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  inner.add_tokens(["<|im_end|>"])
  inner.save(str(tmp_path / "tokenizer.json"))
  ids = {"<|im_end|>": size, "<|mask|>": size + 1}
  config = tmp_path / "tokenizer_config.json"
  config.write_text(json.dumps({"added_tokens_decoder": decoder_of(ids)}))
  ours = read(tmp_path)
  assert ours.encode("a<|im_end|><|mask|>") == [trained[0]["a"], size, size + 1]
  assert ours.decode([size, size + 1]) == ""  # special, as the later file says
  for wrong in ({"<|im_end|>": size + 1}, {"<|other|>": size + 7}):
    config.write_text(json.dumps({"added_tokens_decoder": decoder_of(wrong)}))
    with pytest.raises(ValueError, match=r"among the added tokens, and .* in the tokenizer"):
      read(tmp_path)


def test_two_files_that_disagree_about_a_space_are_named(trained, tmp_path):
  inner = tokenizers.Tokenizer(models.BPE(trained[0], []))
  inner.pre_tokenizer = pre_tokenizers.Sequence([
    pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=False),
  ])  # fmt: skip
  inner.save(str(tmp_path / "tokenizer.json"))
  config = tmp_path / "tokenizer_config.json"
  for said in (None, False):
    config.write_text(json.dumps({} if said is None else {"add_prefix_space": said}))
    assert read(tmp_path).encode("a") == [trained[0]["a"]]
  config.write_text(json.dumps({"add_prefix_space": True}))
  with pytest.raises(
    ValueError, match=(r"`add_prefix_space` must be false, as in tokenizer\.json, got True\.")
  ):
    read(tmp_path)


@pytest.mark.parametrize(
  ("name", "content", "words"),
  [
    ("tokenizer.model", "IQ== 0\nIg== 1\n", "a model of SentencePiece, not tiktoken's"),
    ("tekken.json", "{}", "in place of the file of mistral-common"),
    ("qwen.tiktoken", "IQ== 0", "in place of the file of tiktoken"),
    ("vocab.txt", "[UNK]", "in place of the file of WordPiece"),
  ],
)
def test_other_layouts_are_named(name, content, words, tmp_path):
  (tmp_path / name).write_text(content)
  with pytest.raises(ValueError, match=f"`tokenizer` must be .*{words}.*, got '.*{name}"):
    read(tmp_path)
  assert read(tmp_path / "absent") is None


def test_the_package_that_reads_sentence_piece_is_named(tmp_path, monkeypatch):
  (tmp_path / "tokenizer.model").write_bytes(b"\n\x05\n\x03<u>")
  monkeypatch.setitem(sys.modules, "sentencepiece", None)
  with pytest.raises(ValueError, match=r"tokenizer\.model needs .*pip install specjax\[sentencep"):
    read(tmp_path)


def test_the_hub_has_what_the_layouts_need():
  for name in ("tokenizer.model", "merges.txt", "vocab.json", "added_tokens.json", "tok.tiktoken"):
    assert any(fnmatch.fnmatch(name, pattern) for pattern in hub.FILES), name


@pytest.fixture(scope="module", params=["llama", "defaults", "unigram"])
def model(request, tmp_path_factory):
  """(a directory with SentencePiece's file, its processor)."""
  sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
  directory = tmp_path_factory.mktemp(request.param)
  (directory / "text").write_text("\n".join(TEXTS * 3))
  options = {
    "llama": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
                  remove_extra_whitespaces=False, split_digits=True),
    "defaults": dict(model_type="bpe"),
    "unigram": dict(byte_fallback=True),
  }[request.param]  # fmt: skip
  sentencepiece.SentencePieceTrainer.train(
    input=str(directory / "text"), model_prefix=str(directory / "tokenizer"), minloglevel=2,
    vocab_size=340 if options.get("byte_fallback") else 120, hard_vocab_limit=False, **options,
  )  # fmt: skip
  return directory, sentencepiece.SentencePieceProcessor(str(directory / "tokenizer.model"))


def test_a_model_of_sentence_piece_alone(model):
  directory, oracle = model
  ours = read(directory)
  assert isinstance(ours, Tokenizer)
  for text in TEXTS[:-1]:
    ids = oracle.encode(text)
    assert ours.encode(text) == ids, text
    assert ours.decode(ids) == oracle.decode(ids)
  bos, eos = oracle.bos_id(), oracle.eos_id()
  assert ours.inner.encode("cat").ids == [bos, *oracle.encode("cat")]
  assert ours.encode("<s>cat</s>") == [bos, *oracle.encode("cat"), eos]
  assert hf_tokenizer.read(directory, {"add_bos_token": False}, "llama").inner.encode(
    "cat"
  ).ids == oracle.encode("cat")
  first = hf_tokenizer.read(directory, {"legacy": False}, "llama")
  pieces = [first.inner.id_to_token(i) for i in first.encode("<s>cat")]
  assert "".join(pieces) == "<s>cat" and first.encode("cat") == oracle.encode("cat")


def test_a_damaged_model_of_sentence_piece_is_named(model, tmp_path):
  whole = (model[0] / "tokenizer.model").read_bytes()
  (tmp_path / "tokenizer.model").write_bytes(whole[:-3])
  with pytest.raises(ValueError, match=r"tokenizer\.model is truncated or no model of Sentence"):
    read(tmp_path)
