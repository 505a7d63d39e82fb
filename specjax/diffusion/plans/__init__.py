"""What of earlier passes is used again. Each is (denoiser, window) -> Plan, options aside."""

from specjax.diffusion.plans.frozen import dual, sliding, vicinity
from specjax.diffusion.plans.similar import similar
from specjax.diffusion.plans.suffix import free, prefix
from specjax.diffusion.plans.whole import none

PLANS = {
  "none": none, "dual": dual, "vicinity": vicinity, "prefix": prefix, "free": free,
  "sliding": sliding, "similar": similar,
}  # fmt: skip

__all__ = ["PLANS", *PLANS]
