#include "common/safetensors/dtype.h"

#include <optional>

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(SafetensorsDType, EveryNameLeadsBackToItsType) {
  for (int i = 0; i < kFileDTypeCount; ++i) {
    const FileDType dtype = static_cast<FileDType>(i);
    EXPECT_EQ(FileDTypeFromName(FileDTypeName(dtype)), dtype) << FileDTypeName(dtype);
    EXPECT_GT(FileDTypeSize(dtype), 0) << FileDTypeName(dtype);
  }
}

TEST(SafetensorsDType, SizesAreThoseOfTheFormat) {
  EXPECT_EQ(FileDTypeSize(FileDType::kBool), 1);
  EXPECT_EQ(FileDTypeSize(FileDType::kF8E8M0), 1);
  EXPECT_EQ(FileDTypeSize(FileDType::kBF16), 2);
  EXPECT_EQ(FileDTypeSize(FileDType::kU32), 4);
  EXPECT_EQ(FileDTypeSize(FileDType::kF64), 8);
}

TEST(SafetensorsDType, UnknownNamesAndValuesAreToldApart) {
  EXPECT_EQ(FileDTypeFromName("f32"), std::nullopt);
  EXPECT_EQ(FileDTypeFromName(""), std::nullopt);
  EXPECT_EQ(FileDTypeFromName("?"), std::nullopt);
  EXPECT_EQ(FileDTypeName(static_cast<FileDType>(kFileDTypeCount)), "?");
  EXPECT_EQ(FileDTypeSize(static_cast<FileDType>(255)), 0);
}

}  // namespace
}  // namespace nibble
