// Attention over the rows of a cache that hold a text, and over fresh rows, on CPUs.
//
// The cache is cut into spans, and a row's softmax is carried through the blocks of a span; then the
// spans of a row are joined. Keys and values are read once for up to kTall rows. What a row sees,
// and its number of spans, decide every bit of its result: not the rows beside it, nor the threads.
//
// Letters: those of `reference`; R = N H / K rows share a head's keys, row r is one of node r % N.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "../cpu.h"

namespace {

namespace ffi = xla::ffi;
using namespace cpu;

constexpr int kKeys = 64;        // of a block, whose keys, values and scores stay in the first cache
constexpr int kSpan = 8 * kKeys;  // cached rows of a span
constexpr int kTall = 24;        // rows at a time
constexpr int kTile = kSums / 4;  // rows of a tile, of four keys or four vectors of values
constexpr float kNone = -std::numeric_limits<float>::infinity();

typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));

// e^x of numbers up to 0, to two units in the last place; 0 below -87, NaN of NaN.
inline Vector exponential(Vector x) {
  constexpr float kRound = 12582912;  // 1.5 * 2^23: a sum with it has no fraction
  const Vector shifted = x * 1.44269504f + kRound;
  const Vector turns = shifted - kRound;
  const Vector rest = x - turns * 0.693359375f + turns * 2.12194440e-4f;  // ln 2 in two parts
  Vector y = rest * (1 / 5040.f) + 1 / 720.f;
  y = y * rest + 1 / 120.f;
  y = y * rest + 1 / 24.f;
  y = y * rest + 1 / 6.f;
  y = y * rest + .5f;
  y = y * rest + 1;
  y = y * rest + 1;
  const Ints power = ((Ints)shifted << 23) + (127 << 23);
  const Vector result = y * (Vector)power;
  return x < -87 ? Vector{} : x == x ? result : x;
}

inline float exponential(float x) { return exponential(Vector{} + x)[0]; }

// The rows of y [rows, size] plus p [rows, keys] times v [keys, size], for `Vectors` of size.
template <int Rows, int Vectors>
inline void mix(const float* p, const float* v, int64_t keys, int64_t width, float* y) {
  Vector sum[Rows * Vectors];
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < Vectors; ++i) sum[r * Vectors + i] = load(y + r * width + i * kLanes);
  for (int64_t k = 0; k < keys; ++k, v += width) {
    Vector value[Vectors];
#pragma GCC unroll 4
    for (int i = 0; i < Vectors; ++i) value[i] = load(v + i * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
      const Vector weight = Vector{} + p[r * kKeys + k];
#pragma GCC unroll 4
      for (int i = 0; i < Vectors; ++i) sum[r * Vectors + i] += weight * value[i];
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < Vectors; ++i)
      std::memcpy(y + r * width + i * kLanes, &sum[r * Vectors + i], sizeof(Vector));
}

// `mix` for a number of rows up to `Rows`, and any multiple of kLanes columns.
template <int Rows>
inline void mix_rows(int64_t rows, const float* p, const float* v, int64_t keys, int64_t width,
                     float* y) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return mix_rows<Rows - 1>(rows, p, v, keys, width, y);
  }
  int64_t c = 0;
  for (; c + 4 * kLanes <= width; c += 4 * kLanes) mix<Rows, 4>(p, v + c, keys, width, y + c);
  for (; c < width; c += kLanes) mix<Rows, 1>(p, v + c, keys, width, y + c);
}

struct Attention {
  const float *q, *k_cache, *v_cache, *k_tree, *v_tree;  // q is scaled
  const int32_t* length;
  const bool* mask;
  float* parts;  // of each head, span and row: a sum of values, the largest score, a sum of weights
  float *out, *top, *total;
  int64_t K, R, N, C, S, M, spans;  // `spans` are those of the longest text, and the fresh rows

  float* part(int64_t head, int64_t span, int64_t row) const {
    return parts + ((head * spans + span) * R + row) * (C + 2);
  }

  // Heads times spans, from `start` to `stop`. The last span of a head is that of the fresh rows.
  void run(int64_t start, int64_t stop) const {
    for (int64_t i = start; i < stop; ++i) {
      const int64_t head = i / spans, span = i % spans, b = head / K;
      const float* rows = q + head * R * C;
      if (span == spans - 1) {
        attend(rows, k_tree + head * M * C, v_tree + head * M * C, M, mask + b * N * M, i);
      } else {
        const int64_t first = span * kSpan, at = (head * S + first) * C;
        const int64_t count = std::clamp<int64_t>(length[b] - first, 0, kSpan);
        attend(rows, k_cache + at, v_cache + at, count, nullptr, i);
      }
    }
  }

  // A span of a head, whose number is `unit`; `seen` is null where all rows see all keys.
  void attend(const float* rows, const float* keys, const float* values, int64_t count,
              const bool* seen, int64_t unit) const {
    static thread_local std::vector<float> sums;
    alignas(64) float scores[kTall * kKeys];
    for (int64_t r = 0; r < R; r += kTall) {
      const int64_t tall = std::min<int64_t>(kTall, R - r);
      sums.assign(tall * C, 0);
      float tops[kTall], totals[kTall] = {};
      std::fill_n(tops, kTall, kNone);
      for (int64_t k = 0; k < count; k += kKeys) {
        const int64_t some = std::min<int64_t>(kKeys, count - k);
        score(rows + r * C, tall, keys + k * C, some, scores);
        if (seen != nullptr) hide(seen, r, tall, k, some, scores);
        for (int64_t i = 0; i < tall; ++i)
          weigh(scores + i * kKeys, sums.data() + i * C, tops[i], totals[i]);
        for (int64_t i = 0; i < tall; i += kTile)
          mix_rows<kTile>(std::min<int64_t>(kTile, tall - i), scores + i * kKeys, values + k * C,
                          some, C, sums.data() + i * C);
      }
      for (int64_t i = 0; i < tall; ++i) {
        float* at = parts + (unit * R + r + i) * (C + 2);
        std::copy_n(sums.data() + i * C, C, at);
        at[C] = tops[i], at[C + 1] = totals[i];
      }
    }
  }

