// What a registry deletes at once, what goes to the trash, and what comes back from it.
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/agent/checkpoint_registry.h"
#include "worker/agent/checkpoint_registry_testing.h"
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

using agent_testing::CheckpointRegistryTest;
using agent_testing::kRegistryJob;
using checkpoint_testing::TestHeader;
using file_testing::WriteHook;
using ::testing::HasSubstr;

class RegistryTrashTest : public CheckpointRegistryTest {
 protected:
  RegistryTrashTest() {
    store_.set_id(std::string(32, 'a'));
    store_.set_epoch(1);
    store_.set_epoch_id(std::string(32, '1'));
    answering_ = store_;
  }
  // A checkpoint of one rank that the coordinator has accepted.
  v1::ShardReport Accepted(agent_testing::TestRank& rank, int64_t step, int64_t attempt = 1) {
    Snapshot(rank, step, attempt);
    if (HasFatalFailure()) return {};
    const auto shards = Report();
    Answer();
    EXPECT_TRUE(rank.client->Wait().has_value());
    for (const v1::ShardReport& shard : shards) {
      if (shard.ref().step() == step && shard.ref().attempt() == attempt) return shard;
    }
    ADD_FAILURE() << "step " << step << " is not reported";
    return {};
  }
  // Overwrites files of this name.
  void Damage(const std::string& name) const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path())) {
      if (entry.path().filename() == name) std::ofstream(entry.path()) << "damaged";
    }
  }
};

TEST_F(RegistryTrashTest, ADroppedShardGoesToTheTrashAndComesBackSealedWithItsOrigin) {
  Open();
  auto rank = Connect(1);
  const v1::ShardReport shard = Accepted(*rank, 10);
  Answer({shard}, -1, v1::DELETION_KIND_SURPLUS);
  EXPECT_FALSE(IsThere(shard.ref()));
  auto trash = Trashed();
  ASSERT_EQ(trash.size(), 1u);
  EXPECT_EQ(trash[0].ref().SerializeAsString(), shard.ref().SerializeAsString());
  EXPECT_EQ(trash[0].manifest_crc32c(), shard.manifest_crc32c());
  EXPECT_EQ(trash[0].store().SerializeAsString(), store_.SerializeAsString());
  EXPECT_EQ(trash[0].order().SerializeAsString(), store_.SerializeAsString());
  EXPECT_EQ(trash[0].kind(), v1::DELETION_KIND_SURPLUS);
  EXPECT_TRUE(trash[0].kept());
  rank.reset();
  registry_->CloseAttempt(kRegistryJob, 1);
  Open();  // the next life
  ASSERT_EQ(Trashed().size(), 1u);
  registry_->Restore(shard.ref());
  EXPECT_TRUE(Trashed().empty());
  registry_->Restore(shard.ref());
  number_ = 0;
  const auto shards = Report();
  ASSERT_EQ(shards.size(), 1u);
  EXPECT_EQ(shards[0].SerializeAsString(), shard.SerializeAsString());
  EXPECT_FALSE(IsThere(shard.ref())) << "the coordinator has not accepted it again";
  Answer();
  EXPECT_TRUE(IsThere(shard.ref()));
  int64_t chunks = 0;
  EXPECT_TRUE((*registry_->OpenShard(shard.ref(), 0))->Verify(chunks).ok());
  EXPECT_THAT(Log(), HasSubstr("restored from the trash: rank 0 of the checkpoint of gpt-1, step "
                               "10, attempt 1 (surplus)"));
}

TEST_F(RegistryTrashTest, RetentionDeletesAtOnceOnlyWhereALaterCheckpointStays) {
  Open();
  const auto rank = Connect(1);
  const v1::ShardReport first = Accepted(*rank, 10);
  const v1::ShardReport second = Accepted(*rank, 20);
  const v1::ShardReport third = Accepted(*rank, 30);
  Answer({first}, -1, v1::DELETION_KIND_RETENTION);
  EXPECT_EQ(Report().size(), 2u);
  EXPECT_TRUE(Trashed().empty());
  Answer({second, third}, -1, v1::DELETION_KIND_RETENTION);
  EXPECT_TRUE(Report().empty());
  EXPECT_EQ(Trashed().size(), 2u);
}

