#include "kernels/cpu/layers/norm_kernels.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/layers/vec_loop.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {
namespace {

// In float64 once per row; the header describes values that are not finite.
NIBBLE_INLINE float ReciprocalDeviation(float sum_of_squares, int64_t n, float eps) {
  const double mean = static_cast<double>(sum_of_squares) / static_cast<double>(n);
  if (!(mean <= std::numeric_limits<float>::max())) return std::numeric_limits<float>::quiet_NaN();
  return static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(eps)));
}

NIBBLE_INLINE float MeanOf(float sum, int64_t n) {
  return static_cast<float>(static_cast<double>(sum) / static_cast<double>(n));
}

template <class T>
float Forward(const AddNormForward& request, int64_t begin, int64_t end) {
  const int64_t d = request.x.cols;
  const NormParams& norm = request.norm;
  Vec amax = {};
  for (int64_t row = begin; row < end; ++row) {
    const T* x = Row<T>(request.x, row);
    Vec squares = {}, total = {};
    if (request.y.data != nullptr) {
      const T* y = Row<T>(request.y, row);
      T* sum = Row<T>(request.sum, row);
      ForVecs(d, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
        const Vec v = Rounded<T>(Load(x + i, lanes) + Load(y + i, lanes));
        Store(sum + i, v, lanes);
        squares += v * v;
        total += v;
      });
      x = sum;
    } else {
      ForVecs(d, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
        const Vec v = Load(x + i, lanes);
        squares += v * v;
        total += v;
      });
    }
    if (request.out.data == nullptr) continue;
    // From here on the row is in the first-level cache.
    float mean = 0;
    if (norm.centered) {
      mean = MeanOf(Sum(total), d);
      squares = Vec{};
      ForVecs(d, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
        const Vec v = Present(Load(x + i, lanes) - mean, lanes);
        squares += v * v;
      });
      request.mean[row] = mean;
    }
    const float rstd = ReciprocalDeviation(Sum(squares), d, norm.eps);
    request.rstd[row] = rstd;
    T* out = Row<T>(request.out, row);
    ForVecs(d, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
      Vec v = (Load(x + i, lanes) - mean) * rstd * Load(norm.weight + i, lanes);
      if (norm.centered) v += Load(norm.bias + i, lanes);
      Store(out + i, v, lanes);
      amax = Max(Abs(v), amax);
    });
  }
  // Rounding preserves order: the largest rounded value is the largest value, rounded.
  return Largest(Rounded<T>(amax));
}

// dx = residual + rstd (g − mean(g) − x̂ mean(g x̂)) with g = dout ⊙ weight; an RMSNorm has no
// mean(g).
template <class T>
void NormBackwardRows(const NormBackward& request, int64_t begin, int64_t end, float* dweight,
                      float* dbias) {
  const int64_t d = request.x.cols;
  const NormParams& norm = request.norm;
  for (int64_t i = 0; i < d; ++i) dweight[i] = 0;
  if (norm.centered) {
    for (int64_t i = 0; i < d; ++i) dbias[i] = 0;
  }
  for (int64_t row = begin; row < end; ++row) {
    const T* x = Row<T>(request.x, row);
    const T* dout = Row<T>(request.dout, row);
    const float rstd = request.rstd[row];
    const float mean = norm.centered ? request.mean[row] : 0.0f;
    Vec sum_g = {}, sum_gx = {};
    ForVecs(d, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
      const Vec normed = (Load(x + i, lanes) - mean) * rstd;
      const Vec dy = Load(dout + i, lanes);
      const Vec g = dy * Load(norm.weight + i, lanes);
      const Vec dy_normed = dy * normed;
      Store(dweight + i, Load(dweight + i, lanes) + dy_normed, lanes);
      if (norm.centered) {
        Store(dbias + i, Load(dbias + i, lanes) + dy, lanes);
        sum_g += g;
      }
      sum_gx += g * normed;
    });
    const float mean_g = norm.centered ? MeanOf(Sum(sum_g), d) : 0.0f;
    const float mean_gx = MeanOf(Sum(sum_gx), d);
    const T* residual = request.residual.data == nullptr ? nullptr : Row<T>(request.residual, row);
    T* dx = Row<T>(request.dx, row);
    ForVecs(d, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
      const Vec normed = (Load(x + i, lanes) - mean) * rstd;
      const Vec g = Load(dout + i, lanes) * Load(norm.weight + i, lanes);
      Vec v = rstd * (g - mean_g - normed * mean_gx);
      if (residual != nullptr) v += Load(residual + i, lanes);
      Store(dx + i, v, lanes);
    });
  }
}

