// Attention over the rows of a cache that hold a text, and over fresh rows, on CPUs.
//
// What a node sees is a text: the cached rows, then those fresh rows that its mask names, in their
// order. The text is cut into spans, counted from its first row, which the cache may hold no more, and
// a row's softmax is carried through the blocks of a span; then the spans of a row are joined. Keys and values are read once for up to kTall rows; keys are turned
// around first, so that a vector holds scores of several keys and no lanes are added up. What a row
// sees decides every bit of its result: not the rows beside it, nor the threads, nor which of what it
// sees is cached and which is fresh. A tree's nodes get the bits that a token at a time would give.
//
// A cache is dense, or lies in pages of kKeys rows, whose numbers a table has for each text; then the
// same blocks are read from elsewhere.
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
constexpr int kTall = 48;        // rows at a time
constexpr int kTile = kSums / 4;  // rows of a tile of four vectors
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

// c tanh(x / c): near 0 by the continued fraction of tanh, which is exact to 1e-9 there.
inline Vector capped(Vector x, float cap) {
  const Vector y = x * (1 / cap);
  const Vector size = y < 0 ? -y : y, square = y * y;
  const Vector near = y * (945 + square * (105 + square)) / (945 + square * (420 + 15 * square));
  const Vector rest = exponential(-2 * size), far = (1 - rest) / (1 + rest);
  return cap * (size < .625f ? near : y < 0 ? -far : far);
}

// Columns 0 to kLanes of `count` rows, up to kLanes, turned around: y [kLanes, .., kLanes]. The same
// rows of the next block lie `ahead` numbers further on.
inline void turn(const float* x, int64_t step, int64_t count, int64_t ahead, float* y,
                 int64_t y_step) {
  Vector v[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    __builtin_prefetch(x + ahead + i * step, 0, 2);
    v[i] = i < count ? load(x + i * step) : Vector{};
  }
  turn_runs<kLanes / 2>(v);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) std::memcpy(y + i * y_step, v + i, sizeof(Vector));
}

// A matrix, row by row.
template <typename T>
struct Rows {
  T* at;
  int64_t step;

  Rows from(int64_t row, int64_t column) const { return {at + row * step + column, step}; }
};

