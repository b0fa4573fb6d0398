// The chunked scan against the recurrence, token by token in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "common/thread_pool.h"
#include "kernels/cpu/layers/cpu_mamba_ops.h"
#include "kernels/cpu/layers/layer_testing.h"
#include "kernels/cpu/layers/mamba_testing.h"

namespace nibble::cpu {
namespace {

constexpr int64_t kGap = 3;

double StoredAs(DType dtype, double x) {
  const float f = static_cast<float>(x);
  return dtype == DType::kF32 ? f : DecodeBf16(EncodeBf16(f));
}

ScanInputs Random(DType dtype, const ScanShape& shape, int64_t sequences, int64_t length,
                  uint64_t seed, double dt_mean = -2, double dt_spread = 1) {
  return RandomScan(
      shape, sequences, length, seed, [&](double x) { return StoredAs(dtype, x); }, dt_mean,
      dt_spread);
}

TestMatrix Gapped(DType dtype, const std::vector<double>& values, int64_t rows) {
  const int64_t cols = static_cast<int64_t>(values.size()) / rows;
  TestMatrix m(dtype, rows, cols, kGap);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) m.Set(i, j, values[i * cols + j]);
  }
  return m;
}
std::vector<double> Values(const TestMatrix& m) {
  std::vector<double> values;
  for (int64_t i = 0; i < m.rows(); ++i) {
    for (int64_t j = 0; j < m.cols(); ++j) values.push_back(m(i, j));
  }
  return values;
}

// Runs both directions; the parameters' gradients without kBefore.
ScanOutputs RunScan(MambaOps& ops, DType dtype, const ScanInputs& in) {
  const int64_t tokens = in.tokens();
  const std::vector<float> dt_bias(in.dt_bias.begin(), in.dt_bias.end());
  const std::vector<float> a_log(in.a_log.begin(), in.a_log.end());
  const std::vector<float> d(in.d.begin(), in.d.end());
  const ScanParams params = {dt_bias.data(), a_log.data(), d.data()};
  const TestMatrix xbc = Gapped(dtype, in.xbc, tokens), dt = Gapped(dtype, in.dt, tokens);
  const TestMatrix dy = Gapped(dtype, in.dy, tokens);
  TestMatrix y(dtype, tokens, in.shape.d_inner(), kGap);
  TestMatrix dxbc(dtype, tokens, in.shape.xbc_cols(), kGap), ddt(dtype, tokens, in.shape.heads, 1);
  std::vector<float> ddt_bias(in.shape.heads, kBefore), da_log = ddt_bias, dd = ddt_bias;
  EXPECT_EQ(ops.Forward(ScanForward{in.shape, params, in.layout(), xbc.in(), dt.in(), y.out()}),
            absl::OkStatus());
  EXPECT_EQ(
      ops.Backward(ScanBackward{in.shape, params, in.layout(), xbc.in(), dt.in(), dy.in(),
                                dxbc.out(), ddt.out(), ddt_bias.data(), da_log.data(), dd.data()}),
      absl::OkStatus());
  EXPECT_TRUE(y.GapsAreUntouched() && dxbc.GapsAreUntouched() && ddt.GapsAreUntouched());
  const auto added = [](const std::vector<float>& values) {
    std::vector<double> all;
    for (const float x : values) all.push_back(x - kBefore);
    return all;
  };
  return {Values(y), Values(dxbc), Values(ddt), added(ddt_bias), added(da_log), added(dd)};
}

// |actual − expected| <= bound(i).
template <class Bound>
testing::AssertionResult Near(const std::vector<double>& actual,
                              const std::vector<double>& expected, Bound&& bound) {
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]) / bound(i);
    if (error <= worst) continue;
    worst = error;
    at = i;
    if (std::isnan(error)) break;
  }
  if (actual.size() == expected.size() && worst <= 1) return testing::AssertionSuccess();
  return testing::AssertionFailure() << actual[at] << " instead of " << expected[at] << " at " << at
                                     << ", " << worst << " times what it may be off";
}

