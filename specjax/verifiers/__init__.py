"""Verifiers, one file each."""

from collections.abc import Callable

from specjax.base import Verifier
from specjax.verifiers.block import block
from specjax.verifiers.greedy import greedy
from specjax.verifiers.judge import judge
from specjax.verifiers.k_seq import k_seq
from specjax.verifiers.recursive import recursive
from specjax.verifiers.target_only import target_only
from specjax.verifiers.token import token
from specjax.verifiers.transfer import transfer
from specjax.verifiers.traversal import traversal
from specjax.verifiers.typical import typical
from specjax.verifiers.unverified import unverified

VERIFIERS: dict[str, Callable[..., Verifier]] = {
  "greedy": greedy, "target_only": target_only, "token": token, "block": block,
  "recursive": recursive, "traversal": traversal, "k_seq": k_seq, "typical": typical,
  "judge": judge, "transfer": transfer, "unverified": unverified,
}  # fmt: skip
