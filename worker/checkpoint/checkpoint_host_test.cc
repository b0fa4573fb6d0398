#include "worker/checkpoint/checkpoint_host.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/checkpoint_link.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

using checkpoint_testing::BytesOf;
using checkpoint_testing::EvenSlices;
using checkpoint_testing::LoadsExactly;
using checkpoint_testing::RandomState;
using checkpoint_testing::State;
using checkpoint_testing::TempDirectory;
using checkpoint_testing::TestHeader;
using checkpoint_testing::TestOptions;
using checkpoint_testing::WriteHook;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A disk whose writes wait while it is held, and may fail.
class HeldDisk {
 public:
  DiskFaults* faults() { return &hook_; }
  void Hold() { Set(true); }
  void LetGo() { Set(false); }
  void FailWith(int error) { error_ = error; }

 private:
  void Set(bool held) {
    const std::lock_guard<std::mutex> lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  int Before() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !held_; });
    return error_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  std::atomic<int> error_{0};
  WriteHook hook_{[this](const std::string&, int64_t) { return Before(); }};
};

class CheckpointHostTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CheckpointStore::Options options = TestOptions();
    options.faults = disk_.faults();
    auto store = CheckpointStore::Open(directory_.path() + "/store", options);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  void TearDown() override { disk_.LetGo(); }

  void Start(int32_t ranks, int64_t attempt = 1) {
    auto host = CheckpointHost::Start({.store = store_.get(),
                                       .attempt = attempt,
                                       .ranks = ranks,
                                       .clock = [this] { return now_.load(); },
                                       .trouble = [this](const std::string& text) { Hear(text); },
                                       .first_retry = std::chrono::milliseconds(1),
                                       .most_retry = std::chrono::milliseconds(5)});
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
  }
  absl::StatusOr<std::unique_ptr<CheckpointGuest>> Connect(int32_t rank, int32_t world,
                                                           int64_t attempt = 1) {
    return CheckpointGuest::Connect({.address = host_->address(),
                                     .rank = rank,
                                     .attempt = attempt,
                                     .slices = EvenSlices(state_, rank, world),
                                     .clock = [this] { return now_.load(); }});
  }
  void StartAll(int32_t ranks) {
    Start(ranks);
    for (int32_t rank = 0; rank < ranks; ++rank) {
      auto guest = Connect(rank, ranks);
      ASSERT_TRUE(guest.ok()) << guest.status();
      guests_.push_back(*std::move(guest));
    }
  }
  absl::Status Snapshot(int32_t rank, int64_t step) {
    const auto world = static_cast<int32_t>(guests_.size());
    return guests_[rank]->Snapshot(TestHeader(step, 1, world), [&](auto buffers) {
      const auto slices = EvenSlices(state_, rank, world);
      for (size_t i = 0; i < slices.size(); ++i) {
        const auto bytes = BytesOf(state_, slices[i]);
        if (!bytes.empty()) std::memcpy(buffers[i].data(), bytes.data(), bytes.size());
      }
      return absl::OkStatus();
    });
  }
  absl::Status Outcome(int32_t rank) {
    const auto outcome = guests_[rank]->Wait();
    return outcome.has_value() ? outcome->status : absl::NotFoundError("nothing in flight");
  }
  void Hear(const std::string& trouble) {
    const std::lock_guard<std::mutex> lock(troubles_mutex_);
    troubles_.push_back(trouble);
    troubles_changed_.notify_all();
  }
  // Waits for that number of `trouble` calls and returns them all.
  std::vector<std::string> AwaitTroubles(size_t count) {
    std::unique_lock<std::mutex> lock(troubles_mutex_);
    troubles_changed_.wait(lock, [&] { return troubles_.size() >= count; });
    return troubles_;
  }
  absl::Status Loads(int64_t step, const State& state) {
    const auto reader = store_->OpenCheckpoint(step);
    return reader.ok() ? LoadsExactly(**reader, state) : reader.status();
  }

  const TempDirectory directory_;
  State state_ = RandomState(5, 6, 3000);
  HeldDisk disk_;
  std::atomic<double> now_{0};
  std::mutex troubles_mutex_;
  std::condition_variable troubles_changed_;
  std::vector<std::string> troubles_;
  std::unique_ptr<CheckpointStore> store_;
  std::unique_ptr<CheckpointHost> host_;
  std::vector<std::unique_ptr<CheckpointGuest>> guests_;
};

