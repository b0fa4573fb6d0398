#include "worker/agent/checkpoint_registry.h"

#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files/files_testing.h"
#include "common/mutex.h"
#include "gtest/gtest.h"
#include "worker/agent/stuck_disk_testing.h"
#include "worker/checkpoint/store_testing.h"
#include "worker/link/checkpoint_client.h"
#include "worker/link/link_host.h"
#include "worker/link/rank_link.h"

namespace nibble {
namespace {

using checkpoint_testing::TestHeader;
using checkpoint_testing::TestIdentity;
using file_testing::TempDirectory;

constexpr std::chrono::seconds kReportPatience(30);
constexpr char kRegistryJob[] = "gpt-1";

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A rank with its link, and the daemon's end of that link.
struct TestRank {
  std::unique_ptr<LinkHost> host;
  std::unique_ptr<RankLink> link;
  std::unique_ptr<CheckpointClient> client;
};

class CheckpointRegistryTest : public testing::Test {
 protected:
  CheckpointRegistryTest() { EXPECT_NE(mkdtemp(sockets_.data()), nullptr); }
  ~CheckpointRegistryTest() override { std::filesystem::remove_all(sockets_); }
  void Open() {
    registry_ = std::make_unique<CheckpointRegistry>(
        CheckpointRegistry::Options{.clock = SteadySeconds,
                                    .ordered_by = [this](const std::string&) { return store_; },
                                    .followed = [this] { return store_; },
                                    .changed =
                                        [this] {
                                          const MutexLock lock(&mutex_);
                                          changed_.SignalAll();
                                        },
                                    .faults = &disk_});
    ASSERT_TRUE(registry_->OpenJob(kRegistryJob, directory_.path(), TestIdentity()).ok());
  }
  // The rank of a gang of `world`.
  std::unique_ptr<TestRank> Connect(int64_t attempt, int32_t rank = 0, int32_t world = 1,
                                    const std::string& job = kRegistryJob) {
    world_ = world;
    const auto sink = registry_->OpenAttempt(job, attempt, 1);
    EXPECT_TRUE(sink.ok()) << sink.status();
    auto one = std::make_unique<TestRank>();
    auto host =
        LinkHost::Start({.address = absl::StrCat(sockets_, "/", ++links_),
                         .attempt = attempt,
                         .first_rank = rank,
                         .ranks = 1,
                         .clock = [] { return static_cast<int64_t>(SteadySeconds() * 1e3); },
                         .snapshots = *sink});
    EXPECT_TRUE(host.ok()) << host.status();
    one->host = *std::move(host);
    auto link =
        RankLink::Connect({.address = one->host->address(), .rank = rank, .attempt = attempt});
    EXPECT_TRUE(link.ok()) << link.status();
    one->link = *std::move(link);
    auto client = CheckpointClient::Create(*one->link,
                                           {{.name = "w",
                                             .dtype = FileDType::kF32,
                                             .shape = {4 * world},
                                             .first = 4 * rank,
                                             .count = 4}},
                                           SteadySeconds);
    EXPECT_TRUE(client.ok()) << client.status();
    one->client = *std::move(client);
    return one;
  }
  void Snapshot(TestRank& rank, int64_t step, int64_t attempt) {
    const size_t before = registry_->Report(number_).size();
    const absl::Status taken = rank.client->Snapshot(
        TestHeader(step, attempt, world_), [](absl::Span<const absl::Span<std::byte>> buffers) {
          std::memset(buffers[0].data(), 7, buffers[0].size());
          return absl::OkStatus();
        });
    ASSERT_TRUE(taken.ok()) << taken;
    ASSERT_TRUE(Await([&] { return registry_->Report(number_).size() == before + 1; }));
  }
  // Waits until `done`, which is asked again after each change.
  template <class Done>
  bool Await(const Done& done) {
    const auto until = std::chrono::steady_clock::now() + kReportPatience;
    const MutexLock lock(&mutex_);
    while (!done()) {
      if (changed_.WaitUntil(&mutex_, until)) return false;
    }
    return true;
  }
  std::vector<v1::ShardReport> Report() { return registry_->Report(++number_); }
  // Answers all reports so far, unless `answered` is given.
  void Answer(const std::vector<v1::ShardReport>& dropped = {}, int64_t answered = -1) {
    v1::ConnectResponse response;
    *response.mutable_store() = answering_;
    response.set_answered(answered < 0 ? number_ : answered);
    for (const v1::ShardReport& shard : dropped) {
      v1::DroppedShard& one = *response.add_dropped();
      *one.mutable_ref() = shard.ref();
      one.set_rank(shard.rank());
    }
    registry_->Answered(response);
    registry_->AwaitSettled();
  }
  bool IsThere(const v1::CheckpointRef& ref) { return registry_->Open(ref).ok(); }

