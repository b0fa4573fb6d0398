#include "common/near_name.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace nibble {
namespace {

const std::vector<std::string>& Known() {
  static const std::vector<std::string> known = {"nvfp4", "nvfp4-base", "mxfp4", "mxfp8", "bf16"};
  return known;
}

TEST(NearNameTest, OneEditOfEachKindIsNear) {
  EXPECT_EQ(NearestName("nvfp44", Known()), "nvfp4");
  EXPECT_EQ(NearestName("nvp4", Known()), "nvfp4");
  EXPECT_EQ(NearestName("bf15", Known()), "bf16");
  EXPECT_EQ(NearestName("fb16", Known()), "bf16");
  EXPECT_EQ(NearestName("nvfp4-bsae", Known()), "nvfp4-base");
}

TEST(NearNameTest, FewerEditsWinAndTheFirstOfEqualsWins) {
  EXPECT_EQ(NearestName("mxfp8", Known()), "mxfp8");
  EXPECT_EQ(NearestName("mxfp6", Known()), "mxfp4");
  EXPECT_EQ(NearestName("nvfp4-bas", Known()), "nvfp4-base");
}

TEST(NearNameTest, LetterCaseIsFree) {
  EXPECT_EQ(NearestName("NVFP4-Base", Known()), "nvfp4-base");
}

TEST(NearNameTest, AThirdOfTheKnownNameIsTheMost) {
  const std::vector<std::string> known = {"abcdef"};
  EXPECT_EQ(NearestName("abcdxy", known), "abcdef");
  EXPECT_EQ(NearestName("abcxyz", known), "");
  EXPECT_EQ(NearestName("abcdefxyz", known), "");
}

TEST(NearNameTest, ShortNamesAllowOneEdit) {
  const std::vector<std::string> known = {"up"};
  EXPECT_EQ(NearestName("ap", known), "up");
  EXPECT_EQ(NearestName("pu", known), "up");
  EXPECT_EQ(NearestName("do", known), "");
}

TEST(NearNameTest, ANumberIsNearToNumbersByValueAndNotByItsDigits) {
  const std::vector<std::string> sizes = {"off", "2", "4", "8", "16", "32", "64", "128", "default"};
  EXPECT_EQ(NearestName("24", sizes), "16");
  EXPECT_EQ(NearestName("25", sizes), "32");
  EXPECT_EQ(NearestName("12", sizes), "8");
  EXPECT_EQ(NearestName("256", sizes), "128");
  EXPECT_EQ(NearestName("1", sizes), "2");
  EXPECT_EQ(NearestName("0", sizes), "");
  EXPECT_EQ(NearestName("1000", sizes), "");
  EXPECT_EQ(NearestName("2", {}), "");
  EXPECT_EQ(NearestName("16x", sizes), "16");
}

TEST(NearNameTest, ABeginningIsNearWhereNoEditIs) {
  const std::vector<std::string> known = {"llama-125m", "llama-1b"};
  EXPECT_EQ(NearestName("llama", known), "llama-125m");
  EXPECT_EQ(NearestName("llama-1", known), "llama-1b");
  EXPECT_EQ(NearestName("ll", known), "");
}

TEST(NearNameTest, NothingIsNearToNothing) {
  EXPECT_EQ(NearestName("", Known()), "");
  EXPECT_EQ(NearestName("nvfp4", {}), "");
  EXPECT_EQ(NearestName(std::string(1 << 20, 'n'), Known()), "");
}

}  // namespace
}  // namespace nibble
