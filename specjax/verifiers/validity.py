"""Which rule is exact for which proposal, and why the others are not."""

from specjax.base import Drafter, Verifier
from specjax.verifiers import VERIFIERS

WHY = {
  "deterministic": "its tokens are chosen, not drawn, so there is no distribution q to correct for",
  "chain": "it draws one token per depth",
  "iid": "its siblings are independent draws and may repeat",
  "without_replacement": "its siblings are drawn without replacement, from what the elder left",
  "mixed": "some of its siblings are chosen and the others drawn from what is left",
  "independent": "each of its siblings has a distribution of its own",
  "truncated": "it drops tokens after looking at them, so p must be reduced where it has none, too",
  "coupled": "its distributions tell about the tokens before them, so no rule may look ahead",
}


def exact_for(proposal: str) -> list[str]:
  """Names of the rules that keep the target's distribution for such drafts, at any temperature."""
  rules = (build() for build in VERIFIERS.values())
  return [rule.name for rule in rules if proposal in rule.accepts and rule.exactness == "EXACT"]


def check(drafter: Drafter, verifier: Verifier) -> None:
  """Raises ValueError where the rule is not exact (a lossy rule: defined) for the drafter; the
  sentence says why, and which rule to use."""
  if drafter.depth == 0 or drafter.proposal in verifier.accepts:
    return
  raise ValueError(
    f"verifier={verifier.name!r} is not exact for drafter={drafter.name!r}: "
    f"{WHY[drafter.proposal]} (proposal {drafter.proposal!r}), and the rule is for "
    f"{', '.join(sorted(verifier.accepts))}. Use {' or '.join(exact_for(drafter.proposal))}."
  )
