#include "kernels/cpu/layers/cpu_token_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/layers/layer_testing.h"

namespace nibble::cpu {
namespace {

class TokenTest : public testing::TestWithParam<LayerIsa> {
 protected:
  ThreadPool pool_{2};
  CpuTokenOps ops_{pool_, GetParam()};
};

// Sequences with documents, tokens of which some are far more frequent than others.
struct EmbeddingProblem {
  EmbeddingProblem(DType dtype, int64_t sequences, int64_t length, int64_t vocab, int64_t d,
                   int64_t gap)
      : dtype(dtype), vocab(vocab), max_positions(length), d(d), gap(gap) {
    std::mt19937_64 random(11);
    for (int64_t s = 0; s < sequences; ++s) {
      int32_t begin = 0;
      for (int64_t i = 0; i < length; ++i) {
        if (random() % 5 == 0) begin = static_cast<int32_t>(i);
        doc_begin.push_back(begin);
        tokens.push_back(static_cast<int32_t>(random() % (random() % vocab + 1)));
      }
    }
    layout = {sequences, length, doc_begin.data()};
    table = RandomFloats(vocab * d, 1);
    positions = RandomFloats(max_positions * d, 2);
  }
  EmbeddingProblem(const EmbeddingProblem&) = delete;

  int64_t Position(int64_t row) const { return row % layout.length - doc_begin[row]; }
  int64_t rows() const { return layout.tokens(); }