TEST_F(RegistryTrashTest, ALaterCheckpointOfAnotherEpochDoesNotLetRetentionDeleteAtOnce) {
  Open();
  const auto rank = Connect(1);
  const v1::ShardReport first = Accepted(*rank, 10);
  store_.set_epoch_id(std::string(32, '2'));
  answering_ = store_;
  (void)Accepted(*rank, 20);
  answering_.set_epoch_id(std::string(32, '1'));
  Answer({first}, -1, v1::DELETION_KIND_RETENTION);
  EXPECT_EQ(Report().size(), 1u);
  EXPECT_EQ(Trashed().size(), 1u);
}

TEST_F(RegistryTrashTest, ACommittedCheckpointOfTheSameStepGoesToTheTrashWhenAnotherIsCommitted) {
  Open();
  auto rank = Connect(1);
  const v1::ShardReport first = Accepted(*rank, 10);
  rank.reset();
  registry_->CloseAttempt(kRegistryJob, 1);
  rank = Connect(2);
  const v1::ShardReport second = Accepted(*rank, 10, 2);
  EXPECT_TRUE(IsThere(second.ref()));
  const auto trash = Trashed();
  ASSERT_EQ(trash.size(), 1u);
  EXPECT_EQ(trash[0].ref().attempt(), 1);
  EXPECT_EQ(trash[0].kind(), v1::DELETION_KIND_REPLACED);
  EXPECT_FALSE(trash[0].kept()) << "the store has a checkpoint of this step";
  registry_->Restore(first.ref());
  EXPECT_EQ(Report().size(), 2u);
  EXPECT_TRUE(registry_->MakeLoadable(first.ref()).ok());
  EXPECT_TRUE(IsThere(first.ref()));
}

TEST_F(RegistryTrashTest, ALeasedCheckpointOfTheSameStepStaysWhenAnotherIsCommitted) {
  Open();
  auto rank = Connect(1);
  const v1::ShardReport first = Accepted(*rank, 10);
  const CheckpointRegistry::Lease lease = registry_->Keep(first.ref());
  rank.reset();
  registry_->CloseAttempt(kRegistryJob, 1);
  rank = Connect(2);
  (void)Accepted(*rank, 10, 2);
  EXPECT_TRUE(Trashed().empty());
  EXPECT_TRUE(registry_->OpenShard(first.ref(), 0).ok());
}

// Both kinds of damage: what the seal shows, and what only the chunks show.
TEST_F(RegistryTrashTest, ADamagedShardGoesToTheTrash) {
  for (const bool in_files : {true, false}) {
    Open();
    number_ = 0;
    const int64_t step = in_files ? 10 : 20;
    auto rank = Connect(1);
    const v1::ShardReport shard = Accepted(*rank, step);
    if (in_files) Damage("CURRENT");
    ASSERT_TRUE(registry_->RemoveDamaged(shard.ref(), 0).ok());
    EXPECT_FALSE(registry_->OpenShard(shard.ref(), 0).ok());
    const auto trash = Trashed();
    ASSERT_EQ(trash.size(), in_files ? 1u : 2u);
    EXPECT_EQ(trash.back().ref().step(), step);
    EXPECT_EQ(trash.back().kind(), v1::DELETION_KIND_DAMAGED);
    EXPECT_EQ(trash.back().world(), 1);
    EXPECT_FALSE(trash.back().kept());
    rank.reset();
    registry_->CloseAttempt(kRegistryJob, 1);
  }
  // It cannot be restored: that is said once.
  const v1::CheckpointRef damaged = Trashed()[0].ref();
  registry_->Restore(damaged);
  registry_->Restore(damaged);
  const std::string log = Log();
  const size_t said = log.find("not restored from the trash: rank 0");
  ASSERT_NE(said, std::string::npos) << log;
  EXPECT_EQ(log.find("not restored", said + 1), std::string::npos) << log;
  EXPECT_EQ(Trashed().size(), 2u);
}

