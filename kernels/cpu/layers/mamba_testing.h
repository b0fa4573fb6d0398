// Mamba-2's scan in float64, token by token by definition, and its backward pass: the reference for
// the chunked one.
//
// Ownership: values. Thread-safety: values.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_MAMBA_TESTING_H_
#define NIBBLE_KERNELS_CPU_LAYERS_MAMBA_TESTING_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/ops/mamba_ops.h"

namespace nibble::cpu {

// The initial value of the parameters' gradients, which operations add to.
inline constexpr double kBefore = 0.5;

// [tokens] of doc_begin from where documents begin, per sequence; 0 is always one.
inline std::vector<int32_t> DocBegins(const std::vector<std::vector<int>>& begins, int64_t length) {
  std::vector<int32_t> all;
  for (const std::vector<int>& sequence : begins) {
    int32_t begin = 0;
    for (int32_t t = 0; t < length; ++t) {
      for (const int b : sequence) {
        if (b == t) begin = t;
      }
      all.push_back(begin);
    }
  }
  return all;
}

struct ScanInputs {
  ScanShape shape;
  int64_t sequences = 1, length = 1;
  std::vector<int32_t> doc_begin;  // empty: zeros
  std::vector<double> xbc, dt, dy, dt_bias, a_log, d;

  SequenceLayout layout() const {
    return {sequences, length, doc_begin.empty() ? nullptr : doc_begin.data()};
  }
  int64_t tokens() const { return sequences * length; }
};

struct ScanOutputs {
  std::vector<double> y, dxbc, ddt, ddt_bias, da_log, dd;
};

inline double Softplus64(double x) {
  return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}

// With `magnitudes`, every term of every sum counts with its magnitude: rounding errors inside the
// terms are relative to that.
inline ScanOutputs ReferenceScan(const ScanInputs& in, bool magnitudes = false) {
  const ScanShape& shape = in.shape;
  const int64_t heads = shape.heads, dim = shape.head_dim, state = shape.state;
  const int64_t cols = shape.xbc_cols(), inner = shape.d_inner();
  const auto sign = [&](double x) { return magnitudes ? std::abs(x) : x; };
  ScanOutputs out;
  out.y.assign(in.tokens() * inner, 0);
  out.dxbc.assign(in.tokens() * cols, 0);
  out.ddt.assign(in.tokens() * heads, 0);
  out.ddt_bias.assign(heads, 0);
  out.da_log.assign(heads, 0);
  out.dd.assign(heads, 0);
  const int64_t size = dim * state;
  std::vector<double> states((in.length + 1) * size), g(size);
  for (int64_t s = 0; s < in.sequences; ++s) {
    for (int64_t h = 0; h < heads; ++h) {
      const double rate = -std::exp(in.a_log[h]), d = sign(in.d[h]);
      const int64_t group = h / (heads / shape.groups);
      const int64_t b_col = inner + group * state, c_col = b_col + shape.groups * state;
      const auto fresh = [&](int64_t t) {
        return t == 0 || (!in.doc_begin.empty() && in.doc_begin[s * in.length + t] == t);
      };
      const auto delta_of = [&](int64_t row) {
        return Softplus64(in.dt[row * heads + h] + in.dt_bias[h]);
      };
      for (int64_t t = 0; t < in.length; ++t) {
        const int64_t row = s * in.length + t;
        const double* xbc = &in.xbc[row * cols];
        const double delta = delta_of(row), decay = fresh(t) ? 0 : std::exp(delta * rate);
        const double* before = &states[t * size];
        double* after = &states[(t + 1) * size];
        for (int64_t p = 0; p < dim; ++p) {
          const double x = sign(xbc[h * dim + p]);
          double y = d * x;
          for (int64_t n = 0; n < state; ++n) {
            double& here = after[p * state + n];
            here =
                (fresh(t) ? 0 : decay * before[p * state + n]) + delta * x * sign(xbc[b_col + n]);
            y += here * sign(xbc[c_col + n]);
          }
          out.y[row * inner + h * dim + p] = y;
        }
      }
      if (in.dy.empty()) continue;
      std::fill(g.begin(), g.end(), 0);
      for (int64_t t = in.length - 1; t >= 0; --t) {
        const int64_t row = s * in.length + t;
        const double* xbc = &in.xbc[row * cols];
        double* dxbc = &out.dxbc[row * cols];
        const double delta = delta_of(row), decay = fresh(t) ? 0 : std::exp(delta * rate);
        const double* before = &states[t * size];
        const double* after = &states[(t + 1) * size];
        double ddelta = 0, da = 0;
        for (int64_t p = 0; p < dim; ++p) {
          const double x = sign(xbc[h * dim + p]), dy = sign(in.dy[row * inner + h * dim + p]);
          double du = 0;
          for (int64_t n = 0; n < state; ++n) {
            double& here = g[p * state + n];
            here += dy * sign(xbc[c_col + n]);
            dxbc[c_col + n] += dy * after[p * state + n];
            dxbc[b_col + n] += delta * x * here;
            du += here * sign(xbc[b_col + n]);
            if (!fresh(t)) da += decay * here * before[p * state + n];
            here = fresh(t) ? 0 : decay * here;
          }
          ddelta += x * du;
          dxbc[h * dim + p] += delta * du + d * dy;
          out.dd[h] += dy * x;
        }
        ddelta += sign(rate) * da;
        const double draw = ddelta / (1 + std::exp(-(in.dt[row * heads + h] + in.dt_bias[h])));
        out.ddt[row * heads + h] = draw;
        out.ddt_bias[h] += draw;
        out.da_log[h] += sign(rate) * da * delta;
      }
    }
  }
  return out;
}

// Normally distributed values of the sizes that occur in training; dt around `dt_mean`. Values that
// are stored in matrices pass through `store`, which rounds them to the matrix's type.
template <class StoreAs>
ScanInputs RandomScan(const ScanShape& shape, int64_t sequences, int64_t length, uint64_t seed,
                      StoreAs&& store, double dt_mean = -2, double dt_spread = 1) {
  ScanInputs in{.shape = shape, .sequences = sequences, .length = length};
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const auto fill = [&](std::vector<double>& to, int64_t count, double mean, double spread) {
    to.resize(count);
    for (double& x : to) x = store(mean + spread * normal(random));
  };
  fill(in.xbc, in.tokens() * shape.xbc_cols(), 0, 1);
  fill(in.dt, in.tokens() * shape.heads, dt_mean, dt_spread);
  fill(in.dy, in.tokens() * shape.d_inner(), 0, 1);
  fill(in.dt_bias, shape.heads, 0, 0.5);
  fill(in.a_log, shape.heads, 0.5, 0.7);
  fill(in.d, shape.heads, 1, 0.3);
  return in;
}

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_MAMBA_TESTING_H_
