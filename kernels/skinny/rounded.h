// Products of rows in 8 bits with matrices of 4 to 8 bits, whose sums of 32 are whole numbers.
//
// A vector holds 4 numbers of each of kLanes outputs; rows are multiplied with it 4 numbers at a
// time, so that no lanes are added up. The matrix lies so in memory, in panels of 16 outputs, and is
// unpacked once for all rows.
//
// Every number of y is summed group after group: how many rows there are, and what they hold,
// changes no bit of another row.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "../cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif
#if defined(__AMX_INT8__) && defined(__AVX512BW__) && defined(__linux__)
#define SPECJAX_TILES 1
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace rounded {

#if defined(__aarch64__)
typedef __fp16 Half;  // older compilers have no other name for it there
#else
typedef _Float16 Half;
#endif

#if defined(__AVX512BW__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
// What makes bytes of numbers of 8 bits suit `dot`, and what it adds to them.
#if defined(__ARM_FEATURE_DOTPROD)
constexpr uint32_t kFlip = 0;
constexpr int kMore = 0;
#else
constexpr uint32_t kFlip = 0x80808080;
constexpr int kMore = 128;
#endif
constexpr int kPanel = 16;  // outputs
constexpr int kGroup = 32;
constexpr int kQuads = kGroup / 4;  // of numbers that are multiplied at once
constexpr int64_t kRows = 64;       // whose groups stay in the second cache
constexpr int kTileRows = 16;       // read at once, so that as many may follow the last one

typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef float Vector __attribute__((vector_size(4 * kLanes)));
typedef int8_t Steps __attribute__((vector_size(kLanes)));

// A group of a row: its numbers; what one of them is worth, and their sum; and where the sum of its
// products, or those of its halves, starts, since numbers of the matrix count from its zero.
struct Group {
  int8_t numbers[kGroup];
  float scale, sum;
  int32_t start[2];
};

// `start` and the products of one row's numbers with `Count` quads of the outputs' numbers.
template <int Bits, int Count>
inline Ints dot(const int8_t* x, const Words* w, int32_t start) {
  Ints sum = Ints{} + start;
  auto quad = [&](int i) {
    int32_t four;
    std::memcpy(&four, x + 4 * i, 4);
    return four;
  };
#if defined(__AVX512VNNI__)
#pragma GCC unroll 8
  for (int i = 0; i < Count; ++i)
    sum = (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w[i], _mm512_set1_epi32(quad(i)));
#elif defined(__AVXVNNI__) && !defined(__AVX512BW__)
#pragma GCC unroll 8
  for (int i = 0; i < Count; ++i)
    sum = (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w[i], _mm256_set1_epi32(quad(i)));
#elif defined(__AVX2__)
#if defined(__AVX512BW__)
  auto pairs = [&](Words a, int i) {
    return (Ints)_mm512_maddubs_epi16((__m512i)a, _mm512_set1_epi32(quad(i)));
  };
  auto more = [](Ints a, Ints b) { return (Ints)_mm512_add_epi16((__m512i)a, (__m512i)b); };
  auto wide = [](Ints a) { return (Ints)_mm512_madd_epi16((__m512i)a, _mm512_set1_epi16(1)); };
#else
  auto pairs = [&](Words a, int i) {
    return (Ints)_mm256_maddubs_epi16((__m256i)a, _mm256_set1_epi32(quad(i)));
  };
  auto more = [](Ints a, Ints b) { return (Ints)_mm256_add_epi16((__m256i)a, (__m256i)b); };
  auto wide = [](Ints a) { return (Ints)_mm256_madd_epi16((__m256i)a, _mm256_set1_epi16(1)); };
#endif
  if constexpr (Bits == 8) {  // two products of 255 and 127 would not fit 16 bits
#pragma GCC unroll 8
    for (int i = 0; i < Count; ++i)
      sum += 2 * wide(pairs(w[i] >> 1 & 0x7f7f7f7f, i)) + wide(pairs(w[i] & 0x01010101, i));
  } else {
    constexpr int kHeld = 32 >> (Bits - 2);  // twice as many products of 127 fit 16 bits
#pragma GCC unroll 8
    for (int i = 0; i < Count; i += kHeld) {
      Ints held = pairs(w[i], i);
#pragma GCC unroll 8
      for (int j = i + 1; j < i + kHeld && j < Count; ++j) held = more(held, pairs(w[j], j));
      sum += wide(held);
    }
  }
#else
#pragma GCC unroll 8
  for (int i = 0; i < Count; ++i) {
#if defined(__ARM_FEATURE_DOTPROD)
    sum = (Ints)vdotq_s32((int32x4_t)sum, (int8x16_t)w[i], (int8x16_t)vdupq_n_s32(quad(i)));
#else
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) sum += (Ints)(w[i] >> 8 * b & 255) * x[4 * i + b];
#endif
  }
#endif
  return sum;
}

