"""How every trainer trains: batches, gradient steps, early stopping, checkpoints and metrics."""

import functools
import pathlib
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grain.python as grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from orbax.checkpoint import v1 as ocp

from specjax import distributed
from specjax.base import Params
from specjax.eval.bar import Bar
from specjax.models import sharding
from specjax.models.sharding import on_all
from specjax.sampling import new_key
from specjax.train.recipe import means
from specjax.train.recipe.config import Training
from specjax.train.recipe.log import Log
from specjax.train.recipe.means import Loss as Loss
from specjax.train.recipe.means import Total

Draw = Callable[[Any, Array], Any]  # (batch, key of the step) -> the batch with its noise


def shuffled(count: int, training: Training, *, again: bool = False) -> Callable[[int], np.ndarray]:
  """The numbers i[batch] of each step's rows: `count` rows, shuffled anew in every epoch.

  Args:
    again: whether a batch may hold a row more than once, for rows that are counted only after much
      work.

  Raises:
    ValueError: a batch takes more rows than there are.
  """
  size = training.batch
  if again and size > count > 0:
    print(f"batch={size} is more than the {count} rows there are: a batch holds some again.")
  elif not 1 <= size <= count:
    raise ValueError(
      f"`batch` must be between 1 and {count}, the rows that the data fill, got {size}."
    )
  order = grain.MapDataset.range(count).seed(training.seed).shuffle().repeat().batch(size)
  return lambda step: np.asarray(order[step])


def batches(data: Any, training: Training, *, again: bool = False) -> Callable[[int], Any]:
  """The batch of each step: `shuffled` rows of `data`, a NamedTuple of arrays with rows first."""
  order = shuffled(len(data[0]), training, again=again)
  return lambda step: type(data)(*(x[order(step)] for x in data))


def fit(
  loss: Loss,
  params: Params,
  batch: Callable[[int], Any],
  training: Training,
  directory: pathlib.Path,
  *,
  frozen: Any = (),
  held_out: Any = None,
  judge: Callable[[Any, Any, Any, Array], Array] | None = None,
  judge_every: int = 1,
  rates: Any = 1.0,
  draw: Draw | None = None,
  total: Total = means.added,
) -> Params:
  """Trains weights; see `loop` for what is written and how a killed run goes on.

  Args:
    loss: see `means.Loss`; it is computed for each of the `training.parts` of a batch.
    params: the weights to begin with, which stay as they are.
    batch: the batch of a step, a tree of arrays with examples first.
    frozen: what else the loss reads, such as a target's weights.
    held_out: a batch on which the weights are judged after the first step, after every
      `judge_every` steps and after the last.
    judge: (params, frozen, held_out, key) -> f32[], less is better; by default the loss.
    rates: multiples of the learning rate, a tree of floats for parts of `params`, or one for all.
    draw: draws the noise of a whole batch, with rows first, so that no cut changes it.
    total: the loss, of the terms of a whole batch.

  Returns:
    The last weights, on the host; with `held_out`, those that were judged best.
  """
  optimizer, (dealt, copied) = training.transformation(), training.shardings()
  frozen, held_out = on_all((frozen, held_out), copied)
  state = {"params": params, "optimizer": jax.eval_shape(optimizer.init, params)}
  if held_out is not None:
    number = jax.ShapeDtypeStruct((), jnp.float32)
    state |= {"best": params, "least": number, "newest": number}
  places = jax.tree.map(training.place_of, state)
  # A step donates its state, which must be a copy: a device may share what it is given.
  state["params"] = jax.device_put(jax.tree.map(jnp.copy, params), places["params"])
  begun = jax.jit(optimizer.init, out_shardings=places["optimizer"])
  state["optimizer"] = begun(state["params"])
  if held_out is not None:
    state["best"] = jax.device_put(jax.tree.map(jnp.copy, params), places["best"])
    for name in ("least", "newest"):
      state[name] = jax.device_put(jnp.float32(jnp.inf), places[name])

  step = stepper(loss, training, places, judge, judge_every, rates, draw, total)
  size, devices = optax.tree.size(params), len(dealt.device_set)
  print(f"{size / 1e6:.2f}M parameters are trained on {devices} device(s).")
  state = loop(
    lambda state, numbered: step(state, frozen, held_out, *numbered),
    state,
    lambda i: (jax.device_put(batch(i), dealt), jnp.int32(i)),
    training,
    directory,
  )
  return distributed.fetch(state["params" if held_out is None else "best"])


