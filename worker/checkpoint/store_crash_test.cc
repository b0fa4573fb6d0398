// Processes that write checkpoints are killed with SIGKILL at any write and at any moment:
// committed checkpoints stay intact, uncommitted ones are removed with their space, and the next
// process continues.
//
// The test runs itself as the process that is killed: `--write STORE ATTEMPT STEP KILL_AT` writes
// checkpoints from STEP on, kills itself before write number KILL_AT (never, if negative), and
// reports every write ('.') and every commit ('!') on its standard output.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/files/files_testing.h"
#include "common/process/spawn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/store_layout.h"
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

using checkpoint_testing::LoadsExactly;
using checkpoint_testing::RandomState;
using checkpoint_testing::Save;
using checkpoint_testing::State;
using checkpoint_testing::TestOptions;
using file_testing::TempDirectory;
using file_testing::WriteHook;
using ::testing::IsEmpty;

constexpr int64_t kKeepLast = 3;

State StateOf(int64_t attempt, int64_t step) {
  return RandomState(static_cast<uint64_t>(attempt * 1000 + step), 4, 3000);
}
// Checkpoints of one and of two shards.
int32_t WorldOf(int64_t step) { return step % 3 == 0 ? 2 : 1; }

CheckpointStore::Options Options() {
  CheckpointStore::Options options = TestOptions();
  options.retention.keep_last = kKeepLast;
  return options;
}

void Tell(char what) {
  if (write(STDOUT_FILENO, &what, 1) != 1) std::_Exit(3);
}

int WriteUntilKilled(const std::string& path, int64_t attempt, int64_t first, int64_t kill_at) {
  int64_t writes = 0;
  WriteHook hook([&writes, kill_at](const std::string&, int64_t) {
    if (writes++ == kill_at) raise(SIGKILL);
    Tell('.');
    return 0;
  });
  CheckpointStore::Options options = Options();
  options.faults = &hook;
  const auto store = CheckpointStore::Open(path, options);
  if (!store.ok()) return 1;
  for (int64_t step = first; step < first + 1000; ++step) {
    const absl::Status status = Save(**store, step, attempt, WorldOf(step), StateOf(attempt, step));
    if (!status.ok()) return 2;
    Tell('!');
  }
  return 0;
}

struct Killed {
  int64_t commits = 0;  // reported by the writer
  bool by_signal = false;
};

// Runs a writer until it is killed: by itself before a write, or from here after it has reported
// `kill_after` writes.
Killed RunAndKill(const std::string& path, int64_t attempt, int64_t first, int64_t own_kill_at,
                  int64_t kill_after) {
  int out[2];
  EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
  const absl::StatusOr<pid_t> child =
      SpawnProcess({.arguments = {"/proc/self/exe", "--write", path, absl::StrCat(attempt),
                                  absl::StrCat(first), absl::StrCat(own_kill_at)},
                    .output = out[1]});
  EXPECT_TRUE(child.ok()) << child.status();
  const pid_t pid = child.value_or(-1);
  close(out[1]);
  Killed killed;
  int64_t writes = 0;
  char what;
  while (read(out[0], &what, 1) == 1) {
    if (what == '!') ++killed.commits;
    if (what == '.' && ++writes == kill_after && pid > 0) kill(pid, SIGKILL);
  }
  close(out[0]);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  killed.by_signal = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  return killed;
}

