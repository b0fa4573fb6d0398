#include "worker/agent/data_directory.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/agent/stuck_disk_testing.h"

namespace nibble {
namespace {

using file_testing::TempDirectory;

const std::string kOld(32, 'a');
const std::string kNew(32, 'b');

v1::StoreIdentity Store(const std::string& id, int64_t epoch, int64_t sequence = 0) {
  v1::StoreIdentity store;
  store.set_id(id);
  store.set_epoch(epoch);
  store.set_sequence(sequence);
  return store;
}

v1::DesiredGang Gang(const std::string& job, int64_t attempt) {
  v1::DesiredGang gang;
  gang.set_job(job);
  gang.set_attempt(attempt);
  gang.set_spec_yaml("name: a\n");
  gang.set_owner("ann");
  gang.add_revisions()->set_number(1);
  return gang;
}

v1::ShardReport Shard(const std::string& job, const v1::StoreIdentity& store) {
  v1::ShardReport shard;
  shard.mutable_ref()->set_job(job);
  shard.mutable_ref()->set_step(10);
  *shard.mutable_store() = store;
  shard.mutable_store()->clear_sequence();
  return shard;
}

class ProvenanceTest : public testing::Test {
 protected:
  ProvenanceTest() { NextLife(); }
  void NextLife() {
    provenance_ = std::make_unique<Provenance>(directory_.path(), [this] { return now_ms_; });
  }
  bool Obeys(const v1::StoreIdentity& store) {
    Provenance::Verdict verdict = provenance_->Judge(store);
    if (verdict == Provenance::Verdict::kNotFollowed) {
      EXPECT_EQ(provenance_->Follow(store), absl::OkStatus());
      verdict = provenance_->Judge(store);
    }
    EXPECT_NE(verdict, Provenance::Verdict::kNotFollowed);
    return verdict == Provenance::Verdict::kObey;
  }
  v1::ConnectRequest Describe(std::vector<v1::ShardReport> shards = {},
                              const std::map<std::string, int64_t>& running = {}) {
    v1::ConnectRequest report;
    provenance_->Describe(std::move(shards), running, report);
    return report;
  }

