// Products of a few rows with a large matrix, on CPUs: y [R, O] = x [R, K] w [O, K]^T.
//
// One row reads the matrix at the speed of memory; so must eight, whose arithmetic hides behind the
// reading. The matrix stays as it is, row by row: vectors lie along K, and a tile of outputs by rows
// is summed in registers. K is cut into pieces that stay in the first cache. A matrix of few bits is
// widened in registers, or where several tiles want it piece by piece in memory, so that its product is
// that of the wide matrix, bit for bit.
//
// Every number of y is summed in one order, which depends on K and on the output's number alone: by
// lanes along a piece of K, then the lanes, then piece after piece. How many rows there are, and
// what they hold, changes no bit of another row.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../cpu.h"
#include "rounded.h"

namespace {

namespace ffi = xla::ffi;
using rounded::Half;
using namespace cpu;

constexpr int kPiece = 768;    // of K, at most: 12 rows of it take 36 KB
constexpr int kGroup = 32;     // a piece is a multiple of it, but for the end of K
constexpr int kStripe = 64;    // outputs whose piece stays in the second cache: 192 KB
constexpr int kOutputs = 8;    // of the widest tile; a thread's share is a multiple of it
constexpr int kMostRows = kSums / 2;  // of the tallest tile

// A matrix of floats.
struct Floats {
  static constexpr bool kWide = true;
  const float* w;
  int64_t inputs;

  int64_t step() const { return inputs; }
  const float* piece(int64_t o, int64_t, int64_t k, int64_t) const { return w + o * inputs + k; }
};

typedef uint8_t Bytes __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef float Wide __attribute__((vector_size(64)));
constexpr Ints kLane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// A matrix of whole numbers with scales and offsets, as `specjax.models.groups` has it.
struct Groups {
  static constexpr bool kWide = false;
  int64_t inputs;
  const uint8_t* low;     // the low 4 bits, two numbers a byte; or whole numbers of 8 bits
  const uint32_t* high;   // further bits of 32 numbers, plane by plane
  const Half* scale;  // of 2^scaled numbers each
  const Half* offset;
  const int8_t* scale_steps;  // of 2^unit numbers each; null where all are 1
  const int8_t* offset_steps;
  int64_t planes;
  int scaled, unit, zero;
  bool eight, shifted;

  int64_t step() const { return kPiece; }

  const float* piece(int64_t o, int64_t end, int64_t k, int64_t size) const {
    static thread_local std::vector<float> wide(kStripe * kPiece + kLine);
    float* start = wide.data() + (-(reinterpret_cast<intptr_t>(wide.data()) / 4) & (kLine - 1));
    of_kind([&](auto planes, auto eight) {
      for (float* y = start; o < end; ++o, y += kPiece) {
        Piece<planes, eight> own;
        own.open(*this, o * inputs + k, size);
        for (int64_t g = 0; g < size / kGroup; ++g) own.group(*this, g, y + g * kGroup);
      }
    });
    return start;
  }

  // `run_tile` of O outputs whose numbers begin at `first`; meanwhile those `ahead` are fetched.
  template <int R, int O>
  void run(const Tile& t, int64_t first, int64_t ahead) const {
    of_kind([&](auto planes, auto eight) { run<R, O, planes, eight>(t, first, ahead); });
  }

  template <int R, int O, int P, bool Eight>
  void run(const Tile& t, int64_t first, int64_t ahead) const {
    Piece<P, Eight> own[O];
    for (int i = 0; i < O; ++i) {
      own[i].open(*this, first + i * inputs, t.size);
      own[i].fetch_scales(*this, first + i * inputs + ahead, t.size);
    }
    Sums<R, O> sum = {};
    for (int64_t g = 0; g < t.size / kGroup; ++g) {
      const float* x = t.x + g * kGroup;
#pragma GCC unroll 8
      for (int i = 0; i < O; ++i) {
        if (g % 4 == i % 4) own[i].fetch(g, ahead);
        float w[kGroup];
        own[i].group(*this, g, w);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
          for (int j = 0; j < kGroup; j += kLanes)
            sum[r * O + i] += load(x + r * t.x_step + j) * load(w + j);
      }
    }
    finish<R, O>(t, sum);
  }