class StoreCrashTest : public ::testing::Test {
 protected:
  // Kills a writer, checks what it left, and lets the next attempt continue from there.
  void KillRounds(uint64_t seed, int rounds, bool from_outside) {
    std::mt19937_64 random(seed);
    int64_t next = 1;
    int64_t leftovers = 0;
    std::vector<std::pair<int64_t, int64_t>> committed;  // step, attempt
    for (int64_t attempt = 1; attempt <= rounds && !HasFailure(); ++attempt) {
      const auto moment = static_cast<int64_t>(random() % 150);
      SCOPED_TRACE(absl::StrCat("attempt ", attempt, ", killed at write ", moment));
      const Killed killed = from_outside ? RunAndKill(path_, attempt, next, -1, moment + 1)
                                         : RunAndKill(path_, attempt, next, moment, -1);
      ASSERT_TRUE(killed.by_signal);
      for (int64_t i = 0; i < killed.commits; ++i) committed.emplace_back(next + i, attempt);
      next += killed.commits;

      const auto store = CheckpointStore::Open(path_, Options());
      ASSERT_TRUE(store.ok()) << store.status();
      ASSERT_THAT((*store)->open_report().problems, IsEmpty());
      leftovers += static_cast<int64_t>((*store)->open_report().removed.size());
      if (attempt > 1 && killed.commits > 0) {
        ASSERT_TRUE(absl::IsAborted((*store)->Begin(next, attempt - 1, 0).status()));
      }
      const auto list = (*store)->List();
      ASSERT_TRUE(list.ok()) << list.status();
      // It may have committed one more that it could not report.
      if (!list->empty() && list->back().step == next) {
        committed.emplace_back(next, attempt);
        ++next;
      }
      // All that retention keeps are there; it may have died before it removed the older ones.
      const auto kept = std::min<size_t>(kKeepLast, committed.size());
      ASSERT_GE(list->size(), kept);
      ASSERT_LE(list->size(), kept + 1);
      const auto first = committed.end() - static_cast<int64_t>(list->size());
      for (size_t i = 0; i < list->size(); ++i) {
        const auto& [step, of_attempt] = *(first + static_cast<int64_t>(i));
        ASSERT_EQ(list->at(i).step, step);
        const auto reader = (*store)->OpenCheckpoint(step);
        ASSERT_TRUE(reader.ok()) << reader.status();
        ASSERT_EQ(LoadsExactly(**reader, StateOf(of_attempt, step)), absl::OkStatus());
        ASSERT_TRUE((*reader)->Verify().ok());
      }
      // Nothing else is left in the directory.
      for (const auto& entry : std::filesystem::directory_iterator(path_)) {
        const std::string name = entry.path().filename().string();
        const auto directory = ParseDirectoryName(name);
        ASSERT_TRUE(name == "STORE" || name == "LOCK" ||
                    (directory.has_value() && directory->stage == Stage::kCommitted))
            << name;
      }
    }
    EXPECT_GT(committed.size(), static_cast<size_t>(rounds));
    EXPECT_GT(leftovers, rounds / 4);
  }

  const TempDirectory directory_;
  const std::string path_ = directory_.path() + "/store";
};

TEST_F(StoreCrashTest, CommittedCheckpointsSurviveAKillBeforeAnyWrite) { KillRounds(1, 40, false); }

TEST_F(StoreCrashTest, CommittedCheckpointsSurviveAKillAtAnyMoment) { KillRounds(2, 40, true); }

TEST_F(StoreCrashTest, TheStoreOpensAfterAKillBeforeEachOfTheFirstWrites) {
  for (int64_t write = 0; write < 40; ++write) {
    SCOPED_TRACE(write);
    const std::string path = absl::StrCat(directory_.path(), "/", write);
    const Killed killed = RunAndKill(path, 1, 1, write, -1);
    ASSERT_TRUE(killed.by_signal);
    const auto store = CheckpointStore::Open(path, Options());
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_EQ(Save(**store, 100, 2, 1, StateOf(2, 100)), absl::OkStatus());
    const auto good = (*store)->LatestGood();
    ASSERT_TRUE(good.ok()) << good.status();
    ASSERT_EQ(LoadsExactly(*good->reader, StateOf(2, 100)), absl::OkStatus());
  }
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  if (argc == 6 && std::strcmp(argv[1], "--write") == 0) {
    return nibble::WriteUntilKilled(argv[2], std::atoll(argv[3]), std::atoll(argv[4]),
                                    std::atoll(argv[5]));
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
