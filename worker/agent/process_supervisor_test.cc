#include "worker/agent/process_supervisor.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/process/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr std::chrono::seconds kExitPatience(30);
constexpr milliseconds kLong = std::chrono::minutes(5);

class ProcessSupervisorTest : public testing::Test {
 protected:
  ProcessSupervisorTest() {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    supervisor_ = std::make_unique<ProcessSupervisor>(
        ProcessSupervisor::Options{.record_directory = directory_,
                                   .oom_kills = [this] { return oom_kills_.load(); },
                                   .ended =
                                       [this](const std::string& name) {
                                         const MutexLock lock(&mutex_);
                                         ended_.insert(name);
                                         changed_.SignalAll();
                                       }});
  }
  ~ProcessSupervisorTest() override {
    supervisor_.reset();
    std::filesystem::remove_all(directory_);
  }

  absl::Status Start(const std::string& name, const std::string& script) {
    return supervisor_->Start({.name = name,
                               .arguments = {"/bin/sh", "-c", script},
                               .environment = {{"WORD", "a word"}},
                               .log_path = LogPath(name)});
  }
  std::string LogPath(const std::string& name) {
    return absl::StrCat(directory_, "/", name, ".log");
  }
  ProcessExit AwaitEnd(const std::string& name) {
    {
      const auto until = std::chrono::steady_clock::now() + kExitPatience;
      const MutexLock lock(&mutex_);
      while (!ended_.contains(name) && !changed_.WaitUntil(&mutex_, until)) {
      }
      EXPECT_TRUE(ended_.contains(name));
    }
    const auto exit = supervisor_->ExitOf(name);
    EXPECT_TRUE(exit.ok() && exit->has_value()) << name;
    return exit.ok() && exit->has_value() ? **exit : ProcessExit();
  }
  // Waits until the program has written a line, so that everything before it is done.
  void AwaitWords(const std::string& name) {
    const auto log = supervisor_->LogOf(name);
    ASSERT_NE(log, nullptr);
    const auto until = std::chrono::steady_clock::now() + kExitPatience;
    while (log->end() == 0 && std::chrono::steady_clock::now() < until) usleep(1000);
    ASSERT_GT(log->end(), 0);
  }

  std::string directory_ = testing::TempDir() + "/supervisor-XXXXXX";
  std::atomic<int64_t> oom_kills_ = 0;
  Mutex mutex_;
  CondVar changed_;
  std::set<std::string> ended_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<ProcessSupervisor> supervisor_;
};

TEST_F(ProcessSupervisorTest, AnExitIsReportedWithItsCodeAndLogTail) {
  ASSERT_TRUE(Start("r", "echo out $WORD; echo err >&2; exit 3").ok());
  const ProcessExit exit = AwaitEnd("r");
  EXPECT_EQ(exit.exit_code, 3);
  EXPECT_FALSE(exit.ok());
  EXPECT_EQ(exit.log_tail, "out a word\nerr\n");
  EXPECT_EQ(Describe(exit), "ended with exit code 3");
}

TEST_F(ProcessSupervisorTest, ASignalIsReportedByItsName) {
  ASSERT_TRUE(Start("r", "kill -SEGV $$").ok());
  EXPECT_THAT(Describe(AwaitEnd("r")), HasSubstr("killed by signal 11 (Segmentation fault)"));
}

TEST_F(ProcessSupervisorTest, AKillForLackOfMemoryIsReportedAsSuch) {
  ASSERT_TRUE(Start("r", "echo up; read line < /dev/zero; exit 1").ok());
  AwaitWords("r");
  oom_kills_ = 1;
  ASSERT_TRUE(supervisor_->Signal("r", SIGKILL).ok());
  const ProcessExit exit = AwaitEnd("r");
  EXPECT_TRUE(exit.out_of_memory);
  EXPECT_FALSE(exit.killed);
  EXPECT_THAT(Describe(exit), HasSubstr("out of memory"));
}

TEST_F(ProcessSupervisorTest, AProgramMayExitByItselfOnASignal) {
  ASSERT_TRUE(Start("r", "trap 'exit 101' TERM; echo up; while :; do sleep 0.01; done").ok());
  AwaitWords("r");
  ASSERT_TRUE(supervisor_->Signal("r", SIGTERM).ok());
  const ProcessExit exit = AwaitEnd("r");
  EXPECT_EQ(exit.exit_code, 101);
  EXPECT_FALSE(exit.killed);
}