  // `by` of the planes, and whether numbers have 8 bits, as constants.
  template <typename By>
  void of_kind(By by) const {
    constexpr std::integral_constant<int, 0> none;
    if (eight) return by(none, std::true_type());
    if (planes == 0) return by(none, std::false_type());
    if (planes == 1) return by(std::integral_constant<int, 1>(), std::false_type());
    by(std::integral_constant<int, 2>(), std::false_type());
  }

  // Some of an output's numbers, up to kPiece, and what they are worth.
  template <int P, bool Eight>
  struct Piece {
    static constexpr int kBytes = Eight ? 32 : 16;  // of a group
    const uint8_t* at;
    const uint32_t* words;
    int each;  // scales of a group
    float scales[kPiece / 16], offsets[kPiece / 16];

    void open(const Groups& w, int64_t first, int64_t size) {
      at = w.low + first / kGroup * kBytes, words = w.high + first / kGroup * P;
      each = w.unit == 4 ? 2 : 1;
      w.lines(w.scale, w.scale_steps, first, size, scales);
      if (w.shifted)
        w.lines(w.offset, w.offset_steps, first, size, offsets);
      else
        std::fill_n(offsets, size >> w.unit, 0.f);
    }

    // A line of memory has 4 groups.
    void fetch(int64_t g, int64_t ahead) const {
      const int64_t later = g + ahead / kGroup;
      __builtin_prefetch(at + later * kBytes, 0, 3);
      if constexpr (Eight) __builtin_prefetch(at + later * kBytes + 64, 0, 3);
      if constexpr (P > 0) __builtin_prefetch(words + later * P, 0, 3);
    }

    void fetch_scales(const Groups& w, int64_t first, int64_t size) const {
      auto lines = [](const void* x, int64_t bytes) {
        for (int64_t i = 0; i < bytes + 63; i += 64)
          __builtin_prefetch(static_cast<const char*>(x) + i, 0, 2);
      };
      lines(w.scale + (first >> w.scaled), size >> w.scaled << 1);
      if (w.shifted) lines(w.offset + (first >> w.scaled), size >> w.scaled << 1);
      if (w.scale_steps) lines(w.scale_steps + (first >> w.unit), size >> w.unit);
      if (w.offset_steps) lines(w.offset_steps + (first >> w.unit), size >> w.unit);
    }

    void group(const Groups& w, int64_t g, float* y) const {
      const int64_t i = g * each, j = i + each - 1;
      const uint8_t* own = at + g * kBytes;
      const Wide v = w.values<P, Eight, false>(own, words + g * P, scales[i], offsets[i]);
      const Wide rest = w.values<P, Eight, true>(own, words + g * P, scales[j], offsets[j]);
      std::memcpy(y, &v, sizeof v);
      std::memcpy(y + 16, &rest, sizeof rest);
    }
  };

  // The scales or offsets of numbers from `first` on, each for 2^unit of them.
  void lines(const Half* halves, const int8_t* steps, int64_t first, int64_t size,
             float* out) const {
    const int more = scaled - unit;
    const int64_t stop = (first + size) >> unit;
    for (int64_t i = first >> unit; i < stop;) {
#if defined(__AVX2__) && defined(__F16C__)
      if (i + 8 <= stop && (more == 0 || i % 8 == 0 && more >= 3)) {
        __m128i eight;
        std::memcpy(&eight, halves + (i >> more), more == 0 ? 16 : 2);
        __m256 v = _mm256_cvtph_ps(more == 0 ? eight : _mm_broadcastw_epi16(eight));
        if (steps != nullptr)
          v = _mm256_mul_ps(v, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadu_si64(steps + i))));
        _mm256_storeu_ps(out, v);
        i += 8, out += 8;
        continue;
      }
#endif
      *out++ = static_cast<float>(halves[i >> more]) * (steps == nullptr ? 1 : steps[i]);
      ++i;
    }
  }

  // Half of a group: numbers 0 to 15, or the rest.
  template <int P, bool Eight, bool Rest>
  Wide values(const uint8_t* at, const uint32_t* words, float scale, float offset) const {
    auto worth = [&](Ints q) { return __builtin_convertvector(q - zero, Wide) * scale + offset; };
    Bytes b;
    std::memcpy(&b, at + (Eight && Rest ? 16 : 0), sizeof b);
#if defined(__AVX512F__)
    Ints q = (Ints)(Eight ? _mm512_cvtepi8_epi32((__m128i)b) : _mm512_cvtepu8_epi32((__m128i)b));
    if constexpr (Eight) return worth(q);
    if constexpr (Rest) q >>= 4;
    // 4 bits have 16 values, which are looked up; other bits of q are not looked at.
    if constexpr (P == 0) return (Wide)_mm512_permutexvar_ps((__m512i)q, (__m512)worth(kLane));
    q = q & 15 | 0x4b000000;  // 2^23 and the number, as a float
    for (int p = 0; p < P; ++p) {
      const __mmask16 on = words[p] >> (Rest ? 16 : 0);
      q = (Ints)_mm512_mask_or_epi32((__m512i)q, on, (__m512i)q, _mm512_set1_epi32(16 << p));
    }
    return ((Wide)q - static_cast<float>(8388608 + zero)) * scale + offset;
#else
    Ints q;
    if constexpr (Eight) {
      q = __builtin_convertvector(b ^ 128, Ints) - 128;
    } else {
      q = __builtin_convertvector(Rest ? b >> 4 : b & 15, Ints);
      for (int p = 0; p < P; ++p)
        q |= ((Ints{} + static_cast<int>(words[p] >> (Rest ? 16 : 0))) >> kLane & 1) << (4 + p);
    }
    return worth(q);
#endif
  }
};