  agent_testing::StuckDisk disk_;
  TempDirectory directory_;
  std::string sockets_ = "/tmp/nibble-registry-XXXXXX";  // sockets have short names
  int links_ = 0;
  v1::StoreIdentity store_;      // that orders what is made here
  v1::StoreIdentity answering_;  // of the coordinator
  int64_t number_ = 1;           // of the latest report
  int32_t world_ = 1;
  Mutex mutex_;
  CondVar changed_;
  std::unique_ptr<CheckpointRegistry> registry_;
};

TEST_F(CheckpointRegistryTest, ACheckpointIsLoadableOnceTheCoordinatorHasAcceptedIt) {
  Open();
  Answer();
  const auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const v1::ShardReport shard = Report().at(0);
  EXPECT_EQ(shard.bytes(), 16);
  // An answer to a report from before the shard was here.
  Answer({}, 0);
  EXPECT_FALSE(IsThere(shard.ref()));
  Answer();
  const auto outcome = rank->client->Wait();
  ASSERT_TRUE(outcome.has_value());
  EXPECT_TRUE(outcome->status.ok()) << outcome->status;
  EXPECT_TRUE(IsThere(shard.ref()));
  const auto held = Report();
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0].SerializeAsString(), shard.SerializeAsString());
}

TEST_F(CheckpointRegistryTest, AnswersOfAnEarlierStreamDoNotCount) {
  Open();
  const auto rank = Connect(1);
  number_ = 7;
  Snapshot(*rank, 10, 1);
  const v1::ShardReport shard = Report().at(0);
  number_ = 0;
  (void)Report();  // begins a stream
  Answer({}, 0);
  EXPECT_FALSE(IsThere(shard.ref()));
  Answer({}, 1);
  EXPECT_TRUE(IsThere(shard.ref()));
}

TEST_F(CheckpointRegistryTest, AShardThatTheCoordinatorDropsIsNotACheckpoint) {
  Open();
  const auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const auto shards = Report();
  Answer(shards);
  const auto outcome = rank->client->Wait();
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->status.code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Report().empty());
  EXPECT_FALSE(IsThere(shards[0].ref()));
}

TEST_F(CheckpointRegistryTest, AReportedShardAwaitsItsAnswerAlsoInTheNextLife) {
  Open();
  auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const v1::ShardReport shard = Report().at(0);
  rank.reset();
  registry_.reset();
  Open();
  const auto again = Report();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].SerializeAsString(), shard.SerializeAsString());
  Answer();
  EXPECT_TRUE(IsThere(shard.ref()));
}

TEST_F(CheckpointRegistryTest, AnEarlierAttemptsCheckpointIsAcceptedAlsoAfterTheNextHasBegun) {
  Open();
  auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const v1::ShardReport shard = Report().at(0);
  rank.reset();
  registry_->CloseAttempt(kRegistryJob, 1);
  const auto next = Connect(2);
  EXPECT_FALSE(IsThere(shard.ref()));
  Answer();
  EXPECT_TRUE(IsThere(shard.ref()));
}

TEST_F(CheckpointRegistryTest, ACheckpointToResumeFromCountsAsAccepted) {
  Open();
  auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const v1::ShardReport shard = Report().at(0);
  rank.reset();
  registry_->CloseAttempt(kRegistryJob, 1);
  EXPECT_FALSE(IsThere(shard.ref()));
  registry_->Accept(shard.ref());
  EXPECT_TRUE(registry_->MakeLoadable(shard.ref()).ok());
  EXPECT_TRUE(IsThere(shard.ref()));
}

TEST_F(CheckpointRegistryTest, AStaleAttemptIsAborted) {
  Open();
  const auto rank = Connect(2);
  EXPECT_EQ(registry_->OpenAttempt(kRegistryJob, 1, 1).status().code(), absl::StatusCode::kAborted);
}

