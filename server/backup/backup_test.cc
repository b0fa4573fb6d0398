// When backups are made, requests for one, and the command about them.
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/files/files_testing.h"
#include "common/metrics/exposition_testing.h"
#include "common/metrics/metric_book.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/backup/backup_command.h"
#include "server/backup/backup_request.h"
#include "server/backup/backup_runner.h"
#include "server/controller/clock.h"
#include "server/controller/coordinator_metrics.h"
#include "server/store/backups.h"
#include "server/store/rocks_store.h"
#include "server/store/store_testing.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class BackupRunnerTest : public ::testing::Test {
 protected:
  BackupRunnerTest() { fs::create_directories(directory_); }

  std::unique_ptr<BackupRunner> Start(int64_t every_ms) {
    return std::make_unique<BackupRunner>(
        clock_, metrics_,
        BackupRunner::Options{.directory = directory_,
                              .every_ms = every_ms,
                              .make = [this]() -> absl::StatusOr<StoreBackup> {
                                ++tries_;
                                if (!fault_.ok()) return fault_;
                                return StoreBackup{.id = ++made_, .bytes = 1000};
                              }});
  }
  void Tick(BackupRunner& runner, int64_t after_ms = 0) {
    clock_.Advance(after_ms);
    runner.Tick();
    runner.Settle();
  }
  double Metric(const std::string& series) {
    MetricPage page(CoordinatorRows());
    return Exposition::Parse(page.Render(metrics_.book())).value().Value(series);
  }

  file_testing::TempDirectory temporary_;
  const std::string directory_ = temporary_.Path("backups");
  ManualClock clock_{5'000'000};
  CoordinatorMetrics metrics_;
  // Used by the runner's thread; the test reads them after Settle.
  absl::Status fault_;
  int tries_ = 0;
  uint32_t made_ = 0;
};

TEST_F(BackupRunnerTest, ABackupIsMadeAtTheStartAndAtEachInterval) {
  const auto runner = Start(1000);
  Tick(*runner);
  EXPECT_EQ(tries_, 1);
  Tick(*runner, 999);
  EXPECT_EQ(tries_, 1);
  Tick(*runner, 1);
  EXPECT_EQ(tries_, 2);
  EXPECT_EQ(Metric("nibble_backups_total{result=\"made\"}"), 2);
  EXPECT_EQ(Metric("nibble_backup_time_seconds"), 5001);
  EXPECT_EQ(Metric("nibble_backup_bytes"), 1000);
  EXPECT_EQ(Metric("nibble_backup_interval_seconds"), 1);
}

TEST_F(BackupRunnerTest, AFailedBackupIsCountedAndRepeatedSoonerThanTheInterval) {
  const auto runner = Start(3'600'000);
  fault_ = absl::ResourceExhaustedError("the disk is full");
  Tick(*runner);
  Tick(*runner, kBackupRetryMs - 1);
  EXPECT_EQ(tries_, 1);
  EXPECT_EQ(Metric("nibble_backups_total{result=\"failed\"}"), 1);
  fault_ = absl::OkStatus();
  Tick(*runner, 1);
  EXPECT_EQ(made_, 1u);
  Tick(*runner, kBackupRetryMs);
  EXPECT_EQ(tries_, 2);
}

TEST_F(BackupRunnerTest, ARequestIsAnsweredWithTheNumberOfItsBackupOrTheReason) {
  const auto runner = Start(0);
  Tick(*runner, 10'000'000);
  EXPECT_EQ(tries_, 0);
  ASSERT_TRUE(WriteBackupRequest(directory_, "a").ok());
  EXPECT_FALSE(ReadBackupAnswer(directory_, "a").has_value());
  Tick(*runner);
  EXPECT_EQ(ReadBackupAnswer(directory_, "a").value().value(), 1u);
  Tick(*runner);
  EXPECT_EQ(tries_, 1);
  fault_ = absl::InternalError("broken disk");
  ASSERT_TRUE(WriteBackupRequest(directory_, "b").ok());
  Tick(*runner);
  EXPECT_FALSE(ReadBackupAnswer(directory_, "a").has_value());
  EXPECT_THAT(ReadBackupAnswer(directory_, "b").value().status().ToString(),
              HasSubstr("broken disk"));
  EXPECT_FALSE(ReadBackupRequest(directory_).has_value());
}

TEST_F(BackupRunnerTest, ARequestThatCannotBeAnsweredIsCarriedOutOnce) {
  const auto runner = Start(0);
  fs::create_directories(directory_ + "/answer/in-the-way");
  ASSERT_TRUE(WriteBackupRequest(directory_, "a").ok());
  for (int times = 0; times < 3; ++times) Tick(*runner);
  EXPECT_EQ(ReadBackupRequest(directory_), "a");
  EXPECT_EQ(tries_, 1);
  ASSERT_TRUE(WriteBackupRequest(directory_, "b").ok());
  fs::remove_all(directory_ + "/answer");
  Tick(*runner);
  EXPECT_EQ(tries_, 2);
  EXPECT_EQ(ReadBackupAnswer(directory_, "b").value().value(), 2u);
}