TEST_F(CheckpointHostTest, TrainingGoesOnWhileItIsWritten) {
  StartAll(1);
  const State saved = state_;
  disk_.Hold();
  ASSERT_EQ(Snapshot(0, 10), absl::OkStatus());
  EXPECT_EQ(guests_[0]->in_flight(), 10);
  EXPECT_EQ(guests_[0]->Poll(), std::nullopt);
  // The next step changes the state; the checkpoint is of the one before.
  for (auto& tensor : state_) {
    for (std::byte& byte : tensor.bytes) byte ^= std::byte{0xff};
  }
  disk_.LetGo();
  EXPECT_EQ(Outcome(0), absl::OkStatus());
  EXPECT_EQ(guests_[0]->in_flight(), std::nullopt);
  EXPECT_EQ(Loads(10, saved), absl::OkStatus());
}

TEST_F(CheckpointHostTest, CheckpointExistsOnceAllRanksHaveHandedOver) {
  StartAll(3);
  ASSERT_EQ(Snapshot(2, 10), absl::OkStatus());
  ASSERT_EQ(Snapshot(0, 10), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(store_->OpenCheckpoint(10).status()));
  ASSERT_EQ(Snapshot(1, 10), absl::OkStatus());
  for (int32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(Outcome(rank), absl::OkStatus());
  EXPECT_EQ(Loads(10, state_), absl::OkStatus());
}

TEST_F(CheckpointHostTest, SecondOneIsRefusedAndNamesTheOneInFlight) {
  StartAll(1);
  disk_.Hold();
  ASSERT_EQ(Snapshot(0, 10), absl::OkStatus());
  const absl::Status refused = Snapshot(0, 20);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("step 20"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("that of step 10"));
  disk_.LetGo();
  EXPECT_EQ(Outcome(0), absl::OkStatus());
  ASSERT_EQ(Snapshot(0, 20), absl::OkStatus());
  EXPECT_EQ(Outcome(0), absl::OkStatus());
  EXPECT_EQ(Loads(20, state_), absl::OkStatus());
}

TEST_F(CheckpointHostTest, StallIsTheCopyAndNothingElse) {
  StartAll(1);
  disk_.Hold();
  now_ = 100;
  ASSERT_EQ(guests_[0]->Snapshot(TestHeader(10, 1, 1),
                                 [this](auto) {
                                   now_ = now_ + 5;
                                   return absl::OkStatus();
                                 }),
            absl::OkStatus());
  disk_.LetGo();
  const auto outcome = guests_[0]->Wait();
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->status, absl::OkStatus());
  EXPECT_EQ(outcome->stall_seconds, 5);
}

TEST_F(CheckpointHostTest, CopyThatFailsLeavesNothingInFlight) {
  StartAll(1);
  const auto fails = [](auto) { return absl::InternalError("device lost"); };
  EXPECT_TRUE(absl::IsInternal(guests_[0]->Snapshot(TestHeader(10, 1, 1), fails)));
  EXPECT_EQ(guests_[0]->Wait(), std::nullopt);
  ASSERT_EQ(Snapshot(0, 10), absl::OkStatus());
  EXPECT_EQ(Outcome(0), absl::OkStatus());
  EXPECT_EQ(Loads(10, state_), absl::OkStatus());
}

TEST_F(CheckpointHostTest, AFullDiskIsWaitedForAndTheOlderCheckpointStaysMeanwhile) {
  StartAll(2);
  for (int32_t rank : {0, 1}) ASSERT_EQ(Snapshot(rank, 10), absl::OkStatus());
  for (int32_t rank : {0, 1}) ASSERT_EQ(Outcome(rank), absl::OkStatus());
  disk_.FailWith(ENOSPC);
  for (int32_t rank : {0, 1}) ASSERT_EQ(Snapshot(rank, 20), absl::OkStatus());
  const std::string text = AwaitTroubles(1)[0];
  EXPECT_THAT(text, HasSubstr("the checkpoint of step 20"));
  EXPECT_THAT(text, HasSubstr(directory_.path()));
  EXPECT_EQ(guests_[0]->Poll(), std::nullopt);
  EXPECT_EQ(Loads(10, state_), absl::OkStatus());
  disk_.FailWith(0);
  for (int32_t rank : {0, 1}) EXPECT_EQ(Outcome(rank), absl::OkStatus());
  EXPECT_EQ(Loads(20, state_), absl::OkStatus());
  EXPECT_EQ(AwaitTroubles(2).back(), "");
}

TEST_F(CheckpointHostTest, AHostThatEndsWhileItWaitsForRoomLeavesNothingBehind) {
  StartAll(1);
  disk_.FailWith(EDQUOT);
  ASSERT_EQ(Snapshot(0, 10), absl::OkStatus());
  (void)AwaitTroubles(1);
  host_.reset();
  EXPECT_FALSE(Outcome(0).ok());
  EXPECT_THAT(store_->InDoubt(), IsEmpty());
}

