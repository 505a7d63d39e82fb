// What the kernels for CPUs share: registers, tiles of products, and XLA's threads.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "xla/ffi/api/ffi.h"

namespace cpu {

namespace ffi = xla::ffi;

// Floats of a register, and the sums of a tile, which fill three quarters of the registers.
#if defined(__AVX512F__)
constexpr int kLanes = 16, kSums = 24;
#elif defined(__AVX__)
constexpr int kLanes = 8, kSums = 12;
#elif defined(__aarch64__)
constexpr int kLanes = 4, kSums = 24;
#else
constexpr int kLanes = 4, kSums = 12;
#endif
constexpr int kLine = 16;  // floats of a line of the cache
constexpr int64_t kShare = 1 << 16;  // numbers that are worth a thread's while
constexpr int kPatience = 1000;      // pauses: some 40 microseconds

typedef float Vector __attribute__((vector_size(4 * kLanes)));

inline Vector load(const float* at) {
  Vector v;
  std::memcpy(&v, at, sizeof v);
  return v;
}

// The last numbers of a row, and zeros.
inline Vector load_some(const float* at, int64_t count) {
  Vector v = {};
  std::memcpy(&v, at, count * sizeof(float));
  return v;
}

// A vector that is in a register: compilers for x86 would read it anew for each of its products.
inline Vector held(Vector v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#elif defined(__x86_64__)
  asm("" : "+x"(v));
#endif
  return v;
}

// Each run of 2 N lanes of any kind with its halves exchanged.
template <int N, typename V, int... I>
inline V exchanged(V v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (I ^ N)...);
}

// All lanes joined by `both`.
template <typename V, typename Both>
inline auto over_lanes(V v, Both both) {
  constexpr auto lanes = std::make_integer_sequence<int, sizeof v / 4>();
  if constexpr (sizeof v >= 64) v = both(v, exchanged<8>(v, lanes));
  if constexpr (sizeof v >= 32) v = both(v, exchanged<4>(v, lanes));
  v = both(v, exchanged<2>(v, lanes));
  return both(v, exchanged<1>(v, lanes))[0];
}

// Lanes of two vectors, run after run of N: those of a and b that are even, or odd.
template <int N, int Odd, int... I>
inline Vector runs(Vector a, Vector b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I / N % 2 ? kLanes + (I & ~N) + N * Odd : I + N * Odd)...);
}

// kLanes vectors turned around: lane j of the i-th is lane i of the j-th after it.
template <int N>
inline void turn_runs(Vector* v) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    if ((i & N) == 0) {
      constexpr auto all = std::make_integer_sequence<int, kLanes>();
      const Vector a = v[i], b = v[i + N];
      v[i] = runs<N, 0>(a, b, all), v[i + N] = runs<N, 1>(a, b, all);
    }
  if constexpr (N > 1) turn_runs<N / 2>(v);
}

// a and b hold S sums each, in equal runs of lanes; the result holds those of a, then those of b, in
// runs of half the length.
template <int S, int... I>
inline Vector fold(Vector a, Vector b, std::integer_sequence<int, I...>) {
  constexpr int run = kLanes / S, half = run / 2;
  return __builtin_shufflevector(a, b, (I / half * run + I % half)...) +
         __builtin_shufflevector(a, b, (I / half * run + I % half + half)...);
}

template <int S>
inline Vector fold(Vector a, Vector b) {
  return fold<S>(a, b, std::make_integer_sequence<int, kLanes>());
}

// The sums of the lanes of 4 vectors, in the first 4 lanes.
inline Vector lanes(const Vector* a) {
  Vector v = fold<2>(fold<1>(a[0], a[1]), fold<1>(a[2], a[3]));
  if constexpr (kLanes >= 8) v = fold<4>(v, v);
  if constexpr (kLanes >= 16) v = fold<8>(v, v);
  return v;
}

// What a tile computes: a piece of K, for some rows of x and some outputs of w.
struct Tile {
  const float* x;
  int64_t x_step;  // from a row to the next
  const float* w;
  int64_t w_step;
  int64_t size;       // of the piece
  const float* next;  // what to fetch meanwhile, laid out as w is; or null
  bool first;         // whether the piece is the first of K
  float* y;
  int64_t y_step;
};

// Sums of vectors for R rows by O outputs, filled up to fours.
template <int R, int O>
using Sums = Vector[(R * O + 3) / 4 * 4];

