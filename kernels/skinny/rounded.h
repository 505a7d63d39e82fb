// Products of rows in 8 bits with matrices of 4 to 8 bits, whose sums of 32 are whole numbers.
//
// A vector holds 4 numbers of each of kLanes outputs; rows are multiplied with it 4 numbers at a
// time, so that no lanes are added up. A panel of kLanes outputs is laid out so, group by group, on
// its way from memory, once for all rows.
//
// Every number of y is summed group after group: how many rows there are, and what they hold,
// changes no bit of another row.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

namespace rounded {

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
constexpr int kGroup = 32;
constexpr int kQuads = kGroup / 4;  // of numbers that are multiplied at once
constexpr int64_t kRows = 64;       // whose groups stay in the second cache

typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef float Vector __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Four __attribute__((vector_size(16)));

// A group of a row: its numbers; what one of them is worth, and their sum; and where the sum of its
// products, or those of its halves, starts, since numbers of the matrix count from its zero.
struct Group {
  int8_t numbers[kGroup];
  float scale, sum;
  int32_t start[2];
};

// The products of one row's numbers with `Count` quads of the outputs' numbers, added to a sum.
template <int Bits, int Count>
inline Ints dot(Ints sum, const Words* w, const int8_t* x) {
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

// Of each run of 4 lanes: those of a, or 4 further on those of b.
template <int A, int B, int C, int D, int... I>
inline Words mix(Words a, Words b, std::integer_sequence<int, I...>) {
  constexpr int from[] = {A, B, C, D};
  return __builtin_shufflevector(
      a, b, (I / 4 * 4 + from[I % 4] % 4 + (from[I % 4] < 4 ? 0 : kLanes))...);
}

template <int A, int B, int C, int D>
inline Words mix(Words a, Words b) {
  return mix<A, B, C, D>(a, b, std::make_integer_sequence<int, kLanes>());
}

inline Four four(const uint8_t* at) {
  Four v;
  std::memcpy(&v, at, sizeof v);
  return v;
}

// 16 bytes of every fourth row.
inline Words fourth(const uint8_t* at, int64_t step) {
#if defined(__AVX512BW__)
  auto two = [&](int64_t i) {
    return __builtin_shufflevector(four(at + i * step), four(at + (i + 4) * step), 0, 1, 2, 3, 4, 5,
                                   6, 7);
  };
  return __builtin_shufflevector(two(0), two(8), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
                                 15);
#elif defined(__AVX2__)
  return __builtin_shufflevector(four(at), four(at + 4 * step), 0, 1, 2, 3, 4, 5, 6, 7);
#else
  return four(at);
#endif
}

// From up to 16 bytes of each of kLanes rows: v[i] has bytes 4 i to 4 i + 3 of row l in lane l.
inline void columns(const uint8_t* at, int64_t step, int64_t bytes, Words* v) {
  uint8_t some[16 * kLanes];
  if (bytes < 16) {
    for (int l = 0; l < kLanes; ++l) std::memcpy(some + 16 * l, at + l * step, bytes);
    at = some;
    step = 16;
  }
  const Words a = fourth(at, step), b = fourth(at + step, step);
  const Words c = fourth(at + 2 * step, step), d = fourth(at + 3 * step, step);
  const Words ab = mix<0, 4, 1, 5>(a, b), cd = mix<0, 4, 1, 5>(c, d);
  const Words rest_ab = mix<2, 6, 3, 7>(a, b), rest_cd = mix<2, 6, 3, 7>(c, d);
  v[0] = mix<0, 1, 4, 5>(ab, cd);
  v[1] = mix<2, 3, 6, 7>(ab, cd);
  v[2] = mix<0, 1, 4, 5>(rest_ab, rest_cd);
  v[3] = mix<2, 3, 6, 7>(rest_ab, rest_cd);
}

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

// A matrix of whole numbers with scales and offsets, as `specjax.models.groups` has it.
struct Matrix {
  int64_t inputs, outputs;
  const uint8_t* low;
  const uint32_t* high;
  const _Float16* scale;  // `scales` a row
  const _Float16* offset;
  const int8_t* scale_steps;  // or null
  const int8_t* offset_steps;
  int64_t scales;
  int bits, zero;
  bool halves;  // whether a group has two scales, and no offset
  bool shifted;
};

// The groups of rows x i8[R, K] that are worth scale[R, K / 32].
struct Rows {
  const int8_t* x;
  const float* scale;
  Group* groups;  // [K / 32, R]
  int64_t rows, inputs;
  int zero;
  bool halves;

  void run(int64_t start, int64_t stop) const {
    const int64_t count = inputs / kGroup;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t g = start; g < stop; ++g) {
        Group& own = groups[g * rows + r];
        std::memcpy(own.numbers, x + r * inputs + g * kGroup, kGroup);
        int32_t sums[2] = {};
        for (int i = 0; i < kGroup; ++i) sums[i / (kGroup / 2)] += own.numbers[i];
        own.scale = scale[r * count + g];
        own.sum = own.scale * static_cast<float>(sums[0] + sums[1]);
        own.start[0] = -zero * (halves ? sums[0] : sums[0] + sums[1]);
        own.start[1] = -zero * sums[1];
      }
    }
  }
};

