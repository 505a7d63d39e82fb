"""Ways of guessing, one file each."""

from collections.abc import Callable

from specjax.base import Drafter
from specjax.drafters.draft_model import draft_model
from specjax.drafters.medusa import medusa
from specjax.drafters.none import none
from specjax.drafters.prompt_lookup import prompt_lookup

DRAFTERS: dict[str, Callable[..., Drafter]] = {
  "none": none, "prompt_lookup": prompt_lookup, "draft_model": draft_model, "medusa": medusa,
}  # fmt: skip
