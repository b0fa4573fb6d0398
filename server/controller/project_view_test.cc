#include "server/controller/project_view.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/controller/testing.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;

class ProjectViewTest : public testing::Test {
 protected:
  std::string Submit(const std::string& name, const std::string& project) {
    v1::SubmitJobRequest request;
    request.set_spec_yaml(TestCoordinator::Spec(name, 1));
    request.mutable_scheduling()->set_project(project);
    const auto response = coordinator_.Do<v1::SubmitJobResponse>(request);
    EXPECT_EQ(response.status(), absl::OkStatus());
    return response.ok() ? response->job().id() : "";
  }
  std::string Redacted(const std::string& text) {
    v1::Job job;
    job.set_state_reason(text);
    coordinator_.controller().Inspect([&](const State& state) { nlp_.Redact(state, job); });
    return job.state_reason();
  }

  TestCoordinator coordinator_;
  const std::string own_ = Submit("train", "nlp");
  const std::string other_ = Submit("secret", "speech");
  const std::string none_ = Submit("loose", "");
  const ProjectView nlp_{{"nlp"}};
};

TEST_F(ProjectViewTest, ItShowsJobsOfItsProjectsAlone) {
  coordinator_.controller().Inspect([&](const State& state) {
    EXPECT_TRUE(nlp_.Shows(state, own_));
    EXPECT_FALSE(nlp_.Shows(state, other_));
    EXPECT_FALSE(nlp_.Shows(state, none_));
    EXPECT_FALSE(nlp_.Shows(state, "train-99"));
    EXPECT_TRUE(ProjectView().Shows(state, other_));
    v1::WatchJobsResponse change;
    change.set_caught_up(true);
    EXPECT_TRUE(nlp_.Shows(state, change));
    change.mutable_event()->set_job(other_);
    EXPECT_FALSE(nlp_.Shows(state, change));
    change.mutable_sample()->set_job(own_);
    EXPECT_TRUE(nlp_.Shows(state, change));
  });
}

TEST_F(ProjectViewTest, IdsOfOtherJobsInTextsAreReplaced) {
  EXPECT_EQ(Redacted("waiting behind job secret-2 (priority 5)"),
            "waiting behind job (another project's) (priority 5)");
  EXPECT_EQ(Redacted("preempted for secret-2."), "preempted for (another project's).");
  EXPECT_EQ(Redacted("secret-2@100, train-1: secret-20 and secret-2x stay"),
            "(another project's)@100, train-1: secret-20 and secret-2x stay");
  EXPECT_EQ(Redacted(""), "");
}

TEST_F(ProjectViewTest, IdsOfOtherJobsInListsAreRemoved) {
  v1::Worker worker;
  for (const std::string& job : {other_, own_, none_}) worker.add_jobs(job);
  worker.add_flags("ended attempt 3 of secret-2");
  coordinator_.controller().Inspect([&](const State& state) {
    ProjectView().Redact(state, worker);
    EXPECT_EQ(worker.jobs_size(), 3);
    nlp_.Redact(state, worker);
  });
  EXPECT_THAT(worker.jobs(), ElementsAre(own_));
  EXPECT_THAT(worker.flags(), ElementsAre("ended attempt 3 of (another project's)"));
}

TEST_F(ProjectViewTest, ListsLeaveOtherJobsOutAndTheirPagesAreFull) {
  const std::string second = Submit("train", "nlp");
  Submit("secret", "speech");
  v1::ListJobsRequest request;
  request.mutable_page()->set_size(1);
  const auto first_page = coordinator_.controller().Read(request, nlp_);
  ASSERT_EQ(first_page.status(), absl::OkStatus());
  ASSERT_EQ(first_page->jobs_size(), 1);
  EXPECT_EQ(first_page->jobs(0).id(), second);
  request.mutable_page()->set_token(first_page->next_token());
  const auto last_page = coordinator_.controller().Read(request, nlp_);
  ASSERT_EQ(last_page->jobs_size(), 1);
  EXPECT_EQ(last_page->jobs(0).id(), own_);
  EXPECT_EQ(last_page->next_token(), "");
}

TEST_F(ProjectViewTest, WeightsOfAnotherProjectsJobAreNoneToBeginFrom) {
  v1::SubmitJobRequest request;
  request.set_request_id("request-from-1");
  const auto begin = [&](const std::string& spec_job) {
    request.set_spec_yaml(
        TestCoordinator::Spec("train", 1, "init_from: {job: " + spec_job + "}\n"));
    absl::Status status;
    const auto answer = std::make_shared<v1::SubmitJobResponse>();
    coordinator_.controller().requests().Change(
        request, "ann", answer, [&](const absl::Status& done) { status = done; }, {"nlp"});
    coordinator_.controller().Settle();
    return status;
  };
  // Neither by its id nor by its name, and not otherwise than a job that there is not.
  for (const char* const hidden : {"secret-2", "secret", "nothing"}) {
    const absl::Status status = begin(hidden);
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
    EXPECT_EQ(std::string(status.message()),
              std::string("init_from.job: '") + hidden +
                  "' is not a job; run 'nibble job list' to see the jobs");
  }
}

}  // namespace
}  // namespace nibble
