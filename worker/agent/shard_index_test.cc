#include "worker/agent/shard_index.h"

#include <string>

#include "gtest/gtest.h"

namespace nibble {
namespace {

v1::StoreIdentity IndexedStore(char digit, int64_t epoch = 1) {
  v1::StoreIdentity store;
  store.set_id(std::string(32, digit));
  store.set_epoch(epoch);
  return store;
}

// An index with the shards of both ranks of step 10, ordered by store a.
ShardIndex TwoShards() {
  ShardIndex index;
  StoredCheckpoint& checkpoint = index.FindOrAdd({"a-1", 10, 1});
  checkpoint.header.world = 2;
  checkpoint.store = IndexedStore('a');
  for (int32_t rank = 0; rank < 2; ++rank) {
    v1::ShardReport& report = checkpoint.shards[rank].report;
    report.mutable_ref()->set_job("a-1");
    report.mutable_ref()->set_step(10);
    report.mutable_ref()->set_attempt(1);
    report.set_rank(rank);
    report.set_manifest_crc32c(70 + rank);
  }
  return index;
}
const CheckpointKey kStep10 = {"a-1", 10, 1};

v1::ConnectResponse Answer(int64_t answered, const v1::StoreIdentity& store = IndexedStore('a')) {
  v1::ConnectResponse response;
  *response.mutable_store() = store;
  response.set_answered(answered);
  return response;
}

v1::ConnectResponse Drop(v1::ConnectResponse response, int32_t rank) {
  v1::DroppedShard& dropped = *response.add_dropped();
  dropped.mutable_ref()->set_job("a-1");
  dropped.mutable_ref()->set_step(10);
  dropped.mutable_ref()->set_attempt(1);
  dropped.set_rank(rank);
  return response;
}

TEST(ShardIndexTest, AnAnswerAcceptsTheShardsOfTheReportsThatItCovers) {
  ShardIndex index = TwoShards();
  EXPECT_EQ(index.Report(5).size(), 2u);
  EXPECT_TRUE(index.Answered(Answer(4)).empty());
  EXPECT_FALSE(index.HasWork(kStep10.job));
  EXPECT_TRUE(index.Answered(Answer(5)).empty());
  EXPECT_EQ(index.BeginWork(kStep10.job).settle, std::set<CheckpointKey>{kStep10});
  EXPECT_TRUE(index.Find(kStep10)->accepted());
}

TEST(ShardIndexTest, ADroppedShardIsNeitherAcceptedNorReportedUntilItsRemovalHasFailed) {
  ShardIndex index = TwoShards();
  (void)index.Report(1);
  EXPECT_TRUE(index.Answered(Drop(Answer(1), 1)).empty());
  EXPECT_EQ(index.Report(2).size(), 1u);
  const ShardIndex::Work work = index.BeginWork(kStep10.job);
  EXPECT_EQ(work.drop.at(kStep10).size(), 1u);
  EXPECT_TRUE(work.drop.at(kStep10).contains(1));
  EXPECT_EQ(index.Report(3).size(), 1u);
  EXPECT_FALSE(index.Find(kStep10)->shards.at(1).accepted);
  index.FinishWork(kStep10.job);
  EXPECT_EQ(index.Report(4).size(), 2u);
}

TEST(ShardIndexTest, AnAnswerOfAnotherStoreOrEpochNeitherDropsNorAccepts) {
  for (const v1::StoreIdentity& other : {IndexedStore('b'), IndexedStore('a', 2)}) {
    ShardIndex index = TwoShards();
    (void)index.Report(1);
    EXPECT_EQ(index.Answered(Drop(Answer(1, other), 0)).size(), 1u);
    EXPECT_TRUE(index.Answered(Drop(Answer(1, other), 0)).empty()) << "said once";
    EXPECT_FALSE(index.HasWork(kStep10.job));
  }
}

TEST(ShardIndexTest, AnOrderOfAnotherEpochDropsNothingWhoeverSendsIt) {
  ShardIndex index = TwoShards();
  (void)index.Report(1);
  v1::ConnectResponse response = Drop(Answer(0), 0);
  v1::StoreIdentity& order = *response.mutable_dropped(0)->mutable_order();
  order = IndexedStore('a');
  order.set_epoch_id(std::string(32, '1'));  // an epoch with the same number
  response.set_answered(1);
  EXPECT_EQ(index.Answered(response).size(), 1u);
  EXPECT_TRUE(index.BeginWork(kStep10.job).drop.empty());
  order.clear_epoch_id();
  order.set_sequence(7);
  EXPECT_TRUE(index.Answered(response).empty());
  EXPECT_EQ(index.BeginWork(kStep10.job).drop.at(kStep10).at(0).order.sequence(), 7);
}

TEST(ShardIndexTest, NothingIsDroppedBeforeAReportOfTheStreamWasAnswered) {
  ShardIndex index = TwoShards();
  (void)index.Report(1);
  EXPECT_TRUE(index.Answered(Drop(Answer(0), 0)).empty());
  EXPECT_FALSE(index.HasWork(kStep10.job));
  EXPECT_TRUE(index.Answered(Drop(Answer(1), 0)).empty());
  EXPECT_TRUE(index.BeginWork(kStep10.job).drop.contains(kStep10));
}

TEST(ShardIndexTest, TheNewestAcceptedCheckpointIsOfTheEpochAndNotToBeDropped) {
  ShardIndex index = TwoShards();
  const v1::StoreIdentity own = IndexedStore('a');
  const v1::StoreIdentity other = IndexedStore('a', 2);
  EXPECT_EQ(index.NewestAccepted("a-1", nullptr), -1);
  (void)index.Report(1);
  (void)index.Answered(Answer(1));
  EXPECT_EQ(index.NewestAccepted("a-1", nullptr), 10);
  EXPECT_EQ(index.NewestAccepted("a-1", &own), 10);
  EXPECT_EQ(index.NewestAccepted("a-1", &other), -1);
  EXPECT_EQ(index.NewestAccepted("a", nullptr), -1);
  (void)index.Answered(Drop(Drop(Answer(1), 0), 1));
  EXPECT_EQ(index.NewestAccepted("a-1", nullptr), -1);
}

TEST(ShardIndexTest, AShardIsTakenOverByItsManifest) {
  ShardIndex index = TwoShards();
  v1::DesiredReplica known;
  *known.mutable_ref() = index.Find(kStep10)->shards.at(1).report.ref();
  known.set_rank(1);
  known.set_manifest_crc32c(70);
  index.TakeOver(known, IndexedStore('b'));
  EXPECT_FALSE(index.HasWork(kStep10.job));
  known.set_manifest_crc32c(71);
  index.TakeOver(known, IndexedStore('a'));  // its own
  EXPECT_FALSE(index.HasWork(kStep10.job));
  index.TakeOver(known, IndexedStore('b'));
  EXPECT_EQ(index.BeginWork(kStep10.job).take_over.at(kStep10).id(), IndexedStore('b').id());
}

TEST(ShardIndexTest, InputIsNotReportedAndDroppedWithItsLastLease) {
  ShardIndex index = TwoShards();
  index.Find(kStep10)->input = true;
  index.AddLease(kStep10);
  index.AddLease(kStep10);
  EXPECT_TRUE(index.Report(1).empty());
  index.ReleaseLease(kStep10);
  EXPECT_TRUE(index.HasLease(kStep10));
  EXPECT_FALSE(index.HasWork(kStep10.job));
  index.ReleaseLease(kStep10);
  EXPECT_FALSE(index.HasLease(kStep10));
  EXPECT_EQ(index.BeginWork(kStep10.job).drop.at(kStep10).size(), 2u);
}

TEST(ShardIndexTest, AReplacedDirectoryLosesWhatWasStoredBeforeAndKeepsWhatCameAfter) {
  ShardIndex index = TwoShards();
  index.Find(kStep10)->awaited = true;
  index.FindOrAdd({"a-1", 20, 1}).generation = 1;
  index.FindOrAdd({"a-1", 20, 1}).shards[0] = {};
  (void)index.FindOrAdd({"b-2", 10, 1});
  const ShardIndex::Replaced replaced = index.ReplaceJob("a-1", 1, {});
  EXPECT_EQ(replaced.lost, 2u);
  EXPECT_EQ(replaced.awaited, std::vector<CheckpointKey>{kStep10});
  EXPECT_EQ(index.Find(kStep10), nullptr);
  EXPECT_NE(index.Find({"a-1", 20, 1}), nullptr);
  EXPECT_NE(index.Find({"b-2", 10, 1}), nullptr);
}

TEST(ShardIndexTest, RivalsAreOtherCommittedCheckpointsOfTheStep) {
  ShardIndex index = TwoShards();
  index.FindOrAdd({"a-1", 10, 2}).committed = true;
  index.FindOrAdd({"a-1", 20, 2}).committed = true;
  index.FindOrAdd({"b-2", 10, 2}).committed = true;
  const CheckpointKey other = {"a-1", 10, 2};
  EXPECT_EQ(index.CommittedRivals(kStep10), std::vector<CheckpointKey>{other});
  EXPECT_TRUE(index.CommittedRivals(other).empty());
}

}  // namespace
}  // namespace nibble