struct Product {
  const Group* x;  // [K / 32, R]
  Matrix w;
  float* y;
  int64_t rows;

  // Outputs start to stop. A panel that would pass the last output begins earlier.
  void run(int64_t start, int64_t stop) const {
    for (int64_t o = start; o < stop; o += kLanes) {
      const int64_t first = std::min(o, w.outputs - kLanes);
      if (w.bits == 4)
        panel<4>(first, o, stop);
      else if (w.bits == 5)
        panel<5>(first, o, stop);
      else if (w.bits == 6)
        panel<6>(first, o, stop);
      else
        panel<8>(first, o, stop);
    }
  }

  template <int Bits>
  void panel(int64_t first, int64_t from, int64_t stop) const {
    if (w.halves)
      panel<Bits, true, false>(first, from, stop);
    else if (w.shifted)
      panel<Bits, false, true>(first, from, stop);
    else
      panel<Bits, false, false>(first, from, stop);
  }

  // The scales or the offsets of a panel: f32[kLanes, few * each].
  static void values(const _Float16* of, const int8_t* steps, int64_t few, int64_t each,
                     int64_t first, float* out) {
    const int64_t size = kLanes * few;
    of += first * few;
    if (steps == nullptr) return widen(of, size, each, out);
    steps += first * few * each;
    if (each == 8) return times<8>(of, steps, size, out);
    if (each == 16) return times<16>(of, steps, size, out);
    for (int64_t i = 0; i < size * each; ++i) out[i] = static_cast<float>(of[i / each]) * steps[i];
  }

  static void widen(const _Float16* of, int64_t size, int64_t each, float* out) {
    int64_t i = 0;
#if defined(__F16C__)
    for (; each == 1 && i + 8 <= size; i += 8) {
      __m128i eight;
      std::memcpy(&eight, of + i, sizeof eight);
      _mm256_storeu_ps(out + i, _mm256_cvtph_ps(eight));
    }
#endif
    for (; i < size; ++i) std::fill_n(out + i * each, each, static_cast<float>(of[i]));
  }

