// The power is lost after any operation of a store: what was acknowledged is there when the store
// is next opened, and whatever is there passes its checksums.
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/files/files_testing.h"
#include "common/files/power_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

using checkpoint_testing::EvenSlices;
using checkpoint_testing::LoadsExactly;
using checkpoint_testing::RandomState;
using checkpoint_testing::Save;
using checkpoint_testing::State;
using checkpoint_testing::TestHeader;
using checkpoint_testing::TestOptions;
using checkpoint_testing::WriteShard;
using file_testing::PowerCuts;
using file_testing::TempDirectory;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class StorePowerTest : public ::testing::Test {
 protected:
  static State StateAt(int64_t step) { return RandomState(static_cast<uint64_t>(step), 3, 300); }

  std::unique_ptr<CheckpointStore> Open(const std::string& root, CheckpointStore::Options options) {
    auto store = CheckpointStore::Open(root + "/job/store", options);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  std::unique_ptr<CheckpointStore> OpenObserved(CheckpointStore::Options options) {
    options.faults = &power_;
    return Open(directory_.path(), options);
  }
  // Opens the store after a power failure, and reads its checkpoints into steps_ and pinned_.
  std::unique_ptr<CheckpointStore> OpenAgain(const CheckpointStore::Options& options) {
    auto store = Open(disk_.path(), options);
    steps_.clear();
    pinned_.clear();
    if (store == nullptr) return nullptr;
    EXPECT_THAT(store->open_report().problems, IsEmpty());
    const std::vector<CheckpointSummary> list = store->List().value();
    for (const CheckpointSummary& summary : list) {
      const auto reader = store->OpenCheckpoint(summary.step);
      const absl::Status loaded =
          reader.ok() ? LoadsExactly(**reader, StateAt(summary.step)) : reader.status();
      EXPECT_EQ(loaded, absl::OkStatus());
      steps_.push_back(summary.step);
      if (summary.pinned) pinned_.insert(summary.step);
    }
    return store;
  }

  const TempDirectory directory_;
  const TempDirectory disk_{TempDirectory::Place::kMemory};
  PowerCuts power_{directory_.path()};
  std::vector<int64_t> steps_;
  std::set<int64_t> pinned_;
};

TEST_F(StorePowerTest, FencesCommitsAndPinsAreKeptAndDeletionsAreWhole) {
  CheckpointStore::Options options = TestOptions();
  options.retention.keep_last = 1;
  const auto store = OpenObserved(options);
  ASSERT_NE(store, nullptr);
  ASSERT_EQ(Save(*store, 10, 1, 2, StateAt(10)), absl::OkStatus());
  power_.Note(1);
  ASSERT_EQ(store->Fence(2), absl::OkStatus());
  power_.Note(2);
  ASSERT_EQ(store->Pin(10), absl::OkStatus());
  power_.Note(3);
  ASSERT_EQ(Save(*store, 20, 2, 1, StateAt(20)), absl::OkStatus());
  power_.Note(4);
  ASSERT_EQ(store->Unpin(10), absl::OkStatus());
  power_.Note(5);
  ASSERT_EQ(Save(*store, 30, 3, 1, StateAt(30)), absl::OkStatus());
  power_.Note(6);
  ASSERT_EQ(store->Delete(30), absl::OkStatus());
  power_.Note(7);

  const int64_t states = power_.ForEach(disk_.path(), [&](int64_t noted) {
    const auto opened = OpenAgain(options);
    ASSERT_FALSE(HasFailure());
    ASSERT_GE(opened->attempt(), noted >= 6 ? 3 : noted >= 2 ? 2 : noted >= 1 ? 1 : 0);
    const bool pinned = pinned_.contains(10);
    switch (noted) {
      case 0:
        ASSERT_THAT(steps_, AnyOf(IsEmpty(), ElementsAre(10)));
        break;
      case 1:
      case 2:
        ASSERT_THAT(steps_, ElementsAre(10));
        break;
      case 3:
        ASSERT_TRUE(pinned);
        ASSERT_THAT(steps_, AnyOf(ElementsAre(10), ElementsAre(10, 20)));
        break;
      case 4:
        ASSERT_THAT(steps_, ElementsAre(10, 20));
        break;
      case 5:
        ASSERT_FALSE(pinned);
        ASSERT_THAT(steps_, AnyOf(ElementsAre(10, 20), Contains(30)));
        break;
      case 6:
        ASSERT_THAT(steps_, AnyOf(IsEmpty(), ElementsAre(30)));
        break;
      default:
        ASSERT_THAT(steps_, IsEmpty());
    }
  });
  EXPECT_GT(states, 50);
}

TEST_F(StorePowerTest, ASealedShardIsKeptUntilItsCheckpointIsDeleted) {
  CheckpointStore::Options options = TestOptions();
  options.decides = false;
  const auto store = OpenObserved(options);
  ASSERT_NE(store, nullptr);
  const State state = StateAt(10);
  std::vector<ShardManifest> shards;
  for (int32_t rank = 0; rank < 2; ++rank) {
    const auto shard = WriteShard(*store, 10, 1, rank, state, EvenSlices(state, rank, 2));
    ASSERT_TRUE(shard.ok()) << shard.status();
    shards.push_back(*shard);
    power_.Note(rank + 1);
  }
  const Manifest manifest = MakeManifest(TestHeader(10, 1, 2), shards).value();
  ASSERT_TRUE(store->Commit(manifest).ok());
  power_.Note(3);
  ASSERT_EQ(store->Reopen(10, 1), absl::OkStatus());
  power_.Note(4);
  ASSERT_TRUE(store->Commit(manifest).ok());
  power_.Note(5);
  ASSERT_EQ(store->Delete(10), absl::OkStatus());
  power_.Note(6);

  const int64_t states = power_.ForEach(disk_.path(), [&](int64_t noted) {
    const auto opened = OpenAgain(options);
    ASSERT_FALSE(HasFailure());
    const std::vector<ShardManifest> sealed = opened->InDoubt();
    const auto none = IsEmpty();
    const auto both = ElementsAre(shards[0], shards[1]);
    const bool committed = !steps_.empty();
    if (committed) {
      ASSERT_GE(noted, 2);
      ASSERT_LE(noted, 5);
      ASSERT_THAT(sealed, none);
    } else if (noted == 0) {
      ASSERT_THAT(sealed, AnyOf(none, ElementsAre(shards[0])));
    } else if (noted == 1) {
      ASSERT_THAT(sealed, AnyOf(ElementsAre(shards[0]), both));
    } else if (noted <= 4) {
      ASSERT_THAT(sealed, both);
    } else {
      ASSERT_THAT(sealed, none);
    }
  });
  EXPECT_GT(states, 50);
}

}  // namespace
}  // namespace nibble
