"""What of earlier passes is used again. A builder takes (denoiser, window) and its parameters."""

from collections.abc import Callable

from specjax.diffusion.base import CanvasCache
from specjax.diffusion.caches.committed import committed
from specjax.diffusion.caches.delayed import delayed
from specjax.diffusion.caches.dual_adaptive import dual_adaptive
from specjax.diffusion.caches.elastic import elastic
from specjax.diffusion.caches.frozen import dual, free, none, prefix, sliding, vicinity
from specjax.diffusion.caches.scratchpad import scratchpad
from specjax.diffusion.caches.shadow import shadow
from specjax.diffusion.caches.similar import similar
from specjax.diffusion.caches.streamed import streamed

CACHES: dict[str, Callable[..., CanvasCache]] = {
  "none": none, "dual": dual, "vicinity": vicinity, "prefix": prefix, "free": free,
  "sliding": sliding, "similar": similar, "elastic": elastic, "committed": committed,
  "delayed": delayed, "shadow": shadow, "scratchpad": scratchpad,
  "streamed": streamed, "dual_adaptive": dual_adaptive,
}  # fmt: skip

__all__ = ["CACHES", *CACHES]
