"""Runs a program that a model wrote, with its tests, in a child process with limits.

The limits: seconds of wall clock and of processor time, memory, no file may grow, no process may be
started, no socket opened, no file opened for writing or removed; the child begins in an empty
folder without the parent's environment, and prints nothing. Where Linux allows it, the child has a
network namespace of its own, which is empty.

What it does not protect from: the program may read every file that the user may read, and a program
that sets out to break out of CPython, by `ctypes` say, gets past
the hook that forbids sockets, processes and writes, and is held by the limits of the system alone.
It guards against mistakes of a model, and is no place for the program of an adversary. On macOS the
system does not enforce the limit of memory.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile

from specjax import checks

SECONDS = 10.0
MEMORY = 512 << 20  # bytes of address space

_CHILD = r"""
import contextlib, ctypes, json, os, resource, sys
job = json.load(sys.stdin)
say, null = os.dup(1), os.open(os.devnull, os.O_RDWR)
for descriptor in (0, 1, 2):
  os.dup2(null, descriptor)
limits = {"AS": job["memory"], "CPU": job["seconds"], "FSIZE": 0, "NOFILE": 32, "CORE": 0}
for name, most in limits.items():
  with contextlib.suppress(ValueError, OSError):
    resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
with contextlib.suppress(AttributeError, OSError):
  ctypes.CDLL(None).unshare(0x10000000 | 0x40000000)  # a user and a network namespace
write = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
known = ("os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.add_dll_directory")
def refuse(event, arguments):
  family = event.split(".")[0]
  if event == "open" and not (arguments[2] or 0) & write:
    return
  if event == "open" or family in ("socket", "subprocess", "ctypes", "shutil", "signal", "pty"):
    raise PermissionError(event)
  if family == "os" and event not in known:
    raise PermissionError(event)
sys.addaudithook(refuse)
try:
  exec(compile(job["program"], "<answer>", "exec"), {"__name__": "answer"})
except BaseException as error:
  said = f"{type(error).__name__}: {error}"[:200]
else:
  said = job["token"]
os.write(say, said.encode(errors="replace"))
os._exit(0)
"""


def failure(program: str, seconds: float = SECONDS, memory: int = MEMORY) -> str:
  """Runs a program to its end: "" where it raised nothing, else one line that says why.

  Args:
    seconds: of wall clock; the limit of processor time is the next whole second.
    memory: bytes of address space.

  Raises:
    ValueError: a limit that is not above 0, or a system without POSIX limits, such as Windows.
  """
  checks.number("seconds", seconds, above=0)
  checks.whole("memory", memory, 1, 2**50)
  if os.name != "posix":
    raise ValueError(
      f"programs are run on Linux and macOS alone, whose limits hold, not {os.name}."
    )
  token = secrets.token_hex(16)  # leaving early, as by exit(0), is no success
  job = json.dumps(
    {"program": program, "seconds": int(seconds) + 1, "memory": memory, "token": token}
  )
  with tempfile.TemporaryDirectory() as empty:
    child = subprocess.Popen(
      [sys.executable, "-I", "-S", "-c", _CHILD],
      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
      cwd=empty, env={}, start_new_session=True,
    )  # fmt: skip
    try:
      said, _ = child.communicate(job.encode(), timeout=seconds)
    except subprocess.TimeoutExpired:
      return f"stopped after {seconds:g} s"
    finally:
      if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
      child.communicate()
  answer = said.decode(errors="replace")
  if answer == token:
    return ""
  return " ".join(answer.split()) or f"ended early (exit status {child.returncode})"