#if defined(SPECJAX_TILES)
constexpr int kFewest = 12;  // rows for which a tile of 16 is quicker

// Whether the system lets this process have tiles.
inline bool tiles() {
  constexpr int kAsk = 0x1023, kData = 18;
  static const bool allowed = syscall(SYS_arch_prctl, kAsk, kData) == 0;
  return allowed;
}

// Tiles for the time of a panel: 0 and 3 are sums, 1 has rows and 2 numbers of `Bytes` each.
template <int Bytes>
struct Tiles {
  Tiles() {
    struct alignas(64) {
      uint8_t palette = 1, first = 0, reserved[14] = {};
      uint16_t bytes[16] = {64, Bytes, 64, 64};
      uint8_t rows[16] = {kTileRows, kTileRows, Bytes / 4, kTileRows};
    } shape;
    _tile_loadconfig(&shape);
  }
  ~Tiles() { _tile_release(); }
};

// The sums of 16 rows' products with `Bytes` numbers, those of each row for kLanes outputs.
template <int Bytes>
inline void dot_tile(const int8_t* x, const Words* w, Ints* sums) {
  _tile_zero(0);
  _tile_loadd(1, x, sizeof(Group));
  _tile_loadd(2, w, sizeof(Words));
  _tile_dpbsud(0, 1, 2);
  _tile_stored(0, sums, sizeof(Ints));
}
#endif

// kLanes numbers of a panel, as they lie.
template <typename T>
inline T lanes(const void* at) {
  T v;
  std::memcpy(&v, at, sizeof v);
  return v;
}

// Floats of 16 bits. Small ones are exact, whatever the processor's mode is.
inline Vector halves(const Half* at) {
#if defined(__AVX512BW__)
  return (Vector)_mm512_cvtph_ps(lanes<__m256i>(at));
#elif defined(__AVX2__) && defined(__F16C__)
  return (Vector)_mm256_cvtph_ps(lanes<__m128i>(at));
#else
  Vector out;
  for (int l = 0; l < kLanes; ++l) out[l] = at[l];
  return out;
#endif
}

// kLanes numbers of 8 bits; compilers take them one by one unless they are told how.
inline Ints widened(const int8_t* at) {
#if defined(__AVX512BW__)
  return (Ints)_mm512_cvtepi8_epi32(lanes<__m128i>(at));
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepi8_epi32(_mm_loadu_si64(at));
#else
  return __builtin_convertvector(lanes<Steps>(at), Ints);
#endif
}

inline Steps narrowed(Ints v) {
#if defined(__AVX512BW__)
  return (Steps)_mm512_cvtepi32_epi8((__m512i)v);
#else
  return __builtin_convertvector(v, Steps);
#endif
}

// What a panel's numbers are worth, or its offsets, group after group: halves, times steps.
struct Line {
  const Half* unit;
  const int8_t* step;  // or null
  int64_t each;        // values of a half
  int64_t left = 0;    // of them, for the half that was read last
  Vector own;

  Line(const Half* unit, int64_t units, const int8_t* step, int64_t count, int64_t first)
      : unit(place(unit, units, first)), step(step ? place(step, count, first) : nullptr),
        each(count / units) {}

  template <typename T>
  static const T* place(const T* of, int64_t count, int64_t first) {
    return of + first / kPanel * kPanel * count + first % kPanel;
  }

  // A call of it would have all that lies in registers stored.
  [[gnu::always_inline]] Vector next() {
    if (left == 0) own = halves(unit), unit += kPanel, left = each;
    --left;
    if (step == nullptr) return own;
    const Ints steps = widened(step);
    step += kPanel;
    return own * __builtin_convertvector(steps, Vector);
  }
};

