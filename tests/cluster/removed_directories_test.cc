// Directories that are removed while processes use them.
#include <chrono>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cluster/cluster_files.h"
#include "common/process/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

// Retries if the process writes a file while its directory is being emptied.
bool RemoveInUse(const std::string& path) {
  return Eventually([&path] {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    return !error;
  });
}

// A change that is not retried.
absl::Status SetQueueOnce(ClusterBed& bed, const std::string& name) {
  v1::SetQueueRequest request;
  request.set_request_id(bed.NewId());
  request.mutable_queue()->set_name(name);
  v1::SetQueueResponse response;
  return bed.stub().Call(kSetQueue, request, &response,
                         {.deadline = std::chrono::system_clock::now() + kPatience});
}

TEST(RemovedDirectories, WithoutItsStoresDirectoryTheCoordinatorAcknowledgesNoChange) {
  ClusterBed bed({.workers = 1, .coordinator_flags = {"--http", "127.0.0.1:0"}});
  const std::string job = bed.Submit({.steps = 100'000, .every = 500});
  bed.ExpectStep(job, 20);
  const auto ranks = bed.LiveRanks();
  ASSERT_EQ(ranks.size(), 1u);
  ASSERT_TRUE(SetQueueOnce(bed, "before").ok());
  const ClusterPaths& paths = bed.cluster().paths();
  const std::string log = paths.Log(kCoordinatorRole);
  std::string http = Shell("grep -o 'metrics at http://[^ ]*' " + log).text;
  http = http.substr(http.find("http://"), http.find_last_not_of('\n') + 1 - http.find("http://"));
  const std::string readyz = "curl -s -o /dev/null -w '%{http_code}' " + http + "/readyz";
  ASSERT_EQ(Shell(readyz).text, "200") << readyz;

  const std::string store = paths.Data(kCoordinatorRole);
  ASSERT_TRUE(RemoveInUse(store));
  for (int i = 0; i < 10; ++i) {
    const absl::Status refused = SetQueueOnce(bed, absl::StrCat("after-", i));
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(refused.message(), HasSubstr(store));
  }
  EXPECT_EQ(Shell(readyz).text, "503");
  EXPECT_THAT(Shell("cat " + log).text, HasSubstr("the store has stopped"));
  // It still answers reads, and training continues.
  EXPECT_EQ(bed.Describe(job).id(), job);
  const int64_t made = EventsOf(bed.EventLog(job), "step").back().at("step");
  EXPECT_TRUE(Eventually(
      [&] { return EventsOf(bed.EventLog(job), "step").back().at("step") > made + 50; }));
  EXPECT_TRUE(IsAlive(ranks[0].process));
}

TEST(RemovedDirectories, AWorkersCheckpointDirectoryIsMadeAgainAndItsShardsAreLost) {
  ClusterBed bed({.workers = 1, .coordinator_flags = {"--copies", "1"}});
  const TinyJob tiny = {.steps = 1500, .every = 50, .keep_last = 2};
  const std::string job = bed.Submit(tiny);
  ASSERT_TRUE(Eventually([&] { return !bed.Checkpoints(job).empty(); })) << bed.Story(job);
  ASSERT_TRUE(RemoveInUse(bed.Store(WorkerRole(1), job)));
  // The attempt continues, and the next attempt finds the checkpoints stored afterwards.
  ASSERT_TRUE(Eventually([&] {
    for (const v1::JobEvent& event : bed.Events(job)) {
      if (absl::StrContains(event.text(), "is lost: worker-1, its only holder")) return true;
    }
    return false;
  })) << bed.Story(job);
  const int64_t made = bed.Describe(job).next_step();
  ASSERT_TRUE(Eventually([&] {
    for (const v1::Checkpoint& checkpoint : bed.Checkpoints(job)) {
      if (checkpoint.ref().step() > made && checkpoint.state() == v1::CHECKPOINT_STATE_COMMITTED) {
        return true;
      }
    }
    return bed.Describe(job).state() == v1::JOB_STATE_SUCCEEDED;
  })) << bed.Story(job);
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(bed.Describe(job).attempts(), 1) << bed.Story(job);
  bed.ExpectUndisturbedLosses(job, tiny);
}

}  // namespace
}  // namespace nibble
