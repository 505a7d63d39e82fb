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
#include <optional>
#include <utility>
#include <vector>

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
constexpr int kGroup = 32;
constexpr int kQuads = kGroup / 4;  // of numbers that are multiplied at once
constexpr int64_t kRows = 64;       // whose groups stay in the second cache
constexpr int kTileRows = 16;       // read at once, so that as many may follow the last one

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

// Values of `Size` bytes, `count` in each of kLanes rows, one of each row after the other.
template <int Size>
struct Values {
  static constexpr int kOfWord = 4 / Size, kRead = 16 / Size;
  const uint8_t* at;
  int64_t count;
  Words v[4];

  Values(const void* of, int64_t first, int64_t count)
      : at(static_cast<const uint8_t*>(of) + first * count * Size), count(count) {}

  // Value i of each row, below other bits; i counts from 0 without leaving one out.
  Words next(int64_t i) {
    if (i % kRead == 0) columns(at + i * Size, count * Size, (count - i) * Size, v);
    return v[i % kRead / kOfWord] >> static_cast<int>(8 * Size * (i % kOfWord));
  }
};

// The floats of 16 bits in the low halves of words. Small ones are exact, whatever the processor's
// mode is.
inline Vector halves(Words v) {
#if defined(__AVX512BW__)
  return (Vector)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)v));
#elif defined(__AVX2__) && defined(__F16C__)
  const __m256i low = (__m256i)(v & 0xffff);
  return (Vector)_mm256_cvtph_ps(
      _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
#else
  Vector out;
  for (int l = 0; l < kLanes; ++l) {
    const uint16_t bits = v[l];
    Half half;
    std::memcpy(&half, &bits, sizeof half);
    out[l] = half;
  }
  return out;
#endif
}

// What a panel's numbers are worth, or its offsets, group after group: halves, times steps.
struct Line {
  Values<2> unit;
  Values<1> step;
  bool stepped;
  int64_t each;  // values of a half
  Vector own;

  Line(const Half* unit, const int8_t* step, int64_t first, int64_t units, int64_t count)
      : unit(unit, first, units), step(step, first, count), stepped(step != nullptr),
        each(count / units) {}

  Vector next(int64_t i) {
    if (i % each == 0) own = halves(unit.next(i / each));
    if (!stepped) return own;
    return own * __builtin_convertvector((Ints)(step.next(i) << 24) >> 24, Vector);
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

// A matrix of whole numbers with scales and offsets, as `specjax.models.groups` has it.
struct Matrix {
  int64_t inputs, outputs;
  const uint8_t* low;
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

  template <int Bits, bool Halves, bool Shifted>
  void panel(int64_t first, int64_t from, int64_t stop) const {
    constexpr int P = Bits == 8 ? 0 : Bits - 4, kScales = Halves ? 2 : 1;
    constexpr int kBytes = Bits == 8 ? 32 : 16, kLine = 64, kPart = kGroup / kScales;
    const int64_t count = w.inputs / kGroup, row = count * kBytes;
    const uint8_t* low = w.low + first * row;
    const uint32_t* high = w.high + first * count * P;
    Line scales(w.scale, w.scale_steps, first, w.scales, count * kScales);
    Line offsets(w.offset, w.offset_steps, first, w.scales, count);
    Values<4> bits(w.high, first, count * P);
    Vector sum[kRows] = {};
    alignas(64) Words numbers[kQuads];
#if defined(SPECJAX_TILES)
    const bool tiled = rows >= kFewest && tiles();
    std::optional<Tiles<kPart>> held;
    if (tiled) held.emplace();
#endif
    for (int64_t g = 0; g < count; ++g) {
      // The next panel, which lies behind this one.
      for (int i = 0; i < kLanes * kBytes; i += kLine)
        __builtin_prefetch(low + kLanes * (row + g * kBytes) + i, 0, 2);
      for (int i = 0; i < kLanes * P * 4; i += kLine)
        __builtin_prefetch(high + kLanes * (count + g) * P + i / 4, 0, 2);
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
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) {
          const Words plane = bits.next(g * P + p);
#pragma GCC unroll 8
          for (int i = 0; i < kQuads; ++i) numbers[i] |= spread(plane, i, 4 + p);
        }
      }
      const Vector s = scales.next(g * kScales), t = Halves ? scales.next(2 * g + 1) : s;
      const Vector b = Shifted ? offsets.next(g) : Vector{};
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
      for (; r < rows; ++r) {
        const int8_t* mine = own[r].numbers;
        const Ints q = dot<Bits, kPart / 4>(mine, numbers, own[r].start[0]);
        add(r, q, Halves ? dot<Bits, kPart / 4>(mine + kPart, numbers + kPart / 4, own[r].start[1])
                         : q);
      }
    }
    const int64_t skipped = from - first, kept = std::min<int64_t>(kLanes, stop - first) - skipped;
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(y + r * w.outputs + from, reinterpret_cast<float*>(sum + r) + skipped, 4 * kept);
  }
};

}  // namespace rounded
