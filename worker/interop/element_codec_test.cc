#include "worker/interop/element_codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

namespace nibble {
namespace {

TEST(ElementCodec, EveryHalfIsDecodedAsTheCompilerDoes) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const auto expected = static_cast<float>(std::bit_cast<_Float16>(half));
    const float decoded = DecodeF16(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(decoded)) << bits;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(decoded), std::bit_cast<uint32_t>(expected)) << bits;
    }
  }
}

TEST(ElementCodec, Fp32ComesBackBitForBit) {
  const std::vector<float> values = {0.0f, -0.0f, 1.5f, 0x1p-149f, INFINITY, 3.4e38f};
  std::vector<std::byte> bytes(1);  // what follows is not aligned
  AppendElements(FileDType::kF32, values, bytes);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(DecodeElement(FileDType::kF32, bytes.data() + 1, i)),
              std::bit_cast<uint32_t>(values[i]));
  }
}

TEST(ElementCodec, Bf16IsRoundedToNearestEven) {
  std::vector<std::byte> bytes;
  // One, halfway to the next (down to even), halfway from there (up to even), just above halfway.
  AppendElements(FileDType::kBF16,
                 {1.0f, 1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f, 1.0f + 0x1p-8f + 0x1p-20f}, bytes);
  const float expected[] = {1.0f, 1.0f, 1.0f + 2 * 0x1p-7f, 1.0f + 0x1p-7f};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(DecodeElement(FileDType::kBF16, bytes.data(), i), expected[i]) << i;
  }
}

TEST(ElementCodec, OtherTypesAreNoWeights) {
  int weights = 0;
  for (int i = 0; i < kFileDTypeCount; ++i) weights += IsWeightType(static_cast<FileDType>(i));
  EXPECT_EQ(weights, 3);
}

}  // namespace
}  // namespace nibble
