"""What a text answers."""

import re


def last_number(text: str) -> str | None:
  """The last number of a text, without commas between its digits."""
  found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
  return found[-1].replace(",", "") if found else None
