// The coordinator's store is lost, or replaced by an older backup: workers delete nothing and kill
// no rank, and the coordinator learns their jobs and checkpoints again.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

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

v1::ListOrphansResponse Orphans(ClusterBed& bed) { return bed.Ask(kListOrphans); }

int64_t StepsMade(ClusterBed& bed, const std::string& job) {
  const auto steps = EventsOf(bed.EventLog(job), "step");
  return steps.empty() ? 0 : steps.back().at("step").get<int64_t>();
}

// Steps with a committed checkpoint in the directories of workers.
std::set<std::string> OnDisk(ClusterBed& bed, const std::string& job, int workers) {
  std::set<std::string> found;
  for (int worker = 1; worker <= workers; ++worker) {
    const std::string path = bed.Store(WorkerRole(worker), job);
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(path, ignored)) {
      if (entry.is_directory())
        found.insert(absl::StrCat(worker, "/", entry.path().filename().string()));
    }
  }
  return found;
}

TEST(LostStore, AnEmptyStoreDeletesNothingAndAnAdoptedJobFinishesBitwise) {
  ClusterBed bed({.workers = 2});
  const TinyJob tiny = {.ranks = 2, .steps = 1500, .every = 100};
  const std::string job = bed.Submit(tiny);
  ASSERT_TRUE(Eventually([&] { return bed.Checkpoints(job).size() >= 2; })) << bed.Story(job);
  const auto ranks = bed.LiveRanks();
  ASSERT_EQ(ranks.size(), 2u);

  bed.Kill(kCoordinatorRole);
  const std::string store = bed.cluster().paths().Data(kCoordinatorRole);
  std::filesystem::rename(store, store + ".lost");
  const auto before = OnDisk(bed, job, 2);
  bed.Restart(kCoordinatorRole);

  // Both workers have reported to the new store, which lists their orphans.
  v1::ListOrphansResponse listed;
  ASSERT_TRUE(Eventually([&] {
    listed = Orphans(bed);
    if (listed.orphans_size() != 1 || listed.orphans(0).holdings_size() != 2) return false;
    const auto& holdings = listed.orphans(0).holdings();
    return std::any_of(holdings.begin(), holdings.end(), [](const v1::OrphanHolding& holding) {
      return holding.running() && holding.spec_known();
    });
  })) << listed.DebugString();
  EXPECT_EQ(listed.orphans(0).job(), job);
  EXPECT_GT(listed.orphans(0).newest_whole_step(), 0);
  const int64_t made = StepsMade(bed, job);
  ASSERT_TRUE(Eventually([&] { return StepsMade(bed, job) > made + 20; })) << bed.Story(job);
  for (const auto& rank : ranks) EXPECT_TRUE(IsAlive(rank.process));
  for (const std::string& name : before) {
    EXPECT_TRUE(OnDisk(bed, job, 2).contains(name)) << name << " is missing";
  }
  // No new job gets its id.
  EXPECT_NE(bed.Submit({.steps = 10}), job);

  const ShellResult dry = Shell(absl::StrCat(NibbleProgram(), " checkpoint adopt ", job,
                                             " --dry-run --server ", bed.address(), " 2>&1"));
  EXPECT_EQ(dry.code, 0) << dry.text;
  EXPECT_THAT(dry.text, HasSubstr("would be adopted"));
  const ShellResult adopted = Shell(absl::StrCat(NibbleProgram(), " checkpoint adopt ", job,
                                                 " --server ", bed.address(), " 2>&1"));
  EXPECT_EQ(adopted.code, 0) << adopted.text;
  EXPECT_EQ(bed.Describe(job).state(), v1::JOB_STATE_PAUSED);
  // Its ranks end with a checkpoint; no step is lost.
  ASSERT_TRUE(Eventually([&] { return !IsAlive(ranks[0].process) && !IsAlive(ranks[1].process); }))
      << bed.Story(job);
  const int64_t stopped = StepsMade(bed, job);
  ASSERT_TRUE(Eventually([&] { return bed.Describe(job).checkpoint_step() == stopped + 1; }))
      << bed.Story(job);
  (void)bed.AskAbout(job, kResumeJob);
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(bed.Describe(job).attempts(), 2) << bed.Story(job);
  bed.ExpectUndisturbedLosses(job, tiny);
  EXPECT_EQ(Orphans(bed).orphans_size(), 0);
}

// The documented restore: stop the coordinator, replace the store by the copy, start it. Also
// without the flag, which an operator may forget.
class RestoredBackup : public testing::TestWithParam<bool> {};

