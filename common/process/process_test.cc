#include "common/process/process.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "common/files/files.h"
#include "common/files/files_testing.h"
#include "common/files/staged_file.h"
#include "common/process/spawn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr milliseconds kPatience(30'000);
constexpr milliseconds kAtOnce(0);

class ProcessTest : public testing::Test {
 protected:
  ProcessIdentity StartShell(const std::string& text) {
    const auto started =
        StartDetached({.arguments = {"/bin/sh", "-c", text}, .log_path = path_ + "/log"});
    EXPECT_TRUE(started.ok()) << started.status();
    return started.value_or(ProcessIdentity());
  }
  const file_testing::TempDirectory directory_;
  const std::string path_ = directory_.path();
};

TEST_F(ProcessTest, AnEndedProcessIsNotAliveThoughNobodyHasReapedIt) {
  const ProcessIdentity process = StartShell("exit 0");
  ASSERT_TRUE(AwaitAnyEnd({process}, kPatience));
  EXPECT_FALSE(IsAlive(process));
}

TEST_F(ProcessTest, AnotherProcessWithTheSameIdIsNotSignalled) {
  const ProcessIdentity process = StartShell("exec tail -f /dev/null");
  ProcessIdentity earlier = process;
  --earlier.start_ticks;
  EXPECT_FALSE(IsAlive(earlier));
  EXPECT_TRUE(AwaitAnyEnd({process, earlier}, kAtOnce));
  const auto ended = EndProcess(earlier, kAtOnce);
  EXPECT_TRUE(ended.ok()) << ended.status();
  EXPECT_TRUE(IsAlive(process));
  SignalProcess(process, SIGKILL);
  EXPECT_TRUE(AwaitAnyEnd({process}, kPatience));
}

TEST_F(ProcessTest, AProcessIsNotTakenForEndedBecauseNoDescriptorIsLeft) {
  const ProcessIdentity process = StartShell("exec tail -f /dev/null");
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool alive = IsAlive(process);
  const bool ended = AwaitAnyEnd({process}, kAtOnce);
  const auto identity = IdentifyProcess(static_cast<pid_t>(process.pid));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(alive);
  EXPECT_FALSE(ended);
  EXPECT_TRUE(absl::IsResourceExhausted(identity.status())) << identity.status();
  SignalProcess(process, SIGKILL);
  EXPECT_TRUE(AwaitAnyEnd({process}, kPatience));
}

TEST_F(ProcessTest, AProcessThatIgnoresSigtermIsKilledAfterTheGrace) {
  const auto by_itself = EndProcess(StartShell("exec tail -f /dev/null"), kPatience);
  ASSERT_TRUE(by_itself.ok()) << by_itself.status();
  EXPECT_TRUE(*by_itself);

  const ProcessIdentity stubborn =
      StartShell("trap '' TERM; while :; do read never < /dev/zero; done");
  const auto killed = EndProcess(stubborn, milliseconds(200));
  ASSERT_TRUE(killed.ok()) << killed.status();
  EXPECT_FALSE(IsAlive(stubborn));
}

TEST_F(ProcessTest, AStoppedProcessCanBeEnded) {
  const ProcessIdentity process = StartShell("exec tail -f /dev/null");
  SignalProcess(process, SIGSTOP);
  const auto ended = EndProcess(process, kPatience);
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_TRUE(*ended);
}

TEST_F(ProcessTest, ALeftoverIsKilledAndAnotherProcessWithItsIdIsNot) {
  const ProcessIdentity process = StartShell("exec tail -f /dev/null");
  ProcessIdentity earlier = process;
  --earlier.start_ticks;
  ASSERT_TRUE(WriteProcessRecord(path_, "earlier", earlier).ok());
  auto leftovers = KillLeftovers(path_, kPatience);
  ASSERT_TRUE(leftovers.ok()) << leftovers.status();
  ASSERT_EQ(leftovers->size(), 1u);
  EXPECT_FALSE((*leftovers)[0].killed);
  EXPECT_TRUE(IsAlive(process));

  ASSERT_TRUE(WriteProcessRecord(path_, "leftover", process).ok());
  leftovers = KillLeftovers(path_, kPatience);
  ASSERT_TRUE(leftovers.ok()) << leftovers.status();
  ASSERT_EQ(leftovers->size(), 1u);
  EXPECT_EQ((*leftovers)[0].name, "leftover");
  EXPECT_TRUE((*leftovers)[0].killed);
  EXPECT_FALSE(IsAlive(process));
  EXPECT_TRUE(KillLeftovers(path_, kPatience)->empty());
}

TEST_F(ProcessTest, ADamagedRecordIsNamedAndKept) {
  ASSERT_TRUE(ReplaceFile(path_ + "/bad.process", "{\"pid\": 1}").ok());
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = KillLeftovers(path_, kPatience).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("bad.process"));
  }
}

}  // namespace
}  // namespace nibble