  TempDirectory directory_;
  int64_t now_ms_ = 1000;
  std::unique_ptr<Provenance> provenance_;
};

TEST_F(ProvenanceTest, TheFirstStoreIsObeyedAndRememberedAlsoInTheNextLife) {
  EXPECT_TRUE(Obeys(Store(kOld, 1, 5)));
  NextLife();
  EXPECT_EQ(provenance_->followed().id(), kOld);
  EXPECT_EQ(provenance_->followed().epoch(), 1);
}

TEST_F(ProvenanceTest, AnOlderStoreIsNotObeyedUntilItsEpochHasGrown) {
  EXPECT_TRUE(Obeys(Store(kOld, 2, 50)));
  EXPECT_FALSE(Obeys(Store(kOld, 1, 60)));  // an earlier epoch
  EXPECT_FALSE(Obeys(Store(kOld, 2, 49)));  // an earlier update
  EXPECT_TRUE(Obeys(Store(kOld, 2, 50)));
  EXPECT_TRUE(Obeys(Store(kOld, 3, 10)));
  EXPECT_TRUE(Obeys(Store(kOld, 3, 11)));
}

TEST_F(ProvenanceTest, TheSequenceOfAStoreThatAcceptedShardsOutlivesTheDaemon) {
  EXPECT_TRUE(Obeys(Store(kOld, 1, 70)));
  ASSERT_EQ(provenance_->Remember(), absl::OkStatus());
  NextLife();
  EXPECT_EQ(provenance_->followed().sequence(), 70);
  EXPECT_FALSE(Obeys(Store(kOld, 1, 69)));
}

TEST_F(ProvenanceTest, AnotherHistoryOfTheSameEpochIsNotObeyed) {
  v1::StoreIdentity first = Store(kOld, 2, 50);
  first.set_epoch_id(std::string(32, '1'));
  v1::StoreIdentity second = Store(kOld, 2, 60);
  second.set_epoch_id(std::string(32, '2'));
  EXPECT_TRUE(Obeys(first));
  EXPECT_FALSE(Obeys(second));
  EXPECT_EQ(provenance_->followed().epoch_id(), first.epoch_id());
  second.set_epoch(3);
  EXPECT_TRUE(Obeys(second));
}

TEST_F(ProvenanceTest, AStoreIsShownAsItWasIssuedInTheNextLifeToo) {
  v1::StoreIdentity issued = Store(kOld, 1, 70);
  issued.set_epoch_id(std::string(32, '1'));
  issued.set_life(std::string(32, '2'));
  issued.set_mac(std::string("\0\n\xff mac", 7));
  EXPECT_TRUE(Obeys(issued));
  ASSERT_EQ(provenance_->Remember(), absl::OkStatus());
  NextLife();
  EXPECT_EQ(provenance_->followed().SerializeAsString(), issued.SerializeAsString());
}

TEST_F(ProvenanceTest, AnOrderRecordsHowFarTheStoreHasCome) {
  EXPECT_TRUE(Obeys(Store(kOld, 1, 5)));
  EXPECT_TRUE(Obeys(Store(kOld, 1, 90)));
  ASSERT_EQ(provenance_->RecordOrder(Gang("train-1", 1), Store(kOld, 1, 90)), absl::OkStatus());
  NextLife();
  EXPECT_EQ(provenance_->followed().sequence(), 90);
}

TEST_F(ProvenanceTest, AJobWhoseCopiesAreStoredHereIsKnownInTheNextLife) {
  EXPECT_TRUE(Obeys(Store(kOld, 1, 5)));
  v1::JobOrder job;
  job.set_job("train-1");
  job.set_spec_yaml("name: a\n");
  job.set_attempt(3);
  job.set_owner("ann");
  EXPECT_TRUE(provenance_->NoteJob(job, Store(kOld, 1, 5)));
  ASSERT_EQ(provenance_->SaveChanges(), absl::OkStatus());
  EXPECT_FALSE(provenance_->NoteJob(job, Store(kOld, 1, 6)));
  NextLife();
  EXPECT_TRUE(Obeys(Store(kNew, 1, 1)));
  const v1::ConnectRequest report = Describe({Shard("train-1", Store(kOld, 1))});
  ASSERT_EQ(report.orphans_size(), 1);
  EXPECT_EQ(report.orphans(0).spec_yaml(), "name: a\n");
  EXPECT_EQ(report.orphans(0).owner(), "ann");
  EXPECT_EQ(report.orphans(0).attempt(), 3);
}

TEST_F(ProvenanceTest, AnAttemptOfWhichOnlyCopiesAreStoredHereMayStartHere) {
  EXPECT_TRUE(Obeys(Store(kOld, 1, 5)));
  v1::JobOrder job;
  job.set_job("train-1");
  job.set_spec_yaml("name: a\n");
  job.set_attempt(2);
  job.set_owner("ann");
  EXPECT_TRUE(provenance_->NoteJob(job, Store(kOld, 1, 5)));
  EXPECT_EQ(provenance_->AttemptOf("train-1"), 0);
  ASSERT_EQ(provenance_->RecordOrder(Gang("train-1", 2), Store(kOld, 1, 5)), absl::OkStatus());
  EXPECT_FALSE(provenance_->NoteJob(job, Store(kOld, 1, 5)));
  NextLife();
  EXPECT_EQ(provenance_->AttemptOf("train-1"), 2);
}

TEST_F(ProvenanceTest, AnotherStoreIsObeyedAndTheFirstIsNotForgotten) {
  EXPECT_TRUE(Obeys(Store(kOld, 2, 50)));
  EXPECT_TRUE(Obeys(Store(kNew, 1, 1)));
  EXPECT_EQ(provenance_->followed().id(), kNew);
  NextLife();
  EXPECT_EQ(provenance_->followed().id(), kNew);
  EXPECT_FALSE(Obeys(Store(kOld, 1, 99)));
  // It reports to the store the newest state that it has known.
  EXPECT_EQ(provenance_->followed().id(), kOld);
  EXPECT_EQ(provenance_->followed().epoch(), 2);
}

TEST_F(ProvenanceTest, ACoordinatorWithoutAnIdentityIsObeyedOnlyIfNoStoreWasFollowed) {
  EXPECT_TRUE(Obeys({}));
  EXPECT_TRUE(Obeys(Store(kOld, 1, 1)));
  EXPECT_FALSE(Obeys({}));
}

TEST_F(ProvenanceTest, AnOrderOfThePresentEpochIsNotAnOrphan) {
  EXPECT_TRUE(Obeys(Store(kOld, 1, 5)));
  ASSERT_EQ(provenance_->RecordOrder(Gang("a-1", 1), Store(kOld, 1)), absl::OkStatus());
  const v1::ConnectRequest report = Describe({Shard("a-1", Store(kOld, 1))}, {{"a-1", 1}});
  EXPECT_EQ(report.shards_size(), 1);
  EXPECT_EQ(report.orphans_size(), 0);
}

TEST_F(ProvenanceTest, AnOrderOfAnotherStoreIsAnOrphanWithItsShards) {
  EXPECT_TRUE(Obeys(Store(kOld, 1, 5)));
  ASSERT_EQ(provenance_->RecordOrder(Gang("a-1", 3), Store(kOld, 1)), absl::OkStatus());
  EXPECT_TRUE(Obeys(Store(kNew, 1, 1)));
  (void)Describe({Shard("a-1", Store(kOld, 1))}, {{"a-1", 3}});
  now_ms_ += 5000;
  const v1::ConnectRequest report = Describe({Shard("a-1", Store(kOld, 1))}, {{"a-1", 3}});
  EXPECT_EQ(report.shards_size(), 0);
  ASSERT_EQ(report.orphans_size(), 1);
  const v1::Orphan& orphan = report.orphans(0);
  EXPECT_EQ(orphan.store().id(), kOld);
  EXPECT_EQ(orphan.spec_yaml(), "name: a\n");
  EXPECT_EQ(orphan.owner(), "ann");
  EXPECT_EQ(orphan.attempt(), 3);
  EXPECT_TRUE(orphan.running());
  EXPECT_EQ(orphan.shards_size(), 1);
  EXPECT_EQ(orphan.since_ms(), 5000);
}

TEST_F(ProvenanceTest, ARestoredStoreReceivesAttemptsOnceAndShardsAlways) {
  EXPECT_TRUE(Obeys(Store(kOld, 1, 5)));
  ASSERT_EQ(provenance_->RecordOrder(Gang("a-1", 3), Store(kOld, 1)), absl::OkStatus());
  EXPECT_TRUE(Obeys(Store(kOld, 2, 3)));
  v1::ConnectRequest report = Describe({Shard("a-1", Store(kOld, 1))});
  EXPECT_EQ(report.shards_size(), 1);
  ASSERT_EQ(report.orphans_size(), 1);
  EXPECT_EQ(report.orphans(0).shards_size(), 0);
  // As long as such shards exist, their spec is reported.
  provenance_->Answered();
  EXPECT_EQ(Describe({Shard("a-1", Store(kOld, 1))}).orphans_size(), 1);
  EXPECT_EQ(Describe({Shard("a-1", Store(kOld, 2))}).orphans_size(), 1);
  provenance_->Answered();
  EXPECT_EQ(Describe({Shard("a-1", Store(kOld, 2))}).orphans_size(), 0);
  ASSERT_EQ(provenance_->SaveChanges(), absl::OkStatus());
  NextLife();
  EXPECT_EQ(Describe({Shard("a-1", Store(kOld, 2))}).orphans_size(), 0);
  EXPECT_EQ(provenance_->AttemptOf("a-1"), 3);
}

TEST_F(ProvenanceTest, AnUnreadableOrderIsUnknown) {
  EXPECT_TRUE(Obeys(Store(kOld, 1, 5)));
  ASSERT_EQ(provenance_->RecordOrder(Gang("a-1", 3), Store(kOld, 1)), absl::OkStatus());
  std::filesystem::resize_file(directory_.path() + "/jobs/a-1/order", 10);
  NextLife();
  EXPECT_EQ(provenance_->AttemptOf("a-1"), 0);
  EXPECT_EQ(provenance_->StoreOf("a-1").id(), "");
}

TEST_F(ProvenanceTest, AForgottenOrderIsRemovedFromDiskByTheNextSave) {
  EXPECT_TRUE(Obeys(Store(kOld, 1, 5)));
  ASSERT_EQ(provenance_->RecordOrder(Gang("a-1", 3), Store(kOld, 1)), absl::OkStatus());
  provenance_->Forget("a-1");
  EXPECT_EQ(provenance_->AttemptOf("a-1"), 0);
  ASSERT_EQ(provenance_->SaveChanges(), absl::OkStatus());
  NextLife();
  EXPECT_EQ(provenance_->AttemptOf("a-1"), 0);
}

TEST_F(ProvenanceTest, AnOrderThatCouldNotBeWrittenIsWrittenWhenItIsRepeated) {
  int error = ENOSPC;
  file_testing::WriteHook disk([&error](const std::string&, int64_t) { return error; });
  Provenance provenance(
      directory_.path(), [] { return 0; }, &disk);
  EXPECT_TRUE(absl::IsResourceExhausted(provenance.RecordOrder(Gang("a-1", 3), Store(kOld, 1))));
  error = 0;
  EXPECT_EQ(provenance.RecordOrder(Gang("a-1", 3), Store(kOld, 1)), absl::OkStatus());
  NextLife();
  EXPECT_EQ(provenance_->AttemptOf("a-1"), 3);
}

TEST_F(ProvenanceTest, QueriesAreAnsweredWhileTheDiskIsBlocked) {
  EXPECT_TRUE(Obeys(Store(kOld, 1, 5)));
  agent_testing::StuckDisk disk;
  disk.Block(directory_.path());
  Provenance provenance(
      directory_.path(), [] { return 0; }, &disk);
  std::thread writer(
      [&] { EXPECT_EQ(provenance.RecordOrder(Gang("a-1", 3), Store(kOld, 1)), absl::OkStatus()); });
  EXPECT_TRUE(disk.AwaitBlockedWrite());
  EXPECT_EQ(provenance.AttemptOf("a-1"), 3);
  EXPECT_EQ(provenance.followed().id(), kOld);
  EXPECT_EQ(provenance.Judge(Store(kOld, 1, 6)), Provenance::Verdict::kObey);
  EXPECT_EQ(provenance.Judge(Store(kNew, 1, 1)), Provenance::Verdict::kNotFollowed);
  EXPECT_TRUE(disk.IsBlocking());
  disk.Release();
  writer.join();
}

namespace fs = std::filesystem;

class RunDirectoryTest : public testing::Test {
 protected:
  RunDirectoryTest() : data_(testing::TempDir() + "/run-directory-XXXXXX") {
    EXPECT_NE(mkdtemp(data_.data()), nullptr);
  }
  ~RunDirectoryTest() override { fs::remove_all(data_); }

