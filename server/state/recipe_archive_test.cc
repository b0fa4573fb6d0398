// Recipes that change very often: old revisions move to the archive, and every revision that ranks
// have run stays known and can be run again.
#include <cstdint>
#include <map>
#include <string>

#include "gtest/gtest.h"
#include "server/state/limits.h"
#include "server/state/testing.h"
#include "server/state/timeline_record.h"

namespace nibble {
namespace {

using Code = absl::StatusCode;

constexpr int kChanges = 2000;
constexpr int64_t kSteps = 1000;  // steps of the job

class RecipeArchiveTest : public testing::Test {
 protected:
  RecipeArchiveTest() {
    cluster_.AddWorkers(2, 2);
    job_ = cluster_.Submit();
  }

  // Changes one of two fields, to a new recipe each time.
  absl::StatusOr<v1::SetRecipeResponse> Change(const std::string& at = "now") {
    v1::SetRecipeRequest request;
    request.set_request_id(cluster_.Id());
    request.set_job(job_);
    request.set_expected_revision(-1);
    request.set_at(at);
    v1::FieldSetting& setting = *request.mutable_change()->add_set();
    setting.set_field("hadamard.signs");
    setting.set_value(absl::StrCat("seeded:", ++seed_));
    return cluster_.Do<v1::SetRecipeResponse>(request);
  }
  absl::StatusOr<v1::RollbackRecipeResponse> RollBack(int64_t revision) {
    v1::RollbackRecipeRequest request;
    request.set_request_id(cluster_.Id());
    request.set_job(job_);
    request.set_expected_revision(-1);
    request.set_revision(revision);
    return cluster_.Do<v1::RollbackRecipeResponse>(request);
  }
  // Damages a checkpoint of the first attempt.
  absl::Status Damage(int64_t step) {
    return cluster_.Apply(cluster_.Facts([&](v1::Fact& fact) {
      v1::CheckpointRef& ref = *fact.mutable_checkpoint_damaged()->mutable_ref();
      ref.set_job(job_);
      ref.set_step(step);
      ref.set_attempt(1);
      fact.mutable_checkpoint_damaged()->set_detail("a bit is wrong");
    }));
  }

  // The ranks run the steps before `step` under the newest revision in effect, and report it.
  void Run(int64_t step) {
    const auto timeline = ToTimeline(ForRanks(Timeline()));
    ASSERT_EQ(timeline.status(), absl::OkStatus());
    v1::GangReport report;
    report.set_job(job_);
    report.set_attempt(cluster_.Job(job_).last_attempt());
    report.set_phase(v1::RANK_PHASE_RUNNING);
    for (int64_t at = next_step_; at < step; ++at) {
      const int64_t revision = timeline->At(at).number;
      const auto before = at == 0 ? 0 : ran_[at - 1];
      ran_[at] = revision;
      if (revision == before && at > next_step_) continue;
      v1::RevisionStart& start = *report.add_revisions();
      start.set_revision(revision);
      start.set_first_step(revision == before ? first_step_[revision] : at);
      first_step_[revision] = start.first_step();
    }
    next_step_ = step;
    cluster_.live = {.attempt = cluster_.Job(job_).last_attempt(), .next_step = step};
    EXPECT_EQ(cluster_.Run(DecideGangReport(cluster_.state(), "w1", 1, report, cluster_.caller())),
              absl::OkStatus());
  }
  void Fail() {
    ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED, next_step_), absl::OkStatus());
    cluster_.now_ms += kMaxBackoffMs;
  }
  void StartAt(int64_t step) {
    ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
    next_step_ = step;
    cluster_.live = {.attempt = cluster_.Job(job_).last_attempt(), .next_step = step};
  }
  // Ranks that start again at `from` run the same revisions as before.
  void ExpectReplay(int64_t from, int64_t to) {
    const auto timeline = ToTimeline(ForRanks(Timeline()));
    ASSERT_EQ(timeline.status(), absl::OkStatus());
    for (int64_t at = from; at < to; ++at) {
      EXPECT_EQ(timeline->At(at).number, ran_[at]) << "step " << at;
    }
  }
  void ExpectWholeHistory() {
    const auto all = AllRevisions(cluster_.state(), job_);
    ASSERT_EQ(static_cast<int64_t>(all.size()), Timeline().revisions().rbegin()->number());
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i]->number(), static_cast<int64_t>(i + 1));
    }
    EXPECT_EQ(Timeline().archived(), static_cast<int64_t>(cluster_.state().ArchiveOf(job_).size()));
    // So does a state that is loaded from the store.
    const auto loaded = Load(cluster_.store());
    ASSERT_EQ(loaded.status(), absl::OkStatus());
    EXPECT_EQ(Snapshot(*loaded), Snapshot(cluster_.state()));
  }

  const v1::TimelineRecord& Timeline() const { return *cluster_.state().FindTimeline(job_); }
  std::string RecipeOf(int64_t revision) const {
    return (*FindRevision(cluster_.state(), job_, "revision", revision))
        ->recipe()
        .SerializeAsString();
  }

  TestCluster cluster_;
  std::string job_;
  int seed_ = 0;
  int64_t next_step_ = 0;
  std::map<int64_t, int64_t> ran_;         // revision by step
  std::map<int64_t, int64_t> first_step_;  // by revision, as reported
};

