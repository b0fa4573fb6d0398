#include "client/cluster/local_processes.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
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

TEST(FreePortTest, APortThatIsListenedOnIsNotFreeUntilItIsClosed) {
  const int file = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_GE(file, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(file, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(file, 1), 0);
  socklen_t size = sizeof address;
  ASSERT_EQ(getsockname(file, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const int port = ntohs(address.sin_port);
  EXPECT_FALSE(IsPortFree(port));
  close(file);
  EXPECT_TRUE(IsPortFree(port));
}

TEST(FreePortTest, TheChosenPortIsFreeAndBelowThoseOfOutgoingConnections) {
  int first = 0;
  std::ifstream range("/proc/sys/net/ipv4/ip_local_port_range");
  if (!(range >> first) || first <= 1024) GTEST_SKIP() << "every port is for connections here";
  const auto port = ChooseFreePort();
  ASSERT_TRUE(port.ok()) << port.status();
  EXPECT_LT(*port, first);
  EXPECT_GE(*port, 1024);
  EXPECT_TRUE(IsPortFree(*port));
}

TEST(LogTailTest, ItIsTheLastWholeLines) {
  const std::string path = testing::TempDir() + "/tail.log";
  EXPECT_EQ(LogTail(path + ".none"), "(cannot be read)");
  std::ofstream(path) << "";
  EXPECT_EQ(LogTail(path), "(is empty)");
  std::ofstream(path) << "first\nlast\n";
  EXPECT_EQ(LogTail(path), "first\nlast");
  std::ofstream many(path);
  for (int i = 0; i < 1000; ++i) many << absl::StrCat("line ", i, "\n");
  many.close();
  const std::string tail = LogTail(path);
  EXPECT_EQ(std::count(tail.begin(), tail.end(), '\n'), 11);
  EXPECT_EQ(tail.substr(0, tail.find('\n')), "line 988");
  EXPECT_EQ(tail.substr(tail.rfind('\n') + 1), "line 999");
}

}  // namespace

}  // namespace nibble
