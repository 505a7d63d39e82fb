"""Rules of acceptance, one file each."""

from collections.abc import Callable

from specjax.base import Verifier
from specjax.verifiers.greedy import greedy
from specjax.verifiers.target_only import target_only
from specjax.verifiers.token import token
from specjax.verifiers.typical import typical

VERIFIERS: dict[str, Callable[..., Verifier]] = {
  "greedy": greedy,
  "target_only": target_only,
  "token": token,
  "typical": typical,
}