TEST_F(RecipeArchiveTest, AQueuedJobAcceptsAnyNumberOfChangesAndARollbackToTheFirst) {
  const std::string first = RecipeOf(1);
  for (int i = 0; i < kChanges; ++i) ASSERT_EQ(Change().status(), absl::OkStatus()) << i;
  EXPECT_LE(Timeline().revisions_size(), kManyRevisions + 1);
  ExpectWholeHistory();
  const auto back = RollBack(1);
  ASSERT_EQ(back.status(), absl::OkStatus());
  EXPECT_EQ(back->revision(), kChanges + 2);
  EXPECT_EQ(RecipeOf(back->revision()), first);
  EXPECT_EQ(Timeline().revisions().rbegin()->recipe().set_size(), 0);
  EXPECT_EQ(RollBack(kChanges + 9).status().code(), Code::kNotFound);
  EXPECT_EQ(Change().status(), absl::OkStatus());
}

TEST_F(RecipeArchiveTest, ARunningJobAcceptsAnyNumberOfChangesAcrossCheckpointsAndFailures) {
  StartAt(0);
  Run(1);
  int64_t checkpoint = 0;
  for (int i = 1; i <= kChanges; ++i) {
    ASSERT_EQ(Change().status(), absl::OkStatus()) << i;
    if (i % 4 == 0) Run(next_step_ + 1);  // the other three are never run
    if (i % 300 == 0) {
      checkpoint = next_step_;
      ASSERT_EQ(cluster_.Checkpoint(job_, checkpoint), absl::OkStatus());
    }
    if (i == 1000) {
      const int64_t reached = next_step_;
      Fail();
      StartAt(checkpoint);
      ExpectReplay(checkpoint, reached);
      Run(reached);
    }
  }
  ASSERT_LT(next_step_, kSteps);
  EXPECT_LT(Timeline().revisions_size(), kMaxRevisions / 2);
  ExpectWholeHistory();
  ExpectReplay(checkpoint, next_step_);
  for (const auto& [revision, first_step] : first_step_) {
    const auto found = FindRevision(cluster_.state(), job_, "revision", revision);
    ASSERT_EQ(found.status(), absl::OkStatus());
    EXPECT_TRUE((*found)->confirmed());
    EXPECT_EQ((*found)->first_step(), first_step) << "revision " << revision;
  }
  const std::string first = RecipeOf(1);
  const auto back = RollBack(1);
  ASSERT_EQ(back.status(), absl::OkStatus());
  EXPECT_EQ(RecipeOf(back->revision()), first);
}

