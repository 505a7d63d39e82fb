"""A GGUF file again with float32 tensors, for programs that compute in the type of a tensor."""

import collections
import pathlib

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter, Keys, LlamaFileType, quants

_WRITTEN = ("GGUF.", Keys.General.ARCHITECTURE)  # by the writer itself


def write(source: str | pathlib.Path, out: str | pathlib.Path) -> None:
  """Writes `out` with the metadata and the dequantised tensors of `source`, one by one.

  `out` is whole or absent, whenever the process is killed. Both hold the same model: specjax reads
  the same weights from either.

  Args:
    source: a GGUF file that `checkpoints.gguf.load` has accepted.
    out: in a directory that is there.
  """
  reader = GGUFReader(source)
  unfinished = pathlib.Path(out).with_suffix(".part")
  architecture = reader.fields[Keys.General.ARCHITECTURE].contents()
  writer = GGUFWriter(unfinished, architecture, endianess=reader.endianess)
  writer.data_alignment = reader.alignment
  for field in reader.fields.values():
    if not field.name.startswith(_WRITTEN):
      kind = field.types[0]
      inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
      writer.add_key_value(field.name, field.contents(), kind, inner)
  writer.kv_data[0].pop(Keys.General.FILE_TYPE, None)  # or the writer warns that it is there
  writer.add_file_type(LlamaFileType.ALL_F32)
  for tensor in reader.tensors:
    shape = tuple(int(n) for n in reversed(tensor.shape))
    size = 4 * int(np.prod(shape))
    writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), size)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_ti_data_to_file()
  for tensor in reader.tensors:
    plain = np.asarray(tensor.data)  # slices of a memmap take twice as long
    writer.write_tensor_data(quants.dequantize(plain, tensor.tensor_type).astype(np.float32))
  writer.close()
  unfinished.replace(out)


def main_type(source: str | pathlib.Path) -> str:
  """The type that most matrices of a GGUF file have, such as "Q4_1"."""
  tensors = GGUFReader(source).tensors
  kinds = collections.Counter(t.tensor_type.name for t in tensors if len(t.shape) > 1)
  return kinds.most_common(1)[0][0]