// Bits 4 i to 4 i + 3 of each lane, one a byte, as bit `at`.
inline Words spread(Words bits, int i, int at) {
#if defined(__AVX512VBMI__)
  // A byte of the result is 8 bits from where its own bit is bit `at`, in each half of 8 bytes.
  const uint64_t from = 0x0302010003020100 + 0x2020202000000000;
  const uint64_t every = 0x0101010101010101;
  const uint64_t first = from + every * static_cast<uint64_t>(64 + 4 * i - at);
  const __m512i place = _mm512_set1_epi64(first & every * 63);
  return (Words)_mm512_multishift_epi64_epi8(place, (__m512i)bits) & 0x01010101u << at;
#else
  return ((bits >> 4 * i & 15) * 0x204081 & 0x01010101) << at;
#endif
}

// A matrix of whole numbers with scales and offsets, as `specjax.models.panels` has it.
struct Matrix {
  int64_t inputs, outputs;
  const uint32_t* low;
  const uint32_t* high;
  const Half* scale;  // `scales` a row
  const Half* offset;
  const int8_t* scale_steps;  // or null
  const int8_t* offset_steps;
  int64_t scales;
  int bits, zero;
  bool halves;  // whether a group has two scales, and no offset
  bool shifted;
};

// The groups of rows x f32[R, K]: each 32 numbers as 127 steps of the largest of them.
struct Rows {
  const float* x;
  Group* groups;  // [K / 32, R]
  int64_t rows, inputs;
  int zero;
  bool halves;

  void run(int64_t start, int64_t stop) const {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t g = start; g < stop; ++g)
        round(x + r * inputs + g * kGroup, groups[g * rows + r]);
  }

  void round(const float* x, Group& own) const {
    constexpr int kVectors = kGroup / kLanes, kHalf = kVectors / 2;
    constexpr float kRound = 12582912;  // 1.5 * 2^23: a sum with it has no fraction
    Vector v[kVectors];
    std::memcpy(v, x, sizeof v);
    Ints most = {};  // as bits, which order magnitudes alike, and NaN above all
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      const Ints bits = (Ints)v[i] & 0x7fffffff;
      most = bits > most ? bits : most;
    }
    const int32_t largest = cpu::over_lanes(most, [](Ints a, Ints b) { return a > b ? a : b; });
    float step;
    std::memcpy(&step, &largest, sizeof step);
    step *= 1 / 127.f;
    if (step < std::numeric_limits<float>::min()) step = std::numeric_limits<float>::min();
    own.scale = step;
    // A group that is not finite has zeros, worth NaN.
    if (!std::isfinite(step)) step = 1, std::fill_n(v, kVectors, Vector{});
    Ints numbers[kVectors], sums[2] = {};
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      // The integer lies in the last bits of the sum.
      numbers[i] = ((Ints)(v[i] / step + kRound) & 0x7fffff) - 0x400000;
      const Steps narrow = narrowed(numbers[i]);
      std::memcpy(own.numbers + i * kLanes, &narrow, sizeof narrow);
      sums[i / kHalf] += numbers[i];
    }
    auto plus = [](Ints a, Ints b) { return a + b; };
    const int32_t second = cpu::over_lanes(sums[1], plus), all = cpu::over_lanes(sums[0] + sums[1], plus);
    own.sum = own.scale * static_cast<float>(all);
    own.start[0] = -zero * (halves ? all - second : all);
    own.start[1] = -zero * second;
  }
};

struct Product {
  const Group* x;  // [K / 32, R]
  Matrix w;
  float* y;
  int64_t rows;

  // Outputs start to stop, of which the first begins a panel.
  void run(int64_t start, int64_t stop) const {
    for (int64_t o = start; o < stop; o += kLanes) {
      if (w.bits == 4)
        some<4>(o);
      else if (w.bits == 5)
        some<5>(o);
      else if (w.bits == 6)
        some<6>(o);
      else
        some<8>(o);
    }
  }

  template <int Bits>
  void some(int64_t first) const {
    if (w.halves)
      some<Bits, true, false>(first);
    else if (w.shifted)
      some<Bits, false, true>(first);
    else
      some<Bits, false, false>(first);
  }