def stepper(
  loss: Loss,
  training: Training,
  places: Any,
  judge: Callable[..., Array] | None = None,
  judge_every: int = 1,
  rates: Any = 1.0,
  draw: Draw | None = None,
  total: Total = means.added,
) -> Callable[..., tuple[Any, dict[str, Array]]]:
  """The jitted step of `fit`: (state, frozen, held_out, batch, number i32[]) -> (state, metrics).

  The state, which is donated, has "params" and "optimizer" and, where held_out is not None, "best",
  "least" and "newest"; `places` has its shardings.
  """
  optimizer = training.transformation()
  gradient = means.gradient(loss, total, training.parts)
  judged = judge or (lambda *args: total(means.values(loss(*args)[0])))

  options = sharding.compiler_options(jax.tree.leaves(places)[0].mesh) or None

  @functools.partial(jax.jit, donate_argnums=0, compiler_options=options)
  def step(state, frozen, held_out, batch, number):
    key = jax.random.fold_in(new_key(training.seed), number)
    batch = batch if draw is None else draw(batch, key)
    (value, figures), grads = gradient(state["params"], frozen, batch, key)
    updates, moments = optimizer.update(grads, state["optimizer"], state["params"])
    updates = jax.tree.map(optax.tree.scale, rates, updates)
    params = optax.apply_updates(state["params"], updates)
    metrics = {"loss": value, **figures, "gradient_norm": optax.tree.norm(grads)}
    after = {"params": params, "optimizer": moments}
    if held_out is not None:  # early stopping: the run goes on, the best weights stay
      due = ((number + 1) % judge_every == 0) | (number == 0) | (number + 1 == training.steps)
      now = jax.lax.cond(
        due,
        lambda: judged(params, frozen, held_out, key).astype(jnp.float32),
        lambda: state["newest"],
      )
      better = now < state["least"]
      best = jax.tree.map(lambda new, old: jnp.where(better, new, old), params, state["best"])
      after |= {"best": best, "least": jnp.minimum(now, state["least"]), "newest": now}
      metrics["held_out"] = now
    return jax.lax.with_sharding_constraint(after, places), metrics

  return step


class Ending:
  """Waits for SIGTERM or SIGINT, the first of which lets a run save its state; the second ends it.

  Several processes would end at different steps: there a signal ends its process at once. `asked`
  is the number of the signal, 0 before.
  """

  SIGNALS = signal.SIGTERM, signal.SIGINT

  def __init__(self) -> None:
    alone = jax.process_count() == 1
    self.asked, self._listens = 0, alone and threading.current_thread() is threading.main_thread()

  def __enter__(self) -> "Ending":
    if self._listens:
      self._before: dict[int, Any] = {
        number: signal.signal(number, self._ask) for number in self.SIGNALS
      }
    return self

  def __exit__(self, *raised: Any) -> None:
    if self._listens:
      for number, handler in self._before.items():
        signal.signal(number, handler)

  def _ask(self, number: int, frame: Any) -> None:
    self.asked = number
    signal.signal(number, self._before[number])


def _finished(metrics: dict[str, Array]) -> float:
  """Waits for a step, and says when it ended."""
  jax.block_until_ready(metrics)
  return time.perf_counter()


def loop(
  step: Callable[[Any, Any], tuple[Any, dict[str, Array]]],
  state: Any,
  batch: Callable[[int], Any],
  training: Training,
  directory: pathlib.Path,
) -> Any:
  """Runs `step` from the newest checkpoint of `directory` up to the last step.

  Several processes (see `specjax.distributed`) take each step together; the first writes the
  metrics, and all write their parts of the checkpoints.

  A killed run that is started again continues bit for bit: batches are a function of the step
  alone, and the state holds everything else. `checkpoints/` gets the state after every
  `save_every` steps, after the last, and where the process is asked to end, see `Ending`; for the
  metrics see `log.Log`.

  Args:
    step: (state, batch) -> (state, metrics), jitted. Metrics are scalars: "loss", and a gradient's
      norm, which shows that a gradient is not finite before the state is saved.
    state: the state at step 0, with the structure, dtypes and sharding of what is restored.

  Raises:
    FloatingPointError: a metric is not finite; nothing of that step is saved.
    SystemExit: a signal asked the process to end, and its state is saved.
  """
  steps = training.steps
  policy = ocp.training.preservation_policies.LatestN(2)
  with (
    ocp.training.Checkpointer(
      directory.absolute() / "checkpoints",
      preservation_policy=policy,
      cleanup_tmp_directories=True,
    ) as checkpoints,
    Ending() as ending,
  ):
    first = 0
    if checkpoints.latest is not None:
      first = checkpoints.latest.step
      state = checkpoints.load(first, state)
      if first < steps and distributed.first():
        print(f"{directory} continues after step {first}.", flush=True)
    # The first steps compile.
    traced = range(first + 2, min(first + 2 + training.profile, steps))
    with (
      ThreadPoolExecutor(1) as clock,
      Log(directory, first, training.log_to) as log,
      Bar(directory.name, steps, first) as bar,
    ):

      def written(i: int, metrics: dict[str, Array], waited: float) -> None:
        values = log.write(i, metrics, waited)
        bar.update(i + 1, f"loss {values['loss']:.4f}")

      unread: list[tuple[int, dict[str, Array], float]] = []
      done: Future[float] | None = None  # when the devices had finished the last step
      for i in range(first, steps):
        if traced and i == traced.start:
          jax.profiler.start_trace(directory / "profile")
        begun, made = time.perf_counter(), batch(i)
        waited = 0.0
        if done is not None and done.done():
          waited = time.perf_counter() - max(begun, done.result())
        state, metrics = step(state, made)
        done = clock.submit(_finished, metrics)
        # While the device takes this step, the last one is written down and the next batch is made.
        while unread:
          written(*unread.pop())
        unread.append((i, metrics, waited))
        if traced and i + 1 == traced.stop:
          jax.block_until_ready(state)
          jax.profiler.stop_trace()
        if (i + 1) % training.save_every == 0 or i + 1 == steps or ending.asked:
          written(*unread.pop())
          checkpoints.save(i + 1, state)
        if ending.asked and i + 1 < steps:
          bar.say(f"stopped after step {i + 1}, which is saved: the same command continues.")
          raise SystemExit(128 + ending.asked)
  return state
