#include "common/process/guard_testing.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "common/files/files_testing.h"
#include "common/process/process.h"
#include "common/process/spawn.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

constexpr std::chrono::seconds kGuardPatience(30);
constexpr int kGuardedExit = 3;

// A guarded program that has started a detached process and an orphan.
class GuardTest : public testing::Test {
 protected:
  // Afterwards the program waits, or ends with kGuardedExit.
  void Run(bool ends) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    program_ = fork();
    ASSERT_GE(program_, 0);
    if (program_ == 0) {
      (void)setpgid(0, 0);
      process_testing::GuardProcesses();
      const auto detached = StartDetached({.arguments = {"/usr/bin/tail", "-f", "/dev/null"},
                                           .log_path = directory_.path() + "/log"});
      const auto shell = StartDetached(
          {.arguments = {"/bin/sh", "-c", "tail -f /dev/null >/dev/null 2>&1 & echo $!"},
           .log_path = directory_.path() + "/orphan"});
      if (!detached.ok() || !shell.ok() || !AwaitAnyEnd({*shell}, kGuardPatience)) _exit(1);
      const pid_t processes[] = {getpid(), static_cast<pid_t>(detached->pid)};
      (void)!write(ready[1], processes, sizeof processes);
      while (!ends) (void)pause();
      _exit(kGuardedExit);
    }
    pid_t processes[2] = {};
    (void)close(ready[1]);
    ASSERT_EQ(read(ready[0], processes, sizeof processes), ssize_t{sizeof processes});
    (void)close(ready[0]);
    tests_ = processes[0];
    pid_t orphan = 0;
    ASSERT_TRUE(std::ifstream(directory_.path() + "/orphan") >> orphan);
    for (const pid_t pid : {tests_, processes[1], orphan}) handles_.emplace_back(pid);
    if (ends) return;
    for (const ProcessHandle& handle : handles_) {
      EXPECT_FALSE(handle.AwaitEnd(std::chrono::milliseconds(0)));
    }
  }
  void ExpectNothingIsLeft() {
    for (const ProcessHandle& handle : handles_) EXPECT_TRUE(handle.AwaitEnd(kGuardPatience));
  }
  // The exit code of the program; negative if a signal has ended it.
  int ExitOfProgram() const {
    int status = 0;
    EXPECT_EQ(waitpid(program_, &status, 0), program_);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  const file_testing::TempDirectory directory_;
  pid_t program_ = 0;
  pid_t tests_ = 0;  // the process of the program that GuardProcesses returned in
  std::vector<ProcessHandle> handles_;
};

TEST_F(GuardTest, WhatTestsLeaveIsKilledAndTheirExitCodeKept) {
  Run(/*ends=*/true);
  EXPECT_EQ(ExitOfProgram(), kGuardedExit);
  ExpectNothingIsLeft();
}

TEST_F(GuardTest, AKilledProgramLeavesNothing) {
  Run(/*ends=*/false);
  ASSERT_EQ(kill(program_, SIGKILL), 0);
  ExpectNothingIsLeft();
  EXPECT_EQ(ExitOfProgram(), -SIGKILL);
}

TEST_F(GuardTest, AKilledProcessGroupLeavesNothing) {
  Run(/*ends=*/false);
  ASSERT_EQ(kill(-program_, SIGKILL), 0);
  ExpectNothingIsLeft();
  EXPECT_EQ(ExitOfProgram(), -SIGKILL);
}

TEST_F(GuardTest, TestsThatAreKilledLeaveNothing) {
  Run(/*ends=*/false);
  ASSERT_EQ(kill(tests_, SIGKILL), 0);
  ExpectNothingIsLeft();
  EXPECT_EQ(ExitOfProgram(), 128 + SIGKILL);
}

}  // namespace
}  // namespace nibble
