#include "worker/agent/run_directory.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

class RunDirectoryTest : public testing::Test {
 protected:
  RunDirectoryTest() : data_(testing::TempDir() + "/run-directory-XXXXXX") {
    EXPECT_NE(mkdtemp(data_.data()), nullptr);
  }
  ~RunDirectoryTest() override { fs::remove_all(data_); }

  std::string data_;
};

TEST_F(RunDirectoryTest, ItIsShortAndThisUsersAloneAndGoesWithItsOwner) {
  auto claimed = RunDirectory::Claim(data_);
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  const std::string path = (*claimed)->path();
  EXPECT_LT(path.size(), 60u);
  struct stat facts;
  ASSERT_EQ(stat(path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700u);
  std::ofstream(path + "/socket") << "x";
  claimed->reset();
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::is_empty(data_));
}

TEST_F(RunDirectoryTest, WhatAKilledLifeHasLeftIsRemovedByTheNext) {
  const pid_t killed = fork();
  if (killed == 0) {
    const auto claimed = RunDirectory::Claim(data_);
    if (claimed.ok()) std::ofstream((*claimed)->path() + "/socket") << "x";
    _exit(claimed.ok() ? 0 : 1);  // lets go of nothing
  }
  int status = 0;
  ASSERT_EQ(waitpid(killed, &status, 0), killed);
  ASSERT_EQ(status, 0);
  std::string left;
  std::getline(std::ifstream(data_ + "/run-directory") >> std::ws, left);
  ASSERT_TRUE(fs::exists(left + "/socket")) << left;
  auto next = RunDirectory::Claim(data_);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists((*next)->path()));
}

TEST_F(RunDirectoryTest, ANoteOfSomethingElseRemovesNothing) {
  const std::string other = data_ + "/checkpoints";
  fs::create_directories(other);
  std::ofstream(data_ + "/run-directory") << other << "\n";
  auto claimed = RunDirectory::Claim(data_);
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  EXPECT_TRUE(fs::exists(other));
}

}  // namespace
}  // namespace nibble
