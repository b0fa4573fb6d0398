#include "worker/trainer/report/run_event.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/metrics.pb.h"
#include "worker/trainer/report/event_log.h"
#include "worker/trainer/report/events.h"
#include "worker/trainer/report/figure_event.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A line as a trainer writes it.
std::string LineOf(const std::string& event, const std::string& fields) {
  return absl::StrCat(R"({"schema":1,"event":")", event, R"(","time":"2026-01-31T12:00:00.250Z",)",
                      fields, "}");
}

RunEvent EventOf(const std::string& event, const std::string& fields) {
  auto parsed = ParseRunEvent(LineOf(event, fields));
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? *parsed : RunEvent();
}

RunEvent StepEvent(int64_t step) { return EventOf("step", absl::StrCat("\"step\":", step)); }
RunEvent StartAt(int64_t step) { return EventOf("start", absl::StrCat("\"first_step\":", step)); }

// The steps of the log that a filter selects.
std::vector<int64_t> Selected(const FigureSelection& selection, const std::vector<RunEvent>& log) {
  FigureFilter filter(selection);
  for (const RunEvent& event : log) filter.Survey(event);
  std::vector<int64_t> steps;
  for (const RunEvent& event : log) {
    if (filter.Takes(event)) steps.push_back(event.step);
  }
  return steps;
}

TEST(RunEventTest, ALineOfTheTrainerIsRead) {
  v1::StepSample sample;
  sample.set_step(7);
  sample.set_loss(std::nan(""));
  const absl::Time time = absl::FromUnixMillis(1769860800250);
  std::string line = FigureEventText(sample, time);
  line.pop_back();
  const auto event = ParseRunEvent(line);
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_EQ(event->kind, "step");
  EXPECT_EQ(event->step, 7);
  EXPECT_EQ(event->time, time);
  EXPECT_TRUE(HasNumber(*event, "loss"));
  EXPECT_TRUE(std::isnan(NumberOf(*event, "loss")));
  EXPECT_EQ(NumberOf(*event, "updated"), 0);
  EXPECT_FALSE(HasNumber(*event, "none"));
}

// Gives every figure of the message a value of its own.
void FillFigures(google::protobuf::Message& figures) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *figures.GetReflection();
  for (const FigureField& figure : FigureEventFields(*figures.GetDescriptor())) {
    const FieldDescriptor* const field = figure.field;
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT64:
        reflection.SetInt64(&figures, field, field->number() + (int64_t{1} << 60));
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        reflection.SetDouble(&figures, field, field->number() / 3.0);
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        reflection.SetBool(&figures, field, true);
        break;
      default:
        reflection.SetString(&figures, field, field->name());
        break;
    }
  }
}

template <class Message>
void ExpectFiguresReadBack() {
  Message written;
  FillFigures(written);
  std::string line = FigureEventText(written, absl::UnixEpoch());
  line.pop_back();
  const auto event = ParseRunEvent(line);
  ASSERT_TRUE(event.ok()) << event.status();
  Message read;
  ReadFigures(*event, read);
  EXPECT_EQ(read.SerializeAsString(), written.SerializeAsString()) << line;
}

TEST(RunEventTest, EveryFigureOfALineIsReadBack) {
  ExpectFiguresReadBack<v1::StepSample>();
  ExpectFiguresReadBack<link::v1::PrecisionSample>();
  ExpectFiguresReadBack<link::v1::ProductPath>();
}

TEST(RunEventTest, FiguresThatALineLacksKeepTheirValues) {
  v1::StepSample sample;
  sample.set_bytes_sent(5);
  sample.set_revision(3);
  ReadFigures(EventOf("step", R"("step":7,"loss":"inf","revision":"none","tokens_per_second":2)"),
              sample);
  EXPECT_EQ(sample.step(), 7);
  EXPECT_TRUE(std::isinf(sample.loss()));
  EXPECT_EQ(sample.tokens_per_second(), 2);
  EXPECT_EQ(sample.bytes_sent(), 5);
  EXPECT_EQ(sample.revision(), 3);
}

TEST(RunEventTest, OtherLinesAndNewerSchemasAreRefused) {
  EXPECT_THAT(ParseRunEvent("step 7").status().message(), HasSubstr("'step 7' is not an event"));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseRunEvent(R"({"event":"step"})").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseRunEvent("[1]").status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      ParseRunEvent(R"({"schema":2,"event":"step","time":"2026-01-31T12:00:00Z"})").status()));
}

TEST(RunEventTest, StepsAreSelectedByRangeAndMultiple) {
  std::vector<RunEvent> log = {StartAt(0)};
  for (int64_t step = 0; step < 10; ++step) log.push_back(StepEvent(step));
  EXPECT_THAT(Selected({.from_step = 3, .to_step = 8, .every = 3}, log), ElementsAre(3, 6));
  EXPECT_THAT(Selected({.steps = false, .precision = true}, log), ElementsAre());
}

TEST(RunEventTest, OnlyTheLastFiguresOfARepeatedStepCount) {
  const std::vector<RunEvent> log = {
      StartAt(0), StepEvent(0), StepEvent(1), StepEvent(2), StepEvent(3),  // ends
      StartAt(2), StepEvent(2), StepEvent(3), StepEvent(4),                // ends
      StartAt(3), StepEvent(3), StepEvent(4), StepEvent(5)};
  EXPECT_THAT(Selected({}, log), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(RunEventTest, AValidationBeforeTheResumedStepStays) {
  const RunEvent validation = EventOf("validation", R"("step":2,"set":"all","loss":1.5)");
  const FigureSelection selection = {.steps = false, .validation = true};
  EXPECT_THAT(Selected(selection, {StartAt(0), validation, StartAt(2)}), ElementsAre(2));
  EXPECT_THAT(Selected(selection, {StartAt(0), validation, StartAt(1)}), ElementsAre());
}

TEST(RunEventTest, ALogThatGrowsBetweenItsReadingsIsSelectedToItsEnd) {
  FigureFilter filter({});
  filter.Survey(StartAt(0));
  EXPECT_FALSE(filter.Takes(StartAt(0)));
  EXPECT_TRUE(filter.Takes(StepEvent(0)));
  EXPECT_FALSE(filter.Takes(StartAt(0)));
  EXPECT_TRUE(filter.Takes(StepEvent(0)));
}

}  // namespace
}  // namespace nibble
