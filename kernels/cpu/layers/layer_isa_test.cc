#include "kernels/cpu/layers/layer_isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace nibble::cpu {
namespace {

TEST(LayerIsaTest, BaselineIsSupportedAndTheBestIsTheLast) {
  const std::vector<LayerIsa> isas = SupportedLayerIsas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), LayerIsa::kBaseline);
  EXPECT_EQ(isas.back(), BestLayerIsa());
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
  for (const LayerIsa isa : isas) EXPECT_TRUE(Supports(isa)) << Name(isa);
}

TEST(LayerIsaTest, TableForReturnsTheTableOfTheSet) {
  const int baseline = 0, avx2 = 1, avx512 = 2;
  EXPECT_EQ(&TableFor(LayerIsa::kBaseline, baseline, avx2, avx512), &baseline);
  EXPECT_EQ(&TableFor(LayerIsa::kAvx2, baseline, avx2, avx512), &avx2);
  EXPECT_EQ(&TableFor(LayerIsa::kAvx512, baseline, avx2, avx512), &avx512);
}

}  // namespace
}  // namespace nibble::cpu
