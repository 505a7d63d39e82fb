"""What published draft heads compute, in NumPy, from tensors by their published names.

Each `.._logits` yields the logits of its depths for the text `tokens` [T], whose target has the
states `hidden` [T, E] and `hidden_layers`, each [T, E], where the head drafts after state `at`.
"""

import math

import numpy as np

PREFIX = "prefix_embeding_layer"  # of Hydra++, a layer of the tests' target
PREFIX_LAYER = {
  "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 500000.0
}  # fmt: skip


def silu(x):
  return x / (1 + np.exp(-x))


def gelu(x):
  return np.array([0.5 * v * (1 + math.erf(v / 2**0.5)) for v in x])


def rms(x, epsilon, weight=1.0):
  return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def rotate(x, t, theta):
  angle = t * theta ** (-np.arange(0, len(x), 2) / len(x))
  a, b = np.split(x, 2)
  return np.concatenate(
    [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)]
  )


def decoder_layer(t, prefix, raw, x, attended):
  """Rows x [T, E] of a text, attending from `attended` [T, any], all or in a sliding window."""
  H, K = raw["num_attention_heads"], raw["num_key_value_heads"]
  theta = raw.get("rope_theta", 10000.0)
  q, k, v = (
    attended @ t[f"{prefix}.self_attn.{p}_proj.weight"].T
    + t.get(f"{prefix}.self_attn.{p}_proj.bias", 0)
    for p in "qkv"
  )
  q, k, v = q.reshape(len(x), H, -1), k.reshape(len(x), K, -1), v.reshape(len(x), K, -1)
  out = []
  for i in range(len(x)):
    mixed = []
    for h in range(H):
      g = h * K // H
      first = max(0, i + 1 - raw["sliding_window"]) if raw.get("use_sliding_window") else 0
      score = [rotate(q[i, h], i, theta) @ rotate(k[j, g], j, theta) for j in range(first, i + 1)]
      p = np.exp(np.array(score) / q.shape[-1] ** 0.5)
      mixed.append(p / p.sum() @ v[first : i + 1, g])
    y = x[i] + t[f"{prefix}.self_attn.o_proj.weight"] @ np.concatenate(mixed)
    z = rms(y, raw["rms_norm_eps"], t[f"{prefix}.post_attention_layernorm.weight"])
    z = silu(t[f"{prefix}.mlp.gate_proj.weight"] @ z) * (t[f"{prefix}.mlp.up_proj.weight"] @ z)
    out.append(y + t[f"{prefix}.mlp.down_proj.weight"] @ z)
  return np.stack(out)


def hydra_logits(t, raw, target, hidden, hidden_layers, tokens, at):
  plus, state = raw["hydra_head_arch"] == "prefix-mlp", hidden[at]
  if plus:
    attended = rms(hidden, 1e-5, t[f"{PREFIX}.layers.0.input_layernorm.weight"])
    out = decoder_layer(t, f"{PREFIX}.layers.0", PREFIX_LAYER, hidden, attended)
    state = rms(out, 1e-5, t[f"{PREFIX}.norm.weight"])[at]
  for h in range(raw["hydra_num_heads"]):
    u = np.concatenate([state, *target["embedding"][tokens[at + 1 : at + h + 2]]])
    names = [f"hydra_mlp.{h}.{2 * i + 1 if plus else i}" for i in range(raw["hydra_num_layers"])]
    residual = f"{names[0]}.res_connection"
    y = t[f"{residual}.weight"] @ u + t[f"{residual}.bias"]
    for i, name in enumerate(names):
      x = y if i else u
      y = y + silu(t[f"{name}.linear.weight"] @ x + t[f"{name}.linear.bias"])
    lm_head = f"hydra_lm_head.{h}.1" if plus else f"hydra_lm_head.{h}"
    yield t[f"{lm_head}.weight"] @ y + t[f"{lm_head}.bias"]


def eagle_logits(t, raw, target, hidden, hidden_layers, tokens, at):
  pairs = list(hidden[: at + 1])
  for _ in range(3):
    e = t.get("embed_tokens.weight", target["embedding"])[tokens[1 : len(pairs) + 1]]
    x = np.concatenate([e, pairs], -1) @ t["fc.weight"].T + t.get("fc.bias", 0)
    pairs.append(decoder_layer(t, "layers.0", raw, x, x)[-1])
    yield target["lm_head"] @ pairs[-1]


def eagle3_logits(t, raw, target, hidden, hidden_layers, tokens, at):
  epsilon = raw["rms_norm_eps"]
  if raw.get("fc_norm"):
    hidden_layers = [rms(x, epsilon, t[f"fc_norm.{i}.weight"]) for i, x in enumerate(hidden_layers)]
  joint = np.concatenate(hidden_layers, -1)[: at + 1]
  if raw.get("norm_before_fc"):
    joint = rms(joint, epsilon, t["input_norm.weight"])
  pairs = list(joint @ t["fc.weight"].T)
  embedding = t.get("embed_tokens.weight", target["embedding"])
  for _ in range(3):
    e, x = embedding[tokens[1 : len(pairs) + 1]], np.stack(pairs)
    attended = [rms(e, epsilon, t["midlayer.input_layernorm.weight"])]
    attended += [rms(x, epsilon, t["midlayer.hidden_norm.weight"])]
    stream = attended[1] if raw.get("norm_before_residual") else x
    state = decoder_layer(t, "midlayer", raw, stream, np.concatenate(attended, -1))[-1]
    normed = rms(state, epsilon, t["norm.weight"])
    pairs.append(normed if raw.get("norm_output") else state)
    yield t["lm_head.weight"] @ normed


