"""A client of the server with OpenAI's package: a stream, and log-probabilities of two answers.

specjax serve --model smollm2-135m --drafter eagle3-4
python examples/server_client.py --question "Name three rivers."
"""

import dataclasses
import sys
from typing import Any

import openai

from specjax import command_line


@dataclasses.dataclass(frozen=True)
class Config:
  """What is asked, and where."""

  question: str = "A pen costs 3 dollars. What do 7 pens cost?"  # of one turn
  url: str = "http://127.0.0.1:8000/v1"  # of the server
  max_tokens: int = 48  # of an answer


def main(config: Config) -> None:
  client = openai.OpenAI(base_url=config.url, api_key="none")
  model = client.models.list().data[0].id
  asked: dict[str, Any] = {
    "model": model,
    "messages": [{"role": "user", "content": config.question}],
    "max_tokens": config.max_tokens,
  }
  for part in client.chat.completions.create(**asked, stream=True):
    print(part.choices[0].delta.content or "", end="", flush=True)
  print()
  answers = client.chat.completions.create(**asked, n=2, seed=0, temperature=0.8, logprobs=True)
  for choice in answers.choices:
    tokens = choice.logprobs.content
    mean = sum(token.logprob for token in tokens) / len(tokens)
    print(f"{mean:.2f} nats a token: {choice.message.content.strip()}")


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
