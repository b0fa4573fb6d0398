#include "kernels/cpu/layers/optimizer_kernels.h"

#include "kernels/cpu/layers/vec_loop.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {
namespace {

// Half as many lanes of FP64 as a register has of FP32.
typedef double RegD __attribute__((vector_size(kRegister)));
typedef float HalfF __attribute__((vector_size(kRegister / 2)));
constexpr int kDoubles = kRegister / 8;
constexpr int kDoubleRegs = kVec / kDoubles;

double SumOfSquaresOf(const float* x, int64_t n) {
  RegD sums[kDoubleRegs] = {};
  const auto add = [&](const float* from) NIBBLE_INLINE_LAMBDA {
#pragma GCC unroll 8
    for (int r = 0; r < kDoubleRegs; ++r) {
      HalfF narrow;
      std::memcpy(&narrow, from + r * kDoubles, sizeof(narrow));
      const RegD wide = __builtin_convertvector(narrow, RegD);
      sums[r] += wide * wide;
    }
  };
  int64_t i = 0;
  for (; i + kVec <= n; i += kVec) add(x + i);
  if (i < n) {
    float tail[kVec] = {};
    std::memcpy(tail, x + i, (n - i) * sizeof(float));
    add(tail);
  }
  double lanes[kVec];
  std::memcpy(lanes, sums, sizeof(lanes));
  for (int width = kVec / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// kernels/ops/optimizer_ops.h. x − x is 0 for a finite x, and NaN otherwise.
NIBBLE_INLINE Vec Saturate(Vec x) {
  const Vec most = Splat(kLargestGradient);
  return Select(x > most, most, Select(x < -most, -most, x)) + (x - x);
}

float AdamWOf(const AdamW& request, const AdamWRun& run, float scale, int64_t begin, int64_t end) {
  float* param = run.param + begin;
  float* m = run.m + begin;
  float* v = run.v + begin;
  const float* grad = run.grad + begin;
  uint16_t* bf16 = run.bf16 == nullptr ? nullptr : run.bf16 + begin;
  const float lr = request.lr, decay = request.lr * run.decay, eps = request.eps;
  const float beta1 = request.beta1, rest1 = 1 - request.beta1;
  const float beta2 = request.beta2, rest2 = 1 - request.beta2;
  const float correction1 = request.correction1, correction2 = request.correction2;
  Vec largest = Splat(0);
  ForVecs(end - begin, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
    const Vec g = Saturate(Load(grad + i, lanes) * scale);
    const Vec new_m = beta1 * Load(m + i, lanes) + rest1 * g;
    const Vec new_v = beta2 * Load(v + i, lanes) + rest2 * (g * g);
    const Vec old = Load(param + i, lanes);
    const Vec step = (new_m / correction1) / (Sqrt(new_v / correction2) + eps);
    const Vec updated = (old - decay * old) - lr * step;
    Store(m + i, new_m, lanes);
    Store(v + i, new_v, lanes);
    Store(param + i, updated, lanes);
    if (bf16 != nullptr) Store(bf16 + i, updated, lanes);
    // Comparisons with NaN are false.
    const Vec size = Select(updated < Splat(0), -updated, updated);
    largest = Select(size > largest, size, largest);
  });
  float lane[kVec];
  std::memcpy(lane, &largest, sizeof(lane));
  float most = 0;
  for (const float one : lane) most = one > most ? one : most;
  return most;
}

}  // namespace
}  // namespace NIBBLE_ISA

const OptimizerKernels OptimizerKernels::NIBBLE_ISA = {SumOfSquaresOf, AdamWOf};

}  // namespace nibble::cpu
