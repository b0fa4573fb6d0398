#include "server/controller/trash_registry.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

v1::CheckpointRef RefOf(const std::string& job, int64_t step) {
  v1::CheckpointRef ref;
  ref.set_job(job);
  ref.set_step(step);
  ref.set_attempt(1);
  return ref;
}

void AddTrashed(const v1::CheckpointRef& ref, int32_t rank, int64_t age_ms,
                v1::ConnectRequest& report) {
  v1::TrashedShard& shard = *report.add_trash();
  *shard.mutable_ref() = ref;
  shard.set_rank(rank);
  shard.set_world(2);
  shard.set_bytes(100);
  shard.set_age_ms(age_ms);
}

void AddStored(const v1::CheckpointRef& ref, v1::ConnectRequest& report) {
  v1::ShardReport& shard = *report.add_shards();
  *shard.mutable_ref() = ref;
  shard.set_world(2);
}

class TrashRegistryTest : public testing::Test {
 protected:
  // What is of step 1 is in the catalogue.
  void Take(const std::string& worker, const v1::ConnectRequest& report) {
    registry_.Take(worker, report,
                   [](const v1::ShardReport& shard) { return shard.ref().step() != 1; });
  }
  v1::ConnectRequest Full() {
    v1::ConnectRequest report;
    report.set_all_shards(true);
    return report;
  }

  TrashRegistry registry_;
};

TEST_F(TrashRegistryTest, AFullReportReplacesWhatIsKnownOfTheWorker) {
  v1::ConnectRequest report = Full();
  AddTrashed(RefOf("a-1", 5), 1, 0, report);
  AddTrashed(RefOf("a-1", 5), 0, 0, report);
  AddTrashed(RefOf("b-2", 5), 0, 0, report);
  AddStored(RefOf("a-1", 1), report);
  AddStored(RefOf("a-1", 7), report);
  Take("w1", report);
  EXPECT_EQ(registry_.TrashBytes("w1"), 300);
  EXPECT_THAT(registry_.Of("a-1"), SizeIs(3));
  EXPECT_THAT(registry_.StoredJobs("w1"), ElementsAre("a-1"));
  EXPECT_THAT(registry_.TrashOn("w1"), SizeIs(2));
  EXPECT_THAT(registry_.Trash(""), SizeIs(2));
  const auto of_a = registry_.Trash("a-1");
  ASSERT_THAT(of_a, SizeIs(1));
  EXPECT_EQ(of_a.begin()->second.at("w1")[0].rank(), 0);  // by rank
  // A report of a part has no trash.
  v1::ConnectRequest part;
  AddStored(RefOf("b-2", 9), part);
  Take("w1", part);
  EXPECT_EQ(registry_.TrashBytes("w1"), 300);
  EXPECT_THAT(registry_.StoredJobs("w1"), ElementsAre("a-1", "b-2"));
  Take("w1", Full());
  EXPECT_EQ(registry_.TrashBytes("w1"), 0);
  EXPECT_THAT(registry_.StoredJobs("w1"), IsEmpty());
}

TEST_F(TrashRegistryTest, AWorkerThatIsAwayHasNothing) {
  v1::ConnectRequest report = Full();
  AddTrashed(RefOf("a-1", 5), 0, 0, report);
  Take("w1", report);
  Take("w2", report);
  registry_.Forget("w1");
  ASSERT_THAT(registry_.Of("a-1"), SizeIs(1));
  EXPECT_EQ(registry_.Of("a-1")[0].worker, "w2");
  EXPECT_TRUE(registry_.Of("a-1")[0].trashed);
}

TEST_F(TrashRegistryTest, AShardThatIsOrderedDroppedIsNotStored) {
  v1::ConnectRequest report = Full();
  AddStored(RefOf("a-1", 7), report);
  Take("w1", report);
  registry_.NoteDropped("w1", RefOf("a-1", 7), 0);
  EXPECT_THAT(registry_.Of("a-1"), IsEmpty());
}

TEST_F(TrashRegistryTest, OfTooMuchTrashTheLastDeletedIsKept) {
  v1::ConnectRequest report = Full();
  for (int64_t i = 0; i <= kMaxTrashedShards; ++i) {
    AddTrashed(RefOf("a-1", i + 1), 0, i == 3 ? 99 : 5, report);
  }
  Take("w1", report);
  EXPECT_EQ(registry_.TrashBytes("w1"), (kMaxTrashedShards + 1) * 100);
  const std::vector<LooseShard> kept = registry_.Of("a-1");
  EXPECT_THAT(kept, SizeIs(kMaxTrashedShards));
  for (const LooseShard& shard : kept) EXPECT_NE(shard.shard.ref().step(), 4);
}

TEST_F(TrashRegistryTest, ANameWithASeparatorIsNoJobs) {
  v1::ConnectRequest report = Full();
  AddTrashed(RefOf("a-1/0", 5), 0, 0, report);
  Take("w1", report);
  EXPECT_THAT(registry_.Of("a-1"), IsEmpty());
  EXPECT_THAT(registry_.Trash(""), IsEmpty());
}

}  // namespace
}  // namespace nibble