TEST_F(RegistryTrashTest, ACommittedCheckpointWithADamagedManifestGoesToTheTrashWhenReplaced) {
  Open();
  auto rank = Connect(1);
  (void)Accepted(*rank, 10);
  Damage("MANIFEST");
  rank.reset();
  Open();
  number_ = 0;
  EXPECT_TRUE(Report().empty());
  rank = Connect(2);
  const v1::ShardReport second = Accepted(*rank, 10, 2);
  EXPECT_TRUE(IsThere(second.ref()));
  const auto trash = Trashed();
  ASSERT_EQ(trash.size(), 1u);
  EXPECT_EQ(trash[0].ref().attempt(), 1);
  EXPECT_EQ(trash[0].kind(), v1::DELETION_KIND_REPLACED);
}

TEST_F(RegistryTrashTest, AShardWhoseHeaderIsDamagedGoesToTheTrash) {
  Open();
  auto rank = Connect(1, 0, 2);
  Snapshot(*rank, 10, 1);
  (void)Report();
  Answer();
  rank.reset();
  Damage("pending-10-1.header");
  Open();
  number_ = 0;
  EXPECT_TRUE(Report().empty());
  const auto trash = Trashed();
  ASSERT_EQ(trash.size(), 1u);
  EXPECT_EQ(trash[0].kind(), v1::DELETION_KIND_DAMAGED);
  EXPECT_EQ(trash[0].reason(), "its checkpoint's header is damaged");
}

TEST_F(RegistryTrashTest, OnAFullDiskOlderTrashMakesRoomForTheRecordOfTheNext) {
  own_faults_ = std::make_unique<WriteHook>([this](const std::string& path, int64_t) {
    const std::string first = "/trash/gpt-1/step-000000000010-attempt-0001-rank-00000-00000001";
    const bool full = std::filesystem::exists(directory_.path() + first + "/shard-00000");
    return full && path.find("/record") != std::string::npos ? ENOSPC : 0;
  });
  faults_ = own_faults_.get();
  Open();
  const auto rank = Connect(1);
  const v1::ShardReport first = Accepted(*rank, 10);
  const v1::ShardReport second = Accepted(*rank, 20);
  Answer({first}, -1, v1::DELETION_KIND_REQUESTED);
  ASSERT_EQ(Trashed().size(), 1u);
  Answer({second}, -1, v1::DELETION_KIND_REQUESTED);
  const auto trash = Trashed();
  ASSERT_EQ(trash.size(), 1u);
  EXPECT_EQ(trash[0].ref().step(), 20);
  EXPECT_TRUE(Report().empty());
}

TEST_F(RegistryTrashTest, ARemovedOrphanGoesToTheTrashAndIsNotKept) {
  Open();
  const auto rank = Connect(1);
  (void)Accepted(*rank, 10);
  answering_.set_id(std::string(32, 'b'));
  registry_->RemoveOrphans(kRegistryJob, store_.id(), answering_);
  registry_->AwaitSettled();
  const auto trash = Trashed();
  ASSERT_EQ(trash.size(), 1u);
  EXPECT_EQ(trash[0].kind(), v1::DELETION_KIND_ORPHAN);
  EXPECT_EQ(trash[0].order().id(), answering_.id());
  EXPECT_FALSE(trash[0].kept());
}

TEST_F(RegistryTrashTest, TheSealedShardOfACheckpointThatFailedHereGoesToTheTrash) {
  own_faults_ = std::make_unique<WriteHook>([](const std::string& path, int64_t) {
    return path.find("/pending-") == std::string::npos ? 0 : EIO;
  });
  faults_ = own_faults_.get();
  Open();
  const auto rank = Connect(1);
  const absl::Status taken = rank->client->Snapshot(
      TestHeader(10, 1, 1),
      [](absl::Span<const absl::Span<std::byte>>) { return absl::OkStatus(); });
  ASSERT_TRUE(taken.ok()) << taken;
  const auto outcome = rank->client->Wait();
  ASSERT_TRUE(outcome.has_value());
  EXPECT_FALSE(outcome->status.ok());
  EXPECT_TRUE(Report().empty());
  const auto trash = Trashed();
  ASSERT_EQ(trash.size(), 1u);
  EXPECT_EQ(trash[0].kind(), v1::DELETION_KIND_NOT_COMMITTED);
  EXPECT_FALSE(trash[0].kept()) << "nobody has accepted it";
}

