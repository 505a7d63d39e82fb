"""What of earlier passes is used again. Each is (denoiser, window) -> Cache, knobs aside."""

from collections.abc import Callable

from specjax.diffusion.base import Cache
from specjax.diffusion.caches.frozen import dual, free, prefix, sliding, vicinity
from specjax.diffusion.caches.similar import similar
from specjax.diffusion.caches.whole import none

CACHES: dict[str, Callable[..., Cache]] = {
  "none": none, "dual": dual, "vicinity": vicinity, "prefix": prefix, "free": free,
  "sliding": sliding, "similar": similar,
}  # fmt: skip

__all__ = ["CACHES", *CACHES]