def peagle_logits(t, raw, target, hidden, hidden_layers, tokens, at):
  """All depths from one pass over EAGLE-3's rows of the text and the masks after them."""
  epsilon, masks = raw["rms_norm_eps"], raw["num_depths"] - 1
  joint = np.concatenate(hidden_layers, -1)[: at + 1]
  joint = np.concatenate([joint, np.tile(t["mask_hidden"][0], (masks, 1))])
  x = joint @ t["fc.weight"].T
  embedding = t.get("embed_tokens.weight", target["embedding"])
  e = embedding[[*tokens[1 : at + 2], *[raw["mask_token_id"]] * masks]]
  attended = [rms(e, epsilon, t["layers.0.input_layernorm.weight"])]
  attended += [rms(x, epsilon, t["layers.0.hidden_norm.weight"])]
  stream = attended[1] if raw["norm_before_residual"] else x
  x = decoder_layer(t, "layers.0", raw, stream, np.concatenate(attended, -1))
  attended = rms(x, epsilon, t["layers.1.input_layernorm.weight"])
  x = decoder_layer(t, "layers.1", raw, x, attended)
  yield from rms(x[at:], epsilon, t["norm.weight"]) @ t["lm_head.weight"].T


def mlp_speculator_logits(t, raw, target, hidden, hidden_layers, tokens, at):
  n, inner, state = raw["n_predict"], raw["inner_dim"] or hidden.shape[-1], hidden[at]
  if raw["scale_input"]:
    state = rms(state, 1e-6) / 2**0.5
  keep = 0.5 ** (0.5 / n)
  for i in range(n):
    z = t[f"speculator.emb.{i}.weight"][tokens[at + 1 + i]] * ((1 - keep**2) * inner / 2) ** 0.5
    z = rms(t[f"speculator.proj.{i}.weight"] @ state * keep + z, 1e-6)
    state = gelu(z * t[f"speculator.ln.{i}.weight"] + t[f"speculator.ln.{i}.bias"])
    yield t[f"speculator.head.{i}.weight"] @ state


def dflash_states(t, raw, target, hidden_layers, tokens, at):
  """The block of the root and its masks, of which each sees all and the text before the root."""
  epsilon, H, K = raw["rms_norm_eps"], raw["num_attention_heads"], raw["num_key_value_heads"]
  joint = np.concatenate(hidden_layers, -1)[: at + 1] @ t["fc.weight"].T
  context = rms(joint, epsilon, t["hidden_norm.weight"])
  said = raw.get("dflash_config", raw)
  masks = [said["mask_token_id"]] * (raw["block_size"] - 1)
  x = target["embedding"][[tokens[at + 1], *masks]]
  for i in range(raw["num_hidden_layers"]):
    name = f"layers.{i}"
    rows = np.concatenate([context, rms(x, epsilon, t[f"{name}.input_layernorm.weight"])])
    q, k, v = (
      (rows @ t[f"{name}.self_attn.{p}_proj.weight"].T).reshape(len(rows), n, -1)
      for p, n in zip("qkv", (H, K, K), strict=True)
    )
    q, k = (
      rms(y, epsilon, t[f"{name}.self_attn.{p}_norm.weight"]) for p, y in (("q", q), ("k", k))
    )
    q, k = (
      np.array([[rotate(h, j, raw["rope_theta"]) for h in y] for j, y in enumerate(z)])
      for z in (q, k)
    )
    for j in range(len(x)):
      mixed = []
      for h in range(H):
        p = np.exp(k[:, h * K // H] @ q[at + 1 + j, h] / q.shape[-1] ** 0.5)
        mixed.append(p / p.sum() @ v[:, h * K // H])
      x[j] += t[f"{name}.self_attn.o_proj.weight"] @ np.concatenate(mixed)
    z = rms(x, epsilon, t[f"{name}.post_attention_layernorm.weight"])
    z = silu(z @ t[f"{name}.mlp.gate_proj.weight"].T) * (z @ t[f"{name}.mlp.up_proj.weight"].T)
    x = x + z @ t[f"{name}.mlp.down_proj.weight"].T
  first = 1 if "dflash_config" in raw else 0  # DeepSpec's root guesses, too
  return rms(x[first:], epsilon, t["norm.weight"])


def dflash_logits(t, raw, target, hidden, *rest):
  yield from dflash_states(t, raw, target, *rest) @ target["lm_head"].T


def domino_logits(t, raw, target, hidden, hidden_layers, tokens, at):
  """DFlash's, corrected by a GRU over the root and the tokens after it."""
  said, s = raw["dflash_config"], np.zeros(raw["dflash_config"]["gru_hidden_dim"])
  for d, z in enumerate(dflash_states(t, raw, target, hidden_layers, tokens, at)):
    x = np.split(t["prefix_gru.weight_ih_l0"] @ target["embedding"][tokens[at + 1 + d]], 3)
    y = np.split(t["prefix_gru.weight_hh_l0"] @ s, 3)
    reset, update = (1 / (1 + np.exp(-x[i] - y[i])) for i in (0, 1))
    s = update * s + (1 - update) * np.tanh(x[2] + reset * y[2])
    more = t["embed_proj.2.weight"] @ silu(t["embed_proj.0.weight"] @ np.concatenate([z, s]))
    yield target["lm_head"] @ z + more * (d >= said["pure_draft_prefix_len"])


def dspark_logits(t, raw, target, hidden, hidden_layers, tokens, at):
  """DFlash's, with a bias for each pair of neighbours in the text."""
  for d, logits in enumerate(dflash_logits(t, raw, target, hidden, hidden_layers, tokens, at)):
    before = t["markov_head.markov_w1.weight"][tokens[at + 1 + d]]
    yield logits + t["markov_head.markov_w2.weight"] @ before
