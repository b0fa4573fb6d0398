#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_spec.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kUnscheduledSpec[] =
    "name: s\nmodel: tiny-hybrid\ndata: {train: [a.txt]}\ntraining: {steps: 1000, batch: 16}\n";

JobSpec ParsedScheduling(std::string_view more) {
  const absl::StatusOr<JobSpec> spec =
      ParseJobSpec(absl::StrCat(kUnscheduledSpec, std::string(more)));
  EXPECT_TRUE(spec.ok()) << more << spec.status();
  return spec.ok() ? *spec : JobSpec();
}

std::string SchedulingError(std::string_view more) {
  const absl::StatusOr<JobSpec> spec =
      ParseJobSpec(absl::StrCat(kUnscheduledSpec, std::string(more)));
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << more;
  return std::string(spec.status().message());
}

TEST(SchedulingTest, ASpecHasSchedulingFields) {
  const std::string text =
      "scheduling: {queue: nights, priority: -5, require: {rack: a12}, prefer: {zone: 1},\n"
      "             prefer_fp4: true}\n"
      "restarts: {max_without_progress: 0, backoff: 0.5, max_backoff: 20}\n"
      "env: {OMP_NUM_THREADS: 4, TZ: UTC}\n";
  const JobSpec spec = ParsedScheduling(text);
  EXPECT_EQ(spec.scheduling.queue, "nights");
  EXPECT_EQ(spec.scheduling.priority, -5);
  EXPECT_THAT(spec.scheduling.require, ElementsAre(NamedText{"rack", "a12"}));
  EXPECT_THAT(spec.scheduling.prefer, ElementsAre(NamedText{"zone", "1"}));
  EXPECT_TRUE(spec.scheduling.prefer_fp4);
  EXPECT_EQ(spec.restarts.max_without_progress, 0);
  EXPECT_EQ(spec.restarts.backoff, 0.5);
  EXPECT_THAT(spec.env, ElementsAre(NamedText{"OMP_NUM_THREADS", "4"}, NamedText{"TZ", "UTC"}));
  const absl::StatusOr<JobSpec> again = ParseJobSpec(ToYaml(spec));
  ASSERT_TRUE(again.ok()) << ToYaml(spec) << again.status();
  EXPECT_EQ(*again, spec);
}

TEST(SchedulingTest, AnUnsetSectionHasTheDefaults) {
  const JobSpec spec = ParsedScheduling("");
  EXPECT_EQ(spec.scheduling, SchedulingSpec());
  EXPECT_EQ(spec.restarts, RestartSpec());
  EXPECT_THAT(spec.env, IsEmpty());
  EXPECT_THAT(AllowedRanks(spec), ElementsAre(1));
}

TEST(SchedulingTest, AnElasticJobRunsWithTheRanksThatDivideItsBatch) {
  EXPECT_THAT(AllowedRanks(ParsedScheduling("resources: {ranks: 2, max_ranks: 9}\n")),
              ElementsAre(2, 4, 8));
  EXPECT_THAT(AllowedRanks(ParsedScheduling("resources: {ranks: 4, min_ranks: 1}\n")),
              ElementsAre(1, 2, 4));
  EXPECT_THAT(AllowedRanks(ParsedScheduling("resources: {ranks: 4, allowed_ranks: [4, 16]}\n")),
              ElementsAre(4, 16));
  const JobSpec micro = ParsedScheduling("resources: {min_ranks: 1, max_ranks: 16}\n");
  TrainingSpec training = micro.training;
  training.micro_batch = 4;
  EXPECT_THAT(RanksThatShare(training, 1, 16), ElementsAre(1, 2, 4));
}

TEST(SchedulingTest, RanksThatDoNotDivideTheBatchAreReportedWithThoseThatDo) {
  EXPECT_EQ(SchedulingError("resources: {min_ranks: 5, max_ranks: 7}\n"),
            "line 5: resources.min_ranks: no number of ranks from 5 to 7 divides the batch of 16 "
            "evenly; allowed: 1, 2, 4, 8, 16");
  EXPECT_THAT(SchedulingError("resources: {allowed_ranks: [1, 3]}\n"),
              HasSubstr("resources.allowed_ranks[1]: 3 does not divide the batch of 16 evenly; "
                        "allowed: 1, 2, 4, 8, 16"));
  EXPECT_THAT(SchedulingError("resources: {allowed_ranks: [4, 2]}\n"),
              HasSubstr("resources.allowed_ranks[1]: 2 is not above 4"));
  EXPECT_THAT(
      SchedulingError("resources: {allowed_ranks: [4], min_ranks: 1}\n"),
      HasSubstr("resources.allowed_ranks: cannot be combined with min_ranks and max_ranks"));
}

TEST(SchedulingTest, ABackoffAboveMaxBackoffRaisesItUnlessItIsSet) {
  EXPECT_EQ(ParsedScheduling("restarts: {backoff: 600}\n").restarts.max_backoff, 600);
  EXPECT_EQ(SchedulingError("restarts: {backoff: 600, max_backoff: 300}\n"),
            "line 5: restarts.max_backoff: 300 is under 600, restarts.backoff");
}

TEST(SchedulingTest, VariablesThatDecideWhichCodeRunsAreRefused) {
  for (const char* name :
       {"LD_PRELOAD", "LD_LIBRARY_PATH", "NIBBLE_HOME", "CUDA_VISIBLE_DEVICES", "PATH", "HOME",
        "GCONV_PATH", "NCCL_NET_PLUGIN", "CUDA_INJECTION64_PATH"}) {
    EXPECT_THAT(SchedulingError(absl::StrCat("env: {", name, ": x}\n")),
                HasSubstr(absl::StrCat("env.", name, ": reserved")));
  }
  EXPECT_THAT(SchedulingError("env: {1A: x}\n"), HasSubstr("env.1A: not a variable name"));
  EXPECT_THAT(SchedulingError("env: {A-B: x}\n"), HasSubstr("not a variable name"));
  EXPECT_THAT(SchedulingError("env: {A: [1]}\n"), HasSubstr("env.A: a list is not text"));
  EXPECT_THAT(SchedulingError("env: {A: 1, A: 2}\n"), HasSubstr("env.A: set twice"));
}

}  // namespace
}  // namespace nibble