  // Scores [tall, kKeys]; those of keys that are not there are -inf.
  void score(const float* x, int64_t tall, const float* keys, int64_t some, float* y) const {
    Tile t{.x_step = C, .w_step = C, .size = C, .next = nullptr, .first = true, .y_step = kKeys};
    for (int64_t i = 0; i < tall; i += kTile) {
      t.x = x + i * C;
      const int64_t few = std::min<int64_t>(kTile, tall - i);
      int64_t k = 0;
      for (; k + 4 <= some; k += 4) {
        t.w = keys + k * C, t.y = y + i * kKeys + k;
        run_rows<kTile, 4>(few, t);
      }
      for (; k < some; ++k) {
        t.w = keys + k * C, t.y = y + i * kKeys + k;
        run_rows<kTile, 1>(few, t);
      }
      for (int64_t j = i; j < i + few; ++j)
        std::fill(y + j * kKeys + some, y + (j + 1) * kKeys, kNone);
    }
  }

  void hide(const bool* seen, int64_t r, int64_t tall, int64_t k, int64_t some, float* y) const {
    for (int64_t i = 0; i < tall; ++i) {
      const bool* own = seen + (r + i) % N * M + k;
      for (int64_t j = 0; j < some; ++j)
        if (!own[j]) y[i * kKeys + j] = kNone;
    }
  }

  // Scores of a row to weights, and what it has summed so far to their scale.
  void weigh(float* scores, float* sums, float& top, float& total) const {
    Vector most = load(scores);
    for (int k = kLanes; k < kKeys; k += kLanes) {
      const Vector more = load(scores + k);
      most = most < more ? more : most;
    }
    float best = top;
    for (int i = 0; i < kLanes; ++i) best = best < most[i] ? most[i] : best;
    const float base = best == kNone ? 0 : best;
    Vector sum = {};
    for (int k = 0; k < kKeys; k += kLanes) {
      const Vector weight = exponential(load(scores + k) - base);
      std::memcpy(scores + k, &weight, sizeof weight);
      sum += weight;
    }
    if (best != top) {
      const float old = exponential(top - base);
      for (int64_t c = 0; c < C; ++c) sums[c] *= old;
      total *= old, top = best;
    }
    for (int half = kLanes / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) sum[i] += sum[i + half];
    total += sum[0];
  }
};

// The parts of every row, joined.
struct Joined {
  Attention of;

  void run(int64_t start, int64_t stop) const {
    for (int64_t i = start; i < stop; ++i) {
      const int64_t head = i / of.R, row = i % of.R;
      float top = kNone, total = 0, *y = of.out + i * of.C;
      for (int64_t s = 0; s < of.spans; ++s) top = std::max(top, of.part(head, s, row)[of.C]);
      std::fill_n(y, of.C, 0);
      const float base = top == kNone ? 0 : top;
      for (int64_t s = 0; s < of.spans; ++s) {
        const float* part = of.part(head, s, row);
        const float weight = exponential(part[of.C] - base);
        for (int64_t c = 0; c < of.C; ++c) y[c] += weight * part[c];
        total += weight * part[of.C + 1];
      }
      const float share = total > 0 || total != total ? 1 / total : 1;
      for (int64_t c = 0; c < of.C; ++c) y[c] *= share;
      of.top[i] = top, of.total[i] = total;
    }
  }
};

ffi::Error tree_attention(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> q,
                          ffi::Buffer<ffi::F32> k_cache, ffi::Buffer<ffi::F32> v_cache,
                          ffi::Buffer<ffi::S32> length, ffi::Buffer<ffi::F32> k_tree,
                          ffi::Buffer<ffi::F32> v_tree, ffi::Buffer<ffi::PRED> mask,
                          ffi::ResultBuffer<ffi::F32> out, ffi::ResultBuffer<ffi::F32> top,
                          ffi::ResultBuffer<ffi::F32> total) {
  const auto rows = q.dimensions();
  const int64_t B = rows[0], K = rows[1], R = rows[2], C = rows[3];
  const int64_t S = k_cache.dimensions()[2], M = k_tree.dimensions()[2];
  int64_t longest = 0, seen = 0;
  for (int64_t b = 0; b < B; ++b) {
    const int64_t own = std::clamp<int64_t>(length.typed_data()[b], 0, S);
    longest = std::max(longest, own), seen += own + M;
  }
  const int64_t spans = ceil_div(longest, kSpan) + 1;
  static thread_local std::vector<float> parts;
  parts.resize(B * K * spans * R * (C + 2));
  const Attention work{q.typed_data(), k_cache.typed_data(), v_cache.typed_data(),
                       k_tree.typed_data(), v_tree.typed_data(), length.typed_data(),
                       mask.typed_data(), parts.data(), out->typed_data(), top->typed_data(),
                       total->typed_data(), K, R, mask.dimensions()[1], C, S, M, spans};
  const int64_t each = ceil_div(R, 8);  // a few rows hide behind the reading
  share_out<1>(pool, B * K * spans, 2 * seen * K * C * each, work);
  share_out<1>(pool, B * K * R, B * K * R * spans * C, Joined{work});
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(TreeAttention, tree_attention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