template <typename Matrix>
struct Product {
  const float* x;
  Matrix w;
  float* y;
  int64_t rows, inputs, outputs;

  // Outputs start to stop. Rows that are too many for a tile take several passes over a stripe.
  void run(int64_t start, int64_t stop) const {
    const int64_t passes = rows <= kMostRows ? 1 : ceil_div(rows, kSums / 4);
    const int64_t step = ceil_div(rows, passes);
    if (step <= kSums / 8) return stripes<8>(start, stop, passes, step);
    if (step <= kSums / 4) return stripes<4>(start, stop, passes, step);
    stripes<2>(start, stop, passes, step);
  }

  template <int O>
  void stripes(int64_t start, int64_t stop, int64_t passes, int64_t step) const {
    const int64_t stripe = passes == 1 ? kOutputs : kStripe;
    const int64_t pieces = ceil_div(inputs, kPiece);
    const int64_t piece = ceil_div(ceil_div(inputs, pieces), kGroup) * kGroup;
    for (int64_t o = start; o < stop; o += stripe) {
      const int64_t end = std::min(stop, o + stripe);
      for (int64_t k = 0; k < inputs; k += piece) {
        const int64_t size = std::min(piece, inputs - k);
        Tile t{.x_step = inputs, .w_step = w.step(), .size = size, .first = k == 0,
               .y_step = outputs};
        // What comes after this piece of the stripe is fetched; several passes share that.
        const int64_t ahead = k + piece < inputs ? piece : stripe * inputs - k;
        if constexpr (!Matrix::kWide) {
          if (passes == 1) {
            run_rows<kSums / O>(rows, [&](auto rows) {
              t.x = x + k;
              int64_t own = o;
              for (; own + O <= end; own += O) {
                t.y = y + own;
                w.template run<rows, O>(t, own * inputs + k, ahead);
              }
              for (; own < end; ++own) {
                t.y = y + own;
                w.template run<rows, 1>(t, own * inputs + k, ahead);
              }
            });
            continue;
          }
        }
        const float* wide = w.piece(o, end, k, size);
        for (int64_t r = 0; r < rows; r += step) {
          t.x = x + r * inputs + k;
          int64_t own = o;
          for (; own + O <= end; own += O) {
            t.w = wide + (own - o) * w.step();
            t.next = Matrix::kWide && own / O % passes == r / step ? t.w + ahead : nullptr;
            t.y = y + r * outputs + own;
            run_rows<kSums / O>(std::min(step, rows - r), [&](auto r) { run_tile<r, O>(t); });
          }
          t.next = nullptr;
          for (; own < end; ++own) {
            t.w = wide + (own - o) * w.step();
            for (int64_t i = r; i < std::min(rows, r + step); ++i) {
              t.x = x + i * inputs + k;
              t.y = y + i * outputs + own;
              run_tile<1, 1>(t);
            }
          }
        }
      }
    }
  }
};

ffi::Error float_product(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::F32> w,
                         ffi::ResultBuffer<ffi::F32> y) {
  const int64_t R = x.dimensions()[0], K = x.dimensions()[1], O = w.dimensions()[0];
  share_out<kOutputs>(pool, O, O * K,
            Product<Floats>{x.typed_data(), {w.typed_data(), K}, y->typed_data(), R, K, O});
  return ffi::Error::Success();
}

