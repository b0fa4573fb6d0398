// The convolution against its definition in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "common/thread_pool.h"
#include "kernels/cpu/layers/cpu_mamba_ops.h"
#include "kernels/cpu/layers/layer_testing.h"
#include "kernels/cpu/layers/mamba_testing.h"

namespace nibble::cpu {
namespace {

struct ConvInputs {
  SequenceLayout layout() const {
    return {sequences, length, doc_begin.empty() ? nullptr : doc_begin.data()};
  }
  int64_t tokens() const { return sequences * length; }
  int64_t channels() const { return in.cols(); }
  // The first row that row r sees.
  int64_t First(int64_t r) const { return r - r % length + (doc_begin.empty() ? 0 : doc_begin[r]); }

  int64_t sequences, length;
  int width;
  std::vector<int32_t> doc_begin;
  TestMatrix in, dout;
  std::vector<float> weight, bias;
};

ConvInputs RandomConv(DType dtype, int64_t sequences, int64_t length, int64_t channels, int width,
                      int64_t gap = 3) {
  const int64_t tokens = sequences * length;
  return {sequences,
          length,
          width,
          {},
          TestMatrix::Random(dtype, tokens, channels, gap, 1, 1.5),
          TestMatrix::Random(dtype, tokens, channels, gap, 2),
          RandomFloats(channels * width, 3, 0.5),
          RandomFloats(channels, 4, 0.5)};
}

struct Outputs {
  TestMatrix out, din;
  std::vector<float> dweight, dbias;
  friend bool operator==(const Outputs& a, const Outputs& b) = default;
};

Outputs RunConv(MambaOps& ops, const ConvInputs& in) {
  Outputs result = {TestMatrix(in.in.dtype(), in.tokens(), in.channels(), 2),
                    TestMatrix(in.in.dtype(), in.tokens(), in.channels(), 1),
                    std::vector<float>(in.weight.size(), kBefore),
                    std::vector<float>(in.bias.size(), kBefore)};
  EXPECT_EQ(ops.Forward(ConvForward{in.layout(), in.width, in.weight.data(), in.bias.data(),
                                    in.in.in(), result.out.out()}),
            absl::OkStatus());
  EXPECT_EQ(ops.Backward(ConvBackward{in.layout(), in.width, in.weight.data(), in.bias.data(),
                                      in.in.in(), in.dout.in(), result.din.out(),
                                      result.dweight.data(), result.dbias.data()}),
            absl::OkStatus());
  return result;
}

double Sum(const ConvInputs& in, int64_t r, int64_t c) {
  double sum = in.bias[c];
  for (int w = 0; w < in.width; ++w) {
    const int64_t from = r - (in.width - 1) + w;
    if (from >= in.First(r)) sum += in.weight[c * in.width + w] * in.in(from, c);
  }
  return sum;
}
double SumGradient(const ConvInputs& in, int64_t r, int64_t c) {
  const double x = Sum(in, r, c), s = 1 / (1 + std::exp(-x));
  return in.dout(r, c) * s * (1 + x * (1 - s));
}

void ExpectGood(const ConvInputs& in, const Outputs& actual) {
  // Sums of a few terms, all of size about one.
  EXPECT_TRUE(IsNear(
      actual.out, [&](int64_t r, int64_t c) { return Silu(Sum(in, r, c)); }, 1e-6, 2e-6));
  std::vector<double> gradient(in.tokens() * in.channels());
  for (int64_t r = 0; r < in.tokens(); ++r) {
    for (int64_t c = 0; c < in.channels(); ++c) {
      gradient[r * in.channels() + c] = SumGradient(in, r, c);
    }
  }
  const auto g = [&](int64_t r, int64_t c) { return gradient[r * in.channels() + c]; };
  EXPECT_TRUE(IsNear(
      actual.din,
      [&](int64_t r, int64_t c) {
        double sum = 0;
        for (int w = 0; w < in.width; ++w) {
          const int64_t later = r + (in.width - 1) - w;
          if (later < in.tokens() && in.First(later) <= r) {
            sum += in.weight[c * in.width + w] * g(later, c);
          }
        }
        return sum;
      },
      1e-6, 5e-6));
  // Sums over tokens in FP32: relative to the terms' magnitudes.
  const auto is_sum = [&](float actual, auto&& term) {
    double sum = kBefore, magnitudes = kBefore;
    for (int64_t r = 0; r < in.tokens(); ++r) {
      sum += term(r);
      magnitudes += std::abs(term(r));
    }
    return IsNear(actual, sum, 0, 1e-6 * magnitudes);
  };
  for (int64_t c = 0; c < in.channels(); ++c) {
    for (int w = 0; w < in.width; ++w) {
      EXPECT_TRUE(is_sum(actual.dweight[c * in.width + w],
                         [&](int64_t r) {
                           const int64_t from = r - (in.width - 1) + w;
                           return from >= in.First(r) ? g(r, c) * in.in(from, c) : 0;
                         }))
          << c << ", " << w;
    }
    EXPECT_TRUE(is_sum(actual.dbias[c], [&](int64_t r) { return g(r, c); })) << c;
  }
}

class ConvTest : public testing::TestWithParam<PanelIsa> {
 protected:
  ThreadPool pool_{2};
  CpuMambaOps ops_{pool_, GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Sets, ConvTest, testing::ValuesIn(SupportedPanelIsas()),
                         [](const auto& info) {
                           std::string name(PanelIsaName(info.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(ConvTest, MatchesItsDefinition) {
  for (const DType dtype : kTypes) {
    const auto check = [&](int64_t sequences, int64_t length, int64_t channels, int width) {
      SCOPED_TRACE(testing::Message() << sequences << " × " << length << " tokens, " << channels
                                      << " channels, width " << width);
      const ConvInputs in = RandomConv(dtype, sequences, length, channels, width);
      ExpectGood(in, RunConv(ops_, in));
    };
    for (const int width : {1, 2, 3, 4, 5, 16}) check(2, 21, 19, width);
    check(1, 1, 1, 4);
    check(5, 2, 16, 4);
    check(3, 40, 64, 4);
    check(1, 300, 37, 4);   // more than one block of rows
    check(2, 290, 530, 4);  // and of channels
    check(2, 270, 20, 7);
  }
}

TEST_P(ConvTest, DocumentsMayBeginAnywhere) {
  for (const DType dtype : kTypes) {
    for (const int width : {4, 6}) {
      ConvInputs in = RandomConv(dtype, 2, 300, 18, width);
      in.doc_begin = DocBegins({{1, 2, 9, 60, 255, 256, 258, 299}, {8, 16, 20, 100}}, in.length);
      ExpectGood(in, RunConv(ops_, in));
    }
  }
}

TEST_P(ConvTest, DocumentBoundaryAtEveryPlace) {
  for (int begin = 1; begin < 30; ++begin) {
    ConvInputs in = RandomConv(DType::kF32, 1, 30, 5, 4);
    in.doc_begin = DocBegins({{begin}}, in.length);
    ExpectGood(in, RunConv(ops_, in));
  }
}

TEST_P(ConvTest, GradientsMatchDifferencesOfTheDefinition) {
  constexpr double kStep = 1.0 / 256;  // exact in the inputs' FP32
  ConvInputs in = RandomConv(DType::kF32, 2, 13, 3, 4);
  in.doc_begin = DocBegins({{6}, {}}, in.length);
  const Outputs actual = RunConv(ops_, in);
  const auto loss = [&] {
    double sum = 0;
    for (int64_t r = 0; r < in.tokens(); ++r) {
      for (int64_t c = 0; c < in.channels(); ++c) sum += Silu(Sum(in, r, c)) * in.dout(r, c);
    }
    return sum;
  };
  // The difference's own error is of the order of kStep².
  constexpr double kRelative = 1e-3, kAbsolute = 1e-4;
  for (int64_t r = 0; r < in.tokens(); ++r) {
    for (int64_t c = 0; c < in.channels(); ++c) {
      const double before = in.in(r, c);
      in.in.Set(r, c, before + kStep);
      const double above = loss(), x_above = in.in(r, c);
      in.in.Set(r, c, before - kStep);
      const double slope = (above - loss()) / (x_above - in.in(r, c));
      in.in.Set(r, c, before);
      EXPECT_TRUE(IsNear(actual.din(r, c), slope, kRelative, kAbsolute)) << r << ", " << c;
    }
  }
  const auto check = [&](std::vector<float>& x, const std::vector<float>& dx) {
    for (size_t i = 0; i < x.size(); ++i) {
      const float before = x[i];
      x[i] = before + static_cast<float>(kStep);
      const double above = loss(), x_above = x[i];
      x[i] = before - static_cast<float>(kStep);
      const double slope = (above - loss()) / (x_above - x[i]);
      x[i] = before;
      EXPECT_TRUE(IsNear(dx[i] - kBefore, slope, kRelative, kAbsolute)) << i;
    }
  };
  check(in.weight, actual.dweight);
  check(in.bias, actual.dbias);
}

TEST_P(ConvTest, NanReachesOnlyWhatDependsOnIt) {
  for (const DType dtype : kTypes) {
    ConvInputs in = RandomConv(dtype, 1, 40, 20, 4);
    in.in.Set(17, 5, kNan);
    const Outputs actual = RunConv(ops_, in);
    for (int64_t r = 0; r < 40; ++r) {
      for (int64_t c = 0; c < 20; ++c) {
        ASSERT_EQ(std::isnan(actual.out(r, c)), c == 5 && r >= 17 && r <= 20) << r << ", " << c;
        ASSERT_EQ(std::isnan(actual.din(r, c)), c == 5 && r >= 14 && r <= 20) << r << ", " << c;
      }
    }
    for (int64_t c = 0; c < 20; ++c) ASSERT_EQ(std::isnan(actual.dbias[c]), c == 5) << c;
    EXPECT_TRUE(std::isnan(actual.dweight[5 * 4]) && std::isnan(actual.dweight[5 * 4 + 3]));
  }
}

TEST_P(ConvTest, LargeSumsDoNotOverflow) {
  for (const DType dtype : kTypes) {
    ConvInputs in = RandomConv(dtype, 1, 8, 16, 4);
    for (int64_t c = 0; c < 16; ++c) {
      for (int64_t r = 0; r < 8; ++r) in.in.Set(r, c, c < 8 ? 1e30 : -1e30);
    }
    std::fill(in.weight.begin(), in.weight.end(), 1.0f);
    ExpectGood(in, RunConv(ops_, in));
  }
}

TEST(ConvThreadsTest, ResultsDoNotDependOnThreads) {
  for (const DType dtype : kTypes) {
    ConvInputs in = RandomConv(dtype, 3, 400, 700, 4);
    in.doc_begin = DocBegins({{100}, {}, {255, 256}}, in.length);
    ThreadPool one(1), two(2), three(3);
    CpuMambaOps on_one(one), on_two(two), on_three(three);
    const Outputs expected = RunConv(on_one, in);
    EXPECT_TRUE(RunConv(on_two, in) == expected);
    EXPECT_TRUE(RunConv(on_three, in) == expected);
  }
}

}  // namespace
}  // namespace nibble::cpu
