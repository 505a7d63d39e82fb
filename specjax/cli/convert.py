"""What the commands do that write files for later use: models, heads and datastores."""

import pathlib

import jax.numpy as jnp

from specjax import checks
from specjax.checkpoints import formats, gguf, hf, hub, llama2c, speculators
from specjax.cli.arguments import Convert, Corpus
from specjax.data import datastore, sources
from specjax.decoding.batching import check_model
from specjax.eval import report
from specjax.names.load import DEFAULT_MODEL, ZOO, load, resolve


def _served(name: str) -> str:
  """The name by which a server of another program loads a target, for the zoo's a path."""
  if name in hub.MODELS:
    print(
      f"name_or_path in config.json is {name!r}, which other programs do not know: write there by "
      "what name the server loads the target."
    )
  at = ZOO / name
  return str(at) if (at / "config.json").is_file() else name


def run_convert(args: Convert) -> None:
  if args.format != "head" and (args.target is not None or args.to != "specjax"):
    raise ValueError(f"target={args.target!r} and to={args.to!r} are for --format head.")
  if args.weights == "int8" and args.to != "specjax":
    raise ValueError(f"`weights` must be left out without --to specjax, got {args.weights!r}.")
  if args.weights == "bfloat16" and args.format != "head":
    raise ValueError("`weights` must be float or int8 without --format head, got 'bfloat16'.")
  if args.torch and args.format != "head":
    raise ValueError("`torch` must be False without --format head, got True.")
  out = checks.directory("out", args.out)
  source = pathlib.Path(args.model) if args.format == "llama2c" else resolve(args.model)
  if out.resolve() == source.resolve():
    raise ValueError(f"out={args.out!r} is the model itself; choose another directory.")
  if (out / "config.json").exists():
    checks.refuse("out", args.out, "a directory without a model or a head (it has a config.json)")
  dtype = {"float": jnp.float32, "bfloat16": jnp.bfloat16, "int8": jnp.int8}[args.weights]
  if args.format == "llama2c":
    c = llama2c.load(args.model, args.tokenizer)
  elif args.tokenizer is not None:
    raise ValueError(f"tokenizer={args.tokenizer!r}: a model in this format brings its own.")
  elif args.format == "head":
    target = load(args.target or DEFAULT_MODEL, weights="float")
    check_model(target, causal=True)
    head = formats.load(source, target.config, target_params=target.params)
    base = target.identity
    if args.to == speculators.FORM:
      base = base._replace(name=_served(base.name))
    formats.save(
      args.out,
      args.to,
      head,
      target.config,
      target.params,
      base=base,
      torch=args.torch,
      dtype=dtype,
    )
    print(f"wrote {args.out}: {head.head.name}, {head.head.depth} deep, as {args.to}")
    return
  elif args.format == "gguf":
    c = gguf.load(source)
  else:
    c = hf.load(source)
  # float32 holds every accepted dtype, so a model in it decodes as the original does.
  hf.save(
    args.out,
    c.config,
    c.params,
    c.tokenizer,
    template=c.template,
    stop=c.stop,
    start=c.start,
    mask=c.mask,
    shift=c.shift,
    dtype=dtype,
  )
  back = hf.load(args.out)
  if c.tokenizer is not None and back.start != c.start:
    raise ValueError(
      f"{args.out}: prompts started with the ids {list(c.start)} and now with "
      f"{list(back.start)}; tokenizer.json needs a post-processor."
    )
  print(f"wrote {args.out}")


def run_corpus(args: Corpus) -> None:
  if not args.out.endswith(".npz"):
    checks.refuse("out", args.out, "a file FILE.npz")
  if args.limit is not None:
    checks.whole("limit", args.limit, 1)
  model, source = load(args.model or DEFAULT_MODEL), sources.open_source(args.data)
  count = min(len(source), len(source) if args.limit is None else args.limit)
  records = report.progress(range(count), "reading")
  store = datastore.build(datastore.ids(source[i], model.encode, args.field, i) for i in records)
  datastore.save(args.out, store, model.config.vocab_size, model.identity.tokens)
  size = sum(x.nbytes for x in store) / 1e6
  print(f"wrote {args.out}: {count} texts of {len(store.tokens) - count} tokens, {size:.1f} MB")
