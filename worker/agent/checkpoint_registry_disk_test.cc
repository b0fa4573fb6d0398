// A registry whose directory is removed, or whose disk does not answer.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/files/files_testing.h"
#include "gtest/gtest.h"
#include "worker/agent/checkpoint_registry.h"
#include "worker/agent/checkpoint_registry_testing.h"
#include "worker/agent/stuck_disk_testing.h"
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

using agent_testing::CheckpointRegistryTest;
using agent_testing::kRegistryJob;
using agent_testing::kReportPatience;
using agent_testing::SteadySeconds;
using checkpoint_testing::TestHeader;
using checkpoint_testing::TestIdentity;
using file_testing::TempDirectory;

class RegistryDiskTest : public CheckpointRegistryTest {};

TEST_F(RegistryDiskTest, ARemovedDirectoryIsMadeAgainAndItsShardsAreNoLongerReported) {
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

TEST_F(RegistryDiskTest, ACheckpointThatBeginsRightAfterTheRemovalIsStored) {
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

TEST_F(RegistryDiskTest, ReportsAndAnswersDoNotWaitForAJobThatIsBeingOpened) {
  agent_testing::StuckDisk disk;
  disk.Block(directory_.path());
  CheckpointRegistry registry({.clock = SteadySeconds, .faults = &disk});
  std::thread opener([&] {
    const absl::Status opened = registry.OpenJob(kRegistryJob, directory_.path(), TestIdentity());
    EXPECT_TRUE(opened.ok()) << opened;
  });
  EXPECT_TRUE(disk.AwaitBlockedWrite());
  EXPECT_TRUE(registry.Report(1).empty());
  registry.Answered(v1::ConnectResponse());
  EXPECT_EQ(registry.TroubleOf(kRegistryJob, 1), "");
  EXPECT_TRUE(disk.IsBlocking());
  disk.Release();
  opener.join();
}

TEST_F(RegistryDiskTest, AJobOpensWhileAnothersDiskDoesNotAnswer) {
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

TEST_F(RegistryDiskTest, ACommitDoesNotWaitForAnotherJobsDisk) {
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
