#include "worker/trainer/trace/chrome_trace.h"

#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TraceSpan SpanOf(TraceTrack track, double begin, double end, const std::string& name = "x") {
  return {.track = track, .name = name, .begin = begin, .seconds = end - begin};
}

// "begin-end" of each gap.
std::vector<std::string> Gaps(const std::vector<TraceSpan>& spans, double least = 0.5) {
  std::vector<std::string> gaps;
  for (const TraceSpan& gap : GapsOf(spans, least)) {
    EXPECT_EQ(gap.track, TraceTrack::kGaps);
    gaps.push_back(absl::StrCat(gap.begin, "-", gap.begin + gap.seconds));
  }
  return gaps;
}

std::string TracePath(const std::string& name) {
  return absl::StrCat(testing::TempDir(), "/", getpid(), "-", name);
}

json ReadJson(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return json::parse(text.str());
}

TEST(ChromeTraceTest, GapsAreTheTimesOfAStepWithoutAnOperation) {
  const std::vector<TraceSpan> spans = {
      SpanOf(TraceTrack::kSteps, 10, 20), SpanOf(TraceTrack::kCompute, 11, 13),
      SpanOf(TraceTrack::kCompute, 12, 14),  // overlaps
      SpanOf(TraceTrack::kCompute, 14.25, 17), SpanOf(TraceTrack::kCopies, 17, 18)};
  EXPECT_THAT(Gaps(spans), testing::ElementsAre("10-11", "17-20"));
  EXPECT_THAT(Gaps(spans, 0.1), testing::ElementsAre("10-11", "14-14.25", "17-20"));
}

TEST(ChromeTraceTest, PartsWithinAStepAddNoGaps) {
  const std::vector<TraceSpan> spans = {
      SpanOf(TraceTrack::kSteps, 0, 4), SpanOf(TraceTrack::kSteps, 0, 2),
      SpanOf(TraceTrack::kSteps, 2, 4), SpanOf(TraceTrack::kCompute, -1, 1),
      SpanOf(TraceTrack::kCompute, 3, 5)};
  EXPECT_THAT(Gaps(spans), testing::ElementsAre("1-2", "2-3"));
  EXPECT_THAT(Gaps({SpanOf(TraceTrack::kSteps, 0, 1)}), testing::ElementsAre("0-1"));
  EXPECT_THAT(Gaps({}), testing::ElementsAre());
}

TEST(ChromeTraceTest, EverySpanIsAnEventOfItsRankAndTrackInMicroseconds) {
  RankTrace trace = {.rank = 3};
  trace.spans = {{.track = TraceTrack::kCompute,
                  .name = "gemm \"fprop\"",
                  .begin = 2.5,
                  .seconds = 0.001,
                  .flops = 1e9},
                 SpanOf(TraceTrack::kSteps, 2, 3, "step 7")};
  const json file = json::parse(ChromeFile({ChromeEvents(trace)}));
  std::vector<json> spans;
  std::vector<std::string> threads;
  for (const json& event : file) {
    EXPECT_EQ(event.at("pid"), 3);
    if (event.at("ph") == "X") spans.push_back(event);
    if (event.at("name") == "thread_name") threads.push_back(event.at("args").at("name"));
  }
  EXPECT_THAT(threads, testing::ElementsAre("host", "steps", "compute", "gaps of compute",
                                            "communication", "copies"));
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].at("name"), "step 7");  // by time
  EXPECT_EQ(spans[0].at("ts"), 2e6);
  EXPECT_EQ(spans[0].at("dur"), 1e6);
  EXPECT_EQ(spans[1].at("name"), "gemm \"fprop\"");
  EXPECT_EQ(spans[1].at("tid"), static_cast<int>(TraceTrack::kCompute));
  EXPECT_EQ(spans[1].at("args").at("flops"), 1e9);
}

TEST(ChromeTraceTest, MissingSpansAreReportedInTheNameOfTheRank) {
  EXPECT_THAT(ChromeEvents({.rank = 1, .dropped = 5}),
              HasSubstr("rank 1 (5 later spans are missing)"));
}

TEST(ChromeTraceTest, RanksThatAppendAtTheSameTimeMakeOneValidFile) {
  const std::string path = TracePath("ranks.json");
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 8; ++rank) {
    ranks.emplace_back([rank, &path] {
      const RankTrace trace = {
          .rank = rank,
          .spans = std::vector<TraceSpan>(500, SpanOf(TraceTrack::kCompute, rank, rank + 1))};
      EXPECT_TRUE(AppendTrace(path, ChromeEvents(trace)).ok());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  int spans = 0;
  for (const json& event : ReadJson(path)) spans += event.at("ph") == "X" ? 1 : 0;
  EXPECT_EQ(spans, 8 * 500);
}

TEST(ChromeTraceTest, AFileThatIsNoTraceIsNotTouched) {
  const std::string path = TracePath("notes.txt");
  std::ofstream(path) << "notes";
  const absl::Status status = AppendTrace(path, "{}");
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(path));
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  EXPECT_EQ(text, "notes");
}

}  // namespace
}  // namespace nibble