TEST_F(RegistryTrashTest, ACopyForALeaseGoesAtOnceAndADifferentOneReplacesAShardThroughTheTrash) {
  Open();
  file_testing::TempDirectory elsewhere;
  const auto source = CheckpointStore::Open(elsewhere.path(), checkpoint_testing::TestOptions());
  ASSERT_TRUE(source.ok()) << source.status();
  const auto state = checkpoint_testing::RandomState(1, 2, 100);
  const auto slices = checkpoint_testing::EvenSlices(state, 0, 1);
  const auto original = checkpoint_testing::WriteShard(**source, 10, 1, 0, state, slices);
  ASSERT_TRUE(original.ok()) << original.status();
  v1::CheckpointRef ref;
  ref.set_job(kRegistryJob);
  ref.set_step(10);
  ref.set_attempt(1);
  const auto copy = [&](bool input) {
    auto writer = registry_->BeginReplica(kRegistryJob, *original);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const auto& slice : slices) {
      ASSERT_TRUE((*writer)->Put(slice, checkpoint_testing::BytesOf(state, slice)).ok());
    }
    const auto sealed = (*writer)->Seal();
    ASSERT_TRUE(sealed.ok()) << sealed.status();
    const absl::Status added =
        registry_->AddReplica(kRegistryJob, TestHeader(10, 1, 1), *sealed, input);
    ASSERT_TRUE(added.ok()) << added;
  };
  CheckpointRegistry::Lease lease = registry_->Keep(ref);
  copy(/*input=*/true);
  lease.reset();
  registry_->AwaitSettled();
  EXPECT_FALSE(registry_->OpenShard(ref, 0).ok());
  EXPECT_TRUE(Trashed().empty());
  copy(/*input=*/false);
  copy(/*input=*/false);
  const auto trash = Trashed();
  ASSERT_EQ(trash.size(), 1u);
  EXPECT_EQ(trash[0].kind(), v1::DELETION_KIND_REPLACED);
  EXPECT_TRUE(registry_->OpenShard(ref, 0).ok());
}

TEST_F(RegistryTrashTest, ShardsOfAnotherEpochAreNotMixedWithTheCheckpointThatIsHere) {
  Open();
  auto rank = Connect(1, 0, 2);
  Snapshot(*rank, 10, 1);
  const v1::ShardReport old = Report().at(0);
  Answer();
  Answer({old});
  rank.reset();
  registry_->CloseAttempt(kRegistryJob, 1);
  store_.set_epoch_id(std::string(32, '2'));
  rank = Connect(1, 1, 2);
  Snapshot(*rank, 10, 1);
  registry_->Restore(old.ref());
  EXPECT_EQ(Report().size(), 1u);
  EXPECT_EQ(Trashed().size(), 1u);
  EXPECT_THAT(Log(), HasSubstr("that another store, or epoch, ordered are here"));
}

TEST_F(RegistryTrashTest, AWriterOnAFullDiskGetsTheSpaceOfTheTrashBeforeItWaits) {
  // The disk is full while the first checkpoint's trash is there.
  own_faults_ = std::make_unique<WriteHook>([this](const std::string& path, int64_t) {
    std::error_code error;
    const std::string trash = directory_.path() + "/trash/" + kRegistryJob;
    const bool there =
        std::filesystem::exists(trash, error) && !std::filesystem::is_empty(trash, error);
    return there && path.find("/writing-") != std::string::npos ? ENOSPC : 0;
  });
  faults_ = own_faults_.get();
  Open();
  const auto rank = Connect(1);
  const v1::ShardReport first = Accepted(*rank, 10);
  Answer({first}, -1, v1::DELETION_KIND_REQUESTED);
  ASSERT_EQ(Trashed().size(), 1u);
  (void)Accepted(*rank, 20);
  EXPECT_TRUE(Trashed().empty());
  EXPECT_THAT(Log(), HasSubstr("removed from the trash after 0.0 hours, as the disk is full and a "
                               "checkpoint is to be written: rank 0 of the checkpoint of gpt-1, "
                               "step 10, attempt 1 (requested)"));
}

}  // namespace
}  // namespace nibble
