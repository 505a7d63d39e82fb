"""Files of torch without torch: an archive with a pickle, and the numbers of tensors beside it.

A pickle is a program. Here it is read as a list of instructions, of which a few make values, lists
and dicts, and the few names that tensors need are known; so nothing of it is ever executed.
"""

import pathlib
import pickletools
import zipfile
from typing import Any, NamedTuple

_MANY = 2**24  # bytes of a pickle that names tensors
_STORAGES = {
  "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
  "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8",
  "ByteStorage": "U8", "BoolStorage": "BOOL", "Float8_e4m3fnStorage": "F8_E4M3",
}  # fmt: skip
_SIZES = {
  "F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "I8": 1, "U8": 1,
  "BOOL": 1, "F8_E4M3": 1, "F8_E8M0": 1,
}  # fmt: skip
_DTYPES = {"float8_e4m3fn": "F8_E4M3", "float8_e8m0fnu": "F8_E8M0", "uint8": "U8"}
# By name: what stands for it here.
_KNOWN = {
  "collections OrderedDict": "dict", "torch._utils _rebuild_tensor_v2": "tensor",
  "torch._utils _rebuild_tensor_v3": "typed tensor", "torch._utils _rebuild_parameter": "parameter",
  "torch.storage UntypedStorage": "U8",
  **{f"torch {name}": dtype for name, dtype in (_STORAGES | _DTYPES).items()},
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_GIVEN = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Name(NamedTuple):
  """A name that a pickle may have, by what stands for it."""

  stands_for: str


class _Storage(NamedTuple):
  """Numbers beside the pickle: their dtype, and the name of their file."""

  dtype: str
  key: str


class _Tensor(NamedTuple):
  storage: _Storage
  dtype: str
  first: int
  shape: tuple[int, ...]
  strides: tuple[int, ...]


class Found(NamedTuple):
  """Where a tensor lies: see `stored.Stored`."""

  start: int
  dtype: str
  shape: tuple[int, ...]
  strides: tuple[int, ...] | None


class _Other(Exception):
  """What a pickle of tensors has not."""


def _storage(said: Any) -> _Storage:
  kind, dtype, key = said[:3]
  if kind != "storage" or not isinstance(dtype, _Name) or not isinstance(key, str):
    raise _Other("a reference that is no storage")
  return _Storage(dtype.stands_for, key)


def _called(name: Any, given: Any) -> Any:
  """What a call in a pickle makes, of the three functions that tensors need."""
  what = name.stands_for if isinstance(name, _Name) else None
  if what == "dict":
    return dict(*given)
  if what == "parameter":
    return given[0]
  if what not in ("tensor", "typed tensor"):
    raise _Other("a call")
  storage, first, shape, strides = given[:4]
  dtype = given[6].stands_for if what == "typed tensor" else storage.dtype
  return _Tensor(storage, dtype, first, tuple(shape), tuple(strides))


def _value(pickle: bytes) -> Any:
  """The value of a pickle of tensors; _Other where it holds anything else."""
  stack: list[Any] = []
  marks: list[int] = []
  memo: dict[int, Any] = {}

  def above() -> list[Any]:
    """What lies above the last mark, which goes."""
    start = marks.pop()
    taken = stack[start:]
    del stack[start:]
    return taken

  given: Any
  for op, given, _ in pickletools.genops(pickle):
    name = op.name
    if name == "STOP":
      return stack.pop()
    elif name in _CONSTANTS:
      stack.append(_CONSTANTS[name])
    elif name in _GIVEN:
      stack.append(given)
    elif name in _EMPTY:
      stack.append(_EMPTY[name]())
    elif name == "MARK":
      marks.append(len(stack))
    elif name == "TUPLE":
      stack.append(tuple(above()))
    elif name in _TUPLES:
      taken = stack[-_TUPLES[name] :]
      del stack[-_TUPLES[name] :]
      stack.append(tuple(taken))
    elif name in ("SETITEM", "SETITEMS"):
      taken = [stack.pop(-2), stack.pop()] if name == "SETITEM" else above()
      stack[-1].update(zip(taken[::2], taken[1::2], strict=True))
    elif name in ("APPEND", "APPENDS"):
      taken = [stack.pop()] if name == "APPEND" else above()
      stack[-1].extend(taken)
    elif name in ("BINPUT", "LONG_BINPUT"):
      memo[given] = stack[-1]
    elif name == "MEMOIZE":
      memo[len(memo)] = stack[-1]
    elif name in ("BINGET", "LONG_BINGET"):
      stack.append(memo[given])
    elif name in ("GLOBAL", "STACK_GLOBAL"):
      said = given if name == "GLOBAL" else f"{stack.pop(-2)} {stack.pop()}"
      if said not in _KNOWN:
        raise _Other(said.replace(" ", "."))
      stack.append(_Name(_KNOWN[said]))
    elif name == "BINPERSID":
      stack.append(_storage(stack.pop()))
    elif name == "REDUCE":
      taken = stack.pop()
      stack.append(_called(stack.pop(), taken))
    elif name == "BUILD":
      stack.pop()  # attributes, such as _metadata of a dict, which say nothing of tensors
    elif name not in ("PROTO", "FRAME"):
      raise _Other(f"the instruction {name}")
  raise _Other("no value")


def _place(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> int:
  """The first byte of a member that is not compressed."""
  assert archive.fp is not None
  if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
    raise _Other("compressed tensors")
  archive.fp.seek(info.header_offset)
  header = archive.fp.read(30)
  lengths = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
  return info.header_offset + 30 + sum(lengths)


def _found(tensor: _Tensor, archive: zipfile.ZipFile, folder: str) -> Found:
  storage, dtype, first, shape, strides = tensor
  if dtype not in _SIZES:
    raise _Other(f"numbers of {dtype}")
  numbers = (first, *shape, *strides)
  if any(type(n) is not int or n < 0 for n in numbers) or len(shape) != len(strides):
    raise _Other("a tensor of no sensible shape")
  info = archive.getinfo(f"{folder}data/{storage.key}")
  last = first + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
  if 0 not in shape and (last + 1) * _SIZES[dtype] > info.file_size:
    raise _Other("a tensor beyond its numbers")
  plain, size = True, 1
  for n, s in zip(reversed(shape), reversed(strides), strict=True):
    plain, size = plain and (n == 1 or s == size), size * n
  start = _place(archive, info) + first * _SIZES[dtype]
  return Found(start, dtype, shape, None if plain or 0 in shape else strides)


def _all(archive: zipfile.ZipFile) -> dict[str, Found] | None:
  """The tensors of an archive; None where its value is something else."""
  pickle = next(x for x in archive.infolist() if x.filename.endswith("data.pkl"))
  folder = pickle.filename.removesuffix("data.pkl")
  order = f"{folder}byteorder"
  if order in archive.namelist() and archive.open(order).read(9) != b"little":
    raise _Other("numbers whose first byte is the highest")
  if pickle.file_size > _MANY:
    raise _Other(f"a pickle of {pickle.file_size} bytes")
  state = _value(archive.read(pickle))
  if not isinstance(state, dict) or not all(isinstance(x, _Tensor) for x in state.values()):
    return None
  if not all(isinstance(name, str) for name in state):
    return None
  return {name: _found(x, archive, folder) for name, x in state.items()}


def read(path: pathlib.Path) -> dict[str, Found]:
  """Where the tensors of a file lie, by name.

  Raises:
    ValueError: the file is damaged, of another kind, or holds anything but tensors by name.
  """
  try:
    with zipfile.ZipFile(path) as archive:
      found = _all(archive)
  except (zipfile.BadZipFile, StopIteration, OSError) as error:
    raise ValueError(
      f"{path} is damaged, or no archive of torch, as torch.save writes it since 1.6."
    ) from error
  except _Other as error:
    raise ValueError(f"{path} is damaged, or holds more than tensors: {error}.") from None
  except (ArithmeticError, AttributeError, LookupError, NotImplementedError, RuntimeError,
          TypeError, ValueError) as error:  # fmt: skip
    raise ValueError(f"{path} is damaged, or holds more than tensors.") from error
  if found is None:
    raise ValueError(f"{path} holds something else than tensors by name.")
  return found
