#include "worker/trainer/report/event_log.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/report/events.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

const absl::Time kNoon = absl::FromUnixMillis(1769860800250);  // 2026-01-31 12:00:00.250 UTC
absl::Time Noon() { return kNoon; }

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<nlohmann::json> Lines(const std::string& path) {
  std::vector<nlohmann::json> lines;
  const std::string text = ReadAll(path);
  EXPECT_TRUE(text.empty() || text.back() == '\n') << text;
  for (const auto line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    lines.push_back(nlohmann::json::parse(std::string(line)));
  }
  return lines;
}

class EventLogTest : public testing::Test {
 protected:
  EventLogTest()
      : path_(absl::StrCat(testing::TempDir(), "events-",
                           testing::UnitTest::GetInstance()->current_test_info()->name(), "-",
                           getpid(), ".jsonl")) {
    std::remove(path_.c_str());
  }
  ~EventLogTest() override { std::remove(path_.c_str()); }

  std::unique_ptr<EventLog> Open() {
    absl::StatusOr<std::unique_ptr<EventLog>> log = EventLog::Open(path_, Noon);
    EXPECT_TRUE(log.ok()) << log.status();
    return log.ok() ? *std::move(log) : nullptr;
  }

  std::string path_;
};

TEST_F(EventLogTest, EveryEventIsALineWithSchemaNameTimeAndItsFields) {
  const auto log = Open();
  ASSERT_TRUE(log->Write(StartEvent{.job = "j", .seed = 18446744073709551615u}).ok());
  v1::StepSample step;
  step.set_step(7);
  step.set_loss(3.25);
  ASSERT_TRUE(log->Write(step).ok());
  const std::vector<nlohmann::json> lines = Lines(path_);
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_EQ(lines[0]["schema"], kEventSchema);
  EXPECT_EQ(lines[0]["event"], "start");
  EXPECT_EQ(lines[0]["time"], "2026-01-31T12:00:00.250Z");
  EXPECT_EQ(lines[0]["seed"], 18446744073709551615u);
  EXPECT_EQ(lines[1]["step"], 7);
  EXPECT_EQ(lines[1]["loss"], 3.25);
  EXPECT_EQ(lines[1]["updated"], false);
}

TEST_F(EventLogTest, FieldsComeInTheOrderOfTheirDescription) {
  EXPECT_EQ(
      EventText(
          ValidationEvent{
              .step = 1, .set = "v", .loss = 2.5, .batches = 3, .revision = 4, .seconds = 0.5},
          kNoon),
      "{\"schema\":1,\"event\":\"validation\",\"time\":\"2026-01-31T12:00:00.250Z\","
      "\"step\":1,\"set\":\"v\",\"loss\":2.5,\"batches\":3,\"revision\":4,"
      "\"seconds\":0.5}\n");
}

TEST_F(EventLogTest, FiguresOfAStepComeInTheOrderOfTheirDeclaration) {
  v1::StepSample step;
  step.set_step(7);
  step.set_tokens(4096);
  step.set_loss(3.25);
  step.set_gradient_norm(0.5);
  step.set_learning_rate(0.001);
  step.set_tokens_per_second(2048);
  step.set_step_seconds(2);
  step.set_revision(3);
  step.set_revision_first_step(2);
  step.set_updated(true);
  step.set_data_seconds(0.125);
  step.set_backward_seconds(std::nan(""));
  EXPECT_EQ(EventText(step, kNoon),
            "{\"schema\":1,\"event\":\"step\",\"time\":\"2026-01-31T12:00:00.250Z\","
            "\"step\":7,\"tokens\":4096,\"loss\":3.25,\"gradient_norm\":0.5,"
            "\"learning_rate\":0.001,\"revision\":3,\"updated\":true,"
            "\"tokens_per_second\":2048.0,\"seconds\":2.0,\"data_seconds\":0.125,"
            "\"weights_seconds\":0.0,\"forward_seconds\":0.0,\"backward_seconds\":\"nan\","
            "\"reduce_seconds\":0.0,\"update_seconds\":0.0,\"bytes_sent\":0.0}\n");
}

TEST_F(EventLogTest, FiguresOfAnOperandComeInTheOrderOfTheirDeclaration) {
  link::v1::PrecisionSample sample;
  sample.set_step(8);
  sample.set_layer("blocks.3.mlp.up");
  sample.set_operand("fprop.weight");
  sample.set_format("nvfp4");
  sample.set_snr_db(20.5);
  sample.set_non_finite(2);
  EXPECT_EQ(EventText(sample, kNoon),
            "{\"schema\":1,\"event\":\"precision\",\"time\":\"2026-01-31T12:00:00.250Z\","
            "\"step\":8,\"layer\":\"blocks.3.mlp.up\",\"operand\":\"fprop.weight\","
            "\"format\":\"nvfp4\",\"relative_error\":0.0,\"snr_db\":20.5,\"underflow\":0.0,"
            "\"clipped\":0.0,\"amax\":0.0,\"scale_spread_octaves\":0.0,\"non_finite\":2}\n");
}

TEST_F(EventLogTest, AnEventIsInTheFileWhenWriteReturns) {
  const auto log = Open();
  ASSERT_TRUE(log->Write(NoticeEvent{.text = "first"}).ok());
  EXPECT_THAT(Lines(path_), SizeIs(1));  // the log is still open
}

