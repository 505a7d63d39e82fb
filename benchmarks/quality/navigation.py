"""How many different right answers a number of samples finds, with and without navigation.

    python benchmarks/quality/navigation.py --model smollm2-135m

A prompt asks for one thing of a closed list, which is known. What a method says is compared with
the list, and the first word of a sample that is in it counts. Compared are the likeliest first
tokens, each followed greedily; independent samples; and rounds that are asked with what was found
before (in-context navigation).
"""

import dataclasses
import re
import sys
from collections.abc import Callable

import specjax
from specjax import command_line
from specjax.cli.arguments import Weights
from specjax.eval import metrics, report, table

ASKED = "an example of {} is"
RIGHT = {
  "a country in Africa": "Algeria Angola Benin Botswana Burundi Cameroon Chad Comoros Congo "
  "Djibouti Egypt Eritrea Eswatini Ethiopia Gabon Gambia Ghana Guinea Kenya Lesotho Liberia Libya "
  "Madagascar Malawi Mali Mauritania Mauritius Morocco Mozambique Namibia Niger Nigeria Rwanda "
  "Senegal Seychelles Somalia Sudan Tanzania Togo Tunisia Uganda Zambia Zimbabwe",
  "a country in Europe": "Albania Andorra Austria Belarus Belgium Bulgaria Croatia Cyprus Denmark "
  "England Estonia Finland France Germany Greece Hungary Iceland Ireland Italy Kosovo Latvia "
  "Liechtenstein Lithuania Luxembourg Malta Moldova Monaco Montenegro Netherlands Norway Poland "
  "Portugal Romania Russia Serbia Slovakia Slovenia Spain Sweden Switzerland Turkey Ukraine",
  "a planet of the solar system": "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune",
  "a month of the year": "January February March April May June July August September October "
  "November December",
  "a colour": "red orange yellow green blue purple violet indigo pink brown black white grey gray "
  "cyan magenta turquoise maroon beige gold silver teal",
  "a fruit": "apple apricot banana blackberry blueberry cherry coconut cranberry date fig grape "
  "grapefruit guava kiwi lemon lime lychee mango melon nectarine orange papaya peach pear "
  "pineapple plum pomegranate raspberry strawberry tangerine tomato watermelon apples oranges "
  "bananas grapes",
  "a chemical element": "hydrogen helium lithium beryllium boron carbon nitrogen oxygen fluorine "
  "neon sodium magnesium aluminium aluminum silicon phosphorus sulfur sulphur chlorine argon "
  "potassium calcium titanium chromium iron cobalt nickel copper zinc silver tin iodine gold "
  "mercury lead uranium radium platinum",
  "a musical instrument": "guitar piano violin viola cello flute clarinet oboe bassoon trumpet "
  "trombone tuba saxophone harp drum drums banjo ukulele mandolin accordion organ harmonica bass "
  "xylophone recorder lute sitar",
  "a state of the United States": "Alabama Alaska Arizona Arkansas California Colorado Connecticut "
  "Delaware Florida Georgia Hawaii Idaho Illinois Indiana Iowa Kansas Kentucky Louisiana Maine "
  "Maryland Massachusetts Michigan Minnesota Mississippi Missouri Montana Nebraska Nevada Ohio "
  "Oklahoma Oregon Pennsylvania Tennessee Texas Utah Vermont Virginia Washington Wisconsin Wyoming",
  "a programming language": "Python Java JavaScript C C++ C# Ruby Go Rust Swift Kotlin PHP Perl "
  "Scala Haskell Lua R Julia Fortran COBOL Lisp Prolog Erlang Elixir Pascal BASIC Ada TypeScript "
  "SQL MATLAB HTML",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """Who is asked, and how often."""

  model: str = "smollm2-135m"
  weights: Weights = "float"
  samples: int = 12  # for each prompt
  each: int = 3  # of a round
  temperature: float = 1.0  # of the independent samples
  max_new_tokens: int = 5
  batch: int = 12
  out: str = "results/navigation"


def main(config: Config) -> None:
  report.check(config, "samples", "each", "max_new_tokens", "batch")
  model = specjax.load(config.model, weights=config.weights)
  greedy = specjax.Decoder(model, batch=min(config.each, config.batch))
  wide = specjax.Decoder(model, batch=config.batch)
  drawn = specjax.Decoder(model, batch=config.batch, temperature=config.temperature)
  report.directory(config.out)
  n, new = config.samples, config.max_new_tokens

  def navigated(decoder: specjax.Decoder, each: int, prompt: str) -> list[str]:
    (found,) = specjax.search.navigated(decoder, [prompt], n, new, each=each)
    return found.said

  def sampled(prompt: str) -> list[str]:
    return [r.text for r in drawn([prompt] * n, new)]

  methods: dict[str, Callable[[str], list[str]]] = {
    "likeliest first tokens": lambda prompt: navigated(wide, n, prompt),
    f"samples, temperature {config.temperature:g}": sampled,
    f"navigation, {config.each} a round": lambda prompt: navigated(greedy, config.each, prompt),
  }
  cells = {}
  for name, method in methods.items():
    found = {}
    for what, words in RIGHT.items():
      known = {word.lower() for word in words.split()}
      said = [re.findall(r"[a-z+#]+", text.lower()) for text in method(ASKED.format(what))]
      first = [next((word for word in words if word in known), None) for words in said]
      found[what] = (len({*first} - {None}), len(first) - first.count(None))
    different, right = (sum(x) for x in zip(*found.values(), strict=True))
    total = n * len(RIGHT)
    cells[name] = {
      "different": different, "right": right, "samples": total,
      "interval": metrics.wilson_interval(different, total), "prompts": found,
    }  # fmt: skip
  rows = [
    {
      "method": name,
      "different right answers %": table.estimate(
        100 * cell["different"] / cell["samples"], [100 * x for x in cell["interval"]]
      ),
      "right %": f"{100 * cell['right'] / cell['samples']:.1f}",
    }
    for name, cell in cells.items()
  ]
  report.publish(config, {"methods": cells}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
