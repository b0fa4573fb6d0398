// Shared by the tests of layer operations: matrices of either type with gaps between their rows,
// and comparisons with a reference in float64.
//
// Ownership: a TestMatrix owns its elements. Thread-safety: values.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_LAYER_TESTING_H_
#define NIBBLE_KERNELS_CPU_LAYERS_LAYER_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cpu/layers/layer_isa.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/tensor/matrix.h"

namespace nibble::cpu {

// Half a unit in the last place of BF16, which has eight bits: the relative error of one rounding.
inline constexpr double kBf16Rounding = 1.0 / 256;
inline constexpr DType kTypes[] = {DType::kF32, DType::kBf16};
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

inline double Silu(double x) { return x / (1 + std::exp(-x)); }

class TestMatrix {
 public:
  // Rows are `gap` elements further apart than wide; the gaps contain a value that must not change.
  TestMatrix(DType dtype, int64_t rows, int64_t cols, int64_t gap = 0)
      : dtype_(dtype), rows_(rows), cols_(cols), stride_(cols + gap) {
    if (dtype == DType::kF32) {
      f32_.assign(rows * stride_, kGap);
    } else {
      bf16_.assign(rows * stride_, EncodeBf16(kGap));
    }
  }
  // Normally distributed.
  static TestMatrix Random(DType dtype, int64_t rows, int64_t cols, int64_t gap, uint64_t seed,
                           double scale = 1) {
    TestMatrix m(dtype, rows, cols, gap);
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal(0, scale);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) m.Set(i, j, normal(random));
    }
    return m;
  }

  DType dtype() const { return dtype_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

  double operator()(int64_t i, int64_t j) const {
    const int64_t at = i * stride_ + j;
    return dtype_ == DType::kF32 ? f32_[at] : DecodeBf16(bf16_[at]);
  }
  void Set(int64_t i, int64_t j, double value) {
    const int64_t at = i * stride_ + j;
    if (dtype_ == DType::kF32) {
      f32_[at] = static_cast<float>(value);
    } else {
      bf16_[at] = EncodeBf16(static_cast<float>(value));
    }
  }

  ConstMatrix in() const { return {data(), dtype_, rows_, cols_, stride_}; }
  MutableMatrix out() { return {const_cast<void*>(data()), dtype_, rows_, cols_, stride_}; }

  bool GapsAreUntouched() const {
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = cols_; j < stride_; ++j) {
        if ((*this)(i, j) != kGap) return false;
      }
    }
    return true;
  }
  // Bit for bit, gaps included.
  friend bool operator==(const TestMatrix& a, const TestMatrix& b) {
    const auto same = [](const auto& x, const auto& y) {
      return x.size() == y.size() &&
             (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(x[0])) == 0);
    };
    return same(a.f32_, b.f32_) && same(a.bf16_, b.bf16_);
  }

 private:
  static constexpr float kGap = -77;

  const void* data() const {
    return dtype_ == DType::kF32 ? static_cast<const void*>(f32_.data()) : bf16_.data();
  }

  DType dtype_;
  int64_t rows_, cols_, stride_;
  std::vector<float> f32_;
  std::vector<uint16_t> bf16_;
};

inline std::vector<float> RandomFloats(int64_t n, uint64_t seed, double scale = 1,
                                       double mean = 0) {
  std::vector<float> values(n);
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(mean, scale);
  for (float& value : values) value = static_cast<float>(normal(random));
  return values;
}

// In [low, high).
inline std::vector<float> UniformFloats(size_t n, uint32_t seed, float low = -1, float high = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(n);
  for (float& v : values) v = uniform(random);
  return values;
}
// Rounded to BF16.
inline std::vector<float> UniformBf16(size_t n, uint32_t seed, float low = -1, float high = 1) {
  std::vector<float> values = UniformFloats(n, seed, low, high);
  for (float& v : values) v = DecodeBf16(EncodeBf16(v));
  return values;
}
inline std::vector<uint16_t> Bf16Codes(const std::vector<float>& values) {
  std::vector<uint16_t> codes;
  for (const float v : values) codes.push_back(EncodeBf16(v));
  return codes;
}

