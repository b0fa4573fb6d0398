#include "client/report/run_events.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

std::string Start(const std::string& time, int64_t first_step) {
  return absl::StrCat(R"({"schema":1,"event":"start","time":")", time,
                      R"(","job":"train","ranks":2,"first_step":)", first_step, "}");
}

std::string Step(int64_t step, const std::string& loss) {
  return absl::StrCat(R"({"schema":1,"event":"step","time":"2026-01-31T12:00:01.000Z","step":)",
                      step, R"(,"tokens":)", 64 * (step + 1), R"(,"loss":)", loss,
                      R"(,"seconds":0.5,"forward_seconds":0.2})");
}

std::string Precision(int64_t step, const std::string& layer, double error) {
  return absl::StrCat(R"({"schema":1,"event":"precision","step":)", step, R"(,"layer":")", layer,
                      R"(","operand":"fprop.weight","format":"nvfp4","relative_error":)", error,
                      R"(,"underflow":0.01,"clipped":0})");
}

TEST(RunEventsTest, StepsArePointsOfCurves) {
  RunEvents events(true);
  events.Add(Start("2026-01-31T12:00:00.000Z", 0));
  events.Add(Step(0, "4.5"));
  events.Add(Step(1, R"("nan")"));
  const RunRecord record = events.Finish();
  ASSERT_EQ(record.steps.size(), 2u);
  EXPECT_EQ(record.steps.at(0).loss, 4.5);
  EXPECT_EQ(record.steps.at(1).tokens, 128);
  EXPECT_TRUE(std::isnan(record.steps.at(1).loss));
  EXPECT_EQ(record.steps.at(0).parts[2], 0.2);
  EXPECT_TRUE(std::isnan(record.steps.at(0).gradient_norm));
  EXPECT_THAT(record.start, ::testing::Contains(Pair("ranks", "2")));
  EXPECT_EQ(record.unreadable, 0);
}

TEST(RunEventsTest, AnAttemptReplacesWhatEarlierOnesRecordedFromItsFirstStepOn) {
  RunEvents events(true);
  // The log of the worker that ran the second attempt is read first.
  events.BeginLog();
  events.Add(Start("2026-01-31T13:00:00.000Z", 2));
  events.Add(Step(2, "3.5"));
  events.BeginLog();
  events.Add(Start("2026-01-31T12:00:00.000Z", 0));
  for (int step = 0; step < 6; ++step) events.Add(Step(step, "4"));
  events.Add(Precision(0, "blocks.0.mlp.up", 0.1));
  events.Add(Precision(4, "blocks.0.mlp.up", 0.1));
  const RunRecord record = events.Finish();
  EXPECT_EQ(record.steps.size(), 3u);
  EXPECT_EQ(record.steps.at(2).loss, 3.5);
  EXPECT_EQ(record.precision.size(), 1u);
}

TEST(RunEventsTest, OnlyStepsThatARollbackUndidAreAbandoned) {
  RunEvents events(true);
  events.Add(Start("2026-01-31T12:00:00.000Z", 0));
  for (int step = 0; step < 6; ++step) events.Add(Step(step, "4"));
  // A killed run repeats its steps, and has not yet repeated them all.
  events.Add(Start("2026-01-31T12:10:00.000Z", 2));
  for (int step = 2; step < 4; ++step) events.Add(Step(step, "4"));
  events.Add(Step(4, R"("nan")"));
  events.Add(Step(5, "9"));
  // After a rollback only the first step has the same loss.
  events.Add(Start("2026-01-31T12:20:00.000Z", 3));
  events.Add(Step(3, "4"));
  events.Add(Step(4, "3"));
  const RunRecord record = events.Finish();
  ASSERT_EQ(record.abandoned.size(), 2u);
  EXPECT_THAT(record.abandoned[0], ElementsAre(Pair(4, 4), Pair(5, 4)));
  ASSERT_EQ(record.abandoned[1].size(), 2u);
  EXPECT_TRUE(std::isnan(record.abandoned[1].at(4)));
  EXPECT_EQ(record.abandoned[1].at(5), 9);
  EXPECT_EQ(record.steps.rbegin()->first, 4);
}

TEST(RunEventsTest, StepsOfAKilledRunThatAreNotRepeatedYetAreNotAbandoned) {
  RunEvents events(true);
  events.Add(Start("2026-01-31T12:00:00.000Z", 0));
  for (int step = 0; step < 6; ++step) events.Add(Step(step, "4"));
  events.Add(Start("2026-01-31T12:10:00.000Z", 2));
  events.Add(Step(2, "4"));
  EXPECT_THAT(events.Finish().abandoned, ::testing::IsEmpty());
}

TEST(RunEventsTest, ValidationGuardsAndPathsAreKept) {
  RunEvents events(true);
  events.Add(Start("2026-01-31T12:00:00.000Z", 0));
  events.Add(R"({"event":"validation","step":50,"set":"held-out","loss":3.25})");
  events.Add(
      R"({"event":"guard","step":7,"guard":"spike","action":"skipped","z":6.5,"detail":""})");
  events.Add(R"({"event":"products","step":0,"gemm":"fprop","path":"a","reason":"r","linears":3})");
  events.Add(R"({"event":"products","step":9,"gemm":"fprop","path":"b","reason":"r","linears":4})");
  const RunRecord record = events.Finish();
  EXPECT_EQ(record.validation.at("held-out").at(50), 3.25);
  ASSERT_EQ(record.notes.size(), 1u);
  EXPECT_EQ(record.notes[0].text, "spike guard: skipped, z = 6.5");
  ASSERT_EQ(record.paths.size(), 1u);
  EXPECT_EQ(record.paths[0].path, "b");
}

TEST(RunEventsTest, LinesThatAreNoEventsAreCounted) {
  RunEvents events(true);
  events.Add("(the first 7 bytes are no longer kept)");
  events.Add("[1]");
  events.Add("{}");
  events.Add(R"({"event":"start","a":)" + std::string(1 << 20, '[') + std::string(1 << 20, ']') +
             "}");
  EXPECT_EQ(events.Finish().unreadable, 4);
}

TEST(RunEventsTest, OnlyAFalseMeansThatACheckpointWasNotStored) {
  RunEvents events(true);
  events.Add(Start("2026-01-31T12:00:00.000Z", 0));
  for (const char* stored : {"\"no\"", "null", "[]", "true", "false"}) {
    events.Add(
        absl::StrCat(R"({"event":"checkpoint","step":3,"problem":"full","stored":)", stored, "}"));
  }
  const RunRecord record = events.Finish();
  ASSERT_EQ(record.notes.size(), 1u);
  EXPECT_EQ(record.notes[0].text, "not stored: full");
}

TEST(RunEventsTest, WithoutPrecisionItsEventsAreSkipped) {
  RunEvents events(false);
  events.Add(Precision(0, "blocks.0.mlp.up", 0.1));
  EXPECT_TRUE(events.Finish().precision.empty());
}

TEST(RunEventsTest, SamplesFillTheStepsThatTheLogLacks) {
  RunEvents events(true);
  events.Add(Step(0, "4.5"));
  RunRecord record = events.Finish();
  std::vector<v1::StepSample> samples(2);
  samples[0].set_loss(9);
  samples[1].set_step(1);
  samples[1].set_loss(4.25);
  AddSamples(samples, record);
  EXPECT_EQ(record.steps.at(0).loss, 4.5);
  EXPECT_EQ(record.steps.at(1).loss, 4.25);
}

}  // namespace
}  // namespace nibble