TEST_F(EventLogTest, NumbersThatJsonDoesNotHaveAreTexts) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto log = Open();
  ASSERT_TRUE(
      log->Write(GuardEvent{.loss = std::nan(""), .gradient_norm = kInfinity, .z = -kInfinity})
          .ok());
  const nlohmann::json line = Lines(path_).at(0);
  EXPECT_EQ(line["loss"], "nan");
  EXPECT_EQ(line["gradient_norm"], "inf");
  EXPECT_EQ(line["z"], "-inf");
}

TEST_F(EventLogTest, TextsOfAnyBytesStayOneValidLine) {
  const auto log = Open();
  ASSERT_TRUE(log->Write(ErrorEvent{.message = "two\nlines \"quoted\" \xff\x01"}).ok());
  ASSERT_TRUE(log->Write(GuardEvent{.operands = {"a\nb", "c"}}).ok());
  const std::vector<nlohmann::json> lines = Lines(path_);
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_EQ(lines[0]["message"], "two\nlines \"quoted\" \xef\xbf\xbd\x01");
  EXPECT_EQ(lines[1]["operands"][0], "a\nb");
}

TEST_F(EventLogTest, ALogThatExistsIsAppendedTo) {
  ASSERT_TRUE(Open()->Write(NoticeEvent{.text = "before"}).ok());
  ASSERT_TRUE(Open()->Write(NoticeEvent{.text = "after"}).ok());
  const std::vector<nlohmann::json> lines = Lines(path_);
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_EQ(lines[1]["text"], "after");
}

TEST_F(EventLogTest, APartialLineAfterACrashIsCutOff) {
  for (const size_t torn : {size_t{1}, size_t{4095}, size_t{4096}, size_t{4097}, size_t{20000}}) {
    std::ofstream(path_, std::ios::binary) << "{\"whole\":1}\n" << std::string(torn, 'x');
    ASSERT_TRUE(Open()->Write(NoticeEvent{}).ok());
    const std::vector<nlohmann::json> lines = Lines(path_);
    ASSERT_THAT(lines, SizeIs(2)) << torn;
    EXPECT_EQ(lines[0]["whole"], 1);
  }
  std::ofstream(path_, std::ios::binary) << "no line at all";
  ASSERT_TRUE(Open()->Write(NoticeEvent{}).ok());
  EXPECT_THAT(Lines(path_), SizeIs(1));
}

TEST_F(EventLogTest, AFullDiskIsAnErrorThatNamesTheFile) {
  const absl::StatusOr<std::unique_ptr<EventLog>> log = EventLog::Open("/dev/full", Noon);
  ASSERT_TRUE(log.ok()) << log.status();
  const absl::Status status = (*log)->Write(NoticeEvent{});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("event log: cannot write to /dev/full"));
}

// A write that stops in the middle of a line, as on a disk that fills up.
TEST_F(EventLogTest, AfterAnErrorNoPartialLineStaysAndTheLogContinues) {
  const auto log = Open();
  ASSERT_TRUE(log->Write(NoticeEvent{.text = "whole"}).ok());
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {ReadAll(path_).size() + 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = log->Write(NoticeEvent{.text = "does not fit"});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(Lines(path_), SizeIs(1));
  EXPECT_EQ(log->missing(), 1);
  ASSERT_TRUE(log->Write(NoticeEvent{.text = "fits again"}).ok());
  EXPECT_EQ(log->missing(), 0);
  ASSERT_THAT(Lines(path_), SizeIs(3));
  EXPECT_EQ(Lines(path_)[1]["text"], "does not fit");
  EXPECT_EQ(Lines(path_)[2]["text"], "fits again");
}

TEST_F(EventLogTest, EventsBeyondTheMemoryForThemAreCountedInTheirPlace) {
  const auto log = Open();
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit none = {0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  const std::string much(EventLog::kMostWaitingBytes / 2, 'x');
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(log->Write(NoticeEvent{.step = i, .text = much}).ok());
  EXPECT_EQ(log->missing(), 4);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_TRUE(log->Write(NoticeEvent{.step = 4}).ok());
  const std::vector<nlohmann::json> lines = Lines(path_);
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_EQ(lines[0]["step"], 0);
  EXPECT_EQ(lines[1]["event"], "lost");
  EXPECT_EQ(lines[1]["events"], 3);
  EXPECT_EQ(lines[2]["step"], 4);
}

TEST_F(EventLogTest, AFileThatCannotBeOpenedIsAnError) {
  EXPECT_EQ(EventLog::Open("/no/such/directory/events.jsonl", Noon).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(EventLog::Open(testing::TempDir(), Noon).ok());
}

template <class Event>
std::string NameOf() {
  if constexpr (kIsFigureEvent<Event>) {
    return FigureEventKind(*Event::descriptor()).name();
  } else {
    return Event::kName;
  }
}

template <class... Events>
std::set<std::string> Names(const std::tuple<Events...>*) {
  return {NameOf<Events>()...};
}

TEST_F(EventLogTest, EveryEventHasAName) {
  const auto names = Names(static_cast<const AllEvents*>(nullptr));
  EXPECT_THAT(names, SizeIs(std::tuple_size_v<AllEvents>));
}

}  // namespace
}  // namespace nibble