  // kLanes outputs from `first` on, a panel or a part of one.
  template <int Bits, bool Halves, bool Shifted>
  void some(int64_t first) const {
    constexpr int P = Bits == 8 ? 0 : Bits - 4, kScales = Halves ? 2 : 1;
    constexpr int kWords = Bits == 8 ? 8 : 4, kPart = kGroup / kScales;
    constexpr int kAhead = 12;  // groups; into the first cache, where fewer fetches are under way
    const int64_t count = w.inputs / kGroup;
    const uint32_t* low = Line::place(w.low, count * kWords, first);
    const uint32_t* high = Line::place(w.high, count * P, first);
    Line scales(w.scale, w.scales, w.scale_steps, count * kScales, first);
    Line offsets(w.offset, w.scales, w.offset_steps, count, first);
    Vector sum[kRows];
    std::fill_n(sum, rows, Vector{});
    alignas(64) Words numbers[kQuads];
#if defined(SPECJAX_TILES)
    const bool tiled = rows >= kFewest && tiles();
    std::optional<Tiles<kPart>> shape;
    if (tiled) shape.emplace();
#endif
    for (int64_t g = 0; g < count; ++g) {
      for (int i = 0; i < kWords; ++i) {
        __builtin_prefetch(low + ((g + kAhead) * kWords + i) * kPanel, 0, 3);
        numbers[i] = lanes<Words>(low + (g * kWords + i) * kPanel);
      }
      if constexpr (Bits == 8) {
        for (int i = 0; i < kQuads; ++i) numbers[i] ^= kFlip;
      } else {
        for (int i = 0; i < 4; ++i) {
          numbers[4 + i] = numbers[i] >> 4 & 0x0f0f0f0f;
          numbers[i] &= 0x0f0f0f0f;
        }
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) {
          __builtin_prefetch(high + ((g + kAhead) * P + p) * kPanel, 0, 3);
          const Words plane = lanes<Words>(high + (g * P + p) * kPanel);
#pragma GCC unroll 8
          for (int i = 0; i < kQuads; ++i) numbers[i] |= spread(plane, i, 4 + p);
        }
      }
      const Vector s = scales.next(), t = Halves ? scales.next() : s;
      const Vector b = Shifted ? offsets.next() : Vector{};
      const Group* own = x + g * rows;
      auto add = [&](int64_t r, Ints q, Ints rest) {
        Vector v = __builtin_convertvector(q, Vector) * s;
        if constexpr (Halves) v += __builtin_convertvector(rest, Vector) * t;
        sum[r] += v * own[r].scale;
        if constexpr (Shifted) sum[r] += b * own[r].sum;
      };
      int64_t r = 0;
#if defined(SPECJAX_TILES)
      if (tiled) {  // all sums first, so that a tile waits for no other's
        alignas(64) Ints q[kRows], rest[kRows];
        for (; r + kFewest <= rows; r += kTileRows) {
          dot_tile<kPart>(own[r].numbers, numbers, q + r);
          if constexpr (Halves)
            dot_tile<kPart>(own[r].numbers + kPart, numbers + kPart / 4, rest + r);
        }
        r = std::min(r, rows);
        for (int64_t i = 0; i < r; ++i)
          add(i, q[i] + own[i].start[0], Halves ? rest[i] + own[i].start[1] : q[i]);
      }
#endif
      Words held[kQuads];  // in registers, for all rows
#pragma GCC unroll 8
      for (int i = 0; i < kQuads; ++i) held[i] = numbers[i];
      for (; r < rows; ++r) {
        const int8_t* mine = own[r].numbers;
        const Ints q = dot<Bits, kPart / 4>(mine, held, own[r].start[0]);
        add(r, q, Halves ? dot<Bits, kPart / 4>(mine + kPart, held + kPart / 4, own[r].start[1])
                         : q);
      }
    }
    const int64_t kept = std::min<int64_t>(kLanes, w.outputs - first);
    for (int64_t r = 0; r < rows && kept > 0; ++r)
      std::memcpy(y + r * w.outputs + first, sum + r, 4 * kept);
  }
};

}  // namespace rounded
