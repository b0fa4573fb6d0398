#include "worker/trainer/link/waiting_page.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace nibble {
namespace {

class WaitingPageTest : public testing::Test {
 protected:
  WaitingPageTest() { EXPECT_NE(mkdtemp(directory_.data()), nullptr); }
  ~WaitingPageTest() override { std::filesystem::remove_all(directory_); }
  std::string Path() const { return WaitingPage::PathOf(directory_ + "/1.link", 3); }

  std::string directory_ = testing::TempDir() + "/page-XXXXXX";
};

TEST_F(WaitingPageTest, TheDaemonReadsWhereTheRankStands) {
  auto rank = WaitingPage::Create(Path());
  ASSERT_TRUE(rank.ok()) << rank.status();
  auto daemon = WaitingPage::Open(Path());
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  EXPECT_EQ((*daemon)->Read(), "");
  (*rank)->Enter("ReduceScatter", 17);
  EXPECT_EQ((*daemon)->Read(), "ReduceScatter #17");
  (*rank)->Leave();
  EXPECT_EQ((*daemon)->Read(), "");
  (*rank)->Enter("Barrier", 18);
  EXPECT_EQ((*daemon)->Read(), "Barrier #18") << "nothing of a longer name is left";
}

TEST_F(WaitingPageTest, WhatAKilledRankStoodInCanStillBeRead) {
  auto rank = WaitingPage::Create(Path());
  ASSERT_TRUE(rank.ok()) << rank.status();
  auto daemon = WaitingPage::Open(Path());
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const pid_t child = fork();
  if (child == 0) {
    (*rank)->Enter("AllGather", 5);
    (void)raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ((*daemon)->Read(), "AllGather #5");
}

TEST_F(WaitingPageTest, ARankWithoutAPageIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(WaitingPage::Open(Path()).status()));
}

TEST_F(WaitingPageTest, ALongNameIsCut) {
  auto rank = WaitingPage::Create(Path());
  ASSERT_TRUE(rank.ok()) << rank.status();
  (*rank)->Enter("AnOperationWithANameOfFortyCharactersOrSo", 1);
  EXPECT_EQ((*rank)->Read(), "AnOperationWithANameOfFortyChar #1");
}

}  // namespace
}  // namespace nibble
