"""The training loop every script shares: resume, step, watch, save."""

import json
import math
import pathlib
import time
from collections.abc import Callable
from typing import Any

import grain.python as grain
import jax
import numpy as np
import optax
from orbax.checkpoint import v1 as ocp
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from specjax.train.recipe.resume import keep_lines

State = Any
Metrics = dict[str, jax.Array]


def adamw(
  rate: float, steps: int, *, warmup: int, decay: float = 0.1, clip: float = 1.0
) -> optax.GradientTransformation:
  """AdamW with linear warm-up, cosine to a tenth and global-norm clipping; matrices decay."""
  schedule = optax.warmup_cosine_decay_schedule(
    0.0, rate, warmup, max(steps, warmup + 1), rate / 10
  )
  chain = optax.chain(
    optax.clip_by_global_norm(clip),
    optax.adamw(
      schedule, b1=0.9, b2=0.95, weight_decay=decay,
      mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params),
    ),
  )  # fmt: skip

  def update(grads, state, params=None):
    with jax.numpy_dtype_promotion("standard"):  # optax mixes float and int scalars
      return chain.update(grads, state, params)

  return optax.GradientTransformation(chain.init, update)


def shuffled(count: int, size: int, seed: int) -> Callable[[int], np.ndarray]:
  """The rows i[size] of each step's batch: an endless shuffled order that the seed decides.

  Args:
    count: rows there are.
    size: rows of a batch.
    seed: of the order.

  Raises:
    ValueError: a batch takes more rows than there are.
  """
  if not 1 <= size <= count:
    raise ValueError(f"batch={size}: accepted is 1 to {count}, the rows that the data fill.")
  order = grain.MapDataset.range(count).seed(seed).shuffle().repeat().batch(size)
  return lambda step: np.asarray(order[step])


def batches(data: Any, size: int, seed: int) -> Callable[[int], Any]:
  """The batch of each step, `shuffled` rows of `data`, a NamedTuple of arrays with rows first."""
  order = shuffled(len(data[0]), size, seed)
  return lambda step: type(data)(*(x[order(step)] for x in data))


def abstract(x: jax.Array) -> jax.ShapeDtypeStruct:
  """Shape, dtype and sharding: what a checkpoint is restored to."""
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)


def fit(
  step: Callable[[State, Any], tuple[State, Metrics]],
  state: State,
  batch: Callable[[int], Any],
  *,
  steps: int,
  directory: str | pathlib.Path,
  save_every: int,
) -> State:
  """Runs `step` from the newest checkpoint of `directory` up to `steps`.

  A killed run that is started again continues bit for bit: batches are a function of the step
  alone, and the state holds everything else. `metrics.jsonl` gets one line per step.

  Args:
    step: (state, batch) -> (state, metrics); jitted. Metrics are scalars and hold "loss"; a
      gradient's norm among them keeps a state that a bad gradient spoiled from being saved.
    state: the state at step 0; decides structure, dtypes and sharding of what is restored.
    batch: the batch of a step.
    steps: where to stop.
    directory: gets `checkpoints/` and `metrics.jsonl`.
    save_every: steps between checkpoints.

  Raises:
    ValueError: steps or save_every is below 1.
    FloatingPointError: a metric is not finite; nothing of that step is saved.
  """
  if min(steps, save_every) < 1:
    raise ValueError(f"steps={steps}, save_every={save_every}: accepted is 1 or more.")
  directory = pathlib.Path(directory).absolute()
  directory.mkdir(parents=True, exist_ok=True)
  log = directory / "metrics.jsonl"
  columns = (
    TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    TextColumn("{task.fields[note]}"),
  )  # fmt: skip
  policy = ocp.training.preservation_policies.LatestN(2)
  with (
    ocp.training.Checkpointer(
      directory / "checkpoints", preservation_policy=policy, cleanup_tmp_directories=True
    ) as checkpoints,
    Progress(*columns) as progress,
  ):
    first = 0
    if checkpoints.latest is not None:
      first = checkpoints.latest.step
      state = checkpoints.load(first, jax.tree.map(abstract, state))
    # Lines past the checkpoint belong to steps that will run again.
    keep_lines(log, first)
    bar = progress.add_task(directory.name, total=steps, completed=first, note="")
    with log.open("a") as sink:
      for i in range(first, steps):
        begin = time.perf_counter()
        state, metrics = step(state, batch(i))
        values = {k: float(v) for k, v in metrics.items()}
        bad = [f"{k}={v}" for k, v in values.items() if not math.isfinite(v)]
        if bad:
          raise FloatingPointError(
            f"{', '.join(bad)} at step {i}; the last good checkpoint is in "
            f"{directory / 'checkpoints'}. Lower the learning rate or look at the data."
          )
        record = {"step": i, **values, "seconds": round(time.perf_counter() - begin, 4)}
        sink.write(json.dumps(record) + "\n")
        sink.flush()
        if (i + 1) % save_every == 0 or i + 1 == steps:
          checkpoints.save(i + 1, state)
        progress.update(bar, completed=i + 1, note=f"loss {values['loss']:.4f}")
  return state
