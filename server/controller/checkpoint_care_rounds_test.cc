#include "server/controller/checkpoint_care_rounds.h"

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/controller/checkpoint_care.h"
#include "server/state/testing.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int kRoundCopies = 2;

class CheckpointCareRoundsTest : public testing::Test {
 protected:
  CheckpointCareRoundsTest() { cluster_.AddWorkers(3, 40); }

  const State& state() const { return cluster_.state(); }
  // Starts a job on the first open worker, with a checkpoint at step 10.
  std::string Run() {
    const std::string job = cluster_.Submit(1);
    EXPECT_EQ(cluster_.Start(job), absl::OkStatus());
    EXPECT_EQ(cluster_.Checkpoint(job, 10), absl::OkStatus());
    return job;
  }
  void Finish(const std::string& job) {
    ASSERT_EQ(cluster_.ReportAll(job, v1::RANK_PHASE_SUCCEEDED, 1000), absl::OkStatus());
  }
  void Hold(const std::string& job, const std::string& worker) {
    const v1::CheckpointRef ref = state().NewestGood(job)->ref();
    v1::ShardReport report;
    *report.mutable_ref() = ref;
    report.set_world(1);
    report.set_bytes(state().FindShard(ref, 0)->bytes());
    report.set_manifest_crc32c(state().FindShard(ref, 0)->manifest_crc32c());
    ASSERT_EQ(cluster_.Run(DecideShardReport(state(), worker, report, cluster_.caller())),
              absl::OkStatus());
  }
  void Lose(const std::string& worker) {
    ASSERT_EQ(cluster_.Run(DecideWorkerLost(state(), worker, 1, "silent", cluster_.caller())),
              absl::OkStatus());
  }
  // Steps until nothing is left to look at; returns the number of steps.
  int Settle(CheckpointCareRounds& care) {
    int steps = 0;
    while (care.behind() && steps < 1000) {
      care.Step(state());
      ++steps;
    }
    EXPECT_LT(steps, 1000);
    return steps;
  }
  // The jobs of which each worker must take copies.
  static std::map<std::string, std::multiset<std::string>> JobsOf(
      const std::map<std::string, CheckpointWork>& work) {
    std::map<std::string, std::multiset<std::string>> jobs;
    for (const auto& [worker, its] : work) {
      for (const v1::DesiredReplica& replica : its.replicas) {
        jobs[worker].insert(replica.ref().job());
      }
    }
    return jobs;
  }
  // The result of a look at every job.
  std::map<std::string, std::multiset<std::string>> Expected() const {
    std::map<std::string, std::multiset<std::string>> jobs;
    for (const auto& [id, job] : state().tables().jobs) {
      for (const auto& [worker, its] :
           JobsOf(CareFor(state(), id, kRoundCopies, TakersOf(state())).work)) {
        jobs[worker].insert(its.begin(), its.end());
      }
    }
    return jobs;
  }

  TestCluster cluster_;
};

TEST_F(CheckpointCareRoundsTest, AFinishedJobsNewestCheckpointGetsItsCopies) {
  const std::string job = Run();
  CheckpointCareRounds care(kRoundCopies);
  Settle(care);
  Finish(job);
  care.JobChanged(job);
  EXPECT_TRUE(care.Step(state()));
  ASSERT_EQ(care.Work().size(), 1u);
  const std::string taker = care.Work().begin()->first;
  Hold(job, taker);
  care.JobChanged(job);
  EXPECT_TRUE(care.Step(state()));
  EXPECT_THAT(care.Work(), IsEmpty());
  EXPECT_FALSE(care.behind());

  // And another copy after the loss of a holder.
  Lose(taker);
  care.WorkersChanged();
  Settle(care);
  ASSERT_EQ(care.Work().size(), 1u);
  EXPECT_NE(care.Work().begin()->first, taker);
}

TEST_F(CheckpointCareRoundsTest, AStepExaminesAFewJobsAndALapAllOfThem) {
  std::vector<std::string> jobs;
  for (int i = 0; i < 20; ++i) {
    jobs.push_back(Run());
    Finish(jobs.back());
  }
  CheckpointCareRounds care(kRoundCopies, 12);  // four jobs of three records each
  EXPECT_GE(Settle(care), 5);
  EXPECT_EQ(JobsOf(care.Work()), Expected());
  for (const std::string& job : jobs) Hold(job, "w2");
  for (const std::string& job : jobs) care.JobChanged(job);
  EXPECT_GE(Settle(care), 5);
  EXPECT_THAT(care.Work(), IsEmpty());
}

TEST_F(CheckpointCareRoundsTest, ALapEndsEvenIfWorkersChangeAllTheTime) {
  for (int i = 0; i < 20; ++i) Finish(Run());
  CheckpointCareRounds care(kRoundCopies, 12);
  for (int step = 0; step < 40; ++step) {
    care.WorkersChanged();
    care.Step(state());
  }
  EXPECT_EQ(JobsOf(care.Work()), Expected());
}

