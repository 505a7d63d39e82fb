"""Which layers of the target a head reads.

Letters: L the target's layers.
"""


def hidden_layers_of(L: int, asked: tuple[int, ...] = ()) -> tuple[int, ...]:
  """The layers whose input is read: those `asked` for, by default the published 2, L // 2 and
  L - 3, or 1 and L - 1 at the ends of a shallow target. ValueError where the target lacks one."""
  if not asked:
    return (2, L // 2, L - 3) if L > 6 else (1, L // 2, L - 1)
  if min(asked) < 0 or max(asked) > L:
    raise ValueError(
      f"`hidden_layers` must be between 0 and {L}, the target's layers, got {asked}."
    )
  return asked
