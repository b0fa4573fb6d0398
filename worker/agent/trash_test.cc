// Which entries of the trash stay, and which leave.
#include "worker/agent/trash.h"

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/store_layout.h"
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

using file_testing::ContentOf;
using file_testing::TempDirectory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kHour = 3'600'000;
constexpr int64_t kShardBytes = 100'000;

class TrashTest : public testing::Test {
 protected:
  void Open(std::optional<int64_t> most_bytes = std::nullopt) {
    trash_.reset();
    auto trash = Trash::Open({.directory = path_,
                              .most_bytes = most_bytes,
                              .clock = [this] { return now_ms_; },
                              .log = [this](const std::string& line) { log_ += line + "\n"; }});
    ASSERT_TRUE(trash.ok()) << trash.status();
    trash_ = *std::move(trash);
  }
  // A shard with some bytes that goes to the trash.
  void Add(int64_t step, v1::DeletionKind kind = v1::DELETION_KIND_LATE, bool accepted = false,
           const std::string& job = "gpt-1") {
    v1::TrashedShard shard;
    shard.mutable_ref()->set_job(job);
    shard.mutable_ref()->set_step(step);
    shard.mutable_ref()->set_attempt(1);
    shard.set_world(1);
    shard.set_kind(kind);
    shard.set_reason("for\nthe test");
    shard.set_kept(accepted);
    const absl::Status added = trash_->Add(
        shard, checkpoint_testing::TestHeader(step, 1, 1), [](const std::string& directory) {
          const std::string database = absl::StrCat(directory, "/", ShardDirectoryName(0));
          EXPECT_EQ(mkdir(database.c_str(), 0777), 0);
          std::ofstream(database + "/table") << std::string(kShardBytes, 'x');
          return absl::OkStatus();
        });
    EXPECT_TRUE(added.ok()) << added;
  }
  int64_t Newest(const std::string& job) const { return job == "gpt-1" ? newest_ : -1; }
  void Tidy() {
    trash_->Tidy([this](const std::string& job) { return Newest(job); });
  }
  std::vector<v1::TrashedShard> List() {
    return trash_->List([this](const std::string& job) { return Newest(job); });
  }
  std::vector<int64_t> Steps() {
    std::vector<int64_t> steps;
    for (const v1::TrashedShard& shard : List()) steps.push_back(shard.ref().step());
    return steps;
  }

  const TempDirectory directory_;
  const std::string path_ = directory_.path() + "/trash";
  int64_t now_ms_ = 5;
  int64_t newest_ = -1;  // that the store has of gpt-1
  std::string log_;
  std::unique_ptr<Trash> trash_;
};

TEST_F(TrashTest, AnEntryLeavesAfterItsTime) {
  Open();
  Add(10);
  now_ms_ += 10 * kHour;
  Add(20);
  now_ms_ += 14 * kHour - 1;
  Tidy();
  EXPECT_THAT(Steps(), ElementsAre(10, 20));
  EXPECT_EQ(List()[0].age_ms(), 24 * kHour - 1);
  ++now_ms_;
  Tidy();
  EXPECT_THAT(Steps(), ElementsAre(20));
  const std::string line =
      "removed from the trash after 24.0 hours, as --trash-hours allows 24.0 "
      "hours: rank 0 of the checkpoint of gpt-1, step 10, attempt 1 (late: "
      "for the test)";
  EXPECT_THAT(log_, HasSubstr(line));
  EXPECT_THAT(ContentOf(path_ + "/history"), HasSubstr(line));
}

TEST_F(TrashTest, AgesAddUpOverTheLivesOfTheDaemonAndTheTimeBetweenDoesNotCount) {
  Open();
  Add(10);
  now_ms_ += 10 * kHour;
  trash_.reset();
  now_ms_ = 3;  // the machine was started again, and its clock with it
  Open();
  now_ms_ += 5 * kHour;
  ASSERT_EQ(List().size(), 1u);
  EXPECT_EQ(List()[0].age_ms(), 15 * kHour);
}

TEST_F(TrashTest, ADaemonThatIsKilledForgetsAtMostAnHourOfTheAge) {
  Open();
  Add(10);
  now_ms_ += 2 * kHour;
  Tidy();
  const std::string saved = ContentOf(path_ + "/clock");
  now_ms_ += kHour / 2;
  Open();
  std::ofstream(path_ + "/clock") << saved;
  // This life must not save its clock at its end: the copy is opened instead.
  std::filesystem::copy(path_, path_ + "2", std::filesystem::copy_options::recursive);
  const auto copy = Trash::Open({.directory = path_ + "2", .clock = [this] { return now_ms_; }});
  ASSERT_TRUE(copy.ok()) << copy.status();
  const auto list = (*copy)->List([](const std::string&) { return -1; });
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].age_ms(), 2 * kHour);
}