TEST_F(BackupRunnerTest, WhoRequestsABackupLearnsWhetherACoordinatorRuns) {
  EXPECT_EQ(AnswersBackupRequests(directory_).value(), false);
  auto runner = Start(0);
  EXPECT_EQ(AnswersBackupRequests(directory_).value(), true);
  // The directory is replaced.
  fs::remove_all(directory_);
  fs::create_directories(directory_);
  EXPECT_EQ(AnswersBackupRequests(directory_).value(), false);
  Tick(*runner);
  EXPECT_EQ(AnswersBackupRequests(directory_).value(), true);
  runner.reset();
  EXPECT_EQ(AnswersBackupRequests(directory_).value(), false);
}

class BackupCommandTest : public ::testing::Test {
 protected:
  BackupCommandTest() {
    RocksStoreOptions options;
    options.cluster = "lab";
    store_ = RocksStore::Open(temporary_.Path("store"), options).value();
    for (uint64_t i = 0; i < 20; ++i) {
      (void)store_->Commit(store_testing::RandomBatch(i, 100)).value();
    }
  }
  int Run(std::vector<std::string> words) {
    std::vector<const char*> argv = {"backup"};
    for (const std::string& word : words) argv.push_back(word.c_str());
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int code = RunBackupCommand(static_cast<int>(argv.size()), argv.data());
    text_ = testing::internal::GetCapturedStdout();
    text_ += testing::internal::GetCapturedStderr();
    return code;
  }

  file_testing::TempDirectory temporary_;
  const std::string directory_ = temporary_.Path("backups");
  std::unique_ptr<RocksStore> store_;
  std::string text_;
};

TEST_F(BackupCommandTest, ListsChecksAndRestores) {
  ASSERT_TRUE(store_->AddBackup(directory_, 10).ok());
  EXPECT_EQ(Run({"list", directory_}), 0);
  EXPECT_THAT(text_, HasSubstr("CLUSTER"));
  EXPECT_THAT(text_, HasSubstr("lab"));
  EXPECT_EQ(Run({"check", directory_}), 0) << text_;
  EXPECT_THAT(text_, HasSubstr("updates up to 20: intact"));
  EXPECT_EQ(Run({"restore", directory_, "--store", temporary_.Path("new")}), 0) << text_;
  EXPECT_THAT(text_, HasSubstr("start: nibble-coordinator --store " + temporary_.Path("new") +
                               " --cluster lab"));
  EXPECT_TRUE(IsRestored(temporary_.Path("new")));
  EXPECT_EQ(Run({"restore", directory_, "--store", temporary_.Path("new")}), 1);
  EXPECT_THAT(text_, HasSubstr("is not empty"));
}

TEST_F(BackupCommandTest, CheckFailsNamingTheDamagedFile) {
  ASSERT_TRUE(store_->AddBackup(directory_, 10).ok());
  std::string damaged;
  for (const auto& entry : fs::recursive_directory_iterator(directory_ + "/shared_checksum")) {
    damaged = entry.path();
  }
  {
    std::fstream file(damaged, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(40);
    file.put('\x55');
    file.put('\xAA');
  }
  EXPECT_EQ(Run({"check", directory_}), 1);
  EXPECT_THAT(text_, HasSubstr(fs::path(damaged).filename().string()));
  EXPECT_THAT(text_, HasSubstr("1 backups are damaged"));
}

TEST_F(BackupCommandTest, MistakesAreUsageErrorsOrNamed) {
  EXPECT_EQ(Run({}), 2);
  EXPECT_EQ(Run({"restore", directory_}), 2);
  EXPECT_THAT(text_, HasSubstr("--store"));
  EXPECT_EQ(Run({"list", temporary_.Path("none")}), 1);
  EXPECT_THAT(text_, HasSubstr("there is no directory of backups"));
  ASSERT_TRUE(store_->AddBackup(directory_, 10).ok());
  EXPECT_EQ(Run({"check", directory_, "--id", "9"}), 1);
}

TEST_F(BackupCommandTest, ARequestThatNobodyAnswersIsTakenBack) {
  fs::create_directories(directory_);
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EQ(Run({"now", directory_, "--timeout", "86400"}), 1);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::minutes(1));
  EXPECT_THAT(text_, HasSubstr("no coordinator runs with --backup-directory " + directory_));
  EXPECT_FALSE(ReadBackupRequest(directory_).has_value());
  EXPECT_TRUE(fs::is_empty(directory_));
  // One that runs, and does not answer in time.
  const auto running = LockBackupRequests(directory_);
  ASSERT_TRUE(running.ok()) << running.status();
  EXPECT_EQ(Run({"now", directory_, "--timeout", "0"}), 1);
  EXPECT_THAT(text_, HasSubstr("has not answered within 0 s"));
  EXPECT_FALSE(ReadBackupRequest(directory_).has_value());
}

}  // namespace
}  // namespace nibble
