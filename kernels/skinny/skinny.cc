// Products of a few rows with a large matrix, on CPUs: y [R, O] = x [R, K] w [O, K]^T.
//
// One row reads the matrix at the speed of memory; so must eight, whose arithmetic hides behind the
// reading. The matrix stays as it is, row by row: vectors lie along K, and a tile of outputs by rows
// is summed in registers. K is cut into pieces that stay in the first cache. A matrix of few bits is
// widened piece by piece, so that its product is that of the wide matrix, bit for bit.
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
  static constexpr bool kFetched = true;  // by the tiles, one ahead
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
  static constexpr bool kFetched = false;
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
    for (float* y = start; o < end; ++o, y += kPiece) {
      if (eight)
        widen<0, true>(o, k, size, y);
      else if (planes == 0)
        widen<0, false>(o, k, size, y);
      else if (planes == 1)
        widen<1, false>(o, k, size, y);
      else
        widen<2, false>(o, k, size, y);
    }
    return start;
  }

  template <int P, bool Eight>
  void widen(int64_t o, int64_t start, int64_t size, float* y) const {
    const int64_t first = o * inputs + start, groups = size / kGroup;
    float scales[kPiece / 16], offsets[kPiece / 16] = {};
    lines(scale, scale_steps, first, size, scales);
    if (shifted) lines(offset, offset_steps, first, size, offsets);
    const uint8_t* at = low + first / (Eight ? 1 : 2);
    const uint32_t* words = high + first / kGroup * P;
    const int each = unit == 4 ? 2 : 1;  // lines of a group
    for (int64_t g = 0; g < groups; ++g, at += Eight ? 32 : 16, words += P, y += kGroup) {
      const int64_t i = g * each, j = i + each - 1;
      const Wide v = values<P, Eight, false>(at, words, scales[i], offsets[i]);
      const Wide rest = values<P, Eight, true>(at, words, scales[j], offsets[j]);
      std::memcpy(y, &v, sizeof v);
      std::memcpy(y + 16, &rest, sizeof rest);
    }
  }

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
    q &= 15;
    for (int p = 0; p < P; ++p) {
      const __mmask16 on = words[p] >> (Rest ? 16 : 0);
      q = (Ints)_mm512_mask_or_epi32((__m512i)q, on, (__m512i)q, _mm512_set1_epi32(16 << p));
    }
    return worth(q);
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
        const float* wide = w.piece(o, end, k, size);
        // The passes share the fetching of what comes after this piece of the stripe.
        const int64_t ahead = k + piece < inputs ? piece : stripe * inputs - k;
        Tile t{.x_step = inputs, .w_step = w.step(), .size = size, .first = k == 0,
               .y_step = outputs};
        for (int64_t r = 0; r < rows; r += step) {
          t.x = x + r * inputs + k;
          int64_t own = o;
          for (; own + O <= end; own += O) {
            t.w = wide + (own - o) * w.step();
            t.next = Matrix::kFetched && own / O % passes == r / step ? t.w + ahead : nullptr;
            t.y = y + r * outputs + own;
            run_rows<kSums / O, O>(std::min(step, rows - r), t);
          }
          t.next = nullptr;
          for (; own < end; ++own) {
            t.w = wide + (own - o) * w.step();
            for (int64_t i = r; i < std::min(rows, r + step); ++i) {
              t.x = x + i * inputs + k;
              t.y = y + i * outputs + own;
              run_rows<1, 1>(1, t);
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
