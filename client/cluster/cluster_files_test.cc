#include "client/cluster/cluster_files.h"

#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cluster/local_cluster.h"
#include "common/files/file_lock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ClusterFilesTest : public testing::Test {
 protected:
  ClusterFilesTest() {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    paths_ = {directory_};
  }
  ~ClusterFilesTest() override { std::filesystem::remove_all(directory_); }

  std::string directory_ = testing::TempDir() + "/files-XXXXXX";
  ClusterPaths paths_;
};

TEST_F(ClusterFilesTest, ARecordIsReadAsItWasWritten) {
  ClusterRecord record;
  record.shape = {.workers = 3, .slots = 4, .device = "cpu", .port = 7701};
  record.processes["worker-2"] = {.identity = {.pid = 4242, .start_ticks = 99, .boot_id = "boot"},
                                  .started_unix_ms = 5,
                                  .earlier_incarnation = 6};
  record.dashboards = {.coordinator_http = 7711, .prometheus = 9090, .grafana = 3000};
  ASSERT_TRUE(WriteClusterRecord(paths_, record).ok());
  const auto read = ReadClusterRecord(paths_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->shape, record.shape);
  EXPECT_EQ(read->dashboards, record.dashboards);
  ASSERT_EQ(read->processes.size(), 1u);
  EXPECT_EQ(read->processes.at("worker-2").identity, record.processes.at("worker-2").identity);
  EXPECT_EQ(read->processes.at("worker-2").started_unix_ms, 5);
  EXPECT_EQ(read->processes.at("worker-2").earlier_incarnation, 6);
  EXPECT_THAT(read->Roles(), ElementsAre("coordinator", "worker-1", "worker-2", "worker-3"));
}

// Whether a thread of this process waits for a file lock.
bool WaitsForALock() {
  std::ifstream locks("/proc/locks");
  const std::string self = absl::StrCat(" ", getpid(), " ");
  for (std::string line; std::getline(locks, line);) {
    if (absl::StrContains(line, "-> FLOCK") && absl::StrContains(line, self)) return true;
  }
  return false;
}

TEST_F(ClusterFilesTest, ChangesOfTheClusterAreSerialised) {
  LocalCluster::Options options;
  options.directory = directory_;
  LocalCluster cluster(options);
  for (const bool purge : {false, true}) {
    std::future<absl::Status> change;
    {
      const auto under_way = FileLock::Acquire(paths_.Lock());
      ASSERT_TRUE(under_way.ok()) << under_way.status();
      change = std::async(std::launch::async, [&] {
        return purge ? cluster.Purge() : cluster.Down(std::chrono::milliseconds(0));
      });
      while (!WaitsForALock()) {
        ASSERT_EQ(change.wait_for(std::chrono::milliseconds(1)), std::future_status::timeout);
      }
    }
    EXPECT_TRUE(change.get().ok());
  }
}

TEST_F(ClusterFilesTest, PurgeRemovesWorkersOfALargerClusterAndNothingElse) {
  ASSERT_TRUE(WriteClusterRecord(paths_, {.shape = {.workers = 1}}).ok());
  for (const char* const name : {"coordinator", "worker-1", "worker-3", "worker-notes", "corpus"}) {
    std::filesystem::create_directory(directory_ + "/" + name);
  }
  LocalCluster::Options options;
  options.directory = directory_;
  ASSERT_TRUE(LocalCluster(options).Purge().ok());
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    left.push_back(entry.path().filename());
  }
  EXPECT_THAT(left, testing::UnorderedElementsAre("worker-notes", "corpus"));
}

TEST_F(ClusterFilesTest, OnlyTheRecordedProcessCountsAsAlive) {
  const auto self = IdentifyProcess(getpid());
  ASSERT_TRUE(self.ok()) << self.status();
  ClusterRecord record;
  EXPECT_FALSE(record.AnyAlive());
  record.processes["coordinator"] = {.identity = *self};
  EXPECT_NE(record.Alive("coordinator"), nullptr);
  record.processes["coordinator"].identity.boot_id = "another boot";
  EXPECT_EQ(record.Alive("coordinator"), nullptr);
  EXPECT_FALSE(record.AnyAlive());
}

TEST_F(ClusterFilesTest, AnInvalidRecordIsAnErrorThatNamesTheFile) {
  EXPECT_TRUE(absl::IsNotFound(ReadClusterRecord(paths_).status()));
  for (const char* const text :
       {"", "{}", R"({"workers": 2, "slots": 1, "device": "cpu", "port": 1, "processes": []})",
        R"({"workers": 2, "slots": 1, "device": "cpu", "port": 1,
            "processes": {"coordinator": {"pid": 1, "start_ticks": 1, "boot_id": "b",
                                          "started_unix_ms": 1}}})"}) {
    std::ofstream(paths_.Record()) << text;
    const absl::Status status = ReadClusterRecord(paths_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(paths_.Record()));
  }
}

TEST_F(ClusterFilesTest, TheAddressIsTheLineOfItsFile) {
  EXPECT_TRUE(absl::IsNotFound(ReadClusterAddress(directory_).status()));
  std::ofstream(paths_.Address()) << "127.0.0.1:7700\n";
  const auto address = ReadClusterAddress(directory_);
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(*address, "127.0.0.1:7700");
}

}  // namespace
}  // namespace nibble