TEST_P(RestoredBackup, JobsContinueWithTheCheckpointsThatWorkersHave) {
  ClusterBed bed({.workers = 2});
  const TinyJob tiny = {.ranks = 2, .steps = 1500, .every = 100, .keep_last = 2};
  const std::string job = bed.Submit(tiny);
  ASSERT_TRUE(Eventually([&] { return !bed.Checkpoints(job).empty(); })) << bed.Story(job);
  const std::string store = bed.cluster().paths().Data(kCoordinatorRole);

  // A cold copy; then a second attempt and checkpoints that are not in the copy.
  bed.Kill(kCoordinatorRole);
  std::filesystem::copy(store, store + ".backup", std::filesystem::copy_options::recursive);
  bed.Restart(kCoordinatorRole);
  const auto first = bed.LiveRanks();
  ASSERT_FALSE(first.empty());
  (void)kill(first[0].process.pid, SIGKILL);
  ASSERT_TRUE(Eventually([&] {
    const v1::Job now = bed.Describe(job);
    return now.attempts() == 2 && now.state() == v1::JOB_STATE_RUNNING;
  })) << bed.Story(job);
  const int64_t known = bed.Describe(job).checkpoint_step();
  ASSERT_TRUE(Eventually([&] { return bed.Describe(job).checkpoint_step() >= known + 200; }))
      << bed.Story(job);

  bed.Kill(kCoordinatorRole);
  const int64_t newest = StepsMade(bed, job) / 100 * 100;
  std::filesystem::rename(store, store + ".lost");
  std::filesystem::rename(store + ".backup", store);
  if (GetParam()) bed.SetCoordinatorFlags({"--restored"});
  bed.Restart(kCoordinatorRole);

  ASSERT_TRUE(Eventually([&] { return bed.Describe(job).checkpoint_step() >= newest - 100; }))
      << bed.Story(job);
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  bed.ExpectUndisturbedLosses(job, tiny);
  EXPECT_THAT(Shell("cat " + bed.cluster().paths().Log(kCoordinatorRole)).text,
              HasSubstr("epoch 2 of the store begins ("));
}

INSTANTIATE_TEST_SUITE_P(Flag, RestoredBackup, testing::Bool(),
                         [](const auto& info) { return info.param ? "Given" : "Forgotten"; });

// The revision takes effect after the copy was made, in an attempt that is not in the copy, and
// while the coordinator is unreachable: only the checkpoint records it.
TEST(LostStore, ARestoredStoreLearnsTheFirstStepOfARevisionFromACheckpoint) {
  ClusterBed bed({.workers = 1});
  TinyJob tiny = {.steps = 1800, .every = 300};
  const std::string job = bed.Submit(tiny);
  bed.ExpectStep(job, 10);
  (void)bed.Ask(kSetRecipe, RecipeChange(job, "fprop", "bf16", "step:1200"));
  const std::string store = bed.cluster().paths().Data(kCoordinatorRole);
  bed.Kill(kCoordinatorRole);
  std::filesystem::copy(store, store + ".backup", std::filesystem::copy_options::recursive);
  bed.Restart(kCoordinatorRole);
  const auto first = bed.LiveRanks();
  ASSERT_EQ(first.size(), 1u);
  (void)kill(first[0].process.pid, SIGKILL);
  ASSERT_TRUE(Eventually([&] {
    const v1::Job now = bed.Describe(job);
    return now.attempts() == 2 && now.state() == v1::JOB_STATE_RUNNING;
  })) << bed.Story(job);

  bed.Kill(kCoordinatorRole);
  ASSERT_TRUE(Eventually([&] { return StepsMade(bed, job) == tiny.steps - 1; }));
  std::filesystem::rename(store, store + ".lost");
  std::filesystem::rename(store + ".backup", store);
  bed.Restart(kCoordinatorRole);
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  const auto revisions = bed.Revisions(job);
  ASSERT_EQ(revisions.size(), 2u) << bed.Story(job);
  EXPECT_EQ(revisions[1].first_step(), 1200) << bed.Story(job);
  EXPECT_TRUE(revisions[1].confirmed());
  tiny.more = "changes:\n  - {at: step:1200, set: {fprop: bf16}}\n";
  bed.ExpectUndisturbedLosses(job, tiny);
}

TEST(LostStore, AnOrphanIsRemovedOnlyOnRequestAndAfterTheGracePeriod) {
  ClusterBed bed({.workers = 1, .coordinator_flags = {"--orphan-grace", "1"}});
  const std::string job = bed.Submit({.steps = 100'000, .every = 100});
  ASSERT_TRUE(Eventually([&] { return !bed.Checkpoints(job).empty(); })) << bed.Story(job);
  const auto ranks = bed.LiveRanks();
  ASSERT_EQ(ranks.size(), 1u);
  bed.Kill(kCoordinatorRole);
  const std::string store = bed.cluster().paths().Data(kCoordinatorRole);
  std::filesystem::rename(store, store + ".lost");
  bed.Restart(kCoordinatorRole);
  ASSERT_TRUE(Eventually([&] { return Orphans(bed).orphans_size() == 1; }));
  v1::RemoveOrphanRequest request;
  request.set_job(job);
  v1::RemoveOrphanResponse response;
  const absl::Status early = bed.Call(kRemoveOrphan, request, &response);
  EXPECT_EQ(early.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(early.message(), HasSubstr("--orphan-grace"));
  EXPECT_TRUE(IsAlive(ranks[0].process));

  bed.Kill(kCoordinatorRole);
  bed.SetCoordinatorFlags({"--orphan-grace", "0"});
  bed.Restart(kCoordinatorRole);
  ASSERT_TRUE(Eventually([&] { return Orphans(bed).orphans_size() == 1; }));
  const absl::Status removed = bed.Call(kRemoveOrphan, request, &response);
  ASSERT_TRUE(removed.ok()) << removed.message();
  EXPECT_EQ(response.workers(), 1);
  EXPECT_TRUE(Eventually([&] { return Orphans(bed).orphans_size() == 0; }));
  EXPECT_TRUE(Eventually([&] { return !IsAlive(ranks[0].process); }));
}

}  // namespace
}  // namespace nibble