TEST_F(RecipeArchiveTest, WithoutACheckpointRevisionsThatRanStayInTheTimelineAndOneIsRequested) {
  StartAt(0);
  Run(1);
  for (int i = 1; i <= 300; ++i) {
    ASSERT_EQ(Change().status(), absl::OkStatus()) << i;
    Run(next_step_ + 1);
  }
  EXPECT_EQ(Timeline().revisions_size(), 301);
  EXPECT_GE(cluster_.Job(job_).checkpoint_request(), 1);
  EXPECT_LE(cluster_.Job(job_).checkpoint_request(), 3);
  ExpectReplay(0, next_step_);
  ASSERT_EQ(cluster_.Checkpoint(job_, next_step_), absl::OkStatus());
  ASSERT_EQ(Change().status(), absl::OkStatus());
  EXPECT_LE(Timeline().revisions_size(), 2);
  ExpectWholeHistory();
}

TEST_F(RecipeArchiveTest, IfTheNewestCheckpointIsLostTheTimelineReachesBackToTheOneBefore) {
  StartAt(0);
  Run(1);
  for (int i = 1; i <= 300; ++i) {
    ASSERT_EQ(Change().status(), absl::OkStatus()) << i;
    Run(next_step_ + 1);
    if (i == 100 || i == 200) {
      ASSERT_EQ(cluster_.Checkpoint(job_, next_step_), absl::OkStatus());
    }
  }
  const int64_t reached = next_step_;
  ASSERT_GT(Timeline().revisions(0).first_step(), 100);
  Fail();
  ASSERT_EQ(Damage(201), absl::OkStatus());
  ExpectReplay(101, reached);
  // A change now builds on the revision in effect at that step.
  const auto change = Change();
  ASSERT_EQ(change.status(), absl::OkStatus());
  EXPECT_EQ(change->first_step(), 101);
  ASSERT_EQ(Damage(101), absl::OkStatus());
  ExpectReplay(0, 101);
  ExpectWholeHistory();
  StartAt(0);
  Run(50);
  ExpectReplay(0, 50);
}

TEST_F(RecipeArchiveTest, AForkFromAnOldCheckpointStartsWithTheRecipeOfItsStep) {
  StartAt(0);
  Run(1);
  for (int i = 1; i <= 300; ++i) {
    ASSERT_EQ(Change().status(), absl::OkStatus()) << i;
    Run(next_step_ + 1);
    if (i == 100 || i == 200) {
      ASSERT_EQ(cluster_.Checkpoint(job_, next_step_), absl::OkStatus());
    }
  }
  v1::ForkJobRequest request;
  request.set_request_id(cluster_.Id());
  request.mutable_checkpoint()->set_job(job_);
  request.mutable_checkpoint()->set_step(101);
  const auto forked = cluster_.Do<v1::ForkJobResponse>(request);
  ASSERT_EQ(forked.status(), absl::OkStatus());
  const v1::TimelineRecord& timeline = *cluster_.state().FindTimeline(forked->job().id());
  EXPECT_EQ(timeline.revisions(0).first_step(), 0);
  EXPECT_EQ(timeline.revisions().rbegin()->recipe().SerializeAsString(), RecipeOf(ran_[101]));
}

TEST_F(RecipeArchiveTest, AFieldThatIsSetRepeatedlyIsStoredOnce) {
  for (int i = 0; i < 3; ++i) ASSERT_EQ(Change().status(), absl::OkStatus());
  ASSERT_EQ(Timeline().revisions().rbegin()->recipe().set_size(), 1);
  EXPECT_EQ(Timeline().revisions().rbegin()->recipe().set(0).value(), "seeded:3");
}

TEST_F(RecipeArchiveTest, RevisionsThatRanksMayStillNeedAreNotArchived) {
  StartAt(0);
  Run(1);
  ASSERT_EQ(Change("step:50").status(), absl::OkStatus());
  ASSERT_EQ(Change("step:60").status(), absl::OkStatus());
  for (const int64_t number : {1, 2, 3}) {
    const auto archived = cluster_.Apply(cluster_.Facts([&](v1::Fact& fact) {
      fact.mutable_revisions_archived()->set_job(job_);
      fact.mutable_revisions_archived()->add_numbers(number);
    }));
    EXPECT_EQ(archived.code(), Code::kFailedPrecondition) << number;
  }
}

}  // namespace
}  // namespace nibble
