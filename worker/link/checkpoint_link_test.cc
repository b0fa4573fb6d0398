#include "worker/link/checkpoint_client.h"

#include <stdlib.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/files/files_testing.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/checkpoint_host.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/store_testing.h"
#include "worker/link/link_host.h"
#include "worker/link/rank_link.h"

namespace nibble {
namespace {

using checkpoint_testing::BytesOf;
using checkpoint_testing::EvenSlices;
using checkpoint_testing::LoadsExactly;
using checkpoint_testing::RandomState;
using checkpoint_testing::State;
using checkpoint_testing::TestHeader;
using checkpoint_testing::TestOptions;
using file_testing::TempDirectory;
using file_testing::WriteHook;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A disk whose writes wait while it is blocked, and may fail.
class BlockedDisk {
 public:
  DiskFaults* faults() { return &hook_; }
  void Block() { Set(true); }
  void Release() { Set(false); }
  void FailWith(int error) { error_ = error; }

 private:
  void Set(bool blocked) {
    const MutexLock lock(&mutex_);
    blocked_ = blocked;
    changed_.SignalAll();
  }
  int Before() {
    const MutexLock lock(&mutex_);
    while (blocked_) changed_.Wait(&mutex_);
    return error_;
  }

  Mutex mutex_;
  CondVar changed_;
  bool blocked_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<int> error_{0};
  WriteHook hook_{[this](const std::string&, int64_t) { return Before(); }};
};

// A rank: its end of the link and its checkpoints.
struct TestRank {
  std::unique_ptr<RankLink> link;
  std::unique_ptr<CheckpointClient> checkpoints;
};

class CheckpointLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(sockets_.data()), nullptr);
    CheckpointStore::Options options = TestOptions();
    options.faults = disk_.faults();
    auto store = CheckpointStore::Open(directory_.path() + "/store", options);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  void TearDown() override {
    disk_.Release();
    Stop();
    std::filesystem::remove_all(sockets_);
  }

  void Start(int32_t ranks, int64_t attempt = 1) {
    auto host = CheckpointHost::Start({.store = store_.get(),
                                       .attempt = attempt,
                                       .ranks = ranks,
                                       .clock = [this] { return now_.load(); },
                                       .trouble = [this](const std::string& text) { Add(text); },
                                       .first_retry = std::chrono::milliseconds(1),
                                       .most_retry = std::chrono::milliseconds(5)});
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
    auto link = LinkHost::Start({.address = sockets_ + "/link",
                                 .attempt = attempt,
                                 .ranks = ranks,
                                 .clock = [] { return int64_t{0}; },
                                 .snapshots = host_.get()});
    ASSERT_TRUE(link.ok()) << link.status();
    link_ = *std::move(link);
  }
  void Stop() {
    link_.reset();
    host_.reset();
  }
  absl::StatusOr<std::unique_ptr<TestRank>> Connect(int32_t rank, int32_t world,
                                                    int64_t attempt = 1) {
    auto connected = std::make_unique<TestRank>();
    NIBBLE_ASSIGN_OR_RETURN(
        connected->link,
        RankLink::Connect({.address = link_->address(), .rank = rank, .attempt = attempt}));
    NIBBLE_ASSIGN_OR_RETURN(
        connected->checkpoints,
        CheckpointClient::Create(*connected->link, EvenSlices(state_, rank, world),
                                 [this] { return now_.load(); }));
    return connected;
  }
  void StartAll(int32_t ranks) {
    Start(ranks);
    for (int32_t rank = 0; rank < ranks; ++rank) {
      auto connected = Connect(rank, ranks);
      ASSERT_TRUE(connected.ok()) << connected.status();
      ranks_.push_back(*std::move(connected));
    }
  }
  absl::Status Snapshot(int32_t rank, int64_t step) {
    const auto world = static_cast<int32_t>(ranks_.size());
    return ranks_[rank]->checkpoints->Snapshot(TestHeader(step, 1, world), [&](auto buffers) {
      const auto slices = EvenSlices(state_, rank, world);
      for (size_t i = 0; i < slices.size(); ++i) {
        const auto bytes = BytesOf(state_, slices[i]);
        if (!bytes.empty()) std::memcpy(buffers[i].data(), bytes.data(), bytes.size());
      }
      return absl::OkStatus();
    });
  }
  absl::Status Outcome(int32_t rank) {
    const auto outcome = ranks_[rank]->checkpoints->Wait();
    return outcome.has_value() ? outcome->status : absl::NotFoundError("nothing in flight");
  }
  void Add(const std::string& trouble) {
    const MutexLock lock(&troubles_mutex_);
    troubles_.push_back(trouble);
    troubles_changed_.SignalAll();
  }
  // Waits for that number of `trouble` calls and returns them all.
  std::vector<std::string> AwaitTroubles(size_t count) {
    const MutexLock lock(&troubles_mutex_);
    while (troubles_.size() < count) troubles_changed_.Wait(&troubles_mutex_);
    return troubles_;
  }
  absl::Status Loads(int64_t step, const State& state) {
    const auto reader = store_->OpenCheckpoint(step);
    return reader.ok() ? LoadsExactly(**reader, state) : reader.status();
  }

