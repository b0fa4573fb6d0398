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
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/formats/bfloat16.h"
#include "kernels/tensor/matrix.h"

namespace nibble::cpu {

// Half a unit in the last place of BF16, which has eight bits: the relative error of one rounding.
inline constexpr double kBf16Rounding = 1.0 / 256;

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
