"""JAX's switches under which the package computes, whatever those of its user are.

They are public, and most can be set by an environment variable. Those below would change draws,
types or what may be computed at all; so every door of the package holds them while it computes, in
its own thread alone, and what a user computes beside it keeps the user's. Under all others the same
tokens come out, or what a switch is for happens, as with `jax_no_tracing`.

`sampling.new_key` names the generator itself, for which no switch is left to hold.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax

T = TypeVar("T", bound=Callable[..., Any])
_NOTHING_RUNS = "jax_no_tracing", "jax_no_execution"


def check() -> None:
  """Raises ValueError where a switch of the process lets nothing be computed."""
  for name in _NOTHING_RUNS:
    if jax.config.values[name]:
      raise ValueError(f"`{name}` must be False, for a command traces and runs programs, got True.")


@contextlib.contextmanager
def held() -> Iterator[None]:
  """Computes with types of 32 bits, with threefry's partitionable numbers and without guards."""
  with (
    jax.enable_x64(False),
    jax.threefry_partitionable(True),
    jax.transfer_guard("allow"),  # prompts go to the device, and texts come back
  ):
    yield


def hold(door: T) -> T:
  """The function, generator, or class with all its methods, which computes with `held` switches.

  Between two values of a generator the switches are the user's.
  """
  if isinstance(door, type):
    for name, method in vars(door).copy().items():
      if inspect.isfunction(method):
        setattr(door, name, hold(method))
    return door

  @functools.wraps(door)
  def call(*arguments: Any, **named: Any) -> Any:
    with held():
      return door(*arguments, **named)

  @functools.wraps(door)
  def each(*arguments: Any, **named: Any) -> Iterator[Any]:
    with contextlib.closing(door(*arguments, **named)) as values:
      while True:
        with held():
          value = next(values, values)
        if value is values:
          return
        yield value

  return each if inspect.isgeneratorfunction(door) else call  # type: ignore[return-value]