  const TempDirectory directory_;
  std::string sockets_ = "/tmp/nibble-checkpoint-link-XXXXXX";  // sockets have short names
  State state_ = RandomState(5, 6, 3000);
  BlockedDisk disk_;
  std::atomic<double> now_{0};
  Mutex troubles_mutex_;
  CondVar troubles_changed_;
  std::vector<std::string> troubles_ ABSL_GUARDED_BY(troubles_mutex_);
  std::unique_ptr<CheckpointStore> store_;
  std::unique_ptr<CheckpointHost> host_;
  std::unique_ptr<LinkHost> link_;
  std::vector<std::unique_ptr<TestRank>> ranks_;
};

TEST_F(CheckpointLinkTest, TrainingContinuesWhileItIsWritten) {
  StartAll(1);
  const State saved = state_;
  disk_.Block();
  ASSERT_EQ(Snapshot(0, 10), absl::OkStatus());
  EXPECT_EQ(ranks_[0]->checkpoints->in_flight(), 10);
  EXPECT_EQ(ranks_[0]->checkpoints->Poll(), std::nullopt);
  // The next step changes the state; the checkpoint is of the one before.
  for (auto& tensor : state_) {
    for (std::byte& byte : tensor.bytes) byte ^= std::byte{0xff};
  }
  disk_.Release();
  EXPECT_EQ(Outcome(0), absl::OkStatus());
  EXPECT_EQ(ranks_[0]->checkpoints->in_flight(), std::nullopt);
  EXPECT_EQ(Loads(10, saved), absl::OkStatus());
}

TEST_F(CheckpointLinkTest, CheckpointExistsOnceAllRanksHaveHandedOver) {
  StartAll(3);
  ASSERT_EQ(Snapshot(2, 10), absl::OkStatus());
  ASSERT_EQ(Snapshot(0, 10), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(store_->OpenCheckpoint(10).status()));
  ASSERT_EQ(Snapshot(1, 10), absl::OkStatus());
  for (int32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(Outcome(rank), absl::OkStatus());
  EXPECT_EQ(Loads(10, state_), absl::OkStatus());
}

TEST_F(CheckpointLinkTest, SecondOneIsRefusedAndNamesTheOneInFlight) {
  StartAll(1);
  disk_.Block();
  ASSERT_EQ(Snapshot(0, 10), absl::OkStatus());
  const absl::Status refused = Snapshot(0, 20);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("step 20"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("that of step 10"));
  disk_.Release();
  EXPECT_EQ(Outcome(0), absl::OkStatus());
  ASSERT_EQ(Snapshot(0, 20), absl::OkStatus());
  EXPECT_EQ(Outcome(0), absl::OkStatus());
  EXPECT_EQ(Loads(20, state_), absl::OkStatus());
}

TEST_F(CheckpointLinkTest, StallIsTheCopyAndNothingElse) {
  StartAll(1);
  disk_.Block();
  now_ = 100;
  ASSERT_EQ(ranks_[0]->checkpoints->Snapshot(TestHeader(10, 1, 1),
                                             [this](auto) {
                                               now_ = now_ + 5;
                                               return absl::OkStatus();
                                             }),
            absl::OkStatus());
  disk_.Release();
  const auto outcome = ranks_[0]->checkpoints->Wait();
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->status, absl::OkStatus());
  EXPECT_EQ(outcome->stall_seconds, 5);
}

