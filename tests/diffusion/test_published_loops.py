"""Whole decodings against the loops of the published programs: KLASS, Learn2PD and R2."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from published_loops import (
  END,
  B,
  V,
  agree,
  best_first,
  decode,
  filter_of,
  learned_pick,
  rows,
)

from specjax.diffusion.policies import ADDED, POLICIES, Filter, Redundancy, Stable, Threshold


def klass_pick(least, moved, rounds):
  """The history of divergences is that of the whole canvas, and goes on from block to block."""
  before, history = np.zeros((END, V)), np.zeros((END, rounds))

  def pick(p, left, lo, step):
    apart = (p * (np.log(p + 1e-12) - np.log(before + 1e-12))).sum(-1)
    history[:, :-1], history[:, -1] = history[:, 1:].copy(), apart
    before[:] = p
    calm = (history < moved).all(-1) & (step >= rounds - 1)
    c = p.max(-1)
    return [i for i in left if calm[i] and c[i] > least] or best_first(c, left)[:1]

  return pick


@pytest.mark.parametrize("parameters", [(0.3, 0.02, 1), (0.4, 0.05, 2), (0.4, 0.3, 3)])
def test_klass_remembers_what_it_saw_of_the_next_block(parameters):
  policy = POLICIES["klass"]()
  agree(policy, rows(Stable(*parameters)), lambda row: klass_pick(*parameters), 4, ahead=4)


def test_klass_without_a_look_ahead_sees_each_block_anew():
  """Slots of which it has seen nothing have no history: their first round counts for nothing."""
  parameters = (0.4, 0.05, 2)
  _, passes = decode(POLICIES["klass"](), rows(Stable(*parameters)), 0, 4)
  _, further = decode(POLICIES["klass"](), rows(Stable(*parameters)), 0, 4, 4)
  assert sum(map(len, further)) < sum(map(len, passes))


def test_learned_commits_the_surest_slot_in_every_pass():
  params = Filter(*map(jnp.float32, filter_of(5, 8)), jnp.full(B, 0.7))
  agree(POLICIES["learned"](), params, lambda row: learned_pick(5, 8, 0.7), 8)


def r2_pick(threshold, cluster, run, stay, rounds):
  """The threshold's slots or the surest one, then three sweeps over what is left of the block."""
  token, count = np.full(END, -1), np.zeros(END, int)

  def pick(p, left, lo, step):
    c, said, hi = p.max(-1), p.argmax(-1), lo + 8
    taken = {i for i in left if c[i] >= threshold} or {best_first(c, left)[0]}
    left = [i for i in left if i not in taken]
    swept = set()
    for three in (range(i, i + 3) for i in range(lo, hi - 2)):
      still = [i for i in three if i in left]
      if len(still) >= 2 and np.mean(c[still]) >= cluster:
        swept |= set(still)
    left = [i for i in left if i not in swept]
    for word, same in itertools.groupby(range(lo, hi), lambda i: said[i] if i in left else -1):
      slots = list(same)
      if word >= 0 and len(slots) >= 2 and max(c[slots]) > run:
        swept.add(best_first(c, slots)[0])
    for i in range(lo, hi):
      if i in left and i not in swept:
        token[i], count[i] = said[i], count[i] + 1 if token[i] == said[i] else 1
        if count[i] >= rounds and c[i] >= stay:
          swept.add(i)
    return taken | swept

  return pick


@pytest.mark.parametrize("threshold", [0.7, 0.99])
def test_r2_sweeps_after_the_first_policy_has_made_its_step(threshold):
  numbers = (0.65, 0.5, 0.4, 2)
  policy = ADDED["r2"](POLICIES["threshold"]())
  params = rows(Redundancy(Threshold(threshold), *numbers))
  agree(policy, params, lambda row: r2_pick(threshold, *numbers), 8)