TEST_F(TrashTest, TheOldestLeaveWhenAllAreTooLarge) {
  Open(int64_t{1} << 40);
  Add(10);
  const int64_t one = trash_->bytes();
  EXPECT_GE(one, kShardBytes);
  Add(20);
  Add(30);
  Open(3 * one - 1);
  Tidy();
  EXPECT_THAT(Steps(), ElementsAre(20, 30));
  EXPECT_THAT(log_, HasSubstr("as --trash-bytes allows"));
  Open(0);
  Tidy();
  EXPECT_THAT(Steps(), IsEmpty());
  EXPECT_EQ(trash_->bytes(), 0);
}

TEST_F(TrashTest, TheNewestAcceptedCheckpointOfAJobStaysUntilItsStoreHasOneAsNew) {
  Open(0);
  Add(10, v1::DELETION_KIND_SURPLUS, true);
  Add(20, v1::DELETION_KIND_SURPLUS, true);
  Add(30, v1::DELETION_KIND_NOT_COMMITTED, false);
  Add(40, v1::DELETION_KIND_REQUESTED, true);
  Add(50, v1::DELETION_KIND_ORPHAN, true);
  Add(60, v1::DELETION_KIND_DAMAGED, true);
  Add(5, v1::DELETION_KIND_LATE, true, "gpt-2");
  newest_ = 19;
  EXPECT_TRUE(List()[1].kept());
  EXPECT_FALSE(List()[0].kept());
  now_ms_ += 100 * kHour;
  Tidy();
  EXPECT_THAT(Steps(), ElementsAre(20, 5));
  EXPECT_FALSE(trash_->Free(1, [this](const std::string& job) { return Newest(job); }));
  newest_ = 20;
  Tidy();
  EXPECT_THAT(Steps(), ElementsAre(5));
}

TEST_F(TrashTest, SpaceIsFreedFromTheOldestOn) {
  Open();
  for (const int64_t step : {10, 20, 30}) Add(step);
  const auto none = [](const std::string&) { return -1; };
  const int64_t one = trash_->bytes() / 3;
  EXPECT_TRUE(trash_->Free(one, none));
  EXPECT_THAT(Steps(), ElementsAre(20, 30));
  EXPECT_TRUE(trash_->Free(one + 1, none));
  EXPECT_THAT(Steps(), IsEmpty());
  EXPECT_FALSE(trash_->Free(1, none));
}

TEST_F(TrashTest, AnEntryWithATornRecordIsLoggedAndLeavesByAgeOnly) {
  Open();
  Add(10);
  now_ms_ += 3 * kHour;
  Add(20);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path_)) {
    if (entry.path().filename() == "record" &&
        entry.path().string().find("step-000000000010") != std::string::npos) {
      std::filesystem::resize_file(entry.path(), 7);
    }
  }
  std::filesystem::create_directory(path_ + "/gpt-1/foreign");
  Open();
  EXPECT_THAT(log_, HasSubstr("whose record is not readable"));
  EXPECT_THAT(log_, HasSubstr("gpt-1/foreign"));
  EXPECT_THAT(Steps(), ElementsAre(20));
  EXPECT_GE(trash_->bytes(), 2 * kShardBytes);
  now_ms_ += 24 * kHour - 1;  // both are as old as the next
  Tidy();
  EXPECT_GE(trash_->bytes(), 2 * kShardBytes);
  ++now_ms_;
  Tidy();
  EXPECT_EQ(trash_->bytes(), 0);
}

TEST_F(TrashTest, WhatACrashLeftOfAnEntryIsRemoved) {
  Open();
  Add(10);
  const std::string job = path_ + "/gpt-1/";
  std::filesystem::create_directories(job + "step-000000000020-attempt-0001-rank-00000-00000009");
  std::filesystem::create_directories(job + "removing-3/shard-00000");
  std::filesystem::create_directories(path_ + "/gpt-9");
  Open();
  EXPECT_THAT(Steps(), ElementsAre(10));
  EXPECT_FALSE(std::filesystem::exists(job + "removing-3"));
  EXPECT_FALSE(std::filesystem::exists(job + "step-000000000020-attempt-0001-rank-00000-00000009"));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/gpt-9"));
}

TEST_F(TrashTest, TheHistoryIsBounded) {
  Open();
  std::ofstream(path_ + "/history") << std::string(Trash::kMaxHistoryBytes, 'x');
  Add(10);
  EXPECT_EQ(std::filesystem::file_size(path_ + "/history.1"),
            static_cast<size_t>(Trash::kMaxHistoryBytes));
  EXPECT_THAT(ContentOf(path_ + "/history"), HasSubstr("moved to the trash: rank 0"));
  EXPECT_LT(std::filesystem::file_size(path_ + "/history"), 1000u);
}

TEST_F(TrashTest, TheVersionChangesWithTheList) {
  Open();
  const int64_t before = trash_->version();
  Tidy();
  EXPECT_EQ(trash_->version(), before);
  Add(10);
  const int64_t added = trash_->version();
  EXPECT_NE(added, before);
  now_ms_ += 24 * kHour;
  Tidy();
  EXPECT_NE(trash_->version(), added);
}

}  // namespace
}  // namespace nibble