template <class T>
float GatedForward(const GatedNormForward& request, int64_t begin, int64_t end, float* scratch) {
  const int64_t width = request.y.cols / request.groups;
  Vec amax = {};
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t group = 0; group < request.groups; ++group) {
      const int64_t first = group * width;
      const T* y = Row<T>(request.y, row) + first;
      const T* z = Row<T>(request.z, row) + first;
      const float* weight = request.weight + first;
      Vec squares = {};
      ForVecs(width, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
        const Vec gated = Load(y + i, lanes) * Silu(Load(z + i, lanes));
        Store(scratch + i, gated, lanes);
        squares += gated * gated;
      });
      const float rstd = ReciprocalDeviation(Sum(squares), width, request.eps);
      request.rstd[row * request.groups + group] = rstd;
      T* out = Row<T>(request.out, row) + first;
      ForVecs(width, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
        const Vec v = Load(scratch + i, lanes) * rstd * Load(weight + i, lanes);
        Store(out + i, v, lanes);
        amax = Max(Abs(v), amax);
      });
    }
  }
  return Largest(Rounded<T>(amax));
}

// With h = y SiLU(z) and ĥ = h rstd: dh = rstd (g − ĥ mean(g ĥ)), dy = dh SiLU(z), dz = dh y SiLU'.
template <class T>
void GatedBackward(const GatedNormBackward& request, int64_t begin, int64_t end, float* dweight,
                   float* scratch) {
  const int64_t width = request.y.cols / request.groups;
  float* sigmoids = scratch;
  for (int64_t i = 0; i < request.y.cols; ++i) dweight[i] = 0;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t group = 0; group < request.groups; ++group) {
      const int64_t first = group * width;
      const T* y = Row<T>(request.y, row) + first;
      const T* z = Row<T>(request.z, row) + first;
      const T* dout = Row<T>(request.dout, row) + first;
      const float* weight = request.weight + first;
      float* group_dweight = dweight + first;
      const float rstd = request.rstd[row * request.groups + group];
      Vec sum_gh = {};
      ForVecs(width, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
        const Vec gate = Load(z + i, lanes);
        const Vec sigmoid = Sigmoid(gate);
        Store(sigmoids + i, sigmoid, lanes);
        const Vec normed = Load(y + i, lanes) * (gate * sigmoid) * rstd;
        const Vec dy_normed = Load(dout + i, lanes) * normed;
        Store(group_dweight + i, Load(group_dweight + i, lanes) + dy_normed, lanes);
        sum_gh += dy_normed * Load(weight + i, lanes);
      });
      const float mean_gh = MeanOf(Sum(sum_gh), width);
      T* dy = Row<T>(request.dy, row) + first;
      T* dz = Row<T>(request.dz, row) + first;
      ForVecs(width, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
        const Vec sigmoid = Load(sigmoids + i, lanes);
        const Vec gate = Load(z + i, lanes), in = Load(y + i, lanes);
        const Vec silu = gate * sigmoid;
        const Vec g = Load(dout + i, lanes) * Load(weight + i, lanes);
        const Vec dh = rstd * (g - in * silu * rstd * mean_gh);
        Store(dy + i, dh * silu, lanes);
        Store(dz + i, dh * in * (sigmoid + silu * (1.0f - sigmoid)), lanes);
      });
    }
  }
}

}  // namespace
}  // namespace NIBBLE_ISA

const NormKernels NormKernels::NIBBLE_ISA = {
    {Forward<float>, Forward<uint16_t>},
    {NormBackwardRows<float>, NormBackwardRows<uint16_t>},
    {GatedForward<float>, GatedForward<uint16_t>},
    {GatedBackward<float>, GatedBackward<uint16_t>},
};

}  // namespace nibble::cpu
