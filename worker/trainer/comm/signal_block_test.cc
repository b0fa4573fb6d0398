#include "worker/trainer/comm/signal_block.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <thread>

#include "gtest/gtest.h"

namespace nibble {
namespace {

// Writes to a socket whose other end is closed; the signal is fatal unless it is blocked.
void WriteToClosed() {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  ASSERT_EQ(close(fds[1]), 0);
  EXPECT_EQ(write(fds[0], "x", 1), -1);
  EXPECT_EQ(errno, EPIPE);
  ASSERT_EQ(close(fds[0]), 0);
}

bool Blocked(int signal) {
  sigset_t set;
  (void)pthread_sigmask(SIG_BLOCK, nullptr, &set);
  return sigismember(&set, signal) == 1;
}

TEST(SignalBlockTest, WriteToAClosedSocketKillsWithoutIt) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(WriteToClosed(), testing::KilledBySignal(SIGPIPE), "");
}

TEST(SignalBlockTest, NoSigpipeIsLeftBehind) {
  {
    const BlockSigpipe block;
    WriteToClosed();
  }
  EXPECT_FALSE(Blocked(SIGPIPE));
  sigset_t pending;
  ASSERT_EQ(sigpending(&pending), 0);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
}

TEST(SignalBlockTest, SigpipeThatWaitedBeforeStillWaits) {
  sigset_t set;
  (void)sigemptyset(&set);
  (void)sigaddset(&set, SIGPIPE);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &set, nullptr), 0);
  WriteToClosed();
  {
    const BlockSigpipe block;
    WriteToClosed();
  }
  sigset_t pending;
  ASSERT_EQ(sigpending(&pending), 0);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 1);
  int taken = 0;
  ASSERT_EQ(sigwait(&set, &taken), 0);
  ASSERT_EQ(pthread_sigmask(SIG_UNBLOCK, &set, nullptr), 0);
}

TEST(SignalBlockTest, ThreadsStartedUnderItGetNoSignals) {
  bool blocked = false;
  std::optional<std::thread> thread;
  {
    const BlockAllSignals block;
    thread.emplace([&] { blocked = Blocked(SIGTERM) && Blocked(SIGPIPE); });
  }
  thread->join();
  EXPECT_TRUE(blocked);
  EXPECT_FALSE(Blocked(SIGTERM));
}

void AwaitTrue(const std::atomic<bool>& flag) {
  while (!flag) std::this_thread::yield();
}

// As before StopSignals; one that is pending is discarded.
void UnblockStopSignals() {
  sigset_t set;
  (void)sigemptyset(&set);
  (void)sigaddset(&set, SIGTERM);
  (void)sigaddset(&set, SIGINT);
  const timespec now = {};
  while (sigtimedwait(&set, nullptr, &now) > 0) {
  }
  (void)pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

TEST(StopSignalsTest, TermAndIntSetTheFlagAndRunNoHandler) {
  for (const int signal : {SIGTERM, SIGINT}) {
    std::atomic<bool> requested = false;
    {
      const StopSignals stop(requested);
      EXPECT_FALSE(requested);
      std::optional<std::thread> thread;
      bool blocked = false;
      thread.emplace([&] { blocked = Blocked(SIGTERM) && Blocked(SIGINT); });
      thread->join();
      EXPECT_TRUE(blocked);
      ASSERT_EQ(kill(getpid(), signal), 0);
      AwaitTrue(requested);
      ASSERT_EQ(kill(getpid(), SIGTERM), 0);  // a second one does nothing
    }
    struct sigaction action;
    ASSERT_EQ(sigaction(signal, nullptr, &action), 0);
    EXPECT_EQ(action.sa_handler, SIG_DFL);
    EXPECT_TRUE(Blocked(signal));
    UnblockStopSignals();
  }
}

TEST(StopSignalsTest, AnObjectThatGetsNoSignalEnds) {
  std::atomic<bool> requested = false;
  { const StopSignals stop(requested); }
  EXPECT_FALSE(requested);
  UnblockStopSignals();
}

TEST(StopSignalsTest, ASecondIntEndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto interrupt_twice = [] {
    (void)signal(SIGINT, SIG_IGN);  // as a shell does for a process in the background
    std::atomic<bool> requested = false;
    const StopSignals stop(requested);
    (void)kill(getpid(), SIGINT);
    AwaitTrue(requested);
    while (true) (void)kill(getpid(), SIGINT);
  };
  EXPECT_EXIT(interrupt_twice(), testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace nibble