TEST_F(CheckpointRegistryTest, AnAcceptedCheckpointThatIsDroppedIsDeleted) {
  Open();
  const auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const auto shards = Report();
  Answer();
  ASSERT_TRUE(IsThere(shards[0].ref()));
  Answer(shards);
  EXPECT_FALSE(IsThere(shards[0].ref()));
  EXPECT_TRUE(Report().empty());
  EXPECT_EQ(registry_->OpenShard(shards[0].ref(), 0).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CheckpointRegistryTest, ALeasedCheckpointIsDroppedAfterItsLease) {
  Open();
  const auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const auto shards = Report();
  Answer();
  CheckpointRegistry::Lease lease = registry_->Keep(shards[0].ref());
  Answer(shards);
  EXPECT_TRUE(IsThere(shards[0].ref()));
  EXPECT_EQ(Report().size(), 1u);
  lease.reset();
  Answer(shards);
  EXPECT_FALSE(IsThere(shards[0].ref()));
}

TEST_F(CheckpointRegistryTest, ADroppedShardIsNotInTheNextReport) {
  Open();
  const auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const auto shards = Report();
  Answer();
  v1::ConnectResponse response;
  response.set_answered(number_);
  *response.add_dropped()->mutable_ref() = shards[0].ref();
  registry_->Answered(response);
  // The removal may or may not be finished by now.
  EXPECT_TRUE(Report().empty());
  registry_->AwaitSettled();
  EXPECT_TRUE(Report().empty());
}

TEST_F(CheckpointRegistryTest, DroppingOneRanksShardKeepsTheOthersAlsoInTheNextLife) {
  Open();
  auto first = Connect(1, 0, 2);
  Snapshot(*first, 10, 1);
  first.reset();
  registry_->CloseAttempt(kRegistryJob, 1);
  auto second = Connect(1, 1, 2);
  Snapshot(*second, 10, 1);
  const auto shards = Report();
  ASSERT_EQ(shards.size(), 2u);
  Answer();
  ASSERT_TRUE(IsThere(shards[0].ref()));
  Answer({shards[0]});
  EXPECT_FALSE(IsThere(shards[0].ref()));
  second.reset();
  for (int life = 0; life < 2; ++life) {
    const auto left = Report();
    ASSERT_EQ(left.size(), 1u);
    EXPECT_EQ(left[0].SerializeAsString(), shards[1].SerializeAsString());
    EXPECT_EQ(registry_->OpenShard(shards[0].ref(), 0).status().code(),
              absl::StatusCode::kNotFound);
    EXPECT_TRUE(registry_->OpenShard(shards[1].ref(), 1).ok());
    registry_.reset();
    Open();
    number_ = 0;
  }
}

// Two attempts' checkpoints of one step take the step's name from each other: each commit moves the
// files of both.
TEST_F(CheckpointRegistryTest, AShardWhoseFilesAreMovedCanBeOpenedAtAnyTime) {
  constexpr int kMoves = 60;
  Open();
  auto first = Connect(1);
  Snapshot(*first, 10, 1);
  const v1::CheckpointRef one = Report().at(0).ref();
  Answer();
  first.reset();
  registry_->CloseAttempt(kRegistryJob, 1);
  auto second = Connect(2);
  Snapshot(*second, 10, 2);
  v1::CheckpointRef two = one;
  two.set_attempt(2);
  std::atomic<bool> done = false;
  std::thread mover([&] {
    for (int i = 0; i < kMoves; ++i) {
      const absl::Status moved = registry_->MakeLoadable(i % 2 == 0 ? two : one);
      EXPECT_TRUE(moved.ok()) << moved;
    }
    done = true;
  });
  while (!done) {
    const auto reader = registry_->OpenShard(one, 0);
    if (!reader.ok()) {
      ADD_FAILURE() << reader.status();
      break;
    }
    int64_t chunks = 0;
    const absl::Status read = (*reader)->Verify(chunks);
    EXPECT_TRUE(read.ok()) << read;
  }
  mover.join();
}

TEST_F(CheckpointRegistryTest, ARankOfALargerWorldIsDoneWhenItsShardIsAccepted) {
  Open();
  const auto rank = Connect(1, 1, 3);
  Snapshot(*rank, 10, 1);
  const v1::ShardReport shard = Report().at(0);
  EXPECT_EQ(shard.rank(), 1);
  EXPECT_EQ(shard.world(), 3);
  Answer();
  const auto outcome = rank->client->Wait();
  ASSERT_TRUE(outcome.has_value());
  EXPECT_TRUE(outcome->status.ok()) << outcome->status;
  // The other shards are elsewhere: one shard can be read here, and nothing loaded.
  EXPECT_FALSE(IsThere(shard.ref()));
  EXPECT_TRUE(registry_->OpenShard(shard.ref(), 1).ok());
  const absl::Status loadable = registry_->MakeLoadable(shard.ref());
  EXPECT_EQ(loadable.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(loadable.message()),
            "checkpoint of step 10, attempt 1: of 3 shards 2 are not here, rank 0, 2 first");
}

TEST_F(CheckpointRegistryTest, ADamagedShardIsNoLongerReported) {
  Open();
  const auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const auto shards = Report();
  Answer();
  ASSERT_TRUE(registry_->RemoveDamaged(shards[0].ref(), 0).ok());
  EXPECT_TRUE(Report().empty());
  EXPECT_FALSE(IsThere(shards[0].ref()));
}

TEST_F(CheckpointRegistryTest, ARemovedDirectoryIsMadeAgainAndItsShardsAreNoLongerReported) {
  Open();
  const auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  ASSERT_EQ(Report().size(), 1u);
  Answer();
  ASSERT_TRUE(rank->client->Wait().has_value());
  for (const char* removed : {"/checkpoints", ""}) {
    std::filesystem::remove_all(directory_.path() + removed);
    (void)Report();  // triggers the check
    registry_->AwaitSettled();
    EXPECT_TRUE(Report().empty());
    const int64_t step = *removed == '\0' ? 30 : 20;
    Snapshot(*rank, step, 1);
    const auto shards = Report();
    ASSERT_EQ(shards.size(), 1u);
    Answer();
    const auto outcome = rank->client->Wait();
    ASSERT_TRUE(outcome.has_value());
    EXPECT_TRUE(outcome->status.ok()) << outcome->status;
    EXPECT_TRUE(IsThere(shards[0].ref()));
  }
  // An earlier attempt is still fenced off.
  EXPECT_EQ(registry_->OpenAttempt(kRegistryJob, 0, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CheckpointRegistryTest, ACheckpointThatBeginsRightAfterTheRemovalIsStored) {
  Open();
  const auto rank = Connect(3);
  Snapshot(*rank, 10, 3);
  (void)Report();
  Answer();
  ASSERT_TRUE(rank->client->Wait().has_value());
  std::filesystem::remove_all(directory_.path() + "/checkpoints");
  const absl::Status taken = rank->client->Snapshot(
      TestHeader(20, 3, 1),
      [](absl::Span<const absl::Span<std::byte>>) { return absl::OkStatus(); });
  ASSERT_TRUE(taken.ok()) << taken;
  // The lost step is reported until the check has run; then only the new one.
  ASSERT_TRUE(Await([&] {
    const auto shards = registry_->Report(++number_);
    return shards.size() == 1 && shards[0].ref().step() == 20;
  }));
  Answer();
  const auto outcome = rank->client->Wait();
  ASSERT_TRUE(outcome.has_value());
  EXPECT_TRUE(outcome->status.ok()) << outcome->status;
  EXPECT_EQ(registry_->OpenAttempt(kRegistryJob, 2, 1).status().code(), absl::StatusCode::kAborted);
}

v1::StoreIdentity StoreOf(char digit, int64_t epoch) {
  v1::StoreIdentity store;
  store.set_id(std::string(32, digit));
  store.set_epoch(epoch);
  return store;
}

TEST_F(CheckpointRegistryTest, OnlyTheStoreThatOrderedAShardInTheSameEpochDropsIt) {
  store_ = answering_ = StoreOf('a', 1);
  Open();
  const auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const auto shards = Report();
  ASSERT_EQ(shards.size(), 1u);
  EXPECT_EQ(shards[0].store().SerializeAsString(), store_.SerializeAsString());
  Answer();
  for (const v1::StoreIdentity& other : {StoreOf('b', 1), StoreOf('a', 2), v1::StoreIdentity()}) {
    answering_ = other;
    Answer(shards);
    EXPECT_TRUE(IsThere(shards[0].ref())) << other.ShortDebugString();
  }
  answering_ = store_;
  Answer(shards);
  EXPECT_FALSE(IsThere(shards[0].ref()));
}

TEST_F(CheckpointRegistryTest, AnotherStoreAcceptsNothingUntilItHasTakenTheShardOver) {
  store_ = StoreOf('a', 1);
  answering_ = StoreOf('b', 1);
  Open();
  auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const v1::ShardReport shard = Report().at(0);
  Answer();
  EXPECT_FALSE(IsThere(shard.ref()));
  v1::DesiredReplica known;
  *known.mutable_ref() = shard.ref();
  known.set_manifest_crc32c(shard.manifest_crc32c() + 1);
  registry_->TakeOver(known, answering_);  // another shard's checksum
  registry_->AwaitSettled();
  EXPECT_EQ(Report().at(0).store().id(), store_.id());
  known.set_manifest_crc32c(shard.manifest_crc32c());
  registry_->TakeOver(known, answering_);
  registry_->AwaitSettled();
  EXPECT_EQ(Report().at(0).store().id(), answering_.id());
  Answer();
  EXPECT_TRUE(IsThere(shard.ref()));
  // The same in the next life.
  rank.reset();
  registry_.reset();
  Open();
  EXPECT_EQ(Report().at(0).store().id(), answering_.id());
}

TEST_F(CheckpointRegistryTest, AnOrderToRemoveOrphansDropsThoseOfTheStoreThatItNames) {
  store_ = answering_ = StoreOf('a', 1);
  Open();
  const auto rank = Connect(1);
  Snapshot(*rank, 10, 1);
  const v1::ShardReport shard = Report().at(0);
  Answer();
  answering_ = StoreOf('b', 1);
  registry_->RemoveOrphans(kRegistryJob, StoreOf('c', 1).id(), -1);
  registry_->RemoveOrphans(kRegistryJob, store_.id(), 1);  // except this epoch
  registry_->AwaitSettled();
  EXPECT_TRUE(IsThere(shard.ref()));
  registry_->RemoveOrphans(kRegistryJob, store_.id(), -1);
  registry_->AwaitSettled();
  EXPECT_FALSE(IsThere(shard.ref()));
  EXPECT_TRUE(Report().empty());
}

TEST_F(CheckpointRegistryTest, ReportsAndAnswersDoNotWaitForAJobThatIsBeingOpened) {
  Mutex mutex;
  CondVar changed;
  bool writing = false;
  bool released = false;
  file_testing::WriteHook disk([&](const std::string&, int64_t) {
    const MutexLock lock(&mutex);
    writing = true;
    changed.SignalAll();
    while (!released) changed.Wait(&mutex);
    return 0;
  });
  CheckpointRegistry registry({.clock = SteadySeconds, .faults = &disk});
  std::thread opener([&] {
    const absl::Status opened = registry.OpenJob(kRegistryJob, directory_.path(), TestIdentity());
    EXPECT_TRUE(opened.ok()) << opened;
  });
  {
    const MutexLock lock(&mutex);
    while (!writing) changed.Wait(&mutex);
  }
  EXPECT_TRUE(registry.Report(1).empty());
  registry.Answered(v1::ConnectResponse());
  EXPECT_EQ(registry.TroubleOf(kRegistryJob, 1), "");
  {
    const MutexLock lock(&mutex);
    released = true;
    changed.SignalAll();
  }
  opener.join();
}

TEST(RegistryDiskTest, AJobOpensWhileAnothersDiskDoesNotAnswer) {
  const TempDirectory slow;
  const TempDirectory other;
  agent_testing::StuckDisk disk;
  disk.Block(slow.path());
  CheckpointRegistry registry({.clock = SteadySeconds, .faults = &disk});
  absl::Status opened;
  std::thread opens([&] { opened = registry.OpenJob("slow", slow.path(), TestIdentity()); });
  EXPECT_TRUE(disk.AwaitBlockedWrite());
  EXPECT_TRUE(registry.OpenJob("other", other.path(), TestIdentity()).ok());
  v1::CheckpointRef ref;
  ref.set_job("other");
  EXPECT_TRUE(absl::IsNotFound(registry.Open(ref).status()));
  EXPECT_TRUE(disk.IsBlocking());
  disk.Release();
  opens.join();
  EXPECT_TRUE(opened.ok()) << opened;
}

TEST_F(CheckpointRegistryTest, ACommitDoesNotWaitForAnotherJobsDisk) {
  const TempDirectory directory;
  const std::string other_job = "other";
  ASSERT_LT(kRegistryJob, other_job);  // so that its answer comes first
  Open();
  ASSERT_TRUE(registry_->OpenJob(other_job, directory.path(), TestIdentity()).ok());
  const auto slow = Connect(1);
  const auto other = Connect(1, 0, 1, other_job);
  Snapshot(*slow, 10, 1);
  Snapshot(*other, 10, 1);
  const auto shards = Report();
  ASSERT_EQ(shards.size(), 2u);
  registry_->AwaitSettled();
  disk_.Block(directory_.path());
  v1::ConnectResponse response;
  response.set_answered(number_);
  registry_->Answered(response);
  EXPECT_TRUE(disk_.AwaitBlockedWrite());
  auto outcome = std::async(std::launch::async, [&other] { return other->client->Wait(); });
  EXPECT_EQ(outcome.wait_for(kReportPatience), std::future_status::ready);
  EXPECT_TRUE(IsThere(shards[1].ref()));
  EXPECT_TRUE(disk_.IsBlocking());
  disk_.Release();
  const auto committed = outcome.get();
  ASSERT_TRUE(committed.has_value());
  EXPECT_TRUE(committed->status.ok()) << committed->status;
  registry_->AwaitSettled();
  EXPECT_TRUE(IsThere(shards[0].ref()));
}

}  // namespace
}  // namespace nibble