double Largest(const std::vector<double>& values) {
  double largest = 0;
  for (const double x : values) largest = std::max(largest, std::abs(x));
  return largest;
}

// Relative to the largest of each output.
void ExpectNear(const ScanOutputs& actual, const ScanOutputs& expected, double forward,
                double backward) {
  const auto check = [](const char* name, const std::vector<double>& a,
                        const std::vector<double>& e, double relative) {
    const double bound = relative * Largest(e) + 1e-30;
    EXPECT_TRUE(Near(a, e, [&](size_t) { return bound; })) << name;
  };
  check("y", actual.y, expected.y, forward);
  check("dxbc", actual.dxbc, expected.dxbc, backward);
  check("ddt", actual.ddt, expected.ddt, backward);
  // A sum over tokens that nearly cancels is as good as kBefore, which it is added to.
  const auto param = [](const char* name, const std::vector<double>& a,
                        const std::vector<double>& e, double relative) {
    const double bound = relative * Largest(e) + 2e-7;
    EXPECT_TRUE(Near(a, e, [&](size_t) { return bound; })) << name;
  };
  param("ddt_bias", actual.ddt_bias, expected.ddt_bias, backward);
  param("da_log", actual.da_log, expected.da_log, backward);
  param("dd", actual.dd, expected.dd, backward);
}

// On the way to an output of BF16 a term is rounded to BF16 at most three times (u or dy times its
// exponential, the state or its gradient, and the matrix over pairs each count once), FP32 sums and
// exponentials add little to that, and the output is rounded once: so it is off by no more than
// three roundings of the sum of its terms' magnitudes, and one of its own.
void ExpectWithinRoundings(const ScanOutputs& actual, const ScanInputs& in) {
  const ScanOutputs expected = ReferenceScan(in), terms = ReferenceScan(in, true);
  const auto check = [](const char* name, const std::vector<double>& a,
                        const std::vector<double>& e, const std::vector<double>& magnitudes) {
    EXPECT_TRUE(Near(a, e, [&](size_t i) {
      return kBf16Rounding * (3.1 * magnitudes[i] + std::abs(e[i])) + 1e-6;
    })) << name;
  };
  check("y", actual.y, expected.y, terms.y);
  check("dxbc", actual.dxbc, expected.dxbc, terms.dxbc);
  check("ddt", actual.ddt, expected.ddt, terms.ddt);
  check("ddt_bias", actual.ddt_bias, expected.ddt_bias, terms.ddt_bias);
  check("da_log", actual.da_log, expected.da_log, terms.da_log);
  check("dd", actual.dd, expected.dd, terms.dd);
}

void ExpectGood(DType dtype, const ScanOutputs& actual, const ScanInputs& in) {
  if (dtype == DType::kF32) {
    ExpectNear(actual, ReferenceScan(in), 1e-5, 2e-5);
  } else {
    ExpectWithinRoundings(actual, in);
  }
}

bool Same(const ScanOutputs& a, const ScanOutputs& b) {
  return a.y == b.y && a.dxbc == b.dxbc && a.ddt == b.ddt && a.ddt_bias == b.ddt_bias &&
         a.da_log == b.da_log && a.dd == b.dd;
}

