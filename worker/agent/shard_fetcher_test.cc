// Two workers' registries, one of which has a checkpoint.
#include "worker/agent/shard_fetcher.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/files/files_testing.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/agent/checkpoint_registry.h"
#include "worker/agent/checkpoint_tasks.h"
#include "worker/agent/peer_server.h"
#include "worker/agent/trash.h"
#include "worker/checkpoint/store_layout.h"
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

using checkpoint_testing::LoadsExactly;
using checkpoint_testing::RandomState;
using checkpoint_testing::State;
using checkpoint_testing::TestIdentity;
using file_testing::TempDirectory;
using testing::HasSubstr;

constexpr char kFetchedJob[] = "gpt-1";
constexpr int32_t kWorld = 2;
constexpr std::chrono::seconds kFetchPatience(60);

// A worker as other workers see it.
struct Holder {
  explicit Holder(const State& state) {
    std::filesystem::create_directories(directory.path() + "/checkpoints");
    {
      auto store =
          CheckpointStore::Open(directory.path() + "/checkpoints", {.identity = TestIdentity()});
      EXPECT_TRUE(store.ok()) << store.status();
      EXPECT_TRUE(checkpoint_testing::Save(**store, 10, 1, kWorld, state).ok());
    }
    EXPECT_TRUE(registry.OpenJob(kFetchedJob, directory.path(), TestIdentity()).ok());
    std::vector<PeerService> services;
    services.push_back(MakeShardService(registry, "holder"));
    auto started = PeerServer::Start("127.0.0.1:0", {}, std::move(services));
    EXPECT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
  }
  void Damage(int32_t rank) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path())) {
      if (entry.path().extension() != ".sst" ||
          entry.path().string().find("shard-0000" + std::to_string(rank)) == std::string::npos) {
        continue;
      }
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(entry.file_size() / 3));
      file.write("damage", 6);
    }
  }

  TempDirectory directory;
  CheckpointRegistry registry{{.clock = [] { return 0.0; }}};
  std::unique_ptr<PeerServer> server;
};

class ShardFetcherTest : public testing::Test {
 protected:
  ShardFetcherTest()
      : registry_({.clock = [] { return 0.0; },
                   .changed =
                       [this] {
                         const MutexLock lock(&mutex_);
                         changed_.SignalAll();
                       }}),
        fetcher_({.registry = &registry_,
                  .open_job = [this](const std::string& job, const StoreIdentity& identity) {
                    return registry_.OpenJob(job, directory_.path() + "/" + job, identity);
                  }}) {}

  v1::DesiredReplica Replica(int32_t rank, const std::vector<const Holder*>& holders) const {
    v1::DesiredReplica replica;
    *replica.mutable_ref() = Ref();
    replica.set_rank(rank);
    const auto crc = first_.registry.CrcOf(Ref(), rank);
    EXPECT_TRUE(crc.ok()) << crc.status();
    replica.set_manifest_crc32c(*crc);
    for (const Holder* holder : holders) replica.add_sources(holder->server->address());
    return replica;
  }
  static v1::CheckpointRef Ref() {
    v1::CheckpointRef ref;
    ref.set_job(kFetchedJob);
    ref.set_step(10);
    ref.set_attempt(1);
    return ref;
  }
  absl::Status Fetch(const v1::DesiredReplica& replica, bool input = false) {
    return fetcher_.Fetch(replica, input, cancellation_, [this](int64_t bytes) { come_ += bytes; });
  }

