"""Our schemas are sound, and the engine takes them."""

import jsonschema

from specjax.data.json_schemas import BY_HAND, KINDS, samples
from specjax.names.load import load
from specjax.processors.matchers import Matchers
from specjax.processors.schemas import LEAST, of_json_schema


def test_samples_are_schemas():
  model = load()
  matchers = Matchers(model.tokenizer, model.config.vocab_size, model.stop)
  made = samples(30)
  assert made == samples(30) and samples(3) == made[:3] and made[6:] != samples(30, 1)[6:]
  assert {x.kind for x in made} == {"by hand", *KINDS} and len(made) == 30 > len(BY_HAND)
  for sample in made:
    jsonschema.Draft202012Validator.check_schema(sample.schema)
    assert of_json_schema(sample.schema, matchers).shape == (LEAST,)
    assert all(name in sample.prompt for name in sample.schema["properties"])