// Adds x [Rows, count] w [count, kLanes Vectors] to y.
template <int Tall, int Vectors>
inline void add(Rows<const float> x, Rows<const float> w, int64_t count, Rows<float> y) {
  Vector sum[Tall * Vectors];
#pragma GCC unroll 6
  for (int r = 0; r < Tall; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < Vectors; ++i) sum[r * Vectors + i] = load(y.from(r, i * kLanes).at);
  for (int64_t k = 0; k < count; ++k) {
    Vector row[Vectors];
#pragma GCC unroll 4
    for (int i = 0; i < Vectors; ++i) row[i] = load(w.from(k, i * kLanes).at);
#pragma GCC unroll 6
    for (int r = 0; r < Tall; ++r) {
      const Vector one = held(Vector{} + *x.from(r, k).at);
#pragma GCC unroll 4
      for (int i = 0; i < Vectors; ++i) sum[r * Vectors + i] += one * row[i];
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < Tall; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < Vectors; ++i)
      std::memcpy(y.from(r, i * kLanes).at, &sum[r * Vectors + i], sizeof(Vector));
}

// `add` for a number of rows up to Tall, and `width` columns, a multiple of kLanes.
template <int Tall>
inline void add_some(int64_t rows, Rows<const float> x, Rows<const float> w, int64_t count,
                     int64_t width, Rows<float> y) {
  if constexpr (Tall > 1) {
    if (rows < Tall) return add_some<Tall - 1>(rows, x, w, count, width, y);
  }
  int64_t c = 0;
  for (; c + 4 * kLanes <= width; c += 4 * kLanes)
    add<Tall, 4>(x, w.from(0, c), count, y.from(0, c));
  for (; c < width; c += kLanes) add<Tall, 1>(x, w.from(0, c), count, y.from(0, c));
}

inline void add_all(int64_t rows, Rows<const float> x, Rows<const float> w, int64_t count,
                    int64_t width, Rows<float> y) {
  for (int64_t r = 0; r < rows; r += kTile)
    add_some<kTile>(std::min<int64_t>(kTile, rows - r), x.from(r, 0), w, count, width, y.from(r, 0));
}

struct Attention {
  const float *q, *k_cache, *v_cache, *k_tree, *v_tree;  // q is scaled
  const int32_t* length;
  const bool* mask;
  const int32_t* begin;  // [B, N], or null
  const int32_t* gone;   // [B], multiples of kKeys, or null
  const float* sinks;    // [H], or null
  const int32_t* table;  // [B, S / kKeys] of pages [pages, K, kKeys, C], or null
  float cap;             // or 0
  float* parts;  // of each head, span and row: a sum of values, the largest score, a sum of weights
  float *out, *top, *total;
  int64_t K, R, N, C, S, M, pages, spans, shares;  // `spans` are those of the longest text with all fresh rows

  float* part(int64_t head, int64_t span, int64_t row) const {
    return parts + ((head * spans + span) * R + row) * (C + 2);
  }

  // Heads times shares, from `start` to `stop`. A share is a span of cached rows; the last one of a
  // text has what is behind its whole spans.
  void run(int64_t start, int64_t stop) const {
    for (int64_t i = start; i < stop; ++i) {
      const int64_t head = i / shares, share = i % shares, whole = text(head / K) / kSpan;
      if (share < whole) attend(head, share, share + 1, 0);
      if (share == whole) attend(head, whole, spans, M);
    }
  }

  // Rows of a text before its first cached one; whole spans of them change nothing.
  int64_t before(int64_t b) const { return gone == nullptr ? 0 : gone[b] % kSpan; }

  // The rows of a text that are not fresh, without those whole spans.
  int64_t text(int64_t b) const { return before(b) + std::clamp<int64_t>(length[b], 0, S); }

  // The cached rows of a head from row k on, where a block begins.
  const float* block(const float* cache, int64_t head, int64_t k) const {
    if (table == nullptr) return cache + (head * S + k) * C;
    const int64_t named = table[head / K * (S / kKeys) + k / kKeys];
    return cache + (std::clamp<int64_t>(named, 0, pages - 1) * K + head % K) * kKeys * C;
  }

  // Spans `first` to `stop` of a head, in which `fresh` rows may follow the cached ones.
  void attend(int64_t head, int64_t first, int64_t stop, int64_t fresh) const {
    static thread_local std::vector<float> sums, turned, own_scores, own_weights;
    alignas(64) float scores[kTall * kKeys];
    turned.resize(kKeys * C);
    const int64_t b = head / K, skipped = before(b), rest = text(b);
    const int64_t room = ceil_div(fresh, kKeys) * kKeys;
    const int32_t* from = begin == nullptr ? nullptr : begin + b * N;
    const int64_t hidden = from == nullptr ? 0 : std::max(0, *std::min_element(from, from + N));
    const int64_t least = std::min(skipped + hidden, rest) / kKeys * kKeys;
    const float *new_keys = k_tree + head * M * C, *new_values = v_tree + head * M * C;
    for (int64_t r = 0; r < R; r += kTall) {
      const int64_t tall = std::min<int64_t>(kTall, R - r);
      const Rows<const float> rows{q + (head * R + r) * C, C};
      own_scores.resize(tall * room), own_weights.resize(tall * room);
      for (int64_t j = 0; j < fresh; j += kKeys)
        score(rows, tall, new_keys + j * C, std::min<int64_t>(kKeys, fresh - j), kKeys * C,
              turned.data(), {own_scores.data() + j, room});
      int64_t next[kTall] = {};  // of the fresh rows, the first that is not yet weighed
      for (int64_t s = first; s < stop; ++s) {
        sums.assign(tall * C, 0);
        float tops[kTall], totals[kTall] = {};
        std::fill_n(tops, kTall, kNone);
        const int64_t end = std::min((s + 1) * kSpan, rest + fresh);
        for (int64_t k = std::max(s * kSpan, least); k < end; k += kKeys) {
          const int64_t some = std::clamp<int64_t>(rest - k, 0, kKeys), row = k - skipped;
          if (some) {
            const float* keys = block(k_cache, head, row);
            const bool last = k + kKeys >= rest;
            const int64_t ahead = last ? 0 : block(k_cache, head, row + kKeys) - keys;
            score(rows, tall, keys, some, ahead, turned.data(), {scores, kKeys});
          }
          if (some < kKeys) own_weights.assign(tall * room, 0);
          int64_t low = fresh, high = 0;  // the fresh rows that are weighed
          for (int64_t i = 0; i < tall; ++i) {
            const int64_t node = (r + i) % N, before = next[i];
            float* own = scores + i * kKeys;  // of the block's rows, as the node sees them
            if (from != nullptr)
              std::fill_n(own, std::clamp<int64_t>(from[node] - row, 0, some), kNone);
            const bool* seen = mask + (b * N + node) * M;
            int64_t filled = some, j = before;
            for (; j < fresh && filled < kKeys; ++j)
              if (seen[j]) own[filled++] = own_scores[i * room + j];
            const int64_t width = ceil_div(filled, kLanes) * kLanes;
            std::fill(own + filled, own + width, kNone);
            weigh(own, width, sums.data() + i * C, tops[i], totals[i]);
            for (int64_t f = before, at = some; f < j; ++f)
              if (seen[f]) own_weights[i * room + f] = own[at++];
            if (before < j) low = std::min(low, before), high = std::max(high, j);
            next[i] = j;
          }
          if (some)
            add_all(tall, {scores, kKeys}, {block(v_cache, head, row), C}, some, C,
                    {sums.data(), C});
          if (low < high)
            add_all(tall, {own_weights.data() + low, room}, {new_values + low * C, C}, high - low, C,
                    {sums.data(), C});
        }
        for (int64_t i = 0; i < tall; ++i) {
          float* at = part(head, s, r + i);
          std::copy_n(sums.data() + i * C, C, at);
          at[C] = tops[i], at[C + 1] = totals[i];
        }
      }
    }
  }

  // Scores [tall, some] of rows with `some` keys, up to kKeys; see `turn` for `ahead`.
  void score(Rows<const float> rows, int64_t tall, const float* keys, int64_t some, int64_t ahead,
             float* turned, Rows<float> out) const {
    const int64_t width = ceil_div(some, kLanes) * kLanes;
    for (int64_t i = 0; i < some; i += kLanes)
      for (int64_t c = 0; c < C; c += kLanes)
        turn(keys + i * C + c, C, some - i, ahead, turned + c * kKeys + i, kKeys);
    for (int64_t i = 0; i < tall; ++i) std::fill_n(out.from(i, 0).at, width, 0);
    add_all(tall, rows, {turned, kKeys}, C, width, out);
    if (cap > 0)
      for (int64_t i = 0; i < tall; ++i)
        for (int64_t k = 0; k < width; k += kLanes) {
          const Vector own = capped(load(out.from(i, k).at), cap);
          std::memcpy(out.from(i, k).at, &own, sizeof own);
        }
  }

  // Scores of a row to weights, and what it has summed so far to their scale.
  void weigh(float* scores, int64_t width, float* sums, float& top, float& total) const {
    Vector most = Vector{} + top;
    for (int64_t k = 0; k < width; k += kLanes) {
      const Vector more = load(scores + k);
      most = most < more ? more : most;
    }
    const float best = over_lanes(most, [](Vector a, Vector b) { return a < b ? b : a; });
    const float base = best == kNone ? 0 : best;
    Vector sum = {};
    for (int64_t k = 0; k < width; k += kLanes) {
      const Vector weight = exponential(load(scores + k) - base);
      std::memcpy(scores + k, &weight, sizeof weight);
      sum += weight;
    }
    if (best != top) {
      const float old = exponential(top - base);
      for (int64_t c = 0; c < C; ++c) sums[c] *= old;
      total *= old, top = best;
    }
    total += over_lanes(sum, [](Vector a, Vector b) { return a + b; });
  }
};

// The parts of every row, joined.
struct Joined {
  Attention of;

  void run(int64_t start, int64_t stop) const {
    for (int64_t i = start; i < stop; ++i) {
      const int64_t head = i / of.R, row = i % of.R;
      const int64_t own = head % of.K * (of.R / of.N) + row / of.N;  // the query's head
      const float sink = of.sinks == nullptr ? kNone : of.sinks[own];
      float top = sink, total = 0, *y = of.out + i * of.C;
      for (int64_t s = 0; s < of.spans; ++s) top = std::max(top, of.part(head, s, row)[of.C]);
      std::fill_n(y, of.C, 0);
      const float base = top == kNone ? 0 : top;
      if (of.sinks != nullptr) total = exponential(sink - base);
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

using Floats = ffi::Buffer<ffi::F32>;
using Numbers = ffi::Buffer<ffi::S32>;
using Results = ffi::ResultBuffer<ffi::F32>;

// Of a cache of S rows a text, whose pages are in a table, or null.
ffi::Error attention(ffi::ThreadPool& pool, Floats& q, Floats& k_cache, Floats& v_cache,
                     const int32_t* table, int64_t S, Numbers& length, Floats& k_tree,
                     Floats& v_tree, ffi::Buffer<ffi::PRED>& mask, Numbers& begin,
                     const int32_t* gone, Floats& sinks, float cap, Results& out, Results& top,
                     Results& total) {
  const auto rows = q.dimensions();
  const int64_t B = rows[0], K = rows[1], R = rows[2], C = rows[3];
  const int64_t M = k_tree.dimensions()[2];
  Attention work{
      .q = q.typed_data(),
      .k_cache = k_cache.typed_data(),
      .v_cache = v_cache.typed_data(),
      .k_tree = k_tree.typed_data(),
      .v_tree = v_tree.typed_data(),
      .length = length.typed_data(),
      .mask = mask.typed_data(),
      .begin = begin.element_count() ? begin.typed_data() : nullptr,
      .gone = gone,
      .sinks = sinks.element_count() ? sinks.typed_data() : nullptr,
      .table = table,
      .cap = cap,
      .out = out->typed_data(),
      .top = top->typed_data(),
      .total = total->typed_data(),
      .K = K,
      .R = R,
      .N = mask.dimensions()[1],
      .C = C,
      .S = S,
      .M = M,
      .pages = k_cache.dimensions()[0],
  };
  int64_t longest = 0, seen = 0;
  for (int64_t b = 0; b < B; ++b)
    longest = std::max(longest, work.text(b)), seen += work.text(b) - work.before(b) + M;
  work.spans = ceil_div(longest + M, kSpan), work.shares = longest / kSpan + 1;
  static thread_local std::vector<float> parts;
  parts.resize(B * K * work.spans * R * (C + 2));
  work.parts = parts.data();
  const int64_t each = ceil_div(R, 8);  // a few rows hide behind the reading
  share_out<1>(pool, B * K * work.shares, 2 * seen * K * C * each, work);
  share_out<1>(pool, B * K * R, B * K * R * work.spans * C, Joined{work});
  return ffi::Error::Success();
}

ffi::Error tree_attention(ffi::ThreadPool pool, Floats q, Floats k_cache, Floats v_cache,
                          Numbers length, Floats k_tree, Floats v_tree,
                          ffi::Buffer<ffi::PRED> mask, Numbers begin, Numbers gone, Floats sinks,
                          float cap, Results out, Results top, Results total) {
  return attention(pool, q, k_cache, v_cache, nullptr, k_cache.dimensions()[2], length, k_tree,
                   v_tree, mask, begin, gone.element_count() ? gone.typed_data() : nullptr, sinks,
                   cap, out, top, total);
}

ffi::Error paged_attention(ffi::ThreadPool pool, Floats q, Floats k_cache, Floats v_cache,
                           Numbers length, Floats k_tree, Floats v_tree,
                           ffi::Buffer<ffi::PRED> mask, Numbers begin, Numbers table, Floats sinks,
                           float cap, Results out, Results top, Results total) {
  if (k_cache.dimensions()[2] != kKeys)
    return ffi::Error::InvalidArgument("a page has another number of rows than a block");
  return attention(pool, q, k_cache, v_cache, table.typed_data(), table.dimensions()[1] * kKeys,
                   length, k_tree, v_tree, mask, begin, nullptr, sinks, cap, out, top, total);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(TreeAttention, tree_attention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Numbers>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Arg<Numbers>()
                                  .Arg<Numbers>()
                                  .Arg<Floats>()
                                  .Attr<float>("cap")
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(PagedAttention, paged_attention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Numbers>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Arg<Numbers>()
                                  .Arg<Numbers>()
                                  .Arg<Floats>()
                                  .Attr<float>("cap")
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>());
