#include "kernels/cpu/layers/cpu_elementwise_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cpu/layers/layer_testing.h"

namespace nibble::cpu {
namespace {

using testing::HasSubstr;

constexpr Activation kKinds[] = {Activation::kSquaredRelu, Activation::kGelu, Activation::kSwiglu};

// Float64, from the definitions.
double GeluTanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double Apply(Activation kind, double x, double up) {
  switch (kind) {
    case Activation::kSquaredRelu:
      return x > 0 ? x * x : 0;
    case Activation::kGelu:
      return GeluTanh(x);
    case Activation::kSwiglu:
      return Silu(x) * up;
  }
  return 0;
}
// d Apply / dx and d Apply / d up.
double SlopeX(Activation kind, double x, double up) {
  if (kind == Activation::kSquaredRelu) return x > 0 ? 2 * x : 0;
  if (kind == Activation::kSwiglu) {
    const double s = 1 / (1 + std::exp(-x));
    return up * s * (1 + x * (1 - s));
  }
  const double c = std::sqrt(2 / M_PI);
  const double tanh = std::tanh(c * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * c * (1 + 3 * 0.044715 * x * x);
}

class ElementwiseTest : public testing::TestWithParam<LayerIsa> {
 protected:
  ThreadPool pool_{2};
  CpuElementwiseOps ops_{pool_, GetParam()};
};

struct ActivationProblem {
  Activation kind;
  DType dtype;
  int64_t tokens, d_ff, gap;
  bool bias;

  bool gated() const { return kind == Activation::kSwiglu; }
  int64_t in_cols() const { return gated() ? 2 * d_ff : d_ff; }
  TestMatrix In() const { return TestMatrix::Random(dtype, tokens, in_cols(), gap, 1, 2); }
  TestMatrix Dout() const { return TestMatrix::Random(dtype, tokens, d_ff, gap, 2); }
  std::vector<float> Bias() const { return RandomFloats(in_cols(), 3); }
};

std::vector<ActivationProblem> ActivationProblems() {
  std::vector<ActivationProblem> problems;
  for (const Activation kind : kKinds) {
    for (const DType dtype : kTypes) {
      for (const bool bias : {false, true}) {
        problems.push_back({kind, dtype, 3, 1, 2, bias});
        problems.push_back({kind, dtype, 5, 37, 0, bias});
        problems.push_back({kind, dtype, 4, 64, 5, bias});
        problems.push_back({kind, dtype, 70, 1001, 3, bias});
      }
    }
  }
  problems.push_back({Activation::kGelu, DType::kF32, 1, 70000, 0, false});
  return problems;
}

TEST_P(ElementwiseTest, ActivationsMatchFloat64) {
  for (const ActivationProblem& p : ActivationProblems()) {
    const TestMatrix in = p.In();
    const std::vector<float> bias = p.Bias();
    TestMatrix out(p.dtype, p.tokens, p.d_ff, p.gap + 1);
    float amax = -1;
    ASSERT_TRUE(
        ops_.Forward({p.kind, p.bias ? bias.data() : nullptr, in.in(), out.out(), &amax}).ok());
    const auto biased = [&](int64_t i, int64_t j) { return in(i, j) + (p.bias ? bias[j] : 0.0); };
    const auto expected = [&](int64_t i, int64_t j) {
      return Apply(p.kind, biased(i, j), p.gated() ? biased(i, p.d_ff + j) : 0);
    };
    // FP32 noise: relative, and beside that of cancellation in x + bias.
    EXPECT_TRUE(IsNear(out, expected, 4e-6, 2e-6)) << static_cast<int>(p.kind) << " " << p.d_ff;
    EXPECT_EQ(amax, LargestMagnitude(out));
  }
}

TEST_P(ElementwiseTest, GradientsMatchTheDerivativeAndDifferences) {
  for (const ActivationProblem& p : ActivationProblems()) {
    const TestMatrix in = p.In(), dout = p.Dout();
    const std::vector<float> bias = p.Bias();
    TestMatrix din(p.dtype, p.tokens, p.in_cols(), p.gap);
    float amax = -1;
    ASSERT_TRUE(ops_.Backward({p.kind, p.bias ? bias.data() : nullptr, in.in(), dout.in(),
                               din.out(), &amax})
                    .ok());
    const auto biased = [&](int64_t i, int64_t j) { return in(i, j) + (p.bias ? bias[j] : 0.0); };
    const auto analytic = [&](int64_t i, int64_t j) {
      const int64_t col = j % p.d_ff;
      const double x = biased(i, col), up = p.gated() ? biased(i, p.d_ff + col) : 0;
      return dout(i, col) * (j < p.d_ff ? SlopeX(p.kind, x, up) : Silu(x));
    };
    const auto differences = [&](int64_t i, int64_t j) {
      const int64_t col = j % p.d_ff;
      const double x = biased(i, col), up = p.gated() ? biased(i, p.d_ff + col) : 0;
      const double h = 1e-6, dx = j < p.d_ff ? h : 0, du = h - dx;
      return dout(i, col) * (Apply(p.kind, x + dx, up + du) - Apply(p.kind, x - dx, up - du)) /
             (2 * h);
    };
    EXPECT_TRUE(IsNear(din, analytic, 4e-6, 4e-6)) << static_cast<int>(p.kind) << " " << p.d_ff;
    EXPECT_TRUE(IsNear(din, differences, 1e-5, 1e-5)) << static_cast<int>(p.kind) << " " << p.d_ff;
    EXPECT_EQ(amax, LargestMagnitude(din));
  }
}

TEST_P(ElementwiseTest, GeluKeepsItsDigitsInTheNegativeTail) {
  TestMatrix in(DType::kF32, 1, 18), out(DType::kF32, 1, 18);
  for (int j = 0; j < 18; ++j) in.Set(0, j, -0.5 * j);
  ASSERT_TRUE(ops_.Forward({Activation::kGelu, nullptr, in.in(), out.out()}).ok());
  EXPECT_TRUE(IsNear(
      out,
      [&](int64_t, int64_t j) {
        const double x = in(0, j);
        const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
        return x / (1 + std::exp(-2 * u));
      },
      2e-5, 0));
}

TEST_P(ElementwiseTest, GradientMayReplaceTheInput) {
  for (const ActivationProblem& p : ActivationProblems()) {
    TestMatrix in = p.In();
    const TestMatrix dout = p.Dout();
    TestMatrix din(p.dtype, p.tokens, p.in_cols(), p.gap);
    ASSERT_TRUE(ops_.Backward({p.kind, nullptr, in.in(), dout.in(), din.out()}).ok());
    ASSERT_TRUE(ops_.Backward({p.kind, nullptr, in.in(), dout.in(), in.out()}).ok());
    EXPECT_EQ(in, din);
  }
}

TEST_P(ElementwiseTest, NonFiniteValuesPropagateAndAmaxIgnoresNan) {
  for (const Activation kind : kKinds) {
    for (const DType dtype : kTypes) {
      const int64_t cols = 35, in_cols = kind == Activation::kSwiglu ? 2 * cols : cols;
      TestMatrix in = TestMatrix::Random(dtype, 2, in_cols, 0, 1);
      const TestMatrix dout = TestMatrix::Random(dtype, 2, cols, 0, 2);
      in.Set(0, 3, kNan);
      in.Set(1, 34, kNan);
      TestMatrix out(dtype, 2, cols), din(dtype, 2, in_cols);
      float amax = -1;
      ASSERT_TRUE(ops_.Forward({kind, nullptr, in.in(), out.out(), &amax}).ok());
      EXPECT_TRUE(std::isnan(out(0, 3)) && std::isnan(out(1, 34))) << static_cast<int>(kind);
      EXPECT_EQ(amax, LargestMagnitude(out));
      EXPECT_GT(amax, 0);
      ASSERT_TRUE(ops_.Backward({kind, nullptr, in.in(), dout.in(), din.out(), &amax}).ok());
      EXPECT_TRUE(std::isnan(din(0, 3)) && std::isnan(din(1, 34))) << static_cast<int>(kind);
      EXPECT_EQ(amax, LargestMagnitude(din));
      in.Set(0, 3, kInf);
      ASSERT_TRUE(ops_.Forward({kind, nullptr, in.in(), out.out(), &amax}).ok());
      EXPECT_TRUE(std::isinf(out(0, 3)));
      EXPECT_EQ(amax, kInf);
    }
  }
}

TEST_P(ElementwiseTest, HugeInputsKeepTheirGradient) {
  TestMatrix in(DType::kF32, 1, 2), out(DType::kF32, 1, 2), din(DType::kF32, 1, 2);
  TestMatrix dout(DType::kF32, 1, 2);
  in.Set(0, 0, 1e30);
  in.Set(0, 1, -1e30);
  dout.Set(0, 0, 3);
  dout.Set(0, 1, 3);
  ASSERT_TRUE(ops_.Forward({Activation::kGelu, nullptr, in.in(), out.out()}).ok());
  EXPECT_EQ(out(0, 0), in(0, 0));
  EXPECT_EQ(out(0, 1), 0);
  ASSERT_TRUE(ops_.Backward({Activation::kGelu, nullptr, in.in(), dout.in(), din.out()}).ok());
  EXPECT_EQ(din(0, 0), 3);
  EXPECT_EQ(din(0, 1), 0);
}

TEST_P(ElementwiseTest, BiasIsAddedByRow) {
  for (const DType dtype : kTypes) {
    const TestMatrix before = TestMatrix::Random(dtype, 9, 53, 4, 1);
    const std::vector<float> bias = RandomFloats(53, 2);
    TestMatrix y = before;
    ASSERT_TRUE(ops_.Forward(BiasForward{y.out(), bias.data()}).ok());
    EXPECT_TRUE(IsNear(
        y, [&](int64_t i, int64_t j) { return before(i, j) + bias[j]; }, 1e-7, 0));
  }
}

TEST_P(ElementwiseTest, BiasGradientAddsColumnSums) {
  for (const DType dtype : kTypes) {
    for (const auto& [rows, cols] : {std::pair{1, 1}, {3, 40}, {131, 2049}, {33000, 17}}) {
      const TestMatrix dy = TestMatrix::Random(dtype, rows, cols, 3, 1);
      const std::vector<float> before = RandomFloats(cols, 2);
      std::vector<float> dbias = before;
      ASSERT_TRUE(ops_.Backward(BiasBackward{dy.in(), dbias.data()}).ok());
      // Sums of `rows` terms of size 1 in blocks of 128: their rounding, not the sum's size,
      // counts.
      EXPECT_TRUE(IsNear(
          dbias,
          [&](int64_t j) {
            double sum = before[j];
            for (int64_t i = 0; i < dy.rows(); ++i) sum += dy(i, j);
            return sum;
          },
          1e-6, 1e-6 * std::sqrt(rows)));
    }
  }
}

TEST_P(ElementwiseTest, CastsAndSumsRoundOnce) {
  for (const DType from_type : kTypes) {
    for (const DType to_type : kTypes) {
      for (const int64_t gap : {0, 7}) {
        const TestMatrix from = TestMatrix::Random(from_type, 67, 1003, gap, 1);
        const TestMatrix before = TestMatrix::Random(to_type, 67, 1003, gap, 2);
        TestMatrix to = before, cast(to_type, 67, 1003, gap), sum(to_type, 67, 1003, gap);
        for (int64_t i = 0; i < 67; ++i) {
          for (int64_t j = 0; j < 1003; ++j) {
            cast.Set(i, j, from(i, j));
            sum.Set(i, j, static_cast<float>(from(i, j)) + static_cast<float>(before(i, j)));
          }
        }
        ASSERT_TRUE(ops_.Run(Accumulate{from.in(), to.out()}).ok());
        EXPECT_EQ(to, sum);
        ASSERT_TRUE(ops_.Run(Cast{from.in(), to.out()}).ok());
        EXPECT_EQ(to, cast);
      }
    }
  }
}

TEST_P(ElementwiseTest, CastsKeepNonFiniteValuesAndRoundTiesToEven) {
  // 1 + 2^-8 is halfway between 1 and its neighbour 1 + 2^-7, 1 + 3·2^-8 between that and the next.
  TestMatrix from(DType::kF32, 1, 7), to(DType::kBf16, 1, 7);
  const float values[] = {kNan, kInf, -kInf, 3.4e38f, 1 + 1.0f / 256, 1 + 3.0f / 256, -0.0f};
  for (int j = 0; j < 7; ++j) from.Set(0, j, values[j]);
  ASSERT_TRUE(ops_.Run(Cast{from.in(), to.out()}).ok());
  EXPECT_TRUE(std::isnan(to(0, 0)));
  EXPECT_EQ(to(0, 1), kInf);
  EXPECT_EQ(to(0, 2), -kInf);
  EXPECT_EQ(to(0, 3), kInf);
  EXPECT_EQ(to(0, 4), 1);
  EXPECT_EQ(to(0, 5), 1 + 1.0 / 64);
  EXPECT_TRUE(std::signbit(to(0, 6)));
}

TEST_P(ElementwiseTest, PartsAreCopiedWidenedAndRoundedInOneOperation) {
  using As = CopyParts::As;
  const int64_t n = 300007;
  const TestMatrix f32 = TestMatrix::Random(DType::kF32, 5, n, 3, 1);
  const TestMatrix bf16 = TestMatrix::Random(DType::kBf16, 5, n, 3, 2);
  TestMatrix copied(DType::kF32, 5, n, 1), widened(DType::kF32, 5, n), rounded(DType::kBf16, 5, n);
  TestMatrix line(DType::kBf16, 1, n), untouched(DType::kF32, 1, 4);
  const TestMatrix same = untouched;
  const auto lines = [n](const TestMatrix& from, TestMatrix& to, As as) {
    const ConstMatrix in = from.in();
    const MutableMatrix out = to.out();
    const int64_t to_bytes = DTypeBytes(out.dtype), from_bytes = DTypeBytes(in.dtype);
    return CopyParts::Part{.to = out.data,
                           .from = in.data,
                           .elements = as == As::kBytes ? n * from_bytes : n,
                           .lines = to.rows(),
                           .to_pitch = out.stride * to_bytes,
                           .from_pitch = in.stride * from_bytes,
                           .as = as};
  };
  const CopyParts::Part parts[] = {
      lines(f32, copied, As::kBytes),
      {.to = untouched.out().data, .from = nullptr, .elements = 0},
      lines(bf16, widened, As::kWidened),
      lines(f32, rounded, As::kRounded),
      lines(bf16, line, As::kBytes),
  };
  ASSERT_TRUE(ops_.Run(CopyParts{parts}).ok());
  TestMatrix want_copied(DType::kF32, 5, n, 1), want_widened(DType::kF32, 5, n),
      want_rounded(DType::kBf16, 5, n), want_line(DType::kBf16, 1, n);
  for (int64_t i = 0; i < 5; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      want_copied.Set(i, j, f32(i, j));
      want_widened.Set(i, j, bf16(i, j));
      want_rounded.Set(i, j, f32(i, j));
      if (i == 0) want_line.Set(0, j, bf16(0, j));
    }
  }
  EXPECT_EQ(copied, want_copied);
  EXPECT_EQ(widened, want_widened);
  EXPECT_EQ(rounded, want_rounded);
  EXPECT_EQ(line, want_line);
  EXPECT_EQ(untouched, same);
  EXPECT_TRUE(ops_.Run(CopyParts{}).ok());
}

TEST_P(ElementwiseTest, ZeroClearsExactlyItsBytes) {
  std::vector<char> bytes((3 << 20) + 5, 1);
  ASSERT_TRUE(ops_.Zero(bytes.data() + 1, bytes.size() - 2).ok());
  EXPECT_EQ(bytes.front(), 1);
  EXPECT_EQ(bytes.back(), 1);
  EXPECT_TRUE(std::all_of(bytes.begin() + 1, bytes.end() - 1, [](char b) { return b == 0; }));
  EXPECT_TRUE(ops_.Zero(nullptr, 0).ok());
}

TEST_P(ElementwiseTest, EmptyMatricesAreAccepted) {
  TestMatrix none(DType::kF32, 0, 24), wide(DType::kF32, 0, 48);
  float amax = -1;
  EXPECT_TRUE(ops_.Forward({Activation::kSwiglu, nullptr, wide.in(), none.out(), &amax}).ok());
  EXPECT_EQ(amax, 0);
  std::vector<float> dbias(24, 2);
  EXPECT_TRUE(ops_.Backward(BiasBackward{none.in(), dbias.data()}).ok());
  EXPECT_EQ(dbias, std::vector<float>(24, 2));
}

Outcome RunActivations(int threads, LayerIsa isa) {
  ThreadPool pool(threads);
  CpuElementwiseOps ops(pool, isa);
  Outcome all;
  for (const ActivationProblem& p : ActivationProblems()) {
    const TestMatrix in = p.In(), dout = p.Dout();
    const std::vector<float> bias = p.Bias();
    TestMatrix out(p.dtype, p.tokens, p.d_ff), din(p.dtype, p.tokens, p.in_cols());
    float amax[2];
    EXPECT_TRUE(ops.Forward({p.kind, bias.data(), in.in(), out.out(), &amax[0]}).ok());
    EXPECT_TRUE(ops.Backward({p.kind, bias.data(), in.in(), dout.in(), din.out(), &amax[1]}).ok());
    std::vector<float> dbias(p.in_cols(), 0.5f);
    EXPECT_TRUE(ops.Backward(BiasBackward{in.in(), dbias.data()}).ok());
    all.matrices.push_back(out);
    all.matrices.push_back(din);
    all.Keep({amax[0], amax[1]});
    all.Keep(dbias);
  }
  return all;
}

TEST_P(ElementwiseTest, ResultsDoNotDependOnThreads) {
  ExpectSameWithThreads(RunActivations, GetParam());
}

TEST_P(ElementwiseTest, InstructionSetsAgreeToRounding) {
  ExpectNearBest(RunActivations, GetParam(), {4e-6, 4e-6}, {1e-2, 1e-5});
}

INSTANTIATE_TEST_SUITE_P(Sets, ElementwiseTest, testing::ValuesIn(SupportedLayerIsas()),
                         [](const auto& set) { return std::string(Name(set.param)); });

TEST(ElementwiseCheckTest, ErrorsNameOperationOperandAndBothValues) {
  ThreadPool pool(1);
  CpuElementwiseOps ops(pool);
  TestMatrix a(DType::kF32, 3, 8), b(DType::kF32, 3, 6), c(DType::kBf16, 3, 8);
  EXPECT_EQ(Refusal(ops.Forward({Activation::kGelu, nullptr, a.in(), b.out()})),
            "activation forward: out is [3, 6] f32 but must be [3, 8]");
  EXPECT_EQ(Refusal(ops.Forward({Activation::kGelu, nullptr, a.in(), c.out()})),
            "activation forward: out is of another type than in, which is f32");
  EXPECT_EQ(Refusal(ops.Forward({Activation::kSwiglu, nullptr, a.in(), b.out()})),
            "activation forward: out is [3, 6] f32 but must be [3, 4]");
  TestMatrix odd(DType::kF32, 3, 7), third(DType::kF32, 3, 3);
  EXPECT_THAT(Refusal(ops.Forward({Activation::kSwiglu, nullptr, odd.in(), third.out()})),
              HasSubstr("in has 7 columns"));
  EXPECT_EQ(Refusal(ops.Backward({Activation::kGelu, nullptr, a.in(), a.in(), b.out()})),
            "activation backward: din is [3, 6] f32 but in is [3, 8] f32");
  EXPECT_EQ(Refusal(ops.Forward(BiasForward{a.out(), nullptr})),
            "bias forward: bias is null but must hold 8 elements");
  EXPECT_EQ(Refusal(ops.Run(Cast{a.in(), b.out()})), "cast: to is [3, 6] f32 but must be [3, 8]");
  EXPECT_EQ(Refusal(ops.Run(Accumulate{a.in(), b.out()})),
            "accumulate: to is [3, 6] f32 but must be [3, 8]");
  MutableMatrix overlapping = a.out();
  overlapping.stride = 5;
  EXPECT_EQ(Refusal(ops.Run(Cast{a.in(), overlapping})),
            "cast: to is [3, 8] f32 with row stride 5");
  EXPECT_EQ(Refusal(ops.Run(Cast{a.in(), MutableMatrix{nullptr, DType::kF32, 3, 8, 8}})),
            "cast: to is [3, 8] f32 and has no data");
  char bytes[32] = {};
  const auto copies = [&](const CopyParts::Part& part) {
    const CopyParts::Part parts[] = {{}, part};
    return Refusal(ops.Run(CopyParts{parts}));
  };
  EXPECT_EQ(copies({.to = bytes, .elements = 3, .lines = 2, .to_pitch = 3, .from_pitch = 3}),
            "copies: from is null but must hold 6 elements");
  EXPECT_EQ(copies({.to = bytes,
                    .from = bytes + 8,
                    .elements = 4,
                    .lines = 2,
                    .to_pitch = 3,
                    .from_pitch = 4}),
            "copies: to_pitch of part 1 is 3 bytes for lines of 4 elements of 1");
  EXPECT_EQ(copies({.to = bytes,
                    .from = bytes + 16,
                    .elements = 2,
                    .lines = 2,
                    .to_pitch = 8,
                    .from_pitch = 5,
                    .as = CopyParts::As::kWidened}),
            "copies: from_pitch of part 1 is 5 bytes for lines of 2 elements of 2");
  EXPECT_EQ(copies({.to = bytes, .from = bytes + 16, .elements = -1}),
            "copies: part 1 has 1 lines of -1 elements, below 0");
  EXPECT_EQ(Refusal(ops.Zero(nullptr, 4)), "zero: data is null, bytes is 4");
  EXPECT_EQ(Refusal(ops.Zero(nullptr, -1)), "zero: bytes is -1, below 0");
}

}  // namespace
}  // namespace nibble::cpu
