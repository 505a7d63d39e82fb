// Rows scaled to a root mean square of 1, on CPUs.
//
// XLA sums a row in one order where rows are few and in another where they are many. Here a row's
// squares are summed by lanes and then the lanes, whatever is beside it.

#include <cmath>
#include <cstdint>

#include "../cpu.h"

namespace {

namespace ffi = xla::ffi;
using namespace cpu;

struct Unit {
  const float* x;
  float* y;
  int64_t width;
  float epsilon;

  // Rows start to stop.
  void run(int64_t start, int64_t stop) const {
    for (int64_t r = start; r < stop; ++r) {
      const float* row = x + r * width;
      Vector sums[4] = {};
      int64_t k = 0;
      for (; k + 4 * kLanes <= width; k += 4 * kLanes)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const Vector v = load(row + k + i * kLanes);
          sums[i] += v * v;
        }
      for (int i = 0; k < width; k += kLanes, ++i) {
        const Vector v = load_some(row + k, std::min<int64_t>(kLanes, width - k));
        sums[i] += v * v;
      }
      const Vector sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
      const float total = over_lanes(sum, [](Vector a, Vector b) { return a + b; });
      const float scale = 1 / std::sqrt(total / width + epsilon);
      for (k = 0; k < width; ++k) y[r * width + k] = row[k] * scale;
    }
  }
};

ffi::Error unit_rows(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, float epsilon,
                     ffi::ResultBuffer<ffi::F32> y) {
  const int64_t size = x.element_count(), width = x.dimensions().back();
  if (size == 0) return ffi::Error::Success();
  share_out<1>(pool, size / width, size, Unit{x.typed_data(), y->typed_data(), width, epsilon});
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(UnitRows, unit_rows,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Attr<float>("epsilon")
                                  .Ret<ffi::Buffer<ffi::F32>>());
