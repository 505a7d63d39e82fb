"""Rules of acceptance, one file each."""

from specjax.verifiers.greedy import greedy
from specjax.verifiers.target_only import target_only
from specjax.verifiers.token import token
from specjax.verifiers.typical import typical

VERIFIERS = {"greedy": greedy, "target_only": target_only, "token": token, "typical": typical}
