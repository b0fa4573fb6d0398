#include "kernels/ops/operand_check.h"

#include <gtest/gtest.h>

#include <string>

namespace nibble {
namespace {

const float kData[64] = {};

std::string Text(const OperandCheck& check) {
  EXPECT_EQ(check.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(check.status().message());
}

TEST(OperandCheckTest, ValidOperandsPass) {
  const ConstMatrix m = ConstMatrix::Of(kData, 4, 8);
  EXPECT_TRUE(OperandCheck("op")
                  .Present("m", m)
                  .Shape("m", m, 4, 8)
                  .Same("m", m, "m", m)
                  .Pointer("p", kData, 3)
                  .That(true, "never said")
                  .status()
                  .ok());
}

TEST(OperandCheckTest, EmptyMatrixNeedsNoData) {
  EXPECT_TRUE(OperandCheck("op")
                  .Present("m", ConstMatrix{nullptr, DType::kF32, 0, 8, 8})
                  .Present("m", ConstMatrix{nullptr, DType::kF32, 8, 0, 0})
                  .Pointer("p", nullptr, 0)
                  .status()
                  .ok());
}

TEST(OperandCheckTest, OneRowMayHaveAnyStride) {
  EXPECT_TRUE(
      OperandCheck("op").Present("m", ConstMatrix{kData, DType::kF32, 1, 8, 0}).status().ok());
  EXPECT_EQ(Text(OperandCheck("op").Present("m", ConstMatrix{kData, DType::kF32, 2, 8, 7})),
            "op: m is [2, 8] f32 with row stride 7");
}

TEST(OperandCheckTest, FirstErrorIsKept) {
  const ConstMatrix m = ConstMatrix::Of(kData, 4, 8);
  EXPECT_EQ(Text(OperandCheck("op")
                     .Shape("first", m, 4, 9)
                     .Shape("second", m, 5, 8)
                     .Pointer("third", nullptr, 1)
                     .That(false, "fourth")),
            "op: first is [4, 8] f32 but must be [4, 9]");
}

TEST(OperandCheckTest, NegativeSizesAndMissingDataAreRefused) {
  EXPECT_EQ(Text(OperandCheck("op").Present("m", ConstMatrix{kData, DType::kBf16, -1, 8, 8})),
            "op: m is [-1, 8] bf16 with row stride 8");
  EXPECT_EQ(Text(OperandCheck("op").Present("m", ConstMatrix{nullptr, DType::kF32, 1, 8, 8})),
            "op: m is [1, 8] f32 and has no data");
}

TEST(OperandCheckTest, TypesMustAgree) {
  ConstMatrix bf16 = ConstMatrix::Of(kData, 4, 8);
  bf16.dtype = DType::kBf16;
  EXPECT_EQ(Text(OperandCheck("op").Same("a", bf16, "b", ConstMatrix::Of(kData, 4, 8))),
            "op: a is [4, 8] bf16 but b is [4, 8] f32");
}

TEST(OperandCheckTest, PiecesAreJoined) {
  EXPECT_EQ(Text(OperandCheck("op").That(false, "eps is ", -1.5f, ", below ", 0)),
            "op: eps is -1.5, below 0");
}

}  // namespace
}  // namespace nibble