  const State state_ = RandomState(5, 6, 700'000);
  Holder first_{state_};
  TempDirectory directory_;
  Mutex mutex_;
  CondVar changed_;
  CheckpointRegistry registry_;
  ShardFetcher fetcher_;
  Cancellation cancellation_;
  int64_t come_ = 0;
};

TEST_F(ShardFetcherTest, ReplicasOfAllShardsAreACheckpointThatLoads) {
  int64_t all = 0;
  for (int32_t rank = 0; rank < kWorld; ++rank) {
    const absl::Status fetched = Fetch(Replica(rank, {&first_}));
    ASSERT_TRUE(fetched.ok()) << fetched;
    all += first_.registry.Report(1)[static_cast<size_t>(rank)].bytes();
  }
  EXPECT_EQ(come_, all);
  const auto mine = registry_.Report(1);
  const auto theirs = first_.registry.Report(1);
  ASSERT_EQ(mine.size(), theirs.size());
  EXPECT_NE(mine[0].manifest_crc32c(), mine[1].manifest_crc32c());
  for (size_t i = 0; i < mine.size(); ++i) {
    EXPECT_EQ(mine[i].SerializeAsString(), theirs[i].SerializeAsString());
  }
  ASSERT_TRUE(registry_.MakeLoadable(Ref()).ok());
  const auto reader = registry_.Open(Ref());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE(LoadsExactly(**reader, state_).ok());
}

TEST_F(ShardFetcherTest, AnotherSourceReplacesADamagedOne) {
  Holder second(state_);
  first_.Damage(0);
  const absl::Status fetched = Fetch(Replica(0, {&first_, &second}));
  EXPECT_TRUE(fetched.ok()) << fetched;
  int64_t chunks = 0;
  EXPECT_TRUE((*registry_.OpenShard(Ref(), 0))->Verify(chunks).ok());
}

TEST_F(ShardFetcherTest, AFetchOnAFullDiskTakesTheSpaceOfTheTrashAndFailsWithoutAny) {
  std::atomic<bool> full = false;
  file_testing::WriteHook disk([&full](const std::string& path, int64_t) {
    return full && path.find("/writing-") != std::string::npos ? ENOSPC : 0;
  });
  const auto trash = Trash::Open({.directory = directory_.path() + "/trash",
                                  .clock = [] { return 0; },
                                  .changed = [&full] { full = false; }});
  ASSERT_TRUE(trash.ok()) << trash.status();
  v1::TrashedShard shard;
  *shard.mutable_ref() = Ref();
  const absl::Status added =
      (*trash)->Add(shard, CheckpointHeader(), [](const std::string& directory) {
        return MakeDirectories(directory + "/" + ShardDirectoryName(0));
      });
  ASSERT_TRUE(added.ok()) << added;
  CheckpointRegistry registry(
      {.clock = [] { return 0.0; }, .trash = trash->get(), .faults = &disk});
  ShardFetcher fetcher({.registry = &registry,
                        .open_job = [&](const std::string& job, const StoreIdentity& identity) {
                          return registry.OpenJob(job, directory_.path() + "/" + job, identity);
                        }});
  const auto fetch = [&](int32_t rank) {
    full = true;
    return fetcher.Fetch(Replica(rank, {&first_}), false, cancellation_, [](int64_t) {});
  };
  const absl::Status fetched = fetch(0);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_FALSE((*trash)->Has(Ref()));
  EXPECT_TRUE(absl::IsResourceExhausted(fetch(1)));
}

TEST_F(ShardFetcherTest, DamageAtEverySourceIsNamedAndNothingIsStored) {
  first_.Damage(1);
  const absl::Status fetched = Fetch(Replica(1, {&first_}));
  EXPECT_EQ(fetched.code(), absl::StatusCode::kDataLoss) << fetched;
  EXPECT_THAT(std::string(fetched.message()), HasSubstr("shard of rank 1 of gpt-1, step 10"));
  EXPECT_THAT(std::string(fetched.message()), HasSubstr(first_.server->address()));
  EXPECT_TRUE(registry_.Report(1).empty());
}

TEST_F(ShardFetcherTest, AShardWithAnotherManifestIsRefused) {
  v1::DesiredReplica replica = Replica(0, {&first_});
  replica.set_manifest_crc32c(replica.manifest_crc32c() + 1);
  EXPECT_EQ(Fetch(replica).code(), absl::StatusCode::kDataLoss);
}

TEST_F(ShardFetcherTest, NoReachableSourceIsNotDamage) {
  EXPECT_EQ(Fetch(Replica(0, {})).code(), absl::StatusCode::kUnavailable);
  v1::DesiredReplica replica = Replica(0, {});
  replica.add_sources("127.0.0.1:1");
  EXPECT_EQ(Fetch(replica).code(), absl::StatusCode::kUnavailable);
}

TEST_F(ShardFetcherTest, ACancelledFetchEnds) {
  cancellation_.Cancel();
  EXPECT_EQ(Fetch(Replica(0, {&first_})).code(), absl::StatusCode::kCancelled);
}

// The first transfer stays in its progress callback, so that the second cannot begin before it is
// released.
TEST_F(ShardFetcherTest, ATransferThatWaitsForItsSourceBeginsInTurnOrIsCancelled) {
  Mutex mutex;
  CondVar changed;
  bool copying = false;
  bool released = false;
  absl::Status first;
  std::thread copies([&] {
    Cancellation own;
    first = fetcher_.Fetch(Replica(0, {&first_}), /*input=*/false, own, [&](int64_t) {
      const MutexLock lock(&mutex);
      copying = true;
      changed.SignalAll();
      while (!released) changed.Wait(&mutex);
    });
  });
  {
    const MutexLock lock(&mutex);
    while (!copying) changed.Wait(&mutex);
  }
  const auto fetch = [this](Cancellation& cancellation, int64_t& bytes) {
    return std::async(std::launch::async, [this, &cancellation, &bytes] {
      return fetcher_.Fetch(Replica(1, {&first_}), /*input=*/false, cancellation,
                            [&bytes](int64_t more) { bytes += more; });
    });
  };
  Cancellation unwanted;
  int64_t unwanted_bytes = 0;
  int64_t bytes = 0;
  auto cancelled = fetch(unwanted, unwanted_bytes);
  auto waits = fetch(cancellation_, bytes);
  unwanted.Cancel();
  EXPECT_EQ(cancelled.get().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(unwanted_bytes, 0);
  EXPECT_FALSE(registry_.CrcOf(Ref(), 1).ok());
  {
    const MutexLock lock(&mutex);
    released = true;
    changed.SignalAll();
  }
  const absl::Status second = waits.get();
  EXPECT_TRUE(second.ok()) << second;
  EXPECT_GT(bytes, 0);
  copies.join();
  EXPECT_TRUE(first.ok()) << first;
}

TEST_F(ShardFetcherTest, InputExistsOnlyForTheHoldersOfALease) {
  CheckpointRegistry::Lease lease = registry_.Keep(Ref());
  for (int32_t rank = 0; rank < kWorld; ++rank) {
    const absl::Status fetched = Fetch(Replica(rank, {&first_}), /*input=*/true);
    ASSERT_TRUE(fetched.ok()) << fetched;
  }
  ASSERT_TRUE(registry_.MakeLoadable(Ref()).ok());
  const auto reader = registry_.Open(Ref());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE(registry_.Report(1).empty());
  lease.reset();
  registry_.AwaitSettled();
  EXPECT_EQ(registry_.Open(Ref()).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ShardFetcherTest, InputBesideStoredShardsIsReportedLikeThem) {
  ASSERT_TRUE(Fetch(Replica(0, {&first_})).ok());
  CheckpointRegistry::Lease lease = registry_.Keep(Ref());
  for (int32_t rank = 1; rank < kWorld; ++rank) {
    ASSERT_TRUE(Fetch(Replica(rank, {&first_}), /*input=*/true).ok());
  }
  ASSERT_TRUE(registry_.MakeLoadable(Ref()).ok());
  EXPECT_EQ(registry_.Report(1).size(), static_cast<size_t>(kWorld));
  lease.reset();
  registry_.AwaitSettled();
  EXPECT_TRUE(registry_.Open(Ref()).ok());
}

TEST_F(ShardFetcherTest, VerifyingReadsEveryByteAndStoresNone) {
  Holder second(state_);
  std::vector<std::string> notes;
  EXPECT_TRUE(fetcher_.Verify(Replica(0, {&first_}), cancellation_, notes).ok());
  EXPECT_TRUE(notes.empty());
  first_.Damage(0);
  EXPECT_TRUE(fetcher_.Verify(Replica(0, {&first_, &second}), cancellation_, notes).ok());
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], HasSubstr(first_.server->address()));
  EXPECT_EQ(fetcher_.Verify(Replica(0, {&first_}), cancellation_, notes).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_TRUE(registry_.Report(1).empty());
}

TEST_F(ShardFetcherTest, AFailedReplicationIsRetried) {
  ReplicaKeeper keeper(
      {.registry = &registry_,
       .fetcher = &fetcher_,
       .backoff = {.first = std::chrono::milliseconds(5), .most = std::chrono::milliseconds(20)}});
  v1::DesiredReplica nowhere = Replica(0, {});
  nowhere.add_sources("127.0.0.1:1");
  keeper.Want({nowhere, Replica(1, {&first_})});
  const auto await = [this](int32_t rank) {
    const auto until = std::chrono::steady_clock::now() + kFetchPatience;
    const MutexLock lock(&mutex_);
    while (!registry_.CrcOf(Ref(), rank).ok()) {
      if (changed_.WaitUntil(&mutex_, until)) return false;
    }
    return true;
  };
  ASSERT_TRUE(await(1));
  EXPECT_FALSE(registry_.CrcOf(Ref(), 0).ok());
  keeper.Want({Replica(0, {&first_})});
  ASSERT_TRUE(await(0));
}

}  // namespace
}  // namespace nibble
