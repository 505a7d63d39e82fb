"""llama2.c's pass, written anew in numpy: an oracle for imported models."""

import pathlib
import struct

import numpy as np

FIELDS = ("embedding", "att_norm", "wq", "wk", "wv", "wo", "ffn_norm", "w1", "w2", "w3", "norm")


class Reference:
  """llama2.c's pass: one token at a time, rotary pairs side by side."""

  def __init__(self, path: pathlib.Path):
    data = path.read_bytes()
    E, F, L, H, K, V, T = struct.unpack_from("<7i", data)
    C = E // H
    shapes = [(abs(V), E), (L, E), (L, E, E), (L, K * C, E), (L, K * C, E), (L, E, E), (L, E),
              (L, F, E), (L, E, F), (L, F, E), (E,)]  # fmt: skip
    at = 28
    for name, shape in zip(FIELDS, shapes, strict=True):
      setattr(self, name, np.frombuffer(data, "<f4", int(np.prod(shape)), at).reshape(shape))
      at += 4 * int(np.prod(shape))
    at += 4 * T * C
    self.classifier = self.embedding if V > 0 else np.frombuffer(data, "<f4", -V * E, at)
    self.classifier = self.classifier.reshape(abs(V), E)
    self.layers, self.heads, self.kv_heads, self.head_dim = L, H, K, C
    self.keys = [[] for _ in range(L)]
    self.values = [[] for _ in range(L)]

  def normed(self, x, weight):
    return weight * x / np.sqrt(np.mean(x * x) + 1e-5)

  def rotated(self, x, position):
    out = x.copy()
    for i in range(0, self.head_dim, 2):
      angle = position * 10000.0 ** (-i / self.head_dim)
      cos, sin = np.cos(angle), np.sin(angle)
      out[:, i] = x[:, i] * cos - x[:, i + 1] * sin
      out[:, i + 1] = x[:, i] * sin + x[:, i + 1] * cos
    return out

  def forward(self, token: int, position: int) -> np.ndarray:
    x = self.embedding[token]
    for i in range(self.layers):
      h = self.normed(x, self.att_norm[i])
      q = self.rotated((self.wq[i] @ h).reshape(self.heads, -1), position)
      self.keys[i].append(self.rotated((self.wk[i] @ h).reshape(self.kv_heads, -1), position))
      self.values[i].append((self.wv[i] @ h).reshape(self.kv_heads, -1))
      out = []
      for head in range(self.heads):
        shared = head // (self.heads // self.kv_heads)
        keys = np.stack(self.keys[i])[:, shared]
        score = keys @ q[head] / np.sqrt(self.head_dim)
        p = np.exp(score - score.max())
        out.append((p / p.sum()) @ np.stack(self.values[i])[:, shared])
      x = x + self.wo[i] @ np.concatenate(out)
      h = self.normed(x, self.ffn_norm[i])
      gate = self.w1[i] @ h
      x = x + self.w2[i] @ (gate / (1 + np.exp(-gate)) * (self.w3[i] @ h))
    return self.classifier @ self.normed(x, self.norm)


def greedy(path: pathlib.Path, prompt: list[int], steps: int):
  """(ids, logits after each of them) of llama2.c's greedy decoding."""
  reference, ids, logits = Reference(path), list(prompt), []
  for position in range(len(prompt) + steps):
    logits.append(reference.forward(ids[position], position))
    if position + 1 == len(ids):
      ids.append(int(logits[-1].argmax()))
  return ids[:-1], np.stack(logits)
