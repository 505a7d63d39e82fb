"""The model that the options of a command ask for."""

import jax

from specjax.cli import arguments
from specjax.decoding.batching import check_model
from specjax.names.load import DEFAULT_DENOISER, DEFAULT_MODEL, Model, load


def named(
  name: str | None,
  causal: bool | None = None,
  revision: str | None = None,
  dtype: str = "float32",
  weights: str | None = None,
  activations: str = "float",
  skipping: str | None = None,
  template: str | None = None,
) -> Model:
  """The model of a name, by default the zoo's, causal or not where that matters."""
  default = DEFAULT_DENOISER if causal is False else DEFAULT_MODEL
  mesh = jax.sharding.get_mesh()  # that of `run`
  model = load(
    default if name is None else name,
    dtype,
    revision=revision,
    weights=weights,
    activations=activations,
    mesh=None if mesh.empty else mesh,
    skipping=skipping,
    template=template,
  )
  if causal is not None:
    check_model(model, causal)
  return model


def load_model(options: arguments.Model, causal: bool | None = None) -> Model:
  """The model that a command's options name."""
  return named(
    options.model,
    causal,
    options.revision,
    options.dtype,
    options.weights,
    options.activations,
    options.skipping,
    options.template,
  )
