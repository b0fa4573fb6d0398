#include "common/process/spawn.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/files/files.h"
#include "common/files/files_testing.h"
#include "common/process/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr std::chrono::milliseconds kSpawnPatience(30'000);

class SpawnTest : public testing::Test {
 protected:
  SpawnTest() {
    // Children of other tests.
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }
  // Runs a program with its output in log_; returns its wait status.
  int RunProgram(SpawnOptions options) {
    const int log = open(log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    options.output = options.error = log;
    const absl::StatusOr<pid_t> child = SpawnProcess(options);
    close(log);
    EXPECT_TRUE(child.ok()) << child.status();
    int status = -1;
    EXPECT_EQ(waitpid(child.value_or(-1), &status, 0), child.value_or(-1));
    return status;
  }
  int Run(const std::string& script, SpawnOptions options = {}) {
    options.arguments = {"/bin/sh", "-c", script};
    return RunProgram(std::move(options));
  }
  std::string Log() const { return ReadWholeFile(log_, size_t{1} << 20).value_or("(none)"); }

  const file_testing::TempDirectory directory_;
  const std::string log_ = directory_.path() + "/log";
};

TEST_F(SpawnTest, TheProgramGetsItsEnvironmentAndDescriptorsAndNoOthers) {
  const int open_here = open("/dev/null", O_RDONLY);  // without O_CLOEXEC
  // No pipeline: while the shell starts one, it holds the pipe itself.
  const int status = Run("echo $WORD; cat; echo error >&2; ls -m /proc/$$/fd; exit 3",
                         {.environment = {{"WORD", "hello"}}});
  close(open_here);
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_EQ(Log(), "hello\nerror\n0, 1, 2\n");
}

TEST_F(SpawnTest, NoSignalIsBlockedOrIgnoredUnlessAskedFor) {
  const auto before = signal(SIGPIPE, SIG_IGN);
  sigset_t all, mask;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &mask);
  // A shell would change its own signals.
  const std::vector<std::string> show = {"/bin/grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"};
  RunProgram({.arguments = show});
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  signal(SIGPIPE, before);
  const std::string signals = Log();
  EXPECT_THAT(signals, StartsWith("SigBlk:\t0000000000000000\nSigIgn:\t"));
  const uint64_t ignored = std::stoull(signals.substr(signals.rfind('\t') + 1), nullptr, 16);
  // Signals 32 and 33 are the C library's own: they stay as the parent had them.
  EXPECT_EQ(ignored & ~uint64_t{0x1'8000'0000}, 0u) << signals;
  sigset_t usr1;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  RunProgram({.arguments = show, .blocked_signals = &usr1});
  EXPECT_THAT(Log(), HasSubstr("SigBlk:\t0000000000000200\n"));
}

TEST_F(SpawnTest, AChildCanLeadAGroupOrASession) {
  Run("cut -d' ' -f5 /proc/$$/stat; echo $$", {.group = SpawnOptions::Group::kOwn});
  const std::string group = Log();
  EXPECT_EQ(group.substr(0, group.find('\n')),
            group.substr(group.find('\n') + 1, group.find('\n')));
  Run("cut -d' ' -f6 /proc/$$/stat; echo $$", {.group = SpawnOptions::Group::kSession});
  const std::string session = Log();
  EXPECT_EQ(session.substr(0, session.find('\n')),
            session.substr(session.find('\n') + 1, session.find('\n')));
}

TEST_F(SpawnTest, AProgramThatCannotBeExecutedIsNamedWithItsErrno) {
  const absl::Status missing = SpawnProcess({.arguments = {"/no/such/program"}}).status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/no/such/program"));
  EXPECT_TRUE(absl::IsPermissionDenied(SpawnProcess({.arguments = {"/etc/passwd"}}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(SpawnProcess({}).status()));
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);  // no child is left
}

TEST_F(SpawnTest, TheProgramRunsOnlyIfTheCallBeforeItSucceeds) {
  const std::string trace = directory_.path() + "/ran";
  pid_t seen = 0;
  const absl::Status refused = SpawnProcess({.arguments = {"/bin/touch", trace},
                                             .before_program =
                                                 [&seen](pid_t child) {
                                                   seen = child;
                                                   return absl::CancelledError("no");
                                                 }})
                                   .status();
  EXPECT_EQ(refused, absl::CancelledError("no"));
  EXPECT_GT(seen, 0);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_NE(access(trace.c_str(), F_OK), 0);
}

TEST_F(SpawnTest, AChildCanBeBoundToCpusAndPreferTheMemoryOfANode) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &before)) --last;
  const std::vector<std::string> show = {"/bin/grep", "Cpus_allowed_list", "/proc/self/status"};
  RunProgram({.arguments = show, .cpus = {last}});
  EXPECT_EQ(Log(), absl::StrCat("Cpus_allowed_list:\t", last, "\n"));
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after)) << "the parent is not bound";
  if (!MaySetMemoryPolicy()) GTEST_SKIP() << "memory policies are forbidden here";
  RunProgram({.arguments = {"/bin/cat", "/proc/self/numa_maps"}, .memory_node = 0});
  if (Log().empty()) GTEST_SKIP() << "this kernel does not show memory policies";
  EXPECT_THAT(Log(), HasSubstr(" prefer:0 "));
}

TEST_F(SpawnTest, CpusThatDoNotExistAreAnError) {
  const absl::Status refused =
      SpawnProcess({.arguments = {"/bin/true"}, .cpus = {60'000}}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
}

TEST_F(SpawnTest, AChildDiesWithTheThreadThatStartedIt) {
  std::optional<pid_t> child;
  std::thread([&child] {
    const absl::StatusOr<pid_t> started =
        SpawnProcess({.arguments = {"/bin/sleep", "600"}, .dies_with_thread = true});
    if (started.ok()) child = *started;
  }).join();
  ASSERT_TRUE(child.has_value());
  int status = 0;
  ASSERT_EQ(waitpid(*child, &status, 0), *child);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

TEST_F(SpawnTest, ADetachedProcessLeadsASessionAndAppendsToItsLog) {
  const auto started = StartDetached(
      {.arguments = {"/bin/sh", "-c",
                     "echo $WORD; cut -d' ' -f6 /proc/$$/stat; echo $$; echo bad >&2"},
       .environment = {{"WORD", "hello"}},
       .log_path = log_});
  ASSERT_TRUE(started.ok()) << started.status();
  ASSERT_TRUE(AwaitAnyEnd({*started}, kSpawnPatience));
  EXPECT_FALSE(IsAlive(*started));
  EXPECT_EQ(Log(), absl::StrCat("hello\n", started->pid, "\n", started->pid, "\nbad\n"));
}

TEST_F(SpawnTest, ADetachedProgramThatDoesNotExistIsNamed) {
  const auto started = StartDetached({.arguments = {"/no/such/program"}, .log_path = log_});
  EXPECT_TRUE(absl::IsNotFound(started.status())) << started.status();
  EXPECT_THAT(std::string(started.status().message()), HasSubstr("/no/such/program"));
}

}  // namespace
}  // namespace nibble