  template <int Each>
  static void times(const _Float16* of, const int8_t* steps, int64_t size, float* out) {
    for (int64_t i = 0; i < size; ++i) {
#if defined(__AVX2__) && defined(__F16C__)
      int16_t half;
      std::memcpy(&half, of + i, sizeof half);
      const __m256 unit = _mm256_cvtph_ps(_mm_set1_epi16(half));
      for (int j = 0; j < Each; j += 8, steps += 8, out += 8) {
        const __m256i eight = _mm256_cvtepi8_epi32(_mm_loadu_si64(steps));
        _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_cvtepi32_ps(eight), unit));
      }
#else
      const float unit = of[i];
      for (int j = 0; j < Each; ++j) *out++ = unit * *steps++;
#endif
    }
  }

  template <int Bits, bool Halves, bool Shifted>
  void panel(int64_t first, int64_t from, int64_t stop) const {
    constexpr int P = Bits == 8 ? 0 : Bits - 4, kScales = Halves ? 2 : 1;
    const int64_t count = w.inputs / kGroup, row = w.inputs * (Bits == 8 ? 8 : 4) / 8;
    static thread_local std::vector<float> held;
    held.resize(kLanes * count * (kScales + 1));
    float *scales = held.data(), *offsets = scales + kLanes * count * kScales;
    values(w.scale, w.scale_steps, w.scales, count * kScales / w.scales, first, scales);
    if (Shifted) values(w.offset, w.offset_steps, w.scales, count / w.scales, first, offsets);
    const auto *scale_bytes = reinterpret_cast<const uint8_t*>(scales),
               *offset_bytes = reinterpret_cast<const uint8_t*>(offsets),
               *high = reinterpret_cast<const uint8_t*>(w.high + first * count * P);
    const uint8_t* low = w.low + first * row;

    Vector sum[kRows] = {};
    Words scale[4], offset[4], bits[4], numbers[kQuads];
    // v[i % 4] becomes column i of rows of `each` columns for a group.
    auto next = [&](const uint8_t* at, int64_t each, int64_t g, Words* v) {
      if (g * each % 4 == 0)
        columns(at + 4 * g * each, 4 * count * each, 4 * (count - g) * each, v);
    };
    for (int64_t g = 0; g < count; ++g) {
      constexpr int kLine = 64, kLines = kLanes * (Bits == 8 ? 32 : 16) / kLine;
      for (int i = 0; i < kLines; ++i)
        __builtin_prefetch(low + kLanes * row + (g * kLines + i) * kLine, 0, 2);
      if constexpr (P > 0)
        for (int i = 0; i < kLanes * P * 4; i += kLine)
          __builtin_prefetch(high + kLanes * count * P * 4 + g * kLanes * P * 4 + i, 0, 2);
      next(scale_bytes, kScales, g, scale);
      if constexpr (Shifted) next(offset_bytes, 1, g, offset);
      if constexpr (Bits == 8) {
        columns(low + g * 32, row, 16, numbers);
        columns(low + g * 32 + 16, row, 16, numbers + 4);
        for (int i = 0; i < kQuads; ++i) numbers[i] ^= kFlip;
      } else {
        columns(low + g * 16, row, 16, numbers);
        for (int i = 0; i < 4; ++i) {
          numbers[4 + i] = numbers[i] >> 4 & 0x0f0f0f0f;
          numbers[i] &= 0x0f0f0f0f;
        }
        if constexpr (P > 0) {
          next(high, P, g, bits);
#pragma GCC unroll 2
          for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
            for (int i = 0; i < kQuads; ++i)
              numbers[i] |= spread(bits[(g * P + p) % 4], i, 4 + p);
        }
      }
      const Vector s = (Vector)scale[g * kScales % 4];
      const Vector t = (Vector)scale[(g * kScales + kScales - 1) % 4];
      const Vector b = (Vector)offset[g % 4];
      const Group* own = x + g * rows;
      for (int64_t r = 0; r < rows; ++r, ++own) {
        Ints q = Ints{} + own->start[0];
        q = dot<Bits, Halves ? kQuads / 2 : kQuads>(q, numbers, own->numbers);
        Vector v = __builtin_convertvector(q, Vector) * s;
        if constexpr (Halves) {
          q = Ints{} + own->start[1];
          q = dot<Bits, kQuads / 2>(q, numbers + kQuads / 2, own->numbers + kGroup / 2);
          v += __builtin_convertvector(q, Vector) * t;
        }
        sum[r] += v * own->scale;
        if constexpr (Shifted) sum[r] += b * own->sum;
      }
    }
    const int64_t skipped = from - first, kept = std::min<int64_t>(kLanes, stop - first) - skipped;
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(y + r * w.outputs + from, reinterpret_cast<float*>(sum + r) + skipped, 4 * kept);
  }
};

}  // namespace rounded
