// Directories that are removed underneath the processes that use them.
#include <chrono>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cluster/cluster_files.h"
#include "client/cluster/local_processes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

// Looks again and again; false where it is not so in time.
template <class So>
bool Eventually(So so) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!so()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    (void)AwaitAnyEnd({}, std::chrono::milliseconds(20));
  }
  return true;
}

// Retries where the process writes a file while its directory is being emptied.
bool RemoveTree(const std::string& path) {
  return Eventually([&path] {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    return !error;
  });
}

// A change that has no deadline to be repeated until: one answer.
absl::Status SetQueueOnce(ClusterBed& bed, const std::string& name) {
  v1::SetQueueRequest request;
  request.set_request_id(bed.NewId());
  request.mutable_queue()->set_name(name);
  v1::SetQueueResponse response;
  return bed.stub().Call(kSetQueue, request, &response,
                         {.deadline = std::chrono::system_clock::now() + kPatience});
}

TEST(RemovedDirectories, OfTheCoordinatorsStoreNoChangeIsAcknowledgedAnyMore) {
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
  ASSERT_TRUE(RemoveTree(store));
  for (int i = 0; i < 10; ++i) {
    const absl::Status refused = SetQueueOnce(bed, absl::StrCat("after-", i));
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(refused.message(), HasSubstr(store));
  }
  EXPECT_EQ(Shell(readyz).text, "503");
  EXPECT_THAT(Shell("cat " + log).text, HasSubstr("the store has stopped"));
  // What it knows it still shows, and training does not notice.
  EXPECT_EQ(bed.Describe(job).id(), job);
  const int64_t made = EventsOf(bed.EventLog(job), "step").back().at("step");
  EXPECT_TRUE(Eventually(
      [&] { return EventsOf(bed.EventLog(job), "step").back().at("step") > made + 50; }));
  EXPECT_TRUE(IsAlive(ranks[0].process));
}

TEST(RemovedDirectories, OfAJobsCheckpointsOnAWorkerIsMadeAgainAndItsShardsAreLost) {
  ClusterBed bed({.workers = 1, .coordinator_flags = {"--copies", "1"}});
  const TinyJob tiny = {.steps = 1500, .every = 50, .keep_last = 2};
  const std::string job = bed.Submit(tiny);
  ASSERT_TRUE(Eventually([&] { return !bed.Checkpoints(job).empty(); })) << bed.Story(job);
  const std::string checkpoints =
      bed.cluster().paths().Data(WorkerRole(1)) + "/jobs/" + job + "/checkpoints";
  ASSERT_TRUE(RemoveTree(checkpoints));
  // The attempt continues, and what is stored later is found by the next one.
  ASSERT_TRUE(Eventually([&] {
    for (const v1::JobEvent& event : bed.Events(job)) {
      if (absl::StrContains(event.text(), "is gone: worker-1 alone had it")) return true;
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
  EXPECT_EQ(FirstDifference(LossBits(bed.EventLog(job)), bed.UndisturbedLosses(tiny)), "");
}

}  // namespace
}  // namespace nibble
