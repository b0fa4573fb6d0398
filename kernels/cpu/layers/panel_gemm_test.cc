#include "kernels/cpu/layers/panel_gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/layers/panel_layout.h"
#include "kernels/formats/bfloat16.h"

namespace nibble::cpu {
namespace {

template <class T>
double Value(T x) {
  if constexpr (sizeof(T) == 2) {
    return DecodeBf16(x);
  } else {
    return x;
  }
}
template <class T>
T Make(float x) {
  if constexpr (sizeof(T) == 2) {
    return EncodeBf16(x);
  } else {
    return x;
  }
}

template <class T>
struct Aligned {
  explicit Aligned(int64_t count)
      : data(static_cast<T*>(std::aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64))) {}
  ~Aligned() { std::free(data); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  T* const data;
};

// Rows × cols of random values in memory that is otherwise NaN.
template <class T>
struct Matrix {
  Matrix(int rows, int cols, bool transposed, uint32_t seed)
      : rows(rows), cols(cols), stride((transposed ? rows : cols) + 5), transposed(transposed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    data.assign(stride * (transposed ? cols : rows), Make<T>(std::nanf("")));
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < cols; ++j) at(i, j) = Make<T>(normal(random));
    }
  }
  T& at(int i, int j) { return data[transposed ? j * stride + i : i * stride + j]; }
  double value(int i, int j) const {
    return Value(data[transposed ? j * stride + i : i * stride + j]);
  }
  PanelSource<T> source() const { return {data.data(), stride, transposed}; }

  int rows, cols;
  int64_t stride;
  bool transposed;
  std::vector<T> data;
};

template <class T>
std::vector<float> Product(const PanelGemm<T>& gemm, const Matrix<T>& a, const Matrix<T>& b,
                           std::vector<float> c, int64_t c_stride, bool accumulate) {
  const int m = a.rows, n = b.cols, k = a.cols;
  Aligned<T> packed_a(PanelElements(m, k)), packed_b(PanelElements(n, k));
  gemm.pack_a(a.source(), m, k, packed_a.data);
  gemm.pack_b(b.source(), k, n, packed_b.data);
  PanelThreadScope scope;
  gemm.multiply(packed_a.data, packed_b.data, m, n, k, c.data(), c_stride, accumulate);
  return c;
}

struct Shape {
  int m, n, k;
};
const Shape kShapes[] = {{1, 1, 1},   {2, 3, 5},    {16, 16, 32},  {17, 33, 31},  {31, 15, 64},
                         {32, 32, 1}, {64, 64, 64}, {80, 128, 80}, {33, 17, 300}, {100, 49, 129}};

// FP32 sums of exact products (BF16) or rounded ones (FP32), in any order, pairwise or not: at most
// k + 1 roundings of 2^−24 touch a term.
template <class T>
void ExpectRight(PanelIsa isa) {
  const PanelGemm<T>& gemm = *PanelGemmFor<T>(isa);
  for (const auto& [m, n, k] : kShapes) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        for (const bool accumulate : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << PanelIsaName(isa) << " " << m << " x " << n << " x " << k
                       << (ta ? ", a transposed" : "") << (tb ? ", b transposed" : "")
                       << (accumulate ? ", on top" : ""));
          const Matrix<T> a(m, k, ta, 1), b(k, n, tb, 2);
          const int64_t stride = n + 3;
          const std::vector<float> before(m * stride, 0.75f);
          const std::vector<float> c = Product(gemm, a, b, before, stride, accumulate);
          for (int i = 0; i < m; ++i) {
            for (int j = 0; j < n; ++j) {
              double sum = accumulate ? 0.75 : 0, size = sum;
              for (int l = 0; l < k; ++l) {
                sum += a.value(i, l) * b.value(l, j);
                size += std::fabs(a.value(i, l) * b.value(l, j));
              }
              ASSERT_NEAR(c[i * stride + j], sum, (k + 2) * 0x1p-24 * size) << i << ", " << j;
            }
            for (int j = n; j < stride; ++j) ASSERT_EQ(c[i * stride + j], 0.75f) << i << ", " << j;
          }
        }
      }
    }
  }
}

// Depth [32, 96) of `a`, 100 deep, times depth [64, 128) of `b`, 130 deep; then to the end of both.
template <class T>
void ExpectSlicesRight(PanelIsa isa) {
  const PanelGemm<T>& gemm = *PanelGemmFor<T>(isa);
  const int m = 35, n = 50, a_depth = 100, b_depth = 132;
  const Matrix<T> a(m, a_depth, false, 9), b(b_depth, n, false, 10);
  Aligned<T> packed_a(PanelElements(m, a_depth)), packed_b(PanelElements(n, b_depth));
  gemm.pack_a(a.source(), m, a_depth, packed_a.data);
  gemm.pack_b(b.source(), b_depth, n, packed_b.data);
  std::vector<float> c(m * n);
  PanelThreadScope scope;
  for (const int k : {64, 68}) {
    gemm.multiply_slices(packed_a.data + 32 * 16, a_depth, packed_b.data + 64 * 16, b_depth, m, n,
                         k, c.data(), n, false);
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) {
        double sum = 0, size = 0;
        for (int l = 0; l < k; ++l) {
          sum += a.value(i, 32 + l) * b.value(64 + l, j);
          size += std::fabs(a.value(i, 32 + l) * b.value(64 + l, j));
        }
        ASSERT_NEAR(c[i * n + j], sum, (k + 2) * 0x1p-24 * size)
            << PanelIsaName(isa) << " " << i << ", " << j << " of depth " << k;
      }
    }
  }
}

