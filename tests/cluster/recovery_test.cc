// How long a job takes to recover from the loss of a rank, in new processes and in those of the
// ranks that survive; and that a survivor that does not come back is replaced.
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/process/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

using nlohmann::json;
using testing::HasSubstr;

int64_t NowMs() { return absl::ToUnixMillis(absl::Now()); }

int64_t TimeOf(const json& event) {
  absl::Time at;
  std::string error;
  EXPECT_TRUE(absl::ParseTime(absl::RFC3339_full, event.at("time").get<std::string>(), &at, &error))
      << error;
  return absl::ToUnixMillis(at);
}

TinyJob JobOf(int ranks) { return {.ranks = ranks, .steps = 1500, .every = 20}; }

struct Setup {
  int workers = 1;
  bool kept = false;
};

std::string NameOf(const testing::TestParamInfo<Setup>& info) {
  return absl::StrCat(info.param.workers, info.param.workers == 1 ? "Worker" : "Workers",
                      info.param.kept ? "Kept" : "New");
}

class Recovery : public testing::TestWithParam<Setup> {
 protected:
  static constexpr int kLosses = 5;

  Recovery()
      : bed_({.workers = GetParam().workers,
              .slots = 2 / GetParam().workers,
              .worker_flags = {"--keep-ranks", GetParam().kept ? "60" : "0"}}) {}

  static int64_t Median(std::vector<int64_t> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }
  // When the job moved to the state for the `count`-th time.
  int64_t MovedAt(const std::string& job, v1::JobState to, int count) {
    for (const v1::JobEvent& event : bed_.Events(job)) {
      if (event.kind() != v1::JOB_EVENT_KIND_MOVED || event.to() != to) continue;
      if (--count == 0) return event.time_unix_ms();
    }
    ADD_FAILURE() << "no such event\n" << bed_.Story(job);
    return 0;
  }
  int64_t LaunchedAt(const std::string& job, int64_t attempt) {
    for (const v1::JobEvent& event : bed_.Events(job)) {
      if (event.kind() == v1::JOB_EVENT_KIND_ATTEMPT && event.attempt() == attempt) {
        return event.time_unix_ms();
      }
    }
    ADD_FAILURE() << "attempt " << attempt << " was not launched\n" << bed_.Story(job);
    return 0;
  }

  ClusterBed bed_;
};

TEST_P(Recovery, AfterTheLossOfARankTheJobContinuesWithBitwiseEqualLosses) {
  const TinyJob spec = JobOf(2);
  const std::string job = bed_.Submit(spec);
  std::vector<int64_t> killed, detected, launched, started, stepped;
  int kept = 0;
  for (int loss = 0; loss < kLosses; ++loss) {
    const int64_t checkpoint = bed_.Describe(job).checkpoint_step();
    ASSERT_TRUE(Eventually([&] { return bed_.Describe(job).checkpoint_step() > checkpoint + 20; }))
        << bed_.Story(job);
    const ClusterBed::Rank survivor = bed_.LiveRank(job, 0);
    const ClusterBed::Rank lost = bed_.LiveRank(job, 1);
    const int64_t steps = bed_.Describe(job).next_step();
    killed.push_back(NowMs());
    SignalProcess(lost.process, SIGKILL);
    ASSERT_TRUE(Eventually([&] {
      const v1::Job now = bed_.Describe(job);
      return now.attempts() == lost.attempt + 1 && now.state() == v1::JOB_STATE_RUNNING &&
             now.next_step() > steps + 5;
    })) << bed_.Story(job);
    kept += bed_.LiveRank(job, 0).process == survivor.process ? 1 : 0;
    detected.push_back(MovedAt(job, v1::JOB_STATE_RECOVERING, loss + 1) - killed.back());
    launched.push_back(LaunchedAt(job, lost.attempt + 1) - killed.back());
  }
  EXPECT_EQ(kept, GetParam().kept ? kLosses : 0) << bed_.Story(job);
  bed_.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  bed_.ExpectUndisturbedLosses(job, spec);
  // Of each attempt after the first, its start and its first step.
  for (const json& event : bed_.EventLog(job)) {
    const std::string kind = event.at("event");
    if (kind == "start") started.push_back(TimeOf(event));
    if (kind == "step" && stepped.size() < started.size()) stepped.push_back(TimeOf(event));
  }
  ASSERT_EQ(started.size(), kLosses + 1u);
  ASSERT_EQ(stepped.size(), kLosses + 1u);
  std::vector<int64_t> ready, step;
  for (size_t i = 0; i < killed.size(); ++i) {
    ready.push_back(started[i + 1] - killed[i]);
    step.push_back(stepped[i + 1] - killed[i]);
  }
  std::printf(
      "2 ranks on %d worker(s), %s; medians of %d losses of a rank, ms after it was killed:\n"
      "  loss known to the coordinator %ld, next attempt launched %ld, its state loaded %ld, "
      "its first step made %ld (most %ld)\n",
      GetParam().workers, GetParam().kept ? "processes of survivors kept" : "new processes",
      kLosses, Median(detected), Median(launched), Median(ready), Median(step),
      *std::max_element(step.begin(), step.end()));
}

INSTANTIATE_TEST_SUITE_P(Losses, Recovery,
                         testing::Values(Setup{1, false}, Setup{1, true}, Setup{2, false},
                                         Setup{2, true}),
                         NameOf);

