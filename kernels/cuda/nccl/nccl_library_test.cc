#include "kernels/cuda/nccl/nccl_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace nibble {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(NcclLibraryTest, AMissingLibraryIsNamedWithThePlacesSearched) {
  const auto loaded = LoadNcclFrom({"/nowhere/libnccl.so.2", "/nor/here/libnccl.so.2"});
  EXPECT_TRUE(absl::IsNotFound(loaded.status())) << loaded.status();
  EXPECT_THAT(std::string(loaded.status().message()),
              AllOf(HasSubstr("no libnccl.so.2"),
                    HasSubstr("searched /nowhere/libnccl.so.2, /nor/here/libnccl.so.2"),
                    HasSubstr("LD_LIBRARY_PATH")));
}

TEST(NcclLibraryTest, AnotherLibraryIsRefusedWithTheFunctionThatItLacks) {
  const auto loaded = LoadNcclFrom({"libc.so.6"});
  EXPECT_TRUE(absl::IsFailedPrecondition(loaded.status())) << loaded.status();
  EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("has no ncclGetVersion"));
}

TEST(NcclLibraryTest, TheLinkersOwnSearchComesFirst) {
  EXPECT_EQ(NcclPlaces().front(), "libnccl.so.2");
  EXPECT_THAT(NcclPlaces(), testing::Contains("/usr/local/cuda/lib64/libnccl.so.2"));
}

TEST(NcclLibraryTest, VersionsAreReadAsTheLibraryWritesThem) {
  EXPECT_EQ(NcclVersionText(22809), "2.28.9");
  EXPECT_EQ(NcclVersionText(2708), "2.7.8");
}

}  // namespace
}  // namespace nibble