class PanelGemmTest : public testing::TestWithParam<PanelIsa> {};

TEST_P(PanelGemmTest, Bf16MatchesFloat64) { ExpectRight<uint16_t>(GetParam()); }
TEST_P(PanelGemmTest, Fp32MatchesFloat64) { ExpectRight<float>(GetParam()); }

TEST_P(PanelGemmTest, SlicesOfDeeperOperandsAgreeWithFloat64) {
  ExpectSlicesRight<uint16_t>(GetParam());
  ExpectSlicesRight<float>(GetParam());
}

template <class T>
void ExpectLayout(PanelIsa isa) {
  const PanelGemm<T>& gemm = *PanelGemmFor<T>(isa);
  for (const auto& [lines, unused, depth] : kShapes) {
    for (const bool transposed : {false, true}) {
      SCOPED_TRACE(testing::Message() << PanelIsaName(isa) << " " << lines << " lines x " << depth
                                      << (transposed ? ", transposed" : ""));
      const Matrix<T> a(lines, depth, transposed, 3), b(depth, lines, transposed, 4);
      const int64_t size = PanelElements(lines, depth);
      Aligned<T> packed_a(size), packed_b(size);
      gemm.pack_a(a.source(), lines, depth, packed_a.data);
      gemm.pack_b(b.source(), depth, lines, packed_b.data);
      for (int64_t k = 0; k < PaddedPanelDepth(depth); ++k) {
        for (int64_t line = 0; line < size / PaddedPanelDepth(depth); ++line) {
          const bool inside = k < depth && line < lines;
          ASSERT_EQ(Value(packed_a.data[PanelOffsetA<T>(line, k, depth)]),
                    inside ? a.value(line, k) : 0)
              << line << ", " << k;
          ASSERT_EQ(Value(packed_b.data[PanelOffsetB<T>(line, k, depth)]),
                    inside ? b.value(k, line) : 0)
              << line << ", " << k;
        }
      }
    }
  }
}

TEST_P(PanelGemmTest, PackingFollowsTheLayoutAndPadsWithZeros) {
  ExpectLayout<uint16_t>(GetParam());
  ExpectLayout<float>(GetParam());
}

TEST_P(PanelGemmTest, NanStaysInItsRowAndColumn) {
  const PanelGemm<uint16_t>& gemm = *PanelGemmFor<uint16_t>(GetParam());
  Matrix<uint16_t> a(40, 50, false, 5), b(50, 40, false, 6);
  a.at(20, 49) = EncodeBf16(std::nanf(""));
  b.at(0, 33) = EncodeBf16(std::numeric_limits<float>::infinity());
  const std::vector<float> c = Product(gemm, a, b, std::vector<float>(40 * 40), 40, false);
  for (int i = 0; i < 40; ++i) {
    for (int j = 0; j < 40; ++j) {
      EXPECT_EQ(std::isnan(c[i * 40 + j]), i == 20) << i << ", " << j;
      EXPECT_EQ(std::isinf(c[i * 40 + j]), i != 20 && j == 33) << i << ", " << j;
    }
  }
}

TEST_P(PanelGemmTest, ThreadsWithTheirOwnScopesGetTheSameBits) {
  const PanelGemm<uint16_t>& gemm = *PanelGemmFor<uint16_t>(GetParam());
  const Matrix<uint16_t> a(70, 90, true, 7), b(90, 50, true, 8);
  const std::vector<float> zero(70 * 50);
  PanelThreadScope outer;
  const std::vector<float> here = Product(gemm, a, b, zero, 50, false);
  std::vector<float> there;
  std::thread([&] { there = Product(gemm, a, b, zero, 50, false); }).join();
  // The inner scope ended; the outer one is still open.
  const std::vector<float> again = Product(gemm, a, b, zero, 50, false);
  EXPECT_EQ(here, there);
  EXPECT_EQ(here, again);
}

INSTANTIATE_TEST_SUITE_P(Isas, PanelGemmTest, testing::ValuesIn(SupportedPanelIsas()),
                         [](const testing::TestParamInfo<PanelIsa>& info) {
                           std::string name(PanelIsaName(info.param));
                           std::erase(name, '-');
                           return name;
                         });

TEST(PanelIsaTest, BestIsTheLastSupported) {
  const std::vector<PanelIsa>& isas = SupportedPanelIsas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), PanelIsa::kBaseline);
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
  EXPECT_EQ(BestPanelIsa(), isas.back());
  EXPECT_NE(PanelGemmFor<uint16_t>(BestPanelIsa()), nullptr);
  EXPECT_NE(PanelGemmFor<float>(BestPanelIsa()), nullptr);
}

TEST(PanelIsaTest, UnsupportedSetsHaveNoKernels) {
  for (const PanelIsa isa : {PanelIsa::kBaseline, PanelIsa::kAvx2, PanelIsa::kAvx512,
                             PanelIsa::kAvx512Bf16, PanelIsa::kAmx}) {
    const bool supported = testing::Value(isa, testing::AnyOfArray(SupportedPanelIsas()));
    EXPECT_EQ(PanelGemmFor<uint16_t>(isa) != nullptr, supported) << PanelIsaName(isa);
    EXPECT_EQ(PanelGemmFor<float>(isa) != nullptr, supported) << PanelIsaName(isa);
  }
}

}  // namespace
}  // namespace nibble::cpu
