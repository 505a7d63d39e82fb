"""A server that speaks OpenAI's protocol over one engine.

It needs starlette, uvicorn and prometheus-client: `pip install specjax[serve]`. This file imports
none of them. With specjax[grammar] an answer may have to follow a JSON Schema (`response_format`).
"""

from collections.abc import Callable
from importlib.util import find_spec

from specjax import checks
from specjax.cli.arguments import Serve
from specjax.decoding.decoder import Decoder
from specjax.names.load import Model
from specjax.serving.engine import Engine

POSITIONS = 4096  # of which a cache has no more, unless it is asked for


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