TEST_F(CheckpointHostTest, ADiskThatFailsIsToldToEveryRankAndTheOlderCheckpointStays) {
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

TEST_F(CheckpointHostTest, RankThatDiesAfterItsSnapshotLosesNothing) {
  StartAll(2);
  disk_.Hold();
  ASSERT_EQ(Snapshot(1, 10), absl::OkStatus());
  guests_[1].reset();
  disk_.LetGo();
  ASSERT_EQ(guests_[0]->in_flight(), std::nullopt);
  guests_.resize(2);
  ASSERT_EQ(Snapshot(0, 10), absl::OkStatus());
  EXPECT_EQ(Outcome(0), absl::OkStatus());
  EXPECT_EQ(Loads(10, state_), absl::OkStatus());
}

TEST_F(CheckpointHostTest, RankThatDiesBeforeItsSnapshotFailsItForTheOthers) {
  StartAll(2);
  ASSERT_EQ(Snapshot(0, 10), absl::OkStatus());
  guests_[1].reset();
  const absl::Status failed = Outcome(0);
  EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("rank 1"));
  host_.reset();
  EXPECT_THAT(store_->InDoubt(), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(store_->OpenCheckpoint(10).status()));
}

TEST_F(CheckpointHostTest, HostThatEndsIsAnOutcome) {
  StartAll(2);
  ASSERT_EQ(Snapshot(0, 10), absl::OkStatus());
  host_.reset();
  const absl::Status gone = Outcome(0);
  EXPECT_TRUE(absl::IsUnavailable(gone)) << gone;
  EXPECT_FALSE(Snapshot(0, 20).ok());
}

TEST_F(CheckpointHostTest, StaleAttemptIsTurnedAway) {
  ASSERT_EQ(store_->Fence(3), absl::OkStatus());
  const auto stale =
      CheckpointHost::Start({.store = store_.get(), .attempt = 2, .clock = [] { return 0.0; }});
  EXPECT_TRUE(absl::IsAborted(stale.status())) << stale.status();
  Start(1, 4);
  const auto guest = Connect(0, 1, 3);
  EXPECT_TRUE(absl::IsAborted(guest.status())) << guest.status();
  EXPECT_THAT(std::string(guest.status().message()), HasSubstr("attempt 3, not 4"));
}

TEST_F(CheckpointHostTest, RanksAreInRangeAndComeOnce) {
  StartAll(2);
  EXPECT_TRUE(absl::IsInvalidArgument(Connect(2, 3).status()));
  EXPECT_TRUE(absl::IsAlreadyExists(Connect(1, 2).status()));
  guests_[1].reset();
}

TEST_F(CheckpointHostTest, WhereNobodyListensTheAddressIsNamed) {
  Start(1);
  const std::string address = host_->address();
  host_.reset();
  const auto guest = CheckpointGuest::Connect({.address = address, .clock = [] { return 0.0; }});
  EXPECT_TRUE(absl::IsUnavailable(guest.status())) << guest.status();
  EXPECT_THAT(std::string(guest.status().message()), HasSubstr(address));
}

TEST(SnapshotAreaTest, BothSidesSeeTheSameBytes) {
  const State state = RandomState(9, 5, 200);
  auto mine = SnapshotArea::Create(EvenSlices(state, 0, 1));
  ASSERT_TRUE(mine.ok()) << mine.status();
  const auto theirs = SnapshotArea::Adopt(dup((*mine)->descriptor()));
  ASSERT_TRUE(theirs.ok()) << theirs.status();
  EXPECT_EQ((*theirs)->slices(), (*mine)->slices());
  ASSERT_EQ((*mine)->SetNote("a header"), absl::OkStatus());
  EXPECT_EQ((*theirs)->Note(8), "a header");
  for (size_t i = 0; i < (*mine)->buffers().size(); ++i) {
    const auto& buffer = (*mine)->buffers()[i];
    if (buffer.empty()) continue;
    buffer[buffer.size() - 1] = std::byte{0x5a};
    EXPECT_EQ((*theirs)->buffers()[i][buffer.size() - 1], std::byte{0x5a});
  }
}

TEST(SnapshotAreaTest, FileThatCouldShrinkIsRefused) {
  const int file = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(file, 1 << 20), 0);
  const auto area = SnapshotArea::Adopt(file);
  EXPECT_TRUE(absl::IsInvalidArgument(area.status())) << area.status();
  EXPECT_THAT(std::string(area.status().message()), HasSubstr("not sealed"));
}

TEST(SnapshotAreaTest, FileOfGarbageIsRefused) {
  const int file = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(file, 1 << 20), 0);
  ASSERT_EQ(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(SnapshotArea::Adopt(file).status()));
}

}  // namespace
}  // namespace nibble