TEST_F(CheckpointCareRoundsTest, RequestsForCopiesOfFinishedJobsAreBoundedPerWorker) {
  ASSERT_EQ(cluster_.Apply(cluster_.Facts([](v1::Fact& fact) {
    fact.mutable_worker_mode_set()->set_worker("w3");
    fact.mutable_worker_mode_set()->set_mode(v1::WORKER_MODE_CORDONED);
  })),
            absl::OkStatus());
  std::set<std::string> lacking;
  for (int i = 0; i < CheckpointCareRounds::kMaxRequested + 10; ++i) {
    const std::string job = Run();
    Finish(job);
    lacking.insert(job);
  }
  const size_t finished = lacking.size();
  const std::string running = Run();
  CheckpointCareRounds care(kRoundCopies);
  Settle(care);
  // The copy of the running job is the most urgent and comes first.
  ASSERT_THAT(JobsOf(care.Work()), testing::SizeIs(1));
  const std::vector<v1::DesiredReplica> requested = care.Work()["w2"].replicas;
  ASSERT_EQ(std::ssize(requested), CheckpointCareRounds::kMaxRequested + 1);
  ASSERT_GT(finished, requested.size());
  EXPECT_EQ(requested[0].ref().job(), running);
  // As copies are made, the other jobs have their turn; none is forgotten.
  for (int round = 0; round < 20 && !lacking.empty(); ++round) {
    const std::vector<v1::DesiredReplica> made = care.Work()["w2"].replicas;
    for (const v1::DesiredReplica& replica : made) {
      Hold(replica.ref().job(), "w2");
      lacking.erase(replica.ref().job());
      care.JobChanged(replica.ref().job());
    }
    Settle(care);
  }
  EXPECT_THAT(lacking, IsEmpty());
  EXPECT_THAT(care.Work(), IsEmpty());
}

TEST_F(CheckpointCareRoundsTest, SurplusIsReportedOncePerChange) {
  const std::string job = Run();
  Finish(job);
  Hold(job, "w2");
  Hold(job, "w3");
  CheckpointCareRounds care(kRoundCopies);
  Settle(care);
  EXPECT_THAT(care.TakeSurplus(), ElementsAre(job));
  EXPECT_THAT(care.TakeSurplus(), IsEmpty());
  ASSERT_EQ(cluster_.Run(DecideSurplus(state(), job, kRoundCopies, cluster_.caller())),
            absl::OkStatus());
  care.JobChanged(job);
  Settle(care);
  EXPECT_THAT(care.TakeSurplus(), IsEmpty());
}

TEST_F(CheckpointCareRoundsTest, TheEndOfAForkChangesItsOrigin) {
  const std::string job = Run();
  Finish(job);
  v1::ForkJobRequest request;
  request.set_request_id(cluster_.Id());
  *request.mutable_checkpoint() = state().NewestGood(job)->ref();
  request.add_settings("training.repeat=1");
  const auto forked = cluster_.Do<v1::ForkJobResponse>(request);
  ASSERT_EQ(forked.status(), absl::OkStatus());
  const std::string fork = forked->job().id();
  ASSERT_EQ(cluster_.Start(fork), absl::OkStatus());
  Hold(job, "w2");
  // One copy is enough, and the fork's worker relies on one of them.
  CheckpointCareRounds care(1);
  Settle(care);
  EXPECT_THAT(care.TakeSurplus(), ElementsAre(job));
  ASSERT_EQ(cluster_.Run(DecideSurplus(state(), job, 1, cluster_.caller())), absl::OkStatus());
  care.JobChanged(job);
  Settle(care);
  EXPECT_THAT(care.TakeSurplus(), IsEmpty());
  Hold(job, "w2");
  Hold(job, "w3");
  Finish(fork);
  care.JobChanged(fork);
  Settle(care);
  EXPECT_THAT(care.TakeSurplus(), ElementsAre(job));
}

// After every reported change it ends with the result of a look at everything.
TEST_F(CheckpointCareRoundsTest, StepsConvergeToTheResultOfExaminingEveryJob) {
  std::mt19937 random(3);
  CheckpointCareRounds care(kRoundCopies, 6);
  std::vector<std::string> jobs;
  for (int round = 0; round < 200; ++round) {
    const std::string worker = "w" + std::to_string(random() % 3 + 1);
    const bool present = state().FindWorker(worker)->present();
    switch (random() % 5) {
      case 0:
        if (state().FindWorker("w1")->present() && jobs.size() < 30) {
          jobs.push_back(Run());
          if (random() % 4 != 0) Finish(jobs.back());
          care.JobChanged(jobs.back());
        }
        break;
      case 1:
        if (present && worker != "w1") Lose(worker);
        care.WorkersChanged();
        break;
      case 2:
        ASSERT_EQ(cluster_.Register(worker, 1, 40), absl::OkStatus());
        care.WorkersChanged();
        break;
      default:
        if (jobs.empty() || !present) break;
        const std::string& job = jobs[random() % jobs.size()];
        Hold(job, worker);
        care.JobChanged(job);
        break;
    }
    care.Step(state());
    if (random() % 5 != 0) continue;
    Settle(care);
    ASSERT_EQ(JobsOf(care.Work()), Expected()) << round;
  }
  EXPECT_GT(jobs.size(), 20u);
}

}  // namespace
}  // namespace nibble
