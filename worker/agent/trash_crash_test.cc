// Processes that move shards to the trash, or back, are killed with SIGKILL before each write and
// rename and after each sync: every shard is in its store or in the trash, whole. The order of
// syncs makes that hold for a power loss, too: whatever names a shard's files is durable before the
// rename that moves them.
//
// The test runs itself as the process that is killed: `--delete DIRECTORY KILL_AT` and
// `--restore DIRECTORY KILL_AT` kill themselves at operation number KILL_AT.
#include <signal.h>
#include <sys/wait.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files/files_testing.h"
#include "common/process/spawn.h"
#include "gtest/gtest.h"
#include "worker/agent/job_store.h"
#include "worker/agent/trash.h"
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kWorld = 2;
constexpr char kJob[] = "job-7";
constexpr int kWrongOrder = 4;

v1::CheckpointRef Ref() {
  v1::CheckpointRef ref;
  ref.set_job(kJob);
  ref.set_step(10);
  ref.set_attempt(1);
  return ref;
}

// The job's store and the trash of a data directory.
struct Data {
  explicit Data(const std::string& directory, DiskFaults* faults = nullptr) {
    auto opened = Trash::Open(
        {.directory = directory + "/trash", .clock = [] { return 0; }, .faults = faults});
    EXPECT_TRUE(opened.ok()) << opened.status();
    trash = *std::move(opened);
    auto job = JobStore::Open(kJob, absl::StrCat(directory, "/jobs/", kJob),
                              checkpoint_testing::TestIdentity(), trash.get(), faults);
    EXPECT_TRUE(job.ok()) << job.status();
    store = *std::move(job);
  }
  void DeleteAll() {
    const auto checkpoints = store->List();
    EXPECT_TRUE(checkpoints.ok()) << checkpoints.status();
    for (const auto& [key, checkpoint] : *checkpoints) {
      for (const auto& [rank, shard] : checkpoint.shards) {
        const absl::Status moved =
            store->MoveToTrash(checkpoint, rank, {.kind = v1::DELETION_KIND_LATE});
        EXPECT_TRUE(moved.ok()) << moved;
      }
      store->RemoveHeader(key.step, key.attempt);
      store->RemoveOrigin(key.step, key.attempt);
    }
  }
  void RestoreAll() {
    trash->TakeOut(Ref(), [this](const v1::TrashedShard& shard, const CheckpointHeader& header,
                                 const std::string& directory) {
      return store->TakeFromTrash(shard, header, directory).status();
    });
  }

  std::unique_ptr<Trash> trash;
  std::unique_ptr<JobStore> store;
};

class KillAt : public DiskFaults {
 public:
  explicit KillAt(int64_t operation) : left_(operation) {}
  int BeforeWrite(const std::string& path, int64_t bytes) override {
    Count();
    if (bytes == 0) CheckOrder(fs::path(path));
    return 0;
  }
  void AfterSync(const std::string& path) override {
    Count();
    // Without the end of a staged file's name.
    synced_.insert(path.substr(0, path.find(".tmp-")));
  }

 private:
  void Count() {
    if (left_-- == 0) raise(SIGKILL);
  }
  void CheckOrder(const fs::path& moved) const {
    std::set<std::string> needed = {moved.string() + ".seal"};
    if (absl::StrContains(moved.string(), "/trash/")) {
      needed.insert(moved.parent_path() / "record");
      needed.insert(moved.parent_path() / "header");
    }
    for (const std::string& path : needed) {
      if (!synced_.contains(path)) std::_Exit(kWrongOrder);
    }
  }

  int64_t left_;
  std::set<std::string> synced_;
};

