#include "kernels/cpu/layers/elementwise_kernels.h"

#include <cstring>

#include "kernels/cpu/layers/vec_loop.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {
namespace {

// Lanes past the end contain zeros: every function here maps zero to zero, so they do not affect
// amax.

// NaN stays NaN.
NIBBLE_INLINE Vec Relu(Vec x) { return Select(x < 0.0f, Vec{}, x); }

// GELU in its tanh form, ½ x (1 + tanh u) with u = √(2/π) (x + 0.044715 x³), is x σ(2u), without
// the subtraction that loses digits in the negative tail.
constexpr float kGeluScale = 2 * 0.79788456080286536f;
constexpr float kGeluCubic = 0.044715f;

NIBBLE_INLINE Vec GeluExp(Vec x, Vec square) {
  return Exp(-kGeluScale * x * (1.0f + kGeluCubic * square));
}
NIBBLE_INLINE Vec Gelu(Vec x) { return x / (1.0f + GeluExp(x, x * x)); }
NIBBLE_INLINE Vec GeluSlope(Vec x) {
  const Vec square = x * x;
  const Vec e = GeluExp(x, square);
  const Vec sigmoid = 1.0f / (1.0f + e);
  // σ' = e σ². In both tails, where e is 0 or infinite, the term is zero, even if x² overflows.
  const Vec bend = e * sigmoid * sigmoid;
  const Vec inner = kGeluScale * (1.0f + 3 * kGeluCubic * square);
  return sigmoid + Select(bend > 0.0f, x * bend * inner, Vec{});
}

template <class Lanes>
NIBBLE_INLINE Vec Biased(Vec x, const float* bias, int64_t i, Lanes lanes) {
  return bias == nullptr ? x : x + Load(bias + i, lanes);
}

NIBBLE_INLINE const float* At(const float* bias, int64_t col) {
  return bias == nullptr ? nullptr : bias + col;
}

template <class T, Activation kKind>
float Forward(const ActivationForward& request, const BlockPatch& patch) {
  const float* bias = At(request.bias, patch.col);
  const int64_t to_up = request.out.cols;
  Vec amax = {};
  for (int64_t row = patch.row; row < patch.row_end; ++row) {
    const T* in = Row<T>(request.in, row) + patch.col;
    T* out = Row<T>(request.out, row) + patch.col;
    ForVecs(patch.col_end - patch.col, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
      const Vec x = Biased(Load(in + i, lanes), bias, i, lanes);
      Vec y;
      if constexpr (kKind == Activation::kSquaredRelu) {
        const Vec positive = Relu(x);
        y = positive * positive;
      } else if constexpr (kKind == Activation::kGelu) {
        y = Gelu(x);
      } else {
        y = Silu(x) * Biased(Load(in + to_up + i, lanes), bias, to_up + i, lanes);
      }
      Store(out + i, y, lanes);
      amax = Max(Abs(y), amax);
    });
  }
  return Largest(Rounded<T>(amax));
}

template <class T, Activation kKind>
float Backward(const ActivationBackward& request, const BlockPatch& patch) {
  const float* bias = At(request.bias, patch.col);
  const int64_t to_up = request.dout.cols;
  Vec amax = {};
  for (int64_t row = patch.row; row < patch.row_end; ++row) {
    const T* in = Row<T>(request.in, row) + patch.col;
    const T* dout = Row<T>(request.dout, row) + patch.col;
    T* din = Row<T>(request.din, row) + patch.col;
    ForVecs(patch.col_end - patch.col, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
      const Vec x = Biased(Load(in + i, lanes), bias, i, lanes);
      const Vec dy = Load(dout + i, lanes);
      Vec dx;
      if constexpr (kKind == Activation::kSquaredRelu) {
        dx = 2.0f * Relu(x) * dy;
      } else if constexpr (kKind == Activation::kGelu) {
        dx = dy * GeluSlope(x);
      } else {
        const Vec up = Biased(Load(in + to_up + i, lanes), bias, to_up + i, lanes);
        const Vec sigmoid = Sigmoid(x);
        const Vec silu = x * sigmoid;
        const Vec dup = dy * silu;
        Store(din + to_up + i, dup, lanes);
        amax = Max(Abs(dup), amax);
        dx = dy * up * (sigmoid + silu * (1.0f - sigmoid));
      }
      Store(din + i, dx, lanes);
      amax = Max(Abs(dx), amax);
    });
  }
  return Largest(Rounded<T>(amax));
}

template <class T>
void AddBias(const BiasForward& request, const BlockPatch& patch) {
  const float* bias = request.bias + patch.col;
  for (int64_t row = patch.row; row < patch.row_end; ++row) {
    T* y = Row<T>(request.y, row) + patch.col;
    ForVecs(patch.col_end - patch.col, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
      Store(y + i, Load(y + i, lanes) + Load(bias + i, lanes), lanes);
    });
  }
}

template <class From, class To>
void CastPatch(const Cast& request, const BlockPatch& patch) {
  const int64_t cols = patch.col_end - patch.col;
  for (int64_t row = patch.row; row < patch.row_end; ++row) {
    const From* from = Row<From>(request.from, row) + patch.col;
    To* to = Row<To>(request.to, row) + patch.col;
    if constexpr (sizeof(From) == sizeof(To)) {
      std::memmove(to, from, cols * sizeof(To));
    } else {
      ForVecs(cols, [&](int64_t i, auto lanes)
                        NIBBLE_INLINE_LAMBDA { Store(to + i, Load(from + i, lanes), lanes); });
    }
  }
}

template <class From, class To>
void AccumulatePatch(const Accumulate& request, const BlockPatch& patch) {
  for (int64_t row = patch.row; row < patch.row_end; ++row) {
    const From* from = Row<From>(request.from, row) + patch.col;
    To* to = Row<To>(request.to, row) + patch.col;
    ForVecs(patch.col_end - patch.col, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
      Store(to + i, Load(to + i, lanes) + Load(from + i, lanes), lanes);
    });
  }
}

}  // namespace
}  // namespace NIBBLE_ISA

const ElementwiseKernels ElementwiseKernels::NIBBLE_ISA = {
    {{Forward<float, Activation::kSquaredRelu>, Forward<uint16_t, Activation::kSquaredRelu>},
     {Forward<float, Activation::kGelu>, Forward<uint16_t, Activation::kGelu>},
     {Forward<float, Activation::kSwiglu>, Forward<uint16_t, Activation::kSwiglu>}},
    {{Backward<float, Activation::kSquaredRelu>, Backward<uint16_t, Activation::kSquaredRelu>},
     {Backward<float, Activation::kGelu>, Backward<uint16_t, Activation::kGelu>},
     {Backward<float, Activation::kSwiglu>, Backward<uint16_t, Activation::kSwiglu>}},
    {AddBias<float>, AddBias<uint16_t>},
    {{CastPatch<float, float>, CastPatch<float, uint16_t>},
     {CastPatch<uint16_t, float>, CastPatch<uint16_t, uint16_t>}},
    {{AccumulatePatch<float, float>, AccumulatePatch<float, uint16_t>},
     {AccumulatePatch<uint16_t, float>, AccumulatePatch<uint16_t, uint16_t>}},
};

}  // namespace nibble::cpu