void SetBackoff(ClusterBed& bed, const std::string& job, int64_t ms) {
  v1::SetJobRestartPolicyRequest request;
  request.mutable_restart_policy()->set_max_without_progress(20);
  request.mutable_restart_policy()->set_initial_backoff_ms(ms);
  request.mutable_restart_policy()->set_max_backoff_ms(ms);
  (void)bed.AskAbout(job, kSetJobRestartPolicy, request);
}

// Whether the daemon has recorded that rank 0 stands by.
bool StandsBy(ClusterBed& bed) {
  for (const auto& entry : std::filesystem::directory_iterator(bed.cluster().paths().Logs())) {
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (absl::StrContains(text, "rank 0 stands by")) return true;
  }
  return false;
}

// Of four ranks, on one worker or two of them on each of two.
class KeptRanksOfAHang : public testing::TestWithParam<int> {};

TEST_P(KeptRanksOfAHang, EveryRankButTheOneThatHangsKeepsItsProcess) {
  constexpr int kRanks = 4;
  ClusterBed bed({.workers = GetParam(),
                  .slots = kRanks / GetParam(),
                  .worker_flags = {"--keep-ranks", "60", "--hang-seconds", "5"}});
  TinyJob spec = JobOf(kRanks);
  spec.steps = 600;
  const std::string job = bed.Submit(spec);
  ASSERT_TRUE(Eventually([&] { return bed.Describe(job).checkpoint_step() > 20; }))
      << bed.Story(job);
  std::vector<ClusterBed::Rank> before;
  for (int rank = 0; rank < kRanks; ++rank) before.push_back(bed.LiveRank(job, rank));
  const ClusterBed::Rank& hung = before.back();
  const int64_t steps = bed.Describe(job).next_step();
  SignalProcess(hung.process, SIGSTOP);
  ASSERT_TRUE(Eventually([&] {
    const v1::Job now = bed.Describe(job);
    return now.attempts() == hung.attempt + 1 && now.next_step() > steps + 5;
  })) << bed.Story(job);
  for (int rank = 0; rank < kRanks; ++rank) {
    const bool same = bed.LiveRank(job, rank).process == before[static_cast<size_t>(rank)].process;
    EXPECT_EQ(same, rank != hung.rank) << "rank " << rank << "\n" << bed.Story(job);
  }
  EXPECT_FALSE(IsAlive(hung.process));
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  bed.ExpectUndisturbedLosses(job, spec);
  // The rank that hangs is named, although the others waited for as long, and only its worker is
  // blamed.
  const v1::Job after = bed.Describe(job);
  ASSERT_EQ(after.recent_attempts_size(), 2) << bed.Story(job);
  EXPECT_THAT(after.recent_attempts(0).reason(), HasSubstr("rank 3 has made no step for"));
  EXPECT_EQ(after.recent_attempts(0).cause(), v1::FAILURE_CAUSE_MACHINE);
  for (const v1::WorkerBlame& blame : after.blames()) EXPECT_EQ(blame.worker(), hung.worker);
  const std::string stacks =
      absl::StrCat(bed.cluster().paths().Data(hung.worker), "/jobs/", job, "/attempt-",
                   hung.attempt, "/rank-", hung.rank, ".stacks");
  ASSERT_TRUE(std::filesystem::exists(stacks));
  EXPECT_GT(std::filesystem::file_size(stacks), 0u);
}

INSTANTIATE_TEST_SUITE_P(Workers, KeptRanksOfAHang, testing::Values(1, 2));

TEST(KeptRanks, ASurvivorThatDoesNotAnswerIsReplacedByANewProcess) {
  ClusterBed bed({.workers = 1, .slots = 2, .worker_flags = {"--keep-ranks", "60"}});
  TinyJob spec = JobOf(2);
  spec.steps = 300;
  const std::string job = bed.Submit(spec);
  SetBackoff(bed, job, 4000);
  ASSERT_TRUE(Eventually([&] { return bed.Describe(job).checkpoint_step() > 20; }));
  const ClusterBed::Rank survivor = bed.LiveRank(job, 0);
  SignalProcess(bed.LiveRank(job, 1).process, SIGKILL);
  // It stands by while the job backs off, and is stopped there.
  ASSERT_TRUE(Eventually([&] { return StandsBy(bed); })) << bed.Story(job);
  SignalProcess(survivor.process, SIGSTOP);
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  EXPECT_FALSE(IsAlive(survivor.process));
  bed.ExpectUndisturbedLosses(job, spec);
}

TEST(KeptRanks, AProcessThatStandsByEndsWhenAnotherJobTakesItsSlot) {
  ClusterBed bed({.workers = 1, .slots = 2, .worker_flags = {"--keep-ranks", "600"}});
  const TinyJob spec = JobOf(2);
  const std::string job = bed.Submit(spec);
  SetBackoff(bed, job, 600'000);
  ASSERT_TRUE(Eventually([&] { return bed.Describe(job).checkpoint_step() > 20; }));
  const ClusterBed::Rank survivor = bed.LiveRank(job, 0);
  SignalProcess(bed.LiveRank(job, 1).process, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return StandsBy(bed); })) << bed.Story(job);
  (void)bed.AskAbout(job, kKillJob);
  const std::string other = bed.Submit({.name = "other", .ranks = 2, .steps = 40});
  bed.ExpectState(other, v1::JOB_STATE_SUCCEEDED);
  EXPECT_FALSE(IsAlive(survivor.process));
}

}  // namespace
}  // namespace nibble
