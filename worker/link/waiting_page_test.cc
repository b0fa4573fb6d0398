#include "worker/link/waiting_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

class WaitingPageTest : public testing::Test {
 protected:
  WaitingPageTest() {
    OwnedDescriptor memory;
    auto rank = WaitingPage::Create(memory);
    EXPECT_TRUE(rank.ok()) << rank.status();
    rank_ = *std::move(rank);
    auto daemon = WaitingPage::Adopt(memory);
    EXPECT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }
  std::unique_ptr<WaitingPage> rank_, daemon_;
};

TEST_F(WaitingPageTest, TheDaemonReadsInWhichCollectiveTheRankIs) {
  EXPECT_EQ(daemon_->Read(), "");
  rank_->Enter("ReduceScatter", 17);
  EXPECT_EQ(daemon_->Read(), "ReduceScatter #17");
  rank_->Leave();
  EXPECT_EQ(daemon_->Read(), "");
  rank_->Enter("Barrier", 18);
  EXPECT_EQ(daemon_->Read(), "Barrier #18") << "no rest of a longer name";
}

TEST_F(WaitingPageTest, TheCollectiveOfAKilledRankCanStillBeRead) {
  const pid_t child = fork();
  if (child == 0) {
    rank_->Enter("AllGather", 5);
    (void)raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(daemon_->Read(), "AllGather #5");
}

TEST_F(WaitingPageTest, ALongNameIsCut) {
  rank_->Enter("AnOperationWithANameOfFortyCharactersOrSo", 1);
  EXPECT_EQ(rank_->Read(), "AnOperationWithANameOfFortyChar #1");
}

TEST_F(WaitingPageTest, ARankThatIsAskedToGiveUpAnswersWhenItLooks) {
  EXPECT_FALSE(rank_->MustGiveUp());
  daemon_->AskToGiveUp();
  EXPECT_FALSE(daemon_->gives_up()) << "it has not looked";
  EXPECT_TRUE(rank_->MustGiveUp());
  EXPECT_TRUE(daemon_->gives_up());
}

// Whether the daemon adopts memory of that size with these seals.
absl::Status AdoptMemory(off_t bytes, int seals) {
  const OwnedDescriptor memory(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(memory.get(), bytes), 0);
  EXPECT_EQ(fcntl(memory.get(), F_ADD_SEALS, seals), 0);
  return WaitingPage::Adopt(memory).status();
}

TEST_F(WaitingPageTest, MemoryThatCouldShrinkOrGrowOrOfAnotherSizeIsRefused) {
  OwnedDescriptor memory;
  ASSERT_TRUE(WaitingPage::Create(memory).ok());
  struct stat info = {};
  ASSERT_EQ(fstat(memory.get(), &info), 0);
  const off_t bytes = info.st_size;
  constexpr int kAll = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  EXPECT_EQ(AdoptMemory(bytes, kAll), absl::OkStatus());
  for (const int missing : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL, kAll}) {
    EXPECT_TRUE(absl::IsInvalidArgument(AdoptMemory(bytes, kAll & ~missing))) << missing;
  }
  for (const off_t other : {off_t{0}, bytes - 1, bytes + 1, off_t{4096}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(AdoptMemory(other, kAll))) << other;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(WaitingPage::Adopt(OwnedDescriptor()).status()));
}

}  // namespace
}  // namespace nibble
