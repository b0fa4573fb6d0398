#include "client/cluster/detached_process.h"

#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr milliseconds kPatience(30'000);
constexpr milliseconds kAtOnce(0);

std::string ReadLog(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class DetachedProcessTest : public testing::Test {
 protected:
  DetachedProcessTest() { unlink(log_.c_str()); }
  absl::StatusOr<ProcessIdentity> StartShell(const std::string& text) {
    return StartDetached({.arguments = {"/bin/sh", "-c", text},
                          .environment = {{"NIBBLE_TEST_WORD", "hello"}},
                          .log_path = log_});
  }
  const std::string log_ = testing::TempDir() + "/detached.log";
};

TEST_F(DetachedProcessTest, ItLeadsASessionOfItsOwnAndWritesToItsLog) {
  const auto started =
      StartShell("echo $NIBBLE_TEST_WORD; cut -d' ' -f6 /proc/$$/stat; echo $$; echo bad >&2");
  ASSERT_TRUE(started.ok()) << started.status();
  ASSERT_TRUE(AwaitAnyEnd({*started}, kPatience));
  EXPECT_EQ(ReadLog(log_), absl::StrCat("hello\n", started->pid, "\n", started->pid, "\nbad\n"));
}

TEST_F(DetachedProcessTest, OneThatHasEndedIsNotAliveAlthoughNobodyHasAskedHow) {
  const auto started = StartShell("exit 0");
  ASSERT_TRUE(started.ok()) << started.status();
  ASSERT_TRUE(AwaitAnyEnd({*started}, kPatience));
  EXPECT_FALSE(IsAlive(*started));
}

TEST_F(DetachedProcessTest, AnotherProcessWithItsNumberIsLeftAlone) {
  const auto started = StartShell("exec tail -f /dev/null");
  ASSERT_TRUE(started.ok()) << started.status();
  ProcessIdentity earlier = *started;
  --earlier.start_ticks;
  EXPECT_FALSE(IsAlive(earlier));
  EXPECT_TRUE(AwaitAnyEnd({*started, earlier}, kAtOnce));
  const auto ended = EndProcess(earlier, kAtOnce);
  EXPECT_TRUE(ended.ok()) << ended.status();
  EXPECT_TRUE(IsAlive(*started));
  SignalProcess(*started, SIGKILL);
  EXPECT_TRUE(AwaitAnyEnd({*started}, kPatience));
}

TEST_F(DetachedProcessTest, OneThatDoesNotEndAsToldIsKilled) {
  const auto obeys = StartShell("exec tail -f /dev/null");
  ASSERT_TRUE(obeys.ok()) << obeys.status();
  const auto by_itself = EndProcess(*obeys, kPatience);
  ASSERT_TRUE(by_itself.ok()) << by_itself.status();
  EXPECT_TRUE(*by_itself);

  const auto stubborn = StartShell("trap '' TERM; while :; do read never < /dev/zero; done");
  ASSERT_TRUE(stubborn.ok()) << stubborn.status();
  const auto killed = EndProcess(*stubborn, milliseconds(200));
  ASSERT_TRUE(killed.ok()) << killed.status();
  EXPECT_FALSE(IsAlive(*stubborn));
}

TEST_F(DetachedProcessTest, OneThatStandsStillCanBeEnded) {
  const auto started = StartShell("exec tail -f /dev/null");
  ASSERT_TRUE(started.ok()) << started.status();
  SignalProcess(*started, SIGSTOP);
  const auto ended = EndProcess(*started, kPatience);
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_TRUE(*ended);
}

TEST_F(DetachedProcessTest, AProgramThatIsNotThereIsNamed) {
  const auto started = StartDetached({.arguments = {"/no/such/program"}, .log_path = log_});
  EXPECT_EQ(started.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(started.status().message()), HasSubstr("/no/such/program"));
}

}  // namespace
}  // namespace nibble
