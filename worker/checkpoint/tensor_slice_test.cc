#include "worker/checkpoint/tensor_slice.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

TensorSlice Good() { return {"layers.0.weight", FileDType::kBF16, {4, 8}, 8, 16}; }

std::string Refusal(const TensorSlice& slice) {
  const absl::Status status = CheckSlice(slice);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(TensorSliceTest, BytesAreElementsTimesTheirSize) {
  EXPECT_EQ(CheckSlice(Good()), absl::OkStatus());
  EXPECT_EQ(SliceBytes(Good()), 32);
}

TEST(TensorSliceTest, ScalarHasOneElementAndAZeroDimensionNone) {
  EXPECT_EQ(*ShapeElements({}), 1);
  EXPECT_EQ(*ShapeElements(std::vector<int64_t>{3, 0, int64_t{1} << 40}), 0);
}

TEST(TensorSliceTest, EveryFieldIsRefusedByItsName) {
  TensorSlice slice = Good();
  slice.name = "";
  EXPECT_THAT(Refusal(slice), HasSubstr("name has 0 characters"));
  slice = Good();
  slice.name = std::string(TensorSlice::kMaxName + 1, 'a');
  EXPECT_THAT(Refusal(slice), HasSubstr("513"));
  slice = Good();
  slice.name = "a\nb";
  EXPECT_THAT(Refusal(slice), HasSubstr("printable"));
  slice = Good();
  slice.dtype = static_cast<FileDType>(99);
  EXPECT_THAT(Refusal(slice), HasSubstr("dtype 99"));
  slice = Good();
  slice.shape = {4, -8};
  EXPECT_THAT(Refusal(slice), HasSubstr("negative"));
  slice = Good();
  slice.shape = std::vector<int64_t>(TensorSlice::kMaxDimensions + 1, 1);
  EXPECT_THAT(Refusal(slice), HasSubstr("17 dimensions"));
}

TEST(TensorSliceTest, SizesThatOverflowAreRefused) {
  TensorSlice slice = Good();
  slice.shape = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_THAT(Refusal(slice), HasSubstr("more than"));
  slice.shape = {int64_t{1} << 50};
  EXPECT_THAT(Refusal(slice), HasSubstr("of 2 bytes, more than"));
}

TEST(TensorSliceTest, RangeOutsideTheTensorIsRefused) {
  TensorSlice slice = Good();
  slice.first = 17;
  EXPECT_THAT(Refusal(slice), HasSubstr("[17, 17 + 16) are not inside [0, 32)"));
  slice.first = -1;
  EXPECT_THAT(Refusal(slice), HasSubstr("[-1"));
  slice = Good();
  slice.count = INT64_MAX;
  EXPECT_THAT(Refusal(slice), HasSubstr("not inside"));
}

TEST(TensorSliceTest, LastChunkIsWhatIsLeftOver) {
  EXPECT_EQ(ChunksOf(0, 10), 0);
  EXPECT_EQ(ChunksOf(10, 10), 1);
  EXPECT_EQ(ChunksOf(11, 10), 2);
}

}  // namespace
}  // namespace nibble