class TrashCrashTest : public testing::Test {
 protected:
  TrashCrashTest() {
    const Data data(whole_);
    const auto state = checkpoint_testing::RandomState(1, 3, 500);
    for (int32_t rank = 0; rank < kWorld; ++rank) {
      const auto sealed =
          checkpoint_testing::WriteShard(data.store->store(), 10, 1, rank, state,
                                         checkpoint_testing::EvenSlices(state, rank, kWorld));
      EXPECT_TRUE(sealed.ok()) << sealed.status();
    }
    v1::StoreIdentity origin;
    origin.set_id(std::string(32, 'a'));
    origin.set_epoch(3);
    EXPECT_TRUE(data.store->WriteOrigin(10, 1, origin).ok());
    EXPECT_TRUE(data.store->WriteHeader(checkpoint_testing::TestHeader(10, 1, kWorld)).ok());
  }
  // Runs `verb` on a copy of `from` until it is no longer killed, and checks what each life left.
  void KillAtEachOperation(const std::string& verb, const std::string& from) {
    for (int64_t operation = 0;; ++operation) {
      SCOPED_TRACE(absl::StrCat(verb, " is killed at operation ", operation));
      ASSERT_LT(operation, 1000);
      const std::string copy = absl::StrCat(directory_.path(), "/", verb, operation);
      fs::copy(from, copy, fs::copy_options::recursive);
      const absl::StatusOr<pid_t> child =
          SpawnProcess({.arguments = {"/proc/self/exe", verb, copy, absl::StrCat(operation)}});
      ASSERT_TRUE(child.ok()) << child.status();
      int status = 0;
      ASSERT_EQ(waitpid(*child, &status, 0), *child);
      const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      ASSERT_TRUE(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << status;
      CheckWhole(copy);
      if (HasFailure()) return;
      fs::remove_all(copy);
      if (!killed) {
        EXPECT_GT(operation, 10);
        return;
      }
    }
  }
  // Every shard is in one place, and can be restored.
  void CheckWhole(const std::string& directory) {
    Data data(directory);
    const auto count = [&](int32_t rank) {
      int places = 0;
      const auto stored = data.store->List();
      EXPECT_TRUE(stored.ok()) << stored.status();
      for (const auto& [key, checkpoint] : *stored) {
        places += static_cast<int>(checkpoint.shards.count(rank));
        EXPECT_EQ(checkpoint.store.epoch(), 3);
      }
      for (const auto& shard : data.trash->List([](const std::string&) { return -1; })) {
        places += shard.rank() == rank ? 1 : 0;
        EXPECT_EQ(shard.store().epoch(), 3);
      }
      return places;
    };
    for (int32_t rank = 0; rank < kWorld; ++rank) EXPECT_EQ(count(rank), 1) << "rank " << rank;
    data.RestoreAll();
    for (int32_t rank = 0; rank < kWorld; ++rank) {
      const auto reader = data.store->store().OpenShard(10, 1, rank);
      ASSERT_TRUE(reader.ok()) << reader.status();
      int64_t chunks = 0;
      const absl::Status verified = (*reader)->Verify(chunks);
      EXPECT_TRUE(verified.ok()) << verified;
    }
    const auto stored = data.store->List();
    ASSERT_TRUE(stored.ok()) << stored.status();
    ASSERT_EQ(stored->size(), 1u);
    EXPECT_TRUE(data.store->Commit(stored->begin()->second.header).ok());
  }

  const file_testing::TempDirectory directory_;
  const std::string whole_ = directory_.path() + "/whole";
};

TEST_F(TrashCrashTest, AKillAtAnyOperationOfADeletionLeavesEveryShardInOnePlace) {
  KillAtEachOperation("--delete", whole_);
}

TEST_F(TrashCrashTest, AKillAtAnyOperationOfARestorationLeavesEveryShardInOnePlace) {
  const std::string deleted = directory_.path() + "/deleted";
  fs::copy(whole_, deleted, fs::copy_options::recursive);
  Data(deleted).DeleteAll();
  KillAtEachOperation("--restore", deleted);
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  if (argc == 4 && std::strncmp(argv[1], "--", 2) == 0 && std::strchr(argv[1], '=') == nullptr) {
    nibble::KillAt faults(std::atoll(argv[3]));
    nibble::Data data(argv[2], &faults);
    if (std::strcmp(argv[1], "--delete") == 0) {
      data.DeleteAll();
    } else {
      data.RestoreAll();
    }
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
