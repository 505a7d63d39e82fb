"""A head that follows a target whose weights change, as those of a model in reinforcement learning.

    _, head = load_head(model, Part("eagle3"))
    follow = Refresh(model, head, Training(steps=400, batch=8, rate=3e-4), length=256)
    for step in range(20):
      ...  # the target takes a step, and its new weights say texts
      head_params = follow(target_params, texts, steps=20)

The head is trained on the newest texts, with the states that the newest weights have over them. The
weights are arguments of one program, which the first call compiles and every later one runs. What
the target samples for its own training are such texts, so that nothing is decoded for the head.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks, distributed, switches
from specjax.base import Params
from specjax.checkpoints.heads import LoadedHead
from specjax.data.packing import pack
from specjax.heads import draft_vocabulary
from specjax.models.sharding import on_all
from specjax.models.transformer import Transformer
from specjax.names.load import Model
from specjax.train.recipe.config import Training
from specjax.train.recipe.draft_positions import Objective, PositionSource
from specjax.train.recipe.fit import stepper
from specjax.train.recipe.head_loss import in_use, loss_and_judge
from specjax.train.recipe.texts import Document


class Refresh:
  """A head while it follows a target.

  Args:
    model: the target, whose weights are those of the beginning.
    loaded: the head, see `names.build.head.load_head`.
    training: options of the optimiser; `steps` are those of all calls together, over which the
      learning rate falls.
    length: T, number of tokens of a row of texts; what is longer is cut.
    points: M, number of positions of a row from which the head drafts.

  Attributes:
    done: how many steps the head has taken.

  Raises:
    ValueError: rows longer than the target's positions.
  """

  done: int

  def __init__(
    self, model: Model, loaded: LoadedHead, training: Training, *, length: int, points: int = 64
  ):
    self.model, self.training = model, training
    self.length = checks.whole("length", length, 2, model.config.max_length)
    self.points, self.done = checks.whole("points", points, 1), 0
    head, ids = loaded.head, draft_vocabulary.ids(loaded.params)
    vocabulary = None if ids is None else np.asarray(ids)
    objective = Objective(head, vocabulary, Transformer(model.config))
    self._depth = head.depth
    self._fixed = {name: x for name, x in loaded.params.items() if name != "params"}
    # A step donates its state, which must be a copy.
    own = jax.tree.map(lambda x: jnp.array(x, jnp.float32), loaded.params["params"])
    state = {"params": own, "optimizer": training.transformation().init(own)}
    places = jax.tree.map(training.place_of, state)
    self._state = jax.device_put(state, places)
    loss, _ = loss_and_judge(objective, model.dtype, head.loss, 0.0)
    self._step, self._hits = stepper(loss, training, places), jax.jit(objective.hits)

  @property
  def params(self) -> Params:
    """The head's weights as a drafter reads them."""
    return in_use(jax.tree.map(jnp.copy, self._state["params"]), self._fixed, self.model.dtype)

  def _source(self, texts: Sequence[Document]) -> PositionSource:
    rows = pack(texts, self.length)
    source = PositionSource(rows, None, self._depth, self.points, self.training.seed)
    if not any(map(len, source.useful)):
      raise ValueError(f"`texts` must have a token to learn in their first {self.length}.")
    return source

  def _target(self, params: Params) -> Params:
    def shapes(tree: Params) -> Params:
      return jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x)), tree)

    if shapes(params) != shapes(self.model.params):
      raise ValueError(
        f"`target_params` must have the names, shapes and dtypes of {self.model.name}'s weights."
      )
    return on_all(params, self.training.shardings()[1])

  @switches.hold
  def __call__(self, target_params: Params, texts: Sequence[Document], steps: int) -> Params:
    """The head's weights after so many steps on texts of a target with these weights.

    Args:
      texts: ids of each, and for each id whether the target said it.

    Raises:
      ValueError: weights of another model, texts without a token to learn, or no step.
      FloatingPointError: the loss became NaN or infinite, and so have the weights.
    """
    checks.whole("steps", steps, 1)
    source, frozen = self._source(texts), (self._target(target_params), self._fixed)
    dealt = self.training.shardings()[0]
    labelled = np.array([r for r, points in enumerate(source.useful) if len(points)])
    for _ in range(steps):
      rng = np.random.default_rng([self.training.seed, self.done])
      chosen = labelled[rng.integers(0, len(labelled), self.training.batch)]
      batch = jax.device_put(source.sample(chosen, self.done), dealt)
      self._state, metrics = self._step(self._state, frozen, None, batch, jnp.int32(self.done))
      self.done += 1
    if not np.isfinite(loss := float(metrics["loss"])):
      raise FloatingPointError(f"loss={loss} at step {self.done}: lower the learning rate.")
    return self.params

  @switches.hold
  def accepted(
    self, target_params: Params, texts: Sequence[Document], params: Params | None = None
  ) -> np.ndarray:
    """f[D]: how often a depth's best guess is what the texts say, given the tokens before it.

    Args:
      params: weights of the head, by default the newest.
    """
    source, target = self._source(texts), self._target(target_params)
    dealt, copied = self.training.shardings()
    own = jax.device_put(self.params if params is None else params, copied)
    hits, counts = np.zeros(self._depth, int), np.zeros(self._depth, int)
    for part in source.every(self.training.batch):
      found = distributed.fetch(self._hits(own, target, jax.device_put(part, dealt)))
      hits, counts = hits + found[0][:, 0], counts + found[1]
    return hits / np.maximum(counts, 1)