  std::string data_;
};

TEST_F(RunDirectoryTest, TheRunDirectoryIsShortPrivateAndRemovedByItsOwner) {
  auto claimed = RunDirectory::Claim(data_);
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  const std::string path = (*claimed)->path();
  EXPECT_LT(path.size(), 60u);
  struct stat found;
  ASSERT_EQ(stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
  std::ofstream(path + "/socket") << "x";
  claimed->reset();
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::is_empty(data_));
}

TEST_F(RunDirectoryTest, TheNextLifeRemovesTheDirectoryOfAKilledOne) {
  const pid_t killed = fork();
  if (killed == 0) {
    const auto claimed = RunDirectory::Claim(data_);
    if (claimed.ok()) std::ofstream((*claimed)->path() + "/socket") << "x";
    _exit(claimed.ok() ? 0 : 1);  // releases nothing
  }
  int status = 0;
  ASSERT_EQ(waitpid(killed, &status, 0), killed);
  ASSERT_EQ(status, 0);
  std::string left;
  std::getline(std::ifstream(data_ + "/run-directory") >> std::ws, left);
  ASSERT_TRUE(fs::exists(left + "/socket")) << left;
  auto next = RunDirectory::Claim(data_);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists((*next)->path()));
}

TEST_F(RunDirectoryTest, ADirectoryThatIsNotOursIsNotRemoved) {
  const std::string other = data_ + "/checkpoints";
  fs::create_directories(other);
  std::ofstream(data_ + "/run-directory") << other << "\n";
  auto claimed = RunDirectory::Claim(data_);
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  EXPECT_TRUE(fs::exists(other));
}

}  // namespace
}  // namespace nibble