TEST_F(CheckpointLinkTest, CopyThatFailsLeavesNothingInFlight) {
  StartAll(1);
  const auto fails = [](auto) { return absl::InternalError("device lost"); };
  EXPECT_TRUE(absl::IsInternal(ranks_[0]->checkpoints->Snapshot(TestHeader(10, 1, 1), fails)));
  EXPECT_EQ(ranks_[0]->checkpoints->Wait(), std::nullopt);
  ASSERT_EQ(Snapshot(0, 10), absl::OkStatus());
  EXPECT_EQ(Outcome(0), absl::OkStatus());
  EXPECT_EQ(Loads(10, state_), absl::OkStatus());
}

TEST_F(CheckpointLinkTest, AFullDiskIsWaitedForAndTheOlderCheckpointStaysMeanwhile) {
  StartAll(2);
  for (int32_t rank : {0, 1}) ASSERT_EQ(Snapshot(rank, 10), absl::OkStatus());
  for (int32_t rank : {0, 1}) ASSERT_EQ(Outcome(rank), absl::OkStatus());
  disk_.FailWith(ENOSPC);
  for (int32_t rank : {0, 1}) ASSERT_EQ(Snapshot(rank, 20), absl::OkStatus());
  const std::string text = AwaitTroubles(1)[0];
  EXPECT_THAT(text, HasSubstr("the checkpoint of step 20"));
  EXPECT_THAT(text, HasSubstr(directory_.path()));
  EXPECT_EQ(ranks_[0]->checkpoints->Poll(), std::nullopt);
  EXPECT_EQ(Loads(10, state_), absl::OkStatus());
  disk_.FailWith(0);
  for (int32_t rank : {0, 1}) EXPECT_EQ(Outcome(rank), absl::OkStatus());
  EXPECT_EQ(Loads(20, state_), absl::OkStatus());
  EXPECT_EQ(AwaitTroubles(2).back(), "");
}

TEST_F(CheckpointLinkTest, AHostThatEndsWhileItWaitsForRoomLeavesNothingBehind) {
  StartAll(1);
  disk_.FailWith(EDQUOT);
  ASSERT_EQ(Snapshot(0, 10), absl::OkStatus());
  (void)AwaitTroubles(1);
  Stop();
  EXPECT_FALSE(Outcome(0).ok());
  EXPECT_THAT(store_->InDoubt(), IsEmpty());
}

TEST_F(CheckpointLinkTest, EveryRankLearnsOfADiskThatFailsAndTheOlderCheckpointStays) {
  StartAll(2);
  for (int32_t rank : {0, 1}) ASSERT_EQ(Snapshot(rank, 10), absl::OkStatus());
  for (int32_t rank : {0, 1}) ASSERT_EQ(Outcome(rank), absl::OkStatus());
  disk_.FailWith(EIO);
  for (int32_t rank : {0, 1}) ASSERT_EQ(Snapshot(rank, 20), absl::OkStatus());
  for (int32_t rank : {0, 1}) {
    const absl::Status failed = Outcome(rank);
    EXPECT_FALSE(failed.ok());
    EXPECT_THAT(std::string(failed.message()), HasSubstr(directory_.path()));
  }
  EXPECT_EQ(Loads(10, state_), absl::OkStatus());
  disk_.FailWith(0);
  EXPECT_THAT(store_->InDoubt(), IsEmpty());
  for (int32_t rank : {0, 1}) ASSERT_EQ(Snapshot(rank, 30), absl::OkStatus());
  for (int32_t rank : {0, 1}) EXPECT_EQ(Outcome(rank), absl::OkStatus());
  EXPECT_EQ(Loads(30, state_), absl::OkStatus());
}

