"""Matrices as AWQ and GPTQ write them: 4 or 8 bits in words, turned, with zeros of each group.

AWQ is Lin et al. 2023, arXiv 2306.00978, in the layout "gemm" of its program AutoAWQ; GPTQ is
Frantar et al. 2022, arXiv 2210.17323, in the layout of AutoGPTQ. NAME.qweight [.., O] are words of
the matrix NAME.weight [O, K], NAME.qzeros those of the zeros and NAME.scales [N, O] the scales.

Letters: O outputs, K inputs, N groups of inputs.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from specjax import checks
from specjax.checkpoints.few_bits import Few, Numbers, groups_of, of_numbers, unpacked
from specjax.checkpoints.harmless import Harmless, known_keys
from specjax.checkpoints.stored import Stored

_ENDS = (".qweight", ".qzeros", ".scales", ".g_idx")
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of the outputs in a word of AWQ
_SIZE = functools.partial(checks.whole, least=-1)
_AWQ: Harmless = {
  "quant_method": ..., "zero_point": (True,), "version": ("gemm", "GEMM"), "provider": ...,
  "backend": ..., "do_fuse": ..., "fuse_max_seq_len": ..., "modules_*": ..., "exllama_config": ...,
  "desc_act": (False,), "sym": (False,), "format": ("gemm",), "pack_dtype": ("int32",), "meta": ...,
  "method": ...,
}  # fmt: skip
_GPTQ: Harmless = {
  "quant_method": ..., "desc_act": ..., "sym": ..., "static_groups": ..., "true_sequential": ...,
  "lm_head": ..., "damp_*": ..., "dataset": ..., "tokenizer": ..., "meta": ..., "mse": ...,
  "model_*": ..., "module*": ..., "block_name_to_quantize": ..., "batch_size": ...,
  "pad_token_id": ..., "use_cuda_fp16": ..., "use_exllama": ..., "disable_exllama": ...,
  "exllama_config": ..., "max_input_length": ..., "cache_block_outputs": ..., "backend": ...,
  "is_marlin_format": (False,), "pack_dtype": ("int32",), "quantizer": ..., "dynamic": ({},),
  "provider": ..., "hyb_act": (False,), "packing_format": ..., "autoround_version": ...,
}  # fmt: skip


def _each(
  stored: Mapping[str, Stored],
  read: Callable[[str, list[Any]], tuple[tuple[int, int], Callable[[], Numbers]]],
) -> dict[str, Few]:
  """The matrices by name; `read` gives the shape and the numbers of one."""
  found = {}
  for name in stored:
    if name.endswith(".qweight"):
      base = name.removesuffix(".qweight")
      for end in _ENDS[:3]:
        if base + end not in stored:
          raise ValueError(f"the checkpoint lacks tensor {base}{end}, which {name} needs.")
      shape, numbers = read(base, [stored.get(base + end) for end in _ENDS])
      found[f"{base}.weight"] = of_numbers(shape, tuple(base + end for end in _ENDS), numbers)
  return found


def _size(base: str, inputs: int, groups: int, said: int) -> int:
  """Inputs of a group; ValueError where the file has other groups than config.json says."""
  size = inputs if said == -1 else said
  if size < 1 or -(-inputs // size) != groups:
    raise ValueError(
      f"tensor {base}.scales has {groups} groups, and {inputs} inputs in groups of {said} "
      "are others."
    )
  return size


def _check_words(base: str, of_weight: Stored, of_zeros: Stored, wanted: tuple[int, ...]) -> None:
  for name, tensor in ("qweight", of_weight), ("qzeros", of_zeros):
    if tensor.dtype != "I32" or len(tensor.shape) != 2:
      checks.refuse(f"dtype of tensor {base}.{name}", tensor.dtype, "I32, of two axes")
  if of_zeros.shape != wanted:
    raise ValueError(
      f"tensor {base}.qzeros has shape {of_zeros.shape}, its scales call for {wanted}."
    )


def awq(stored: Mapping[str, Stored], said: Mapping[str, Any], where: str) -> dict[str, Few]:
  """The matrices of AWQ; ValueError for bits or a layout that are not read."""
  bits = functools.partial(checks.whole, least=4, most=4)
  own = {"bits": bits, "w_bit": bits, "group_size": _SIZE, "q_group_size": _SIZE}
  known_keys(said, where, own, _AWQ)
  known = checks.fields_of(said, own, where)
  size = known.get("group_size", known.get("q_group_size", 128))

  def read(base: str, tensors: list[Any]) -> tuple[tuple[int, int], Callable[[], Numbers]]:
    words, zeros, scales, _ = tensors
    (K, columns), N = words.shape, scales.shape[0]
    _check_words(base, words, zeros, (N, columns))
    group = groups_of(K, _size(base, K, N, size))

    def numbers() -> Numbers:
      own, zero = (unpacked(x.read(), 4, _ORDER).T for x in (words, zeros))
      return Numbers(np.ascontiguousarray(own), 4, zero.astype(np.int16), scales.read().T, group)

    return (8 * columns, K), numbers

  return _each(stored, read)


def gptq(stored: Mapping[str, Stored], said: Mapping[str, Any], where: str) -> dict[str, Few]:
  """The matrices of GPTQ; ValueError for bits or a layout that are not read.

  With `desc_act` the groups of inputs are those of g_idx. The first layout has zeros that are one
  less; that of -1 is the highest number.
  """

  def in_words(name: str, value: Any) -> int:
    if value not in (4, 8) or isinstance(value, bool):
      checks.refuse(name, value, "4 or 8")
    return value

  layout = functools.partial(checks.choice, accepted=["gptq", "gptq_v2"])
  own = {"bits": in_words, "group_size": _SIZE, "checkpoint_format": layout, "format": layout}
  known_keys(said, where, own, _GPTQ)
  known = checks.fields_of(said, own, where, ["bits"])
  bits, size = known["bits"], known.get("group_size", -1)
  less = known.get("checkpoint_format", known.get("format", "gptq")) == "gptq"

  def read(base: str, tensors: list[Any]) -> tuple[tuple[int, int], Callable[[], Numbers]]:
    words, zeros, scales, order = tensors
    (N, O), K = scales.shape, words.shape[0] * 32 // bits
    _check_words(base, words, zeros, (N, O * bits // 32))
    size_ = _size(base, K, N, size)

    def numbers() -> Numbers:
      group = groups_of(K, size_) if order is None else order.read().astype(np.int64)
      if group.shape != (K,) or group.min() < 0 or group.max() >= N:
        checks.refuse(f"numbers of tensor {base}.g_idx", group, f"{K} below {N}")
      zero = unpacked(zeros.read(), bits).T.astype(np.int16)
      zero = zero + 1 & (1 << bits) - 1 if less else zero
      own = unpacked(np.ascontiguousarray(words.read().T), bits)
      return Numbers(own, bits, zero, scales.read().T, group)

    return (O, K), numbers

  return _each(stored, read)