ffi::Error group_product(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::AnyBuffer low,
                         ffi::AnyBuffer high, ffi::AnyBuffer scale, ffi::AnyBuffer offset,
                         ffi::AnyBuffer scale_steps, ffi::AnyBuffer offset_steps, int64_t zero,
                         ffi::ResultBuffer<ffi::F32> y) {
  const int64_t R = x.dimensions()[0], K = x.dimensions()[1], O = scale.dimensions()[0];
  auto columns = [](const ffi::AnyBuffer& b) { return b.dimensions()[1]; };
  auto steps = [&](const ffi::AnyBuffer& b) {
    return columns(b) ? static_cast<const int8_t*>(b.untyped_data()) : nullptr;
  };
  auto log_of = [&](const ffi::AnyBuffer& b) {
    return columns(b) ? __builtin_ctzll(K / columns(b)) : 0;
  };
  Groups w{
      .inputs = K,
      .low = static_cast<const uint8_t*>(low.untyped_data()),
      .high = static_cast<const uint32_t*>(high.untyped_data()),
      .scale = static_cast<const Half*>(scale.untyped_data()),
      .offset = static_cast<const Half*>(offset.untyped_data()),
      .scale_steps = steps(scale_steps),
      .offset_steps = steps(offset_steps),
      .planes = columns(high) * 32 / K,
      .scaled = log_of(scale),
      .unit = columns(scale_steps) ? log_of(scale_steps) : 5,
      .zero = static_cast<int>(zero),
      .eight = columns(low) == K,
      .shifted = columns(offset) > 0,
  };
  share_out<kOutputs>(pool, O, O * K, Product<Groups>{x.typed_data(), w, y->typed_data(), R, K, O});
  return ffi::Error::Success();
}

// R is any number here: a pass over a prompt and one over a token round rows alike.
ffi::Error rounded_product(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::AnyBuffer low,
                           ffi::AnyBuffer high, ffi::AnyBuffer scale, ffi::AnyBuffer offset,
                           ffi::AnyBuffer scale_steps, ffi::AnyBuffer offset_steps, int64_t zero,
                           ffi::ResultBuffer<ffi::F32> y) {
  const int64_t R = x.dimensions()[0], K = x.dimensions()[1], O = y->dimensions()[1];
  auto columns = [](const ffi::AnyBuffer& b) { return static_cast<int64_t>(b.dimensions()[1]); };
  auto steps = [&](const ffi::AnyBuffer& b) {
    return columns(b) ? static_cast<const int8_t*>(b.untyped_data()) : nullptr;
  };
  const bool eight = low.dimensions()[2] == 8;
  const rounded::Matrix w{
      .inputs = K,
      .outputs = O,
      .low = static_cast<const uint32_t*>(low.untyped_data()),
      .high = static_cast<const uint32_t*>(high.untyped_data()),
      .scale = static_cast<const Half*>(scale.untyped_data()),
      .offset = static_cast<const Half*>(offset.untyped_data()),
      .scale_steps = steps(scale_steps),
      .offset_steps = steps(offset_steps),
      .scales = columns(scale),
      .bits = eight ? 8 : static_cast<int>(4 + columns(high) * kGroup / K),
      .zero = static_cast<int>(zero) + (eight ? rounded::kMore : 0),
      .halves = columns(scale_steps) * 16 == K,
      .shifted = columns(offset) > 0,
  };
  static thread_local std::vector<rounded::Group> groups;
  groups.resize(std::min(R, rounded::kRows) * K / kGroup + rounded::kTileRows);
  for (int64_t r = 0; r < R; r += rounded::kRows) {
    const int64_t rows = std::min(R - r, rounded::kRows);
    share_out<1>(pool, K / kGroup, rows * K,
                 rounded::Rows{x.typed_data() + r * K, groups.data(), rows, K, w.zero, w.halves});
    share_out<rounded::kPanel>(pool, O, O * K,
                               rounded::Product{groups.data(), w, y->typed_data() + r * O, rows});
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(FloatProduct, float_product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(GroupProduct, group_product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Attr<int64_t>("zero")
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(RoundedProduct, rounded_product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Attr<int64_t>("zero")
                                  .Ret<ffi::Buffer<ffi::F32>>());
