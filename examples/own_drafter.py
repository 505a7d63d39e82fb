"""Your own drafter: it guesses that the newest token is followed by what followed it before.

    python examples/own_drafter.py --temperature 0.8

Whatever a drafter guesses, the text is that of plain decoding.
"""

import dataclasses
import sys

import jax.numpy as jnp
from jax import Array

import specjax
from specjax import command_line
from specjax.base import Context, Drafter
from specjax.drafters import stateless

DEPTH = 3  # tokens that are guessed, one behind the other


def followers(context: Context) -> Array:
  """i32[B, DEPTH]: what followed the newest token when it last stood in the text."""
  tokens, length = context.tokens, context.length[:, None]
  place = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
  found = jnp.where((tokens == context.root) & (place < length - 1), place, 0).max(1)
  ahead = found[:, None] + 1 + jnp.arange(DEPTH, dtype=jnp.int32)[None]
  return jnp.take_along_axis(tokens, jnp.minimum(ahead, length - 1), 1)


bigram: Drafter = stateless("bigram", DEPTH, followers)


@dataclasses.dataclass(frozen=True)
class Config:
  """What is decoded."""

  prompt: str = "A pen costs 3 dollars. What do 7 pens cost?"  # question to the toy that ships
  temperature: float = 0.0  # of the sampling; 0 is greedy


def main(config: Config) -> None:
  model = specjax.load()
  prompt = model.chat(config.prompt)
  plain, drafted = (
    specjax.Decoder(model, drafter, "target_only", temperature=config.temperature)([prompt], 48)[0]
    for drafter in ("none", bigram)
  )
  print(drafted.text.strip())
  print("same tokens:", drafted.tokens == plain.tokens)
  print(f"{drafted.emitted / drafted.passes:.2f} tokens per pass")


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
