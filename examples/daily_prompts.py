"""Writes 900 prompts to train a head for daily use: records as JSON, summaries, and questions.

python examples/daily_prompts.py
"""

import dataclasses
import json
import pathlib
import random
import re
import sys
import sysconfig

from specjax import command_line

WORDS = {
  "name": "Amir|Bea|Carlos|Dana|Emeka|Farah|Goran|Hana|Igor|Jun|Kofi|Lucia|Mateo|Noor|Olga|Rosa",
  "town": "Oslo|Porto|Kyoto|Lagos|Quito|Riga|Perth|Delhi|Cairo|Turin|Lima|Ghent|Accra|Bergen",
  "thing": "bicycle|lamp|chair|notebook|camera|backpack|blender|guitar|tent|printer|clock|jacket",
  "count": "2|3|4|5|6|7|8|9",
  "topic": "baking bread|the moon|volcanoes|recursion|unit tests|git branches|chess|compilers|maps|"
  "a new language|sleeping well|a job interview|photography|hiking|batteries|databases|encryption|"
  "linked lists|house plants|bees|trains|coffee|a birthday party|public speaking|earthquakes|spam",
}
FORMS = (
  'Extract person, town (texts) and year (integer): "{name} left {town} in 19{count}4."',
  'Extract item (text), count and price (integers): "{name} got {count} {thing}s for {count}5 $."',
  'Extract title, town (texts) and hour (integer): "Take the {thing} to {town} at {count} pm."',
  'List "staff", objects with name and city (texts): "{name} works in {town}, Wen in Rome."',
  "Explain {topic} to a beginner.", "Write {name} a polite message about {topic}.",
  "Name five facts about {topic}.", "How would {name} plan a weekend about {topic}?",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Config:
  """What is written."""

  out: str = "daily_prompts.jsonl"  # file of the prompts


def main(config: Config) -> None:
  rng, texts = random.Random(0), set()
  for path in pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"):
    for says in re.findall(r'"""(.+?)"""', path.read_text("utf8"), re.DOTALL):
      for text in [" ".join(part.split()) for part in says.split("\n\n")]:
        if 240 < len(text) < 700:
          texts.add(f"Summarise this text in two sentences.\n\n{text}")
  asked = rng.sample(sorted(texts), 350)
  for i in range(700):
    form = FORMS[i % len(FORMS)]
    text = form.format(**{name: rng.choice(words.split("|")) for name, words in WORDS.items()})
    asked.append(text + "\nAnswer with one JSON object and nothing else." * ('"' in form))
  rng.shuffle(asked)
  lines = [json.dumps({"question": text}) for text in dict.fromkeys(asked)]
  pathlib.Path(config.out).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