// The lanes of a tile's sums, added up, to y.
template <int R, int O>
inline void finish(const Tile& t, const Sums<R, O>& sum) {
  constexpr int kRun = O < 4 ? O : 4;  // outputs of a row, of the 4 sums that are made at once
  typedef float Run __attribute__((vector_size(4 * kRun)));
#pragma GCC unroll 6
  for (int i = 0; i < R * O; i += 4) {
    const Vector four = lanes(sum + i);
#pragma GCC unroll 4
    for (int j = i; j < i + 4 && j < R * O; j += kRun) {
      float* y = t.y + j / O * t.y_step + j % O;
      Run own, before = {};
      std::memcpy(&own, reinterpret_cast<const char*>(&four) + 4 * (j - i), sizeof own);
      if (!t.first) std::memcpy(&before, y, sizeof before);
      const Run after = t.first ? own : before + own;
      std::memcpy(y, &after, sizeof after);
    }
  }
}

template <int R, int O>
inline void run_tile(const Tile& t) {
  Sums<R, O> sum = {};
  auto add = [&](int64_t k, auto load) {
    Vector weight[O];
#pragma GCC unroll 8
    for (int o = 0; o < O; ++o) weight[o] = load(t.w + o * t.w_step + k);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      Vector row = load(t.x + r * t.x_step + k);
      if constexpr (R >= O) row = held(row);  // a tile of fewer rows waits for its weights
#pragma GCC unroll 8
      for (int o = 0; o < O; ++o) sum[r * O + o] += row * weight[o];
    }
  };
  int64_t k = 0;
  for (; k + kLanes <= t.size; k += kLanes) {
    if (t.next != nullptr && k % kLine == 0)
#pragma GCC unroll 8
      for (int o = 0; o < O; ++o) __builtin_prefetch(t.next + o * t.w_step + k, 0, 2);
    add(k, load);
  }
  if (k < t.size) add(k, [&](const float* at) { return load_some(at, t.size - k); });
  finish<R, O>(t, sum);
}

// `by` for a number of rows up to R, a constant there.
template <int R, typename By>
inline void run_rows(int64_t rows, By by) {
  if constexpr (R > 1) {
    if (rows < R) return run_rows<R - 1>(rows, by);
  }
  by(std::integral_constant<int, R>());
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Work in shares, which are taken by whoever is free.
struct Job {
  std::function<void(int64_t)> share;
  int64_t shares;
  std::atomic<int64_t> begun{0}, done{0};

  void take() {
    for (int64_t i; (i = begun.fetch_add(1)) < shares; done.fetch_add(1)) share(i);
  }
};

// The newest job, and XLA's threads that look out for it. Waking a thread takes as long as a small
// product, so those that have helped wait a little for the next job.
struct Crew {
  std::mutex mutex;
  std::shared_ptr<Job> newest;
  std::atomic<int64_t> jobs{0}, helpers{0};

  static Crew& of_all() {
    static Crew* crew = new Crew;  // which outlives the threads
    return *crew;
  }

  void help() {
    int64_t seen = 0;
    for (int waited = 0; waited < kPatience; ++waited) {
      if (jobs.load() == seen) {
        pause();
        continue;
      }
      std::shared_ptr<Job> job;
      {
        std::lock_guard<std::mutex> lock(mutex);
        job = newest, seen = jobs.load();
      }
      job->take();
      waited = 0;
    }
    helpers.fetch_sub(1);
  }

  void post(std::shared_ptr<Job> job) {
    std::lock_guard<std::mutex> lock(mutex);
    newest = std::move(job), jobs.fetch_add(1);
  }
};

// Shares `outputs` out to XLA's own threads, by multiples of `Step`; `size` says how much there is
// to do. A share that no other thread has begun is the caller's, so that it waits for none that is
// busy elsewhere.
template <int Step, typename Work>
void share_out(ffi::ThreadPool& pool, int64_t outputs, int64_t size, Work work) {
  const int64_t threads = std::min<int64_t>(std::max<int64_t>(pool.num_threads(), 1), size / kShare);
  if (threads <= 1) return work.run(0, outputs);
  const int64_t step = ceil_div(ceil_div(outputs, 4 * threads), Step) * Step;
  auto job = std::make_shared<Job>();
  job->share = [=](int64_t i) { work.run(i * step, std::min(outputs, (i + 1) * step)); };
  job->shares = ceil_div(outputs, step);
  Crew& crew = Crew::of_all();
  crew.post(job);
  for (int64_t most = threads - 1, now = crew.helpers.load(); now < most;)
    if (crew.helpers.compare_exchange_weak(now, now + 1)) pool.Schedule([&] { crew.help(); });
  job->take();
  for (int spins = 0; job->done.load() < job->shares; ++spins)
    spins < 1000 ? pause() : std::this_thread::yield();
}

}  // namespace cpu
