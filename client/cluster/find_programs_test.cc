#include "client/cluster/find_programs.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class FindProgramsTest : public testing::Test {
 protected:
  FindProgramsTest() { EXPECT_NE(mkdtemp(root_.data()), nullptr); }
  ~FindProgramsTest() override { fs::remove_all(root_); }
  std::string Make(const std::string& path) const {
    const fs::path whole = fs::path(root_) / path;
    fs::create_directories(whole.parent_path());
    std::ofstream(whole) << "#!/bin/sh\n";
    fs::permissions(whole, fs::perms::owner_all);
    return whole;
  }
  std::string root_ = testing::TempDir() + "/programs-XXXXXX";
};

TEST_F(FindProgramsTest, ProgramsAreBesideTheCommandOrWhereBazelBuildsThem) {
  const std::string beside = Make("client/nibble-coordinator");
  (void)Make("server/nibble-coordinator");
  const std::string worker = Make("worker/agent/nibble-worker");
  const std::string trainer = Make("worker/trainer/loop/nibble-trainer");
  const auto found = FindPrograms({}, root_ + "/client/nibble");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->coordinator, beside);
  EXPECT_EQ(found->worker, worker);
  EXPECT_EQ(found->trainer, trainer);
}

TEST_F(FindProgramsTest, AGivenPathIsUsedAndMustExist) {
  const std::string other = Make("other/coordinator");
  (void)Make("client/nibble-coordinator");
  (void)Make("client/nibble-worker");
  (void)Make("client/nibble-trainer");
  const auto found = FindPrograms({.coordinator = other}, root_ + "/client/nibble");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->coordinator, other);
  const absl::Status none =
      FindPrograms({.coordinator = other + "-not"}, root_ + "/client/nibble").status();
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.message()), HasSubstr(other + "-not"));
}

TEST_F(FindProgramsTest, TheErrorForAMissingProgramNamesThePlacesAndTheOption) {
  (void)Make("client/nibble-coordinator");
  const absl::Status status = FindPrograms({}, root_ + "/client/nibble").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(root_ + "/worker/agent/nibble-worker"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--worker-program"));
}

}  // namespace
}  // namespace nibble