// |actual − expected| <= relative · |expected| + absolute, for the worst element; NaN is only near
// NaN.
inline testing::AssertionResult IsNear(double actual, double expected, double relative,
                                       double absolute) {
  if (std::isnan(expected) != std::isnan(actual)) {
    return testing::AssertionFailure() << actual << " instead of " << expected;
  }
  if (std::isnan(expected) || actual == expected) return testing::AssertionSuccess();
  const double error = std::abs(actual - expected);
  if (error <= relative * std::abs(expected) + absolute) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << actual << " instead of " << expected << ", off by " << error;
}
// expected(i, j) in float64. A result in BF16 may be off by one rounding more.
template <class Expected>
testing::AssertionResult IsNear(const TestMatrix& actual, Expected&& expected, double relative,
                                double absolute) {
  if (actual.dtype() == DType::kBf16) relative += kBf16Rounding;
  for (int64_t i = 0; i < actual.rows(); ++i) {
    for (int64_t j = 0; j < actual.cols(); ++j) {
      testing::AssertionResult near = IsNear(actual(i, j), expected(i, j), relative, absolute);
      if (!near) return near << " at (" << i << ", " << j << ")";
    }
  }
  if (!actual.GapsAreUntouched()) {
    return testing::AssertionFailure() << "something was written between the rows";
  }
  return testing::AssertionSuccess();
}
template <class Expected>
testing::AssertionResult IsNear(const std::vector<float>& actual, Expected&& expected,
                                double relative, double absolute) {
  for (size_t i = 0; i < actual.size(); ++i) {
    testing::AssertionResult near = IsNear(actual[i], expected(i), relative, absolute);
    if (!near) return near << " at " << i;
  }
  return testing::AssertionSuccess();
}

// The largest magnitude, as operations report it.
inline float LargestMagnitude(const TestMatrix& m) {
  double largest = 0;
  for (int64_t i = 0; i < m.rows(); ++i) {
    for (int64_t j = 0; j < m.cols(); ++j) {
      if (std::abs(m(i, j)) > largest) largest = std::abs(m(i, j));
    }
  }
  return static_cast<float>(largest);
}

// Everything that the operations write, in one run.
struct Outcome {
  std::vector<TestMatrix> matrices;
  std::vector<float> floats;
  void Keep(const std::vector<float>& v) { floats.insert(floats.end(), v.begin(), v.end()); }
};

inline void ExpectSameWithThreads(Outcome (*run)(int threads, LayerIsa isa), LayerIsa isa) {
  const Outcome one = run(1, isa);
  for (const int threads : {2, 3}) {
    const Outcome more = run(threads, isa);
    EXPECT_TRUE(one.matrices == more.matrices) << threads;
    EXPECT_EQ(one.floats, more.floats) << threads;
  }
}

struct ErrorBound {
  double relative, absolute;
};
// `isa` agrees with the best instruction set. In BF16 both results may be off by one rounding.
inline void ExpectNearBest(Outcome (*run)(int threads, LayerIsa isa), LayerIsa isa,
                           ErrorBound matrices, ErrorBound floats) {
  const Outcome best = run(1, BestLayerIsa());
  const Outcome own = run(1, isa);
  for (size_t i = 0; i < best.matrices.size(); ++i) {
    const TestMatrix& m = best.matrices[i];
    EXPECT_TRUE(IsNear(
        own.matrices[i], [&](int64_t r, int64_t c) { return m(r, c); },
        m.dtype() == DType::kBf16 ? kBf16Rounding : matrices.relative, matrices.absolute));
  }
  EXPECT_TRUE(IsNear(
      own.floats, [&](size_t i) { return best.floats[i]; }, floats.relative, floats.absolute));
}

// The message of a request that is refused for its arguments.
inline std::string Refusal(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

// [f(x + h e) − f(x − h e)] / 2h for the element x(i, j) of a float64 function of the whole.
template <class Function>
double CentralDifference(std::vector<double>& x, size_t at, double h, Function&& function) {
  const double before = x[at];
  x[at] = before + h;
  const double above = function();
  x[at] = before - h;
  const double below = function();
  x[at] = before;
  return (above - below) / (2 * h);
}

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_LAYER_TESTING_H_