class ScanTest : public testing::TestWithParam<PanelIsa> {
 protected:
  ThreadPool pool_{2};
  CpuMambaOps ops_{pool_, GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Sets, ScanTest, testing::ValuesIn(SupportedPanelIsas()),
                         [](const auto& info) {
                           std::string name(PanelIsaName(info.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// heads, head_dim, groups, state, chunk
constexpr ScanShape kTiny = {2, 3, 1, 5, 7};
constexpr ScanShape kGrouped = {4, 16, 2, 16, 16};
constexpr ScanShape kOdd = {3, 37, 3, 21, 33};
constexpr ScanShape kLarge = {6, 64, 2, 128, 128};

TEST_P(ScanTest, MatchesTheRecurrence) {
  for (const DType dtype : kTypes) {
    const auto check = [&](const ScanShape& shape, int64_t sequences, int64_t length) {
      SCOPED_TRACE(testing::Message() << shape.heads << " heads of " << shape.head_dim << ", "
                                      << length << " tokens in chunks of " << shape.chunk
                                      << (dtype == DType::kF32 ? ", f32" : ", bf16"));
      const ScanInputs in = Random(dtype, shape, sequences, length, 7);
      ExpectGood(dtype, RunScan(ops_, dtype, in), in);
    };
    check(kTiny, 1, 1);
    check(kTiny, 2, 7);
    check(kTiny, 3, 24);
    check(kGrouped, 2, 80);
    check(kOdd, 2, 100);
    check(kLarge, 1, 300);
    // One head, cut into parts; a chunk longer than the sequence.
    check({1, 70, 1, 40, 64}, 1, 90);
    check({2, 16, 1, 16, 128}, 2, 50);
  }
}

TEST_P(ScanTest, DocumentsMayBeginAnywhere) {
  const std::vector<std::vector<std::vector<int>>> places = {
      {{16}, {15, 17}},               // at a chunk's first token, at its last, at its second
      {{1, 2, 3}, {40, 41, 60}},      // very short ones, several in a chunk
      {{32, 33}, {16, 32, 48, 64}},   // whole chunks
      {{5, 21, 22, 23, 37, 70}, {}},  // everywhere, nowhere
  };
  for (const DType dtype : kTypes) {
    for (const auto& begins : places) {
      ScanInputs in = Random(dtype, kGrouped, 2, 77, 11);
      in.doc_begin = DocBegins(begins, in.length);
      ExpectGood(dtype, RunScan(ops_, dtype, in), in);
      in.shape.chunk = 64;
      ExpectGood(dtype, RunScan(ops_, dtype, in), in);
    }
  }
}

TEST_P(ScanTest, DocumentBoundaryAtEveryPlaceOfLongChunks) {
  for (int begin = 1; begin < 70; begin += 4) {
    ScanInputs in = Random(DType::kF32, {2, 8, 1, 8, 48}, 1, 70, 13);
    in.doc_begin = DocBegins({{begin}}, in.length);
    ExpectGood(DType::kF32, RunScan(ops_, DType::kF32, in), in);
  }
}

TEST_P(ScanTest, ResultsOfAllChunkSizesAgree) {
  ScanInputs in = Random(DType::kF32, {2, 24, 1, 20, 1}, 1, 200, 17);
  in.doc_begin = DocBegins({{3, 90, 131}}, in.length);
  const ScanOutputs expected = RunScan(ops_, DType::kF32, in);
  for (const int chunk : {7, 16, 100, 128, 200, 1024}) {
    in.shape.chunk = chunk;
    ExpectNear(RunScan(ops_, DType::kF32, in), expected, 1e-5, 2e-5);
  }
}

// Δ from nothing to thirty: states that forget at once, that never do, and both in one chunk.
TEST_P(ScanTest, StepsOfAllSizesAreAccurate) {
  for (const DType dtype : kTypes) {
    for (const auto& [mean, spread] :
         {std::pair(-60.0, 1.0), std::pair(-12.0, 4.0), std::pair(0.0, 0.1), std::pair(0.0, 12.0),
          std::pair(30.0, 1.0), std::pair(-300.0, 200.0)}) {
      SCOPED_TRACE(testing::Message() << "dt around " << mean << " by " << spread);
      const ScanInputs in = Random(dtype, {3, 16, 1, 16, 32}, 2, 70, 19, mean, spread);
      ExpectGood(dtype, RunScan(ops_, dtype, in), in);
    }
  }
}

// The decay that one token forces must not cost the precision of those after it in the chunk.
TEST_P(ScanTest, OneLargeStepDoesNotSpoilTheOthers) {
  ScanInputs in = Random(DType::kF32, {1, 16, 1, 16, 64}, 1, 128, 23, -3, 0.5);
  in.a_log[0] = static_cast<float>(std::log(16.0));
  in.dt[5] = in.dt[40] = in.dt[70] = 1000;
  for (const int64_t t : {5, 40, 70}) {
    for (int64_t p = 0; p < 16; ++p) in.xbc[t * in.shape.xbc_cols() + p] = 0;
  }
  const ScanOutputs expected = ReferenceScan(in);
  const ScanOutputs actual = RunScan(ops_, DType::kF32, in);
  const double bound = 1e-5 * Largest(expected.y);
  EXPECT_TRUE(Near(actual.y, expected.y, [&](size_t) { return bound; }));
}

TEST_P(ScanTest, InstructionSetsAgreeToRounding) {
  CpuMambaOps best(pool_);
  const ScanInputs in = Random(DType::kF32, kOdd, 2, 100, 29);
  ExpectNear(RunScan(ops_, DType::kF32, in), RunScan(best, DType::kF32, in), 1e-5, 1e-5);
}

TEST_P(ScanTest, NanReachesTheTokensThatDependOnIt) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : kTypes) {
    const ScanShape shape = {2, 16, 1, 16, 16};
    for (const int64_t col : {int64_t{3}, shape.d_inner() + 2, shape.d_inner() + 16 + 2}) {
      ScanInputs in = Random(dtype, shape, 1, 50, 31);
      in.xbc[20 * shape.xbc_cols() + col] = nan;
      const ScanOutputs out = RunScan(ops_, dtype, in);
      // x and B reach later tokens, C its own; going back, all reach earlier ones.
      const bool is_c = col >= shape.d_inner() + 16;
      EXPECT_TRUE(std::isnan(out.y[20 * 32 + 3]));
      EXPECT_TRUE(is_c || std::isnan(out.y[49 * 32 + 3]));
      EXPECT_TRUE(std::isnan(out.ddt_bias[0]));
    }
    ScanInputs in = Random(dtype, shape, 1, 50, 31);
    in.dt[20 * 2 + 1] = nan;
    const ScanOutputs out = RunScan(ops_, dtype, in);
    EXPECT_TRUE(std::isnan(out.y[20 * 32 + 16 + 1]) && std::isnan(out.y[49 * 32 + 16 + 1]));
    EXPECT_FALSE(std::isnan(out.y[49 * 32 + 1]));  // another head
    EXPECT_TRUE(std::isnan(out.da_log[1]) && std::isnan(out.ddt[20 * 2 + 1]));
    in = Random(dtype, shape, 1, 50, 31);
    in.dy[20 * 32 + 1] = nan;
    EXPECT_TRUE(std::isnan(RunScan(ops_, dtype, in).dxbc[1]));
  }
}

TEST_P(ScanTest, StatesOfAnEndedDocumentDoNotLeakEvenIfNan) {
  ScanInputs in = Random(DType::kF32, {2, 16, 1, 16, 16}, 1, 64, 37);
  in.doc_begin = DocBegins({{32}}, in.length);
  in.xbc[3] = std::numeric_limits<double>::quiet_NaN();
  const ScanOutputs out = RunScan(ops_, DType::kF32, in);
  EXPECT_TRUE(std::isnan(out.y[31 * 32 + 3]));
  for (size_t i = 32 * 32; i < out.y.size(); ++i) ASSERT_FALSE(std::isnan(out.y[i])) << i;
}

TEST(ScanGradientTest, ReferenceGradientMatchesDifferencesOfItsForwardPass) {
  ScanInputs in = Random(DType::kF32, {4, 3, 2, 4, 8}, 2, 11, 41);
  in.doc_begin = DocBegins({{4}, {}}, in.length);
  const ScanOutputs gradient = ReferenceScan(in);
  const auto loss = [&] {
    const ScanOutputs out = ReferenceScan(in);
    double sum = 0;
    for (size_t i = 0; i < out.y.size(); ++i) sum += out.y[i] * in.dy[i];
    return sum;
  };
  const auto check = [&](std::vector<double>& x, const std::vector<double>& dx) {
    for (size_t i = 0; i < x.size(); ++i) {
      const double slope = CentralDifference(x, i, 1e-5, loss);
      ASSERT_TRUE(IsNear(slope, dx[i], 1e-6, 1e-6)) << i;
    }
  };
  check(in.xbc, gradient.dxbc);
  check(in.dt, gradient.ddt);
  check(in.dt_bias, gradient.ddt_bias);
  check(in.a_log, gradient.da_log);
  check(in.d, gradient.dd);
}

TEST_P(ScanTest, GradientsMatchDifferencesOfTheRecurrence) {
  ScanInputs in = Random(DType::kF32, {4, 5, 2, 4, 16}, 2, 40, 43);
  in.doc_begin = DocBegins({{21}, {}}, in.length);
  const ScanOutputs actual = RunScan(ops_, DType::kF32, in);
  const auto loss = [&] {
    const std::vector<double> dy = std::move(in.dy);
    in.dy.clear();
    const ScanOutputs out = ReferenceScan(in);
    in.dy = dy;
    double sum = 0;
    for (size_t i = 0; i < out.y.size(); ++i) sum += out.y[i] * dy[i];
    return sum;
  };
  const auto check = [&](std::vector<double>& x, const std::vector<double>& dx, size_t step) {
    const double scale = Largest(dx);
    for (size_t i = 0; i < x.size(); i += step) {
      ASSERT_TRUE(IsNear(dx[i], CentralDifference(x, i, 1e-5, loss), 1e-3, 1e-5 * scale)) << i;
    }
  };
  check(in.xbc, actual.dxbc, 7);
  check(in.dt, actual.ddt, 1);
  check(in.dt_bias, actual.ddt_bias, 1);
  check(in.a_log, actual.da_log, 1);
  check(in.d, actual.dd, 1);
}

TEST(ScanThreadsTest, ResultsDoNotDependOnThreads) {
  for (const DType dtype : kTypes) {
    for (const ScanShape& shape :
         {kOdd, ScanShape{8, 32, 1, 32, 32}, ScanShape{1, 48, 1, 16, 16}}) {
      ScanInputs in = Random(dtype, shape, 2, 150, 47);
      in.doc_begin = DocBegins({{60}, {10, 11}}, in.length);
      ThreadPool one(1), two(2), three(3);
      CpuMambaOps on_one(one), on_two(two), on_three(three);
      const ScanOutputs expected = RunScan(on_one, dtype, in);
      EXPECT_TRUE(Same(RunScan(on_two, dtype, in), expected));
      EXPECT_TRUE(Same(RunScan(on_three, dtype, in), expected));
    }
  }
}

TEST(ScanThreadsTest, ScratchOfALargerRequestDoesNotAffectTheNext) {
  for (const DType dtype : kTypes) {
    ThreadPool pool(2);
    CpuMambaOps used(pool), fresh(pool);
    RunScan(used, dtype, Random(dtype, kLarge, 1, 260, 53));
    const ScanInputs in = Random(dtype, kTiny, 2, 30, 59);
    EXPECT_TRUE(Same(RunScan(used, dtype, in), RunScan(fresh, dtype, in)));
  }
}

// Chunks of one token have so many states that the sequences run in batches.
TEST(ScanThreadsTest, BatchesOfSequencesAreIndependent) {
  const ScanShape shape = {16, 64, 1, 128, 1};
  const ScanInputs in = Random(DType::kBf16, shape, 4, 70, 61);
  const int64_t state_bytes = in.tokens() * shape.d_inner() * shape.state * 2;
  ASSERT_GT(state_bytes, int64_t{64} << 20);
  ThreadPool pool(2);
  CpuMambaOps ops(pool);
  ScanOutputs all = RunScan(ops, DType::kBf16, in);
  ScanInputs last = in;
  last.sequences = 1;
  const auto keep_last = [](std::vector<double>& values) {
    values.erase(values.begin(), values.end() - static_cast<int64_t>(values.size() / 4));
  };
  for (std::vector<double>* values : {&last.xbc, &last.dt, &last.dy, &all.y, &all.dxbc, &all.ddt}) {
    keep_last(*values);
  }
  const ScanOutputs alone = RunScan(ops, DType::kBf16, last);
  EXPECT_TRUE(alone.y == all.y && alone.dxbc == all.dxbc && alone.ddt == all.ddt);
}

}  // namespace
}  // namespace nibble::cpu