TEST_F(ProcessSupervisorTest, AProgramThatIgnoresASignalIsKilledAndItsEndAwaited) {
  ASSERT_TRUE(Start("r", "trap '' TERM; echo up; while :; do sleep 0.01; done").ok());
  AwaitWords("r");
  ASSERT_TRUE(supervisor_->Signal("r", SIGTERM).ok());
  ASSERT_TRUE(supervisor_->Kill("r").ok());
  const auto exit = supervisor_->AwaitEnd("r");
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(exit->signal, SIGKILL);
  EXPECT_TRUE(exit->killed);
  EXPECT_EQ(supervisor_->ExitOf("r").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ProcessSupervisorTest, TheChildrenOfAProgramAreKilledWithIt) {
  ASSERT_TRUE(Start("r", "sleep 600 & echo $!; exit 0").ok());
  const ProcessExit exit = AwaitEnd("r");
  const pid_t child = static_cast<pid_t>(std::stoi(exit.log_tail));
  const auto until = std::chrono::steady_clock::now() + kExitPatience;
  // The adopting process may reap it late, so state Z counts as gone.
  auto runs = [child] {
    std::string state = "Z";
    FILE* file = fopen(absl::StrCat("/proc/", child, "/stat").c_str(), "r");
    if (file == nullptr) return false;
    char letter = 'Z';
    if (fscanf(file, "%*d (%*[^)]) %c", &letter) != 1) letter = 'Z';
    fclose(file);
    return letter != 'Z';
  };
  while (runs() && std::chrono::steady_clock::now() < until) usleep(1000);
  EXPECT_FALSE(runs());
}

TEST_F(ProcessSupervisorTest, ADescendantThatWritesForEverDoesNotDelayTheEnd) {
  const std::string up = directory_ + "/up";
  ASSERT_TRUE(
      Start("a", absl::StrCat("setsid sh -c 'echo > ", up, "; while :; do echo more; done' &",
                              " while [ ! -e ", up, " ]; do sleep 0.01; done; exit 3"))
          .ok());
  EXPECT_EQ(AwaitEnd("a").exit_code, 3);
}

TEST_F(ProcessSupervisorTest, AMissingProgramIsAnErrorThatLeavesNothing) {
  const absl::Status status = supervisor_->Start(
      {.name = "r", .arguments = {"/no/such/program"}, .log_path = LogPath("r")});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/program"));
  EXPECT_TRUE(supervisor_->Names().empty());
  EXPECT_TRUE(KillLeftovers(directory_, kLong)->empty());
}

TEST_F(ProcessSupervisorTest, AForgottenNameCanBeUsedAgain) {
  ASSERT_TRUE(Start("r", "exit 0").ok());
  AwaitEnd("r");
  EXPECT_EQ(Start("r", "exit 0").code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(supervisor_->Forget("r").ok());
  EXPECT_TRUE(Start("r", "exit 0").ok());
}

TEST_F(ProcessSupervisorTest, ARunningProcessTakesAnotherNameAndLog) {
  const std::string go = directory_ + "/go";
  ASSERT_EQ(mkfifo(go.c_str(), 0600), 0);
  ASSERT_TRUE(Start("old", "echo before; read word < " + go + "; echo $word; sleep 600").ok());
  ASSERT_TRUE(Start("other", "sleep 600").ok());
  AwaitWords("old");
  const auto old_log = supervisor_->LogOf("old");
  const pid_t pid = supervisor_->PidOf("old").value_or(-1);
  EXPECT_TRUE(absl::IsAlreadyExists(supervisor_->Rename("old", "other", LogPath("other"))));
  EXPECT_TRUE(absl::IsNotFound(supervisor_->Rename("none", "new", LogPath("new"))));
  EXPECT_EQ(supervisor_->PidOf("old").value_or(-1), pid) << "keeps its name after an error";
  ASSERT_EQ(supervisor_->Rename("old", "new", LogPath("new")), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(supervisor_->PidOf("old").status()));
  EXPECT_EQ(supervisor_->PidOf("new").value_or(-1), pid);
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/old.process"));
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/new.process"));
  EXPECT_TRUE(old_log->ended());
  ASSERT_TRUE(Start("old", "exit 0").ok()) << "the name is free";
  std::ofstream(go) << "after\n";
  AwaitWords("new");
  EXPECT_EQ(supervisor_->LogOf("new")->Tail(), "after\n");
  EXPECT_EQ(old_log->Tail(), "before\n");
  EXPECT_EQ(supervisor_->Kill("new"), absl::OkStatus());
  EXPECT_EQ(AwaitEnd("new").signal, SIGKILL);
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/new.process"));
}

TEST_F(ProcessSupervisorTest, NoProcessOutlivesTheSupervisor) {
  ASSERT_TRUE(Start("r", "trap '' TERM; echo up; while :; do sleep 0.01; done").ok());
  AwaitWords("r");
  const pid_t pid = *supervisor_->PidOf("r");
  supervisor_.reset();
  EXPECT_EQ(kill(pid, 0), -1);
}

TEST_F(ProcessSupervisorTest, NoProcessOutlivesADaemonThatIsKilled) {
  // The daemon is this program, started anew: a forked copy of a process with threads may not start
  // any. The environment tells it our directory.
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  constexpr char kDirectory[] = "NIBBLE_TEST_RECORD_DIRECTORY";
  ASSERT_EQ(setenv(kDirectory, directory_.c_str(), /*overwrite=*/0), 0);
  EXPECT_EXIT(
      {
        const std::string directory = getenv(kDirectory);
        ProcessSupervisor supervisor({.record_directory = directory});
        const absl::Status started = supervisor.Start(
            {.name = "orphan",
             .arguments = {"/bin/sh", "-c",
                           "cd $DIRECTORY; echo $$ > new; mv new pid; exec sleep 600"},
             .environment = {{"DIRECTORY", directory}},
             .log_path = directory + "/orphan.log"});
        while (started.ok() && !std::filesystem::exists(directory + "/pid")) usleep(1000);
        (void)raise(SIGKILL);
      },
      testing::KilledBySignal(SIGKILL), "");
  (void)unsetenv(kDirectory);
  pid_t rank = 0;
  ASSERT_TRUE(std::ifstream(directory_ + "/pid") >> rank);
  // The recorded process was either killed by the kernel or is killed now.
  const auto leftovers = KillLeftovers(directory_, std::chrono::seconds(30));
  ASSERT_TRUE(leftovers.ok()) << leftovers.status();
  ASSERT_EQ(leftovers->size(), 1u);
  EXPECT_EQ((*leftovers)[0].name, "orphan");
  EXPECT_EQ((*leftovers)[0].identity.pid, rank);
  const auto still = IdentifyProcess(rank);
  if (still.ok()) {
    int status;
    (void)waitpid(rank, &status, WNOHANG);
  }
  EXPECT_TRUE(KillLeftovers(directory_, kLong)->empty());
}

TEST_F(ProcessSupervisorTest, ALeftoverIsKilledAndAnotherProcessWithItsPidIsNot) {
  const pid_t child = fork();
  if (child == 0) {
    (void)setpgid(0, 0);
    pause();
    _exit(0);
  }
  (void)setpgid(child, child);
  ProcessIdentity identity = *IdentifyProcess(child);
  ProcessIdentity stranger = identity;
  stranger.start_ticks -= 1;
  ASSERT_TRUE(WriteProcessRecord(directory_, "stranger", stranger).ok());
  auto leftovers = KillLeftovers(directory_, kLong);
  ASSERT_TRUE(leftovers.ok()) << leftovers.status();
  ASSERT_EQ(leftovers->size(), 1u);
  EXPECT_FALSE((*leftovers)[0].killed);
  EXPECT_EQ(waitpid(child, nullptr, WNOHANG), 0);  // it still runs

  ASSERT_TRUE(WriteProcessRecord(directory_, "leftover", identity).ok());
  leftovers = KillLeftovers(directory_, std::chrono::seconds(30));
  ASSERT_TRUE(leftovers.ok()) << leftovers.status();
  EXPECT_TRUE((*leftovers)[0].killed);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

}  // namespace
}  // namespace nibble
