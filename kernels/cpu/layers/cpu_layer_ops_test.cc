#include "kernels/cpu/layers/cpu_layer_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "common/thread_pool.h"
#include "kernels/ops/layer_ops.h"

namespace nibble {
namespace {

// Two tokens of a model two wide, handed from family to family through the interface.
TEST(CpuLayerOpsTest, EveryFamilyRunsThroughTheInterface) {
  ThreadPool pool(2);
  CpuLayerOps cpu_ops(pool);
  LayerOps& ops = cpu_ops;
  const SequenceLayout layout = {2, 1};

  const std::vector<int32_t> tokens = {1, 0};
  const std::vector<float> table = {3, 4, 6, 8};
  std::vector<float> x(4);
  EmbeddingForward embed;
  embed.layout = layout;
  embed.tokens = tokens.data();
  embed.table = ConstMatrix::Of(table.data(), 2, 2);
  embed.out = MutableMatrix::Of(x.data(), 2, 2);
  ASSERT_TRUE(ops.token().Forward(embed).ok());
  EXPECT_EQ(x, (std::vector<float>{6, 8, 3, 4}));

  const std::vector<float> ones = {1, 1};
  std::vector<float> normed(4), rstd(2);
  AddNormForward norm;
  norm.norm.eps = 0;
  norm.norm.weight = ones.data();
  norm.x = ConstMatrix::Of(x.data(), 2, 2);
  norm.out = MutableMatrix::Of(normed.data(), 2, 2);
  norm.rstd = rstd.data();
  ASSERT_TRUE(ops.norm().Forward(norm).ok());
  EXPECT_NEAR(normed[0], 6 / std::sqrt(50.0), 1e-6);

  // A token that sees itself alone: its own value.
  const std::vector<float> qkv = {1, 2, 30, 4, 5, 60};
  std::vector<float> attended(2), lse(2);
  AttentionForward attention;
  attention.shape = {1, 1, 1, 1.0f};
  attention.layout = layout;
  attention.qkv = ConstMatrix::Of(qkv.data(), 2, 3);
  attention.out = MutableMatrix::Of(attended.data(), 2, 1);
  attention.lse = lse.data();
  ASSERT_TRUE(ops.attention().Forward(attention).ok());
  EXPECT_EQ(attended, (std::vector<float>{30, 60}));

  const std::vector<float> zeros = {0, 0};
  std::vector<float> convolved(4);
  ConvForward conv;
  conv.layout = layout;
  conv.width = 1;
  conv.weight = ones.data();
  conv.bias = zeros.data();
  conv.in = ConstMatrix::Of(x.data(), 2, 2);
  conv.out = MutableMatrix::Of(convolved.data(), 2, 2);
  ASSERT_TRUE(ops.mamba().Forward(conv).ok());
  EXPECT_NEAR(convolved[2], 3 / (1 + std::exp(-3.0)), 1e-6);

  std::vector<float> total(4, 1);
  ASSERT_TRUE(
      ops.elementwise()
          .Run(Accumulate{ConstMatrix::Of(x.data(), 2, 2), MutableMatrix::Of(total.data(), 2, 2)})
          .ok());
  EXPECT_EQ(total, (std::vector<float>{7, 9, 4, 5}));

  double squares = 0;
  ASSERT_TRUE(ops.optimizer().Run(SumOfSquares{x.data(), 4, &squares}).ok());
  EXPECT_EQ(squares, 125);
}

}  // namespace
}  // namespace nibble
