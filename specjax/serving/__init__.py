"""A server that speaks OpenAI's protocol over one engine.

It needs starlette, uvicorn and prometheus-client: `pip install specjax[serve]`. This file imports
none of them. With specjax[grammar] an answer may have to follow a JSON Schema (`response_format`).
"""

from collections.abc import Callable
from importlib.util import find_spec

from specjax import checks
from specjax.cli.arguments import Serve
from specjax.decoding.decoder import Decoder
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.names.load import Model
from specjax.serving.engine import Engine

POSITIONS = 4096  # of which a cache has no more, unless it is asked for
POLICY = "threshold"  # of a denoiser


# What a causal model is served with, and the values that a denoiser takes.
CAUSAL = {"drafter": "none", "verifier": "target_only", "stop_words": (), "prefixes": 0, "pages": 0}


def denoiser_of(model: Model, args: Serve) -> DiffusionDecoder:
  """What decodes the requests to a denoiser; ValueError for an option of causal models."""
  for name, value in CAUSAL.items():
    if (given := getattr(args, name)) != value:
      checks.refuse(name, given, f"left out for {model.name}, which is a denoiser")
  return DiffusionDecoder(model, args.policy or POLICY, stop=args.stop, batch=args.batch)


def command(args: Serve, load: Callable[[], Model]) -> None:
  """Serves the model that `load` gives, until Ctrl-C or SIGTERM.

  Raises:
    ValueError: an option that is not accepted, or a package that is not installed.
  """
  try:
    from specjax.serving.run import serve
  except ModuleNotFoundError as error:
    if error.name not in ("starlette", "uvicorn", "prometheus_client"):
      raise
    raise ValueError(f"serve needs {error.name}: pip install specjax[serve].") from None

  def make() -> Engine:
    model = load()
    most = min(model.config.max_length, POSITIONS) if args.max_length is None else args.max_length
    if not model.config.causal:
      return Engine(denoiser_of(model, args), max_length=most, queue=args.queue)
    if args.policy is not None:
      checks.refuse("policy", args.policy, f"left out for {model.name}, which is causal")
    ends = model.stop or args.stop
    structured = model.tokenizer is not None and ends and find_spec("llguidance")
    decoder = Decoder(
      model,
      args.drafter,
      args.verifier,
      batch=args.batch,
      processors=["penalties", *(["json_schema"] if structured else [])],
      stop=args.stop,
      stop_words=args.stop_words,
    )
    held = round(1e6 * checks.number("prefixes", args.prefixes, 0))
    return Engine(decoder, max_length=most, queue=args.queue, prefixes=held, pages=args.pages)

  http = args.http
  serve(make, http.host, http.port, args.seconds, http.key, http.origins)
