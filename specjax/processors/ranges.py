"""Numbers of a range as regular expressions, written in the ways that llguidance allows."""

_INTEGER = "-?(0|[1-9][0-9]*)"
_NUMBER = _INTEGER + "(\\.[0-9]+)?([eE][+\\-]?[0-9]+)?"


class Unknown(ValueError):
  """The texts of a schema are not known here."""


def _up_to(high: str) -> str:
  """Digits that are no more than as many other digits."""
  if not high:
    return ""
  same = f"{high[0]}{_up_to(high[1:])}"
  lower = f"[0-{int(high[0]) - 1}][0-9]{{{len(high) - 1}}}" if high[0] != "0" else ""
  return f"({same}|{lower})" if lower else same


def _from(low: str) -> str:
  """Digits that are no less than as many other digits."""
  if not low:
    return ""
  same = f"{low[0]}{_from(low[1:])}"
  higher = f"[{int(low[0]) + 1}-9][0-9]{{{len(low) - 1}}}" if low[0] != "9" else ""
  return f"({same}|{higher})" if higher else same


def _between(low: str, high: str) -> str:
  """Digits between others, all of one length."""
  if low == high:
    return low
  if low[0] == high[0]:
    return low[0] + _between(low[1:], high[1:])
  parts = [low[0] + _from(low[1:]), high[0] + _up_to(high[1:])]
  if int(high[0]) - int(low[0]) > 1:
    parts.append(f"[{int(low[0]) + 1}-{int(high[0]) - 1}][0-9]{{{len(low) - 1}}}")
  return f"({'|'.join(parts)})"


def _natural(low: int, high: int | None) -> str:
  """Whole numbers of a range, 0 or more, without leading zeros."""
  size = len(str(low))
  if high is None:
    return f"({_natural(low, 10**size - 1)}|[1-9][0-9]{{{size},}})"
  if len(str(high)) == size:
    return _between(str(low), str(high))
  return f"({_natural(low, 10**size - 1)}|{_natural(10**size, high)})"


def whole(low: int | None, high: int | None) -> str:
  """Whole numbers of a range. -0 is one where there are negative ones to a bound, and 0."""
  if low is None and high is None:
    return _INTEGER
  if low is not None and low >= 0:
    return _natural(low, high)
  if high is not None and high < 0:
    return "-" + _natural(-high, None if low is None else -low)
  if low is None:
    return f"({_natural(0, high)}|-{_natural(1, None)})"
  return f"(-{_natural(1 if high is None else 0, -low)}|{_natural(0, high)})"


def _positive(low: int, high: int | None, with_low: bool, with_high: bool) -> str:
  """Numbers between whole bounds, 0 or more; behind the upper one only zeros follow."""
  if high is None:
    size = len(str(low))
    return f"({_positive(low, 10**size, with_low, False)}|[1-9][0-9]{{{size},}}(\\.[0-9]+)?)"
  parts = [] if with_low else [f"{low}\\.[0-9]*[1-9]"]
  if high > (first := low if with_low else low + 1):
    parts.append(f"{_natural(first, high - 1)}(\\.[0-9]+)?")
  parts += [f"{high}(\\.0+)?"] if with_high else []
  return f"({'|'.join(parts)})"


def decimal(low: int | None, high: int | None, with_low: bool, with_high: bool) -> str:
  """Numbers of a range. -0 is none where there is a bound."""
  if low is None and high is None:
    return _NUMBER
  if low == high:
    return str(low)
  if low is not None and low >= 0:
    return _positive(low, high, with_low, with_high)
  if high is not None and high < 0:
    return "-" + _positive(-high, None if low is None else -low, with_high, with_low)
  parts = ["-" + _positive(0, None if low is None else -low, False, with_low)]
  if high == 0 and low is None:
    parts += ["0"] if with_high else []
  elif high is None:
    parts.append(_positive(0, None, True, False))
  elif high > 0:
    parts.append(_positive(0, high, True, with_high))
  elif with_high:
    raise Unknown("0 as the upper bound")
  return f"({'|'.join(parts)})"