  DType dtype;
  int64_t vocab, max_positions, d, gap;
  std::vector<int32_t> doc_begin, tokens;
  SequenceLayout layout;
  std::vector<float> table, positions;
};
template <class Test>
void ForEmbeddingProblems(Test&& test) {
  for (const DType dtype : kTypes) {
    test(EmbeddingProblem(dtype, 1, 1, 1, 3, 0));
    test(EmbeddingProblem(dtype, 2, 13, 7, 37, 2));
    test(EmbeddingProblem(dtype, 3, 200, 50, 160, 0));
    test(EmbeddingProblem(dtype, 2, 9, 1000, 1101, 3));
  }
}

// What BF16 outputs need of a table.
float AsRead(DType out, float entry) {
  return out == DType::kBf16 ? DecodeBf16(EncodeBf16(entry)) : entry;
}

TEST_P(TokenTest, EmbeddingIsTableAndPositionAsReadInTheOutputsType) {
  ForEmbeddingProblems([&](const EmbeddingProblem& p) {
    for (const bool positions : {false, true}) {
      TestMatrix out(p.dtype, p.rows(), p.d, p.gap), expected(p.dtype, p.rows(), p.d, p.gap);
      EmbeddingForward request = {.layout = p.layout,
                                  .tokens = p.tokens.data(),
                                  .table = ConstMatrix::Of(p.table.data(), p.vocab, p.d),
                                  .out = out.out()};
      if (positions) {
        request.positions = ConstMatrix::Of(p.positions.data(), p.max_positions, p.d);
      }
      ASSERT_TRUE(ops_.Forward(request).ok());
      for (int64_t i = 0; i < p.rows(); ++i) {
        for (int64_t j = 0; j < p.d; ++j) {
          float entry = AsRead(p.dtype, p.table[p.tokens[i] * p.d + j]);
          if (positions) entry += AsRead(p.dtype, p.positions[p.Position(i) * p.d + j]);
          expected.Set(i, j, entry);
        }
      }
      EXPECT_EQ(out, expected);
    }
  });
}

TEST_P(TokenTest, ContinuationsEmbedAtTheirPositionsFromTablesOfEitherType) {
  const int64_t vocab = 9, positions = 6, d = 37;
  const std::vector<int32_t> tokens = {3, 8, 0, 5};
  const Continuation pieces[] = {{.row = 0, .rows = 3, .position = 2}, {.row = 3, .rows = 1}};
  const int64_t position_of[] = {2, 3, 4, 0};
  for (const DType tables : kTypes) {
    for (const DType dtype : kTypes) {
      const TestMatrix table = TestMatrix::Random(tables, vocab, d, 2, 1);
      const TestMatrix at = TestMatrix::Random(tables, positions, d, 0, 2);
      TestMatrix out(dtype, 4, d), expected(dtype, 4, d);
      ASSERT_TRUE(ops_.Forward(EmbeddingForward{.layout = {.continued = pieces},
                                                .tokens = tokens.data(),
                                                .table = table.in(),
                                                .positions = at.in(),
                                                .out = out.out()})
                      .ok());
      for (int64_t i = 0; i < 4; ++i) {
        for (int64_t j = 0; j < d; ++j) {
          expected.Set(i, j,
                       AsRead(dtype, static_cast<float>(table(tokens[i], j))) +
                           AsRead(dtype, static_cast<float>(at(position_of[i], j))));
        }
      }
      EXPECT_EQ(out, expected);
    }
  }
}

TEST_P(TokenTest, EmbeddingGradientSumsTheRowsOfEachToken) {
  ForEmbeddingProblems([&](const EmbeddingProblem& p) {
    const TestMatrix dout = TestMatrix::Random(p.dtype, p.rows(), p.d, p.gap, 3);
    std::vector<float> dtable = p.table, dpositions = p.positions;
    EmbeddingBackward request = {p.layout, p.tokens.data(), p.vocab, dout.in(), dtable.data()};
    request.max_positions = p.max_positions;
    request.dpositions = dpositions.data();
    ASSERT_TRUE(ops_.Backward(request).ok());
    std::vector<double> table(p.table.begin(), p.table.end());
    std::vector<double> positions(p.positions.begin(), p.positions.end());
    for (int64_t i = 0; i < p.rows(); ++i) {
      for (int64_t j = 0; j < p.d; ++j) {
        table[p.tokens[i] * p.d + j] += dout(i, j);
        positions[p.Position(i) * p.d + j] += dout(i, j);
      }
    }
    // Rows of one token are added one after the other: noise of that sum.
    EXPECT_TRUE(IsNear(
        dtable, [&](size_t i) { return table[i]; }, 1e-6, 1e-5));
    EXPECT_TRUE(IsNear(
        dpositions, [&](size_t i) { return positions[i]; }, 1e-6, 1e-5));
    std::vector<float> without = p.table;
    request.dtable = without.data();
    request.dpositions = nullptr;
    ASSERT_TRUE(ops_.Backward(request).ok());
    EXPECT_EQ(without, dtable);
  });
}

TEST_P(TokenTest, PositionsCountFromTheSequenceWithoutDocuments) {
  const std::vector<int32_t> tokens = {0, 1, 0, 1, 0, 1};
  const std::vector<float> table = {10, 20}, positions = {1, 2, 3};
  TestMatrix out(DType::kF32, 6, 1);
  ASSERT_TRUE(ops_.Forward({{2, 3},
                            tokens.data(),
                            ConstMatrix::Of(table.data(), 2, 1),
                            ConstMatrix::Of(positions.data(), 3, 1),
                            out.out()})
                  .ok());
  const float expected[] = {11, 22, 13, 21, 12, 23};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(out(i, 0), expected[i]);
}

TEST_P(TokenTest, BatchOfOneTokenIsSummedCompletely) {
  const int64_t rows = 3000, d = 700;
  const std::vector<int32_t> tokens(rows, 2);
  const TestMatrix dout = TestMatrix::Random(DType::kF32, rows, d, 0, 1);
  std::vector<float> dtable(4 * d, 1);
  ASSERT_TRUE(ops_.Backward({{1, rows}, tokens.data(), 4, dout.in(), dtable.data()}).ok());
  for (int64_t j = 0; j < d; ++j) {
    double sum = 1;
    for (int64_t i = 0; i < rows; ++i) sum += dout(i, j);
    EXPECT_TRUE(IsNear(dtable[2 * d + j], sum, 1e-6, 2e-4));
    EXPECT_EQ(dtable[j], 1);
    EXPECT_EQ(dtable[3 * d + j], 1);
  }
}

struct LossProblem {
  DType logits, dlogits;
  int64_t rows, vocab, gap;
  double scale;  // of the logits
  TestMatrix Logits() const { return TestMatrix::Random(logits, rows, vocab, gap, 1, scale); }
  std::vector<int32_t> Targets() const {
    std::vector<int32_t> targets(rows);
    for (int64_t i = 0; i < rows; ++i) targets[i] = static_cast<int32_t>((i * 131 + 5) % vocab);
    for (int64_t i = 2; i < rows; i += 3) targets[i] = -1;
    return targets;
  }
};
std::vector<LossProblem> LossProblems() {
  std::vector<LossProblem> problems;
  for (const DType logits : kTypes) {
    for (const DType dlogits : kTypes) {
      problems.push_back({logits, dlogits, 1, 1, 0, 1});
      problems.push_back({logits, dlogits, 5, 19, 3, 4});
      problems.push_back({logits, dlogits, 6, 1024, 0, 30});
      problems.push_back({logits, dlogits, 4, 50257, 1, 3});
    }
  }
  return problems;
}
double LogSumExp(const std::vector<double>& x) {
  const double max = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const double v : x) sum += std::exp(v - max);
  return std::log(sum) + max;
}

TEST_P(TokenTest, LossAndGradientMatchFloat64) {
  for (const LossProblem& p : LossProblems()) {
    const TestMatrix logits = p.Logits();
    const std::vector<int32_t> targets = p.Targets();
    TestMatrix dlogits(p.dlogits, p.rows, p.vocab, p.gap + 2);
    std::vector<float> loss(p.rows, -1), alone(p.rows, -1);
    const float scale = 0.125f;
    ASSERT_TRUE(ops_.Run({logits.in(), targets.data(), loss.data(), scale, dlogits.out()}).ok());
    std::vector<double> log_sum(p.rows);
    for (int64_t i = 0; i < p.rows; ++i) {
      std::vector<double> row(p.vocab);
      for (int64_t j = 0; j < p.vocab; ++j) row[j] = logits(i, j);
      log_sum[i] = LogSumExp(row);
    }
    EXPECT_TRUE(IsNear(
        loss, [&](size_t i) { return targets[i] < 0 ? 0 : log_sum[i] - logits(i, targets[i]); },
        1e-6, 1e-6));
    EXPECT_TRUE(IsNear(
        dlogits,
        [&](int64_t i, int64_t j) {
          if (targets[i] < 0) return 0.0;
          return scale * (std::exp(logits(i, j) - log_sum[i]) - (j == targets[i] ? 1 : 0));
        },
        // e^x of x of size 100 inherits x's own rounding, 100 times as large.
        1e-5, 1e-9));
    ASSERT_TRUE(ops_.Run({logits.in(), targets.data(), alone.data(), scale, {}}).ok());
    EXPECT_EQ(alone, loss);
  }
}

TEST_P(TokenTest, GradientMatchesDifferencesOfTheLoss) {
  const LossProblem p = {DType::kF32, DType::kF32, 1, 41, 0, 2};
  const TestMatrix logits = p.Logits();
  const int32_t target = 17;
  TestMatrix dlogits(DType::kF32, 1, 41);
  float loss;
  ASSERT_TRUE(ops_.Run({logits.in(), &target, &loss, 3, dlogits.out()}).ok());
  std::vector<double> x(41);
  for (int64_t j = 0; j < 41; ++j) x[j] = logits(0, j);
  EXPECT_TRUE(IsNear(
      dlogits,
      [&](int64_t, int64_t j) {
        return CentralDifference(x, j, 1e-5, [&] { return 3 * (LogSumExp(x) - x[target]); });
      },
      1e-6, 1e-8));
}

TEST_P(TokenTest, GradientMayReplaceTheLogits) {
  for (const LossProblem& p : LossProblems()) {
    if (p.logits != p.dlogits) continue;
    TestMatrix logits = p.Logits(), apart(p.logits, p.rows, p.vocab, p.gap);
    const std::vector<int32_t> targets = p.Targets();
    std::vector<float> loss(p.rows), again(p.rows);
    ASSERT_TRUE(ops_.Run({logits.in(), targets.data(), loss.data(), 1, apart.out()}).ok());
    ASSERT_TRUE(ops_.Run({logits.in(), targets.data(), again.data(), 1, logits.out()}).ok());
    EXPECT_EQ(logits, apart);
    EXPECT_EQ(again, loss);
  }
}

TEST_P(TokenTest, LossIsStableForAnyOffsetAndHugeLogits) {
  // Rows that rise, so that the largest so far changes with every chunk.
  const int64_t vocab = 5000;
  TestMatrix logits(DType::kF32, 3, vocab);
  for (int64_t j = 0; j < vocab; ++j) {
    logits.Set(0, j, j * 0.01 + 1000);
    logits.Set(1, j, j % 2 == 0 ? 3e38 : -3e38);
    logits.Set(2, j, j == 4321 ? 0 : -kInf);
  }
  const std::vector<int32_t> targets = {4999, 4, 4321};
  std::vector<float> loss(3);
  TestMatrix dlogits(DType::kF32, 3, vocab);
  ASSERT_TRUE(ops_.Run({logits.in(), targets.data(), loss.data(), 1, dlogits.out()}).ok());
  std::vector<double> row(vocab);
  for (int64_t j = 0; j < vocab; ++j) row[j] = logits(0, j);
  EXPECT_TRUE(IsNear(loss[0], LogSumExp(row) - logits(0, 4999), 1e-5, 0));
  EXPECT_TRUE(IsNear(loss[1], std::log(2500.0), 1e-6, 0));
  EXPECT_EQ(loss[2], 0);
  EXPECT_EQ(dlogits(2, 4321), 0);
  EXPECT_EQ(dlogits(2, 0), 0);
}

TEST_P(TokenTest, NonFiniteLogitsMakeLossAndGradientOfTheirRowNan) {
  for (const DType dtype : kTypes) {
    for (const float bad : {kNan, kInf}) {
      for (const int64_t at : {0, 16, 1998}) {
        TestMatrix logits = TestMatrix::Random(dtype, 3, 1999, 0, 1);
        logits.Set(1, at, bad);
        const std::vector<int32_t> targets = {0, 1, 2};
        std::vector<float> loss(3);
        TestMatrix dlogits(DType::kF32, 3, 1999);
        ASSERT_TRUE(ops_.Run({logits.in(), targets.data(), loss.data(), 1, dlogits.out()}).ok());
        EXPECT_TRUE(std::isfinite(loss[0]) && std::isfinite(loss[2]));
        EXPECT_TRUE(std::isnan(loss[1])) << bad << " at " << at;
        for (int64_t j = 0; j < 1999; ++j) ASSERT_TRUE(std::isnan(dlogits(1, j)));
        EXPECT_TRUE(std::isfinite(dlogits(0, 5)) && std::isfinite(dlogits(2, 5)));
      }
    }
  }
  TestMatrix logits(DType::kF32, 1, 20);
  for (int64_t j = 0; j < 20; ++j) logits.Set(0, j, -kInf);
  const int32_t target = 3;
  float loss = 0;
  ASSERT_TRUE(ops_.Run({logits.in(), &target, &loss, 1, {}}).ok());
  EXPECT_TRUE(std::isnan(loss));
}

Outcome RunTokens(int threads, LayerIsa isa) {
  ThreadPool pool(threads);
  CpuTokenOps ops(pool, isa);
  Outcome all;
  ForEmbeddingProblems([&](const EmbeddingProblem& p) {
    const TestMatrix dout = TestMatrix::Random(p.dtype, p.rows(), p.d, p.gap, 3);
    std::vector<float> dtable = p.table, dpositions = p.positions;
    EXPECT_TRUE(ops.Backward({p.layout, p.tokens.data(), p.vocab, dout.in(), dtable.data(),
                              p.max_positions, dpositions.data()})
                    .ok());
    all.Keep(dtable);
    all.Keep(dpositions);
  });
  for (const LossProblem& p : LossProblems()) {
    const TestMatrix logits = p.Logits();
    TestMatrix dlogits(p.dlogits, p.rows, p.vocab);
    std::vector<float> loss(p.rows);
    const std::vector<int32_t> targets = p.Targets();
    EXPECT_TRUE(ops.Run({logits.in(), targets.data(), loss.data(), 1, dlogits.out()}).ok());
    all.matrices.push_back(dlogits);
    all.Keep(loss);
  }
  return all;
}

TEST_P(TokenTest, ResultsDoNotDependOnThreads) { ExpectSameWithThreads(RunTokens, GetParam()); }

TEST_P(TokenTest, InstructionSetsAgreeToRounding) {
  ExpectNearBest(RunTokens, GetParam(), {1e-5, 1e-9}, {1e-6, 1e-6});
}

INSTANTIATE_TEST_SUITE_P(Sets, TokenTest, testing::ValuesIn(SupportedLayerIsas()),
                         [](const auto& set) { return std::string(Name(set.param)); });

TEST(TokenCheckTest, ErrorsNameOperationRowAndBound) {
  ThreadPool pool(1);
  CpuTokenOps ops(pool);
  std::vector<int32_t> tokens = {0, 1, 6, 2};
  const std::vector<float> table(6 * 4, 1), positions(2 * 4);
  TestMatrix out(DType::kF32, 4, 4);
  const TestMatrix untouched = out;
  EmbeddingForward forward = {
      {2, 2}, tokens.data(), ConstMatrix::Of(table.data(), 6, 4), {}, out.out()};
  EXPECT_EQ(Refusal(ops.Forward(forward)), "embedding forward: row 2 has token 6, not in [0, 6)");
  EXPECT_EQ(out, untouched);
  tokens[2] = -1;
  EXPECT_EQ(Refusal(ops.Forward(forward)), "embedding forward: row 2 has token -1, not in [0, 6)");
  tokens[2] = 5;
  forward.layout = {1, 4};
  forward.positions = ConstMatrix::Of(positions.data(), 2, 4);
  EXPECT_EQ(Refusal(ops.Forward(forward)),
            "embedding forward: row 2 has position 2, not in [0, 2)");
  const std::vector<int32_t> ahead = {0, 0, 3, 3};
  forward.layout.doc_begin = ahead.data();
  EXPECT_EQ(Refusal(ops.Forward(forward)),
            "embedding forward: row 2 has position -1, not in [0, 2)");
  forward.layout = {1, 3};
  EXPECT_EQ(Refusal(ops.Forward(forward)),
            "embedding forward: out is [4, 4] f32 but must be [3, 4]");
  std::vector<float> dtable(6 * 4);
  tokens[1] = 77;
  EXPECT_EQ(Refusal(ops.Backward({{2, 2}, tokens.data(), 6, out.in(), dtable.data()})),
            "embedding backward: row 1 has token 77, not in [0, 6)");
  EXPECT_EQ(Refusal(ops.Backward({{2, 2}, tokens.data(), 6, out.in(), nullptr})),
            "embedding backward: dtable is null but must hold 24 elements");

  std::vector<int32_t> targets = {0, 1, 4, 3};
  std::vector<float> loss(4);
  TestMatrix other(DType::kF32, 4, 5), logits(DType::kF32, 4, 4);
  EXPECT_EQ(Refusal(ops.Run({logits.in(), targets.data(), loss.data(), 1, {}})),
            "cross entropy: row 2 has target 4, not in [-1, 4)");
  targets[2] = -2;
  EXPECT_EQ(Refusal(ops.Run({logits.in(), targets.data(), loss.data(), 1, {}})),
            "cross entropy: row 2 has target -2, not in [-1, 4)");
  targets[2] = -1;
  EXPECT_EQ(Refusal(ops.Run({logits.in(), targets.data(), loss.data(), 1, other.out()})),
            "cross entropy: dlogits is [4, 5] f32 but must be [4, 4]");
  MutableMatrix narrow = logits.out();
  narrow.dtype = DType::kBf16;
  EXPECT_EQ(Refusal(ops.Run({logits.in(), targets.data(), loss.data(), 1, narrow})),
            "cross entropy: dlogits lies on logits but not element on element: [4, 4] bf16, stride "
            "4 on [4, 4] f32, stride 4");
}

}  // namespace
}  // namespace nibble::cpu