TEST_F(CheckpointLinkTest, RankThatDiesAfterItsSnapshotLosesNothing) {
  StartAll(2);
  disk_.Block();
  ASSERT_EQ(Snapshot(1, 10), absl::OkStatus());
  ranks_[1].reset();
  disk_.Release();
  ASSERT_EQ(ranks_[0]->checkpoints->in_flight(), std::nullopt);
  ranks_.resize(2);
  ASSERT_EQ(Snapshot(0, 10), absl::OkStatus());
  EXPECT_EQ(Outcome(0), absl::OkStatus());
  EXPECT_EQ(Loads(10, state_), absl::OkStatus());
}

TEST_F(CheckpointLinkTest, RankThatDiesBeforeItsSnapshotFailsItForTheOthers) {
  StartAll(2);
  ASSERT_EQ(Snapshot(0, 10), absl::OkStatus());
  ranks_[1].reset();
  const absl::Status failed = Outcome(0);
  EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("rank 1"));
  Stop();
  EXPECT_THAT(store_->InDoubt(), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(store_->OpenCheckpoint(10).status()));
}

TEST_F(CheckpointLinkTest, HostThatEndsIsAnOutcome) {
  StartAll(2);
  ASSERT_EQ(Snapshot(0, 10), absl::OkStatus());
  Stop();
  const auto gone = ranks_[0]->checkpoints->Wait();
  ASSERT_TRUE(gone.has_value());
  EXPECT_TRUE(absl::IsUnavailable(gone->status)) << gone->status;
  EXPECT_EQ(gone->step, 10);
  EXPECT_TRUE(gone->direct) << "nothing is known of slower writes";
  EXPECT_FALSE(Snapshot(0, 20).ok());
}

TEST_F(CheckpointLinkTest, StaleAttemptIsRefused) {
  ASSERT_EQ(store_->Fence(3), absl::OkStatus());
  const auto stale =
      CheckpointHost::Start({.store = store_.get(), .attempt = 2, .clock = [] { return 0.0; }});
  EXPECT_TRUE(absl::IsAborted(stale.status())) << stale.status();
  Start(1, 4);
  const auto client = Connect(0, 1, 3);
  EXPECT_TRUE(absl::IsAborted(client.status())) << client.status();
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("attempt 3, not 4"));
}

TEST_F(CheckpointLinkTest, RanksAreInRangeAndConnectOnce) {
  StartAll(2);
  EXPECT_TRUE(absl::IsInvalidArgument(Connect(2, 3).status()));
  EXPECT_TRUE(absl::IsAlreadyExists(Connect(1, 2).status()));
  ranks_[1].reset();
}

TEST_F(CheckpointLinkTest, ARankThatConnectsAgainReceivesNoOutcomeOfItsPredecessor) {
  StartAll(2);
  disk_.Block();
  ASSERT_EQ(Snapshot(1, 10), absl::OkStatus());
  ranks_[1].reset();
  disk_.Release();
  ASSERT_EQ(Snapshot(0, 10), absl::OkStatus());
  ASSERT_EQ(Outcome(0), absl::OkStatus());
  absl::StatusOr<std::unique_ptr<TestRank>> again = Connect(1, 2);
  // Until the host has seen the end of the link and of the writes.
  while (absl::IsAlreadyExists(again.status())) again = Connect(1, 2);
  ASSERT_TRUE(again.ok()) << again.status();
  ranks_[1] = *std::move(again);
  for (int32_t rank : {0, 1}) ASSERT_EQ(Snapshot(rank, 20), absl::OkStatus());
  for (int32_t rank : {0, 1}) EXPECT_EQ(Outcome(rank), absl::OkStatus());
  EXPECT_EQ(Loads(20, state_), absl::OkStatus());
}

}  // namespace
}  // namespace nibble
