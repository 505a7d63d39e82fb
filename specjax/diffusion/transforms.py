"""The transforms of logits by name."""

from collections.abc import Callable

from specjax.diffusion.base import Transform
from specjax.diffusion.cooling import cooling
from specjax.diffusion.credit import credit
from specjax.diffusion.suppression import end_suppressed

TRANSFORMS: dict[str, Callable[[], Transform]] = {
  "cooling": cooling,
  "credit": credit,
  "end_suppressed": end_suppressed,
}
