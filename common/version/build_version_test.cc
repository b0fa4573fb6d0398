#include "common/version/build_version.h"

#include "common/version.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(BuildVersionTest, TheCommitFollowsTheVersionIfThereIsOne) {
  EXPECT_EQ(VersionWithCommit("0.1.0", ""), "0.1.0");
  EXPECT_EQ(VersionWithCommit("0.1.0", "2df3eca"), "0.1.0, commit 2df3eca");
  EXPECT_EQ(BuildVersion().rfind(kVersion, 0), 0u);
}

}  // namespace
}  // namespace nibble
