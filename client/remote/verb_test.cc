#include "client/remote/verb.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/remote/enum_words.h"
#include "client/remote/remote_commands.h"
#include "client/shell/output.h"
#include "client/shell/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/job_requests.pb.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

v1::Job JobOf(const std::string& id, const std::string& name) {
  v1::Job job;
  job.set_id(id);
  job.set_name(name);
  job.set_state(v1::JOB_STATE_RUNNING);
  return job;
}

class FindJobTest : public testing::Test {
 protected:
  absl::StatusOr<std::string> Choose(const std::string& given) {
    const absl::StatusOr<ChosenJob> chosen = ChooseJob(given, jobs_);
    if (!chosen.ok()) return chosen.status();
    return absl::StrCat(chosen->job.id(), chosen->why);
  }

  std::vector<v1::Job> jobs_ = {JobOf("train-12", "train"), JobOf("train-1", "train"),
                                JobOf("tiny-3", "tiny"), JobOf("tiny-big-4", "tiny-big")};
};

TEST_F(FindJobTest, AnIdIsChosenAlsoIfItIsAPrefixOfAnother) {
  EXPECT_EQ(*Choose("train-1"), "train-1");
}

TEST_F(FindJobTest, AUniqueNameIsChosen) { EXPECT_EQ(*Choose("tiny"), "tiny-3"); }

TEST_F(FindJobTest, AUniquePrefixOfAnIdIsChosen) { EXPECT_EQ(*Choose("tiny-b"), "tiny-big-4"); }

TEST_F(FindJobTest, ANameIsItsOnlyUnfinishedJobOrElseItsNewest) {
  EXPECT_EQ(*Choose("train"), "train-12, the newest of 2 jobs with this name");
  jobs_[0].set_state(v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(*Choose("train"), "train-1, the only unfinished of 2 jobs with this name");
  jobs_[1].set_state(v1::JOB_STATE_FAILED);
  EXPECT_EQ(*Choose("train"), "train-12, the newest of 2 jobs with this name");
}

TEST_F(FindJobTest, AnAmbiguousPrefixIsRefusedWithItsMatches) {
  const absl::Status status = Choose("tr").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(status.message(), HasSubstr("job: 'tr' matches train-12 (running), train-1"));
}

TEST_F(FindJobTest, AnUnknownJobIsNotFoundAndTheNearestIsSuggested) {
  const absl::Status status = Choose("trian-1").status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(status.message(), HasSubstr("did you mean 'train-1"));
}

TEST(RecipeVerbsTest, AnEmptyTimeIsAUsageError) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"set", "train", "fprop=bf16"}, {"rollback", "train", "1"}}) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--at", "", "--server", "127.0.0.1:1"});
    const Outcome outcome = RunCommand(AddRecipeVerbs, all);
    EXPECT_EQ(outcome.exit_code, kExitUsage);
    EXPECT_THAT(outcome.err, HasSubstr("--at: '' is not a time; allowed: now, lr-decay"));
  }
}

TEST(ServerOptionTest, AServerWithoutAPortIsAUsageError) {
  for (const char* const server : {"nohost", "nohost:", ":7700", "nohost:0", "nohost:70000", ""}) {
    const Outcome outcome =
        RunCommand(AddRecipeVerbs, {"rollback", "train", "1", "--server", server});
    EXPECT_EQ(outcome.exit_code, kExitUsage) << server;
    EXPECT_THAT(outcome.err, HasSubstr(absl::StrCat(
                                 "'", server, "'; allowed: host:port with a port of 1 to 65535")));
  }
}

// Usage is right, and nobody answers.
TEST(ServerOptionTest, AHostThatDoesNotExistIsNoUsageError) {
  const Outcome outcome = RunCommand(
      AddRecipeVerbs,
      {"rollback", "train", "1", "--server", "no-such-host.invalid:7700", "--timeout", "100ms"});
  EXPECT_EQ(outcome.exit_code, kExitError);
  EXPECT_THAT(outcome.err, HasSubstr("no answer from no-such-host.invalid:7700"));
}

TEST(EnumWordsTest, WordsAreTheNamesWithoutTheirPrefix) {
  EXPECT_EQ(Word(v1::JOB_STATE_RUNNING), "running");
  EXPECT_EQ(Word(v1::WORKER_MODE_CORDONED), "cordoned");
  EXPECT_EQ(Word(v1::CHECKPOINT_TASK_KIND_VERIFY), "verify");
}

TEST(MessageJsonTest, EveryFieldIsPresentAndNumbersAreNumbers) {
  v1::Job job;
  job.set_id("train-7");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.mutable_shape()->set_parameters((int64_t{1} << 53) + 1);
  job.add_blames()->set_worker("w1");
  job.mutable_scheduling()->add_allowed_ranks(2);
  const auto json = JsonOf(job);
  EXPECT_EQ(json["id"], "train-7");
  EXPECT_EQ(json["state"], "JOB_STATE_RUNNING");
  EXPECT_EQ(json["shape"]["parameters"], (int64_t{1} << 53) + 1);
  EXPECT_EQ(json["blames"][0]["worker"], "w1");
  EXPECT_EQ(json["blames"][0]["excluded"], false);
  EXPECT_EQ(json["scheduling"]["allowed_ranks"], nlohmann::ordered_json::parse("[2]"));
  EXPECT_EQ(json["recent_attempts"], nlohmann::ordered_json::array());
  EXPECT_EQ(json["checkpoint_step"], 0);
  EXPECT_FALSE(json.contains("attempt"));
}

TEST(MessageJsonTest, UnsetMembersOfAOneofAreOmitted) {
  v1::WatchJobsResponse response;
  response.set_caught_up(true);
  EXPECT_EQ(JsonLine(JsonOf(response)), "{\"resume_token\":\"\",\"caught_up\":true}\n");
}

TEST(MessageJsonTest, NumbersThatJsonLacksAreTexts) {
  v1::StepSample sample;
  sample.set_loss(std::numeric_limits<double>::quiet_NaN());
  sample.set_gradient_norm(std::numeric_limits<double>::infinity());
  EXPECT_EQ(JsonOf(sample)["loss"], "NaN");
  EXPECT_EQ(JsonOf(sample)["gradient_norm"], "Infinity");
}

}  // namespace

}  // namespace nibble
