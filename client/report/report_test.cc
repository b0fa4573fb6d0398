#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/report/report_data.h"
#include "client/report/report_page.h"
#include "client/report/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using report_testing::LossAt;
using report_testing::MakeRun;
using ::testing::HasSubstr;
using ::testing::Not;

using Json = nlohmann::ordered_json;

std::string FactOf(const Json& data, const std::string& label) {
  for (const Json& fact : data["headline"]) {
    if (fact["label"] == label) return fact["value"];
  }
  return "no such fact";
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

TEST(ReportDataTest, AShortRunHasEachOfItsNumbers) {
  const Json data = ReportData(MakeRun({}));
  const Json& loss = data["jobs"][0]["loss"];
  ASSERT_EQ(loss[0].size(), 300u);
  for (size_t i = 0; i < 300; ++i) {
    EXPECT_EQ(loss[0][i], i);
    EXPECT_NEAR(loss[1][i].get<double>(), LossAt(static_cast<int64_t>(i), 300), 1e-5);
  }
  EXPECT_EQ(data["jobs"][1]["id"], "bf16-6");
  EXPECT_EQ(data["jobs"][0]["tokens"], Json::parse("[[0, 299], [4096, 1228800]]"));
  EXPECT_EQ(FactOf(data, "Steps"), "300");
  EXPECT_EQ(FactOf(data, "Loss"), absl::StrFormat("%.4f", LossAt(299, 300)));
  EXPECT_EQ(FactOf(data, "Validation loss"), "2.7100");
}

TEST(ReportDataTest, TheDifferenceIsRelativeToTheFirstComparedJob) {
  const Json data = ReportData(MakeRun({}));
  EXPECT_EQ(data["difference"]["against"], "bf16-6");
  const Json& series = data["difference"]["series"];
  ASSERT_EQ(series.size(), 1u);
  EXPECT_EQ(series[0]["job"], "nvfp4-7");
  for (const char* axis : {"steps", "tokens"}) {
    ASSERT_EQ(series[0][axis]["raw"][1].size(), 300u);
    for (const Json& percent : series[0][axis]["raw"][1]) {
      EXPECT_NEAR(percent.get<double>(), 100.0 / 99, 1e-4);
    }
  }
  EXPECT_EQ(series[0]["tokens"]["raw"][0][0], 4096);
  EXPECT_EQ(FactOf(data, "Loss against bf16-6"), "+1.01 ± 0.00 %");
}

TEST(ReportDataTest, TheTimelineLeavesOutSupersededAndRefusedRevisions) {
  ReportInput input = MakeRun({});
  input.job.revisions.push_back(input.job.revisions[1]);
  input.job.revisions[2].revision.set_number(3);
  input.job.revisions.push_back(input.job.revisions[1]);
  input.job.revisions[3].revision.set_number(4);
  input.job.revisions[3].revision.set_refused("no memory");
  const Json timeline = ReportData(input)["jobs"][0]["timeline"];
  ASSERT_EQ(timeline.size(), 2u);
  EXPECT_EQ(timeline[0]["first"], 0);
  EXPECT_EQ(timeline[1]["first"], 240);
  EXPECT_EQ(timeline[1]["number"], 3);
}

TEST(ReportDataTest, EachComparedJobHasItsTimeline) {
  const Json jobs = ReportData(MakeRun({}))["jobs"];
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0]["timeline"].size(), 2u);
  ASSERT_EQ(jobs[1]["timeline"].size(), 1u);
  EXPECT_EQ(jobs[1]["timeline"][0]["title"], "bf16");
  EXPECT_EQ(jobs[1]["steps"], 300);
}

TEST(ReportDataTest, TheHeadlineIsOverTheLastTwentiethOfTheStepsWithItsError) {
  ReportInput input = MakeRun({.steps = 1000});
  // What came before the last 50 steps does not count.
  for (auto& [step, figures] : input.job.record.steps) {
    const double reference = input.compared[0].record.steps.at(step).loss;
    const double percent = step < 950 ? 70 : step % 2 == 0 ? 1 : 2;
    figures.loss = reference * (1 + percent / 100);
  }
  const Json data = ReportData(input);
  // Deviations of 0.5 with alternating signs: sqrt(50 / 49 · 0.25 / 50).
  EXPECT_EQ(FactOf(data, "Loss against bf16-6"), "+1.50 ± 0.07 %");
  EXPECT_THAT(data["headline"].dump(), HasSubstr("mean of the last 50 common steps, to step 999"));
}

TEST(ReportDataTest, RestartsGuardsAndCheckpointsAreMarks) {
  const Json marks = ReportData(MakeRun({}))["marks"];
  ASSERT_EQ(marks.size(), 8u);
  int64_t last = 0;
  for (const Json& mark : marks) {
    EXPECT_GE(mark["step"].get<int64_t>(), last);
    last = mark["step"];
    if (mark["kind"] == "restart") {
      EXPECT_EQ(mark["text"], "attempt 2 starts at step 150 with 2 ranks");
    }
    if (mark["kind"] == "guard") {
      EXPECT_EQ(mark["step"], 100);
    }
  }
}

TEST(ReportDataTest, TheHeadlineHasWhatGuardsFound) {
  ReportInput input = MakeRun({});
  EXPECT_EQ(FactOf(ReportData(input), "Guards"), "1 action");
  input.job.record.notes = {{3, "", "guard", "spike guard: observed, z = 7.1"},
                            {9, "", "guard", "spike guard: observed, z = 8"}};
  Json data = ReportData(input);
  EXPECT_EQ(FactOf(data, "Guards"), "2 observations");
  EXPECT_THAT(data["headline"].dump(), HasSubstr("last at step 9: spike guard: observed, z = 8"));
  input.job.record.notes.clear();
  EXPECT_EQ(FactOf(ReportData(input), "Guards"), "nothing found");
  // Samples of the coordinator do not tell.
  input.job.record.lines = 0;
  EXPECT_EQ(FactOf(ReportData(input), "Guards"), "no such fact");
}

TEST(ReportDataTest, ObservationsAreThinnedAndDecisionsThatActAreNot) {
  ReportInput input = MakeRun({});
  input.job.record.notes.clear();
  for (int64_t step = 0; step < 10'000; ++step) {
    input.job.record.notes.push_back({step, "", "guard", "underflow guard: observed"});
  }
  input.job.record.notes.push_back({10'000, "", "guard", "spike guard: roll_back, z = 9"});
  const Json marks = ReportData(input)["marks"];
  EXPECT_LT(marks.size(), 3100u);
  EXPECT_GT(marks.size(), 2000u);
  EXPECT_THAT(marks.back()["text"].get<std::string>(), HasSubstr("roll_back"));
  EXPECT_THAT(marks.dump(), HasSubstr("\"kind\":\"restart\""));
  EXPECT_EQ(Count(marks.dump(), "\"kind\":\"checkpoint\""), 6u);
}

TEST(ReportDataTest, ComparedJobsAreATable) {
  const Json table = ReportData(MakeRun({}))["tables"][0];
  EXPECT_EQ(table["title"], "Compared jobs");
  ASSERT_EQ(table["rows"].size(), 2u);
  EXPECT_EQ(table["rows"][0][0], "nvfp4-7");
  EXPECT_EQ(table["rows"][0][2], "nvfp4");
  EXPECT_EQ(table["rows"][0][6], "2.7100");
  EXPECT_EQ(table["rows"][0][7], "+1.01 ± 0.00 %");
  EXPECT_EQ(table["rows"][1][0], "bf16-6");
  EXPECT_EQ(table["rows"][1][7], "–");
  EXPECT_EQ(ReportData(MakeRun({.compared = false}))["tables"][0]["title"], "Recipe revisions");
}

TEST(ReportDataTest, AbandonedStepsAreCurves) {
  EXPECT_EQ(ReportData(MakeRun({}))["abandoned"], Json::parse("[[[150, 151], [9, 9.5]]]"));
}

TEST(ReportDataTest, AJobWithoutAStepHasAReport) {
  ReportInput input;
  input.job.job.set_id("train-1");
  input.compared.emplace_back().job.set_id("train-2");
  const Json data = ReportData(input);
  EXPECT_TRUE(data["precision"].is_null());
  EXPECT_EQ(data["jobs"][0]["loss"], Json::parse("[[], []]"));
  EXPECT_THAT(ReportPage(data), HasSubstr("</html>"));
}

TEST(ReportDataTest, OverTokensTheHeadlineComparesAtEqualTokens) {
  ReportInput input = MakeRun({});
  EXPECT_EQ(ReportData(input)["axis"], "steps");
  input.by_tokens = true;
  const Json data = ReportData(input);
  EXPECT_EQ(data["axis"], "tokens");
  EXPECT_THAT(data["headline"].dump(), HasSubstr("samples at equal tokens"));
}

TEST(ReportDataTest, TheEnvironmentNamesCommitHostProcessorCollectivesAndRanks) {
  const Json environment = ReportData(MakeRun({}))["environment"];
  const auto value = [&](const std::string& name) -> std::string {
    for (const Json& one : environment) {
      if (one[0] == name) return one[1];
    }
    return "";
  };
  EXPECT_EQ(value("trainer"), "0.1.0, commit 2df3eca");
  EXPECT_EQ(value("host of rank 0"), "node-1");
  EXPECT_EQ(value("processor of rank 0"), "Xeon, 2 threads");
  EXPECT_EQ(value("collectives"), "gloo");
  EXPECT_EQ(value("worker w1"),
            "ranks 0 to 1 of 2, 2 slots on CPU, at 10.0.0.1:7800, nibble-worker 0.1.0");
}

TEST(ReportDataTest, ALossThatIsNotFiniteIsAGapAndIsNamed) {
  ReportInput input = MakeRun({});
  input.job.record.steps[299].loss = std::nan("");
  const Json data = ReportData(input);
  EXPECT_TRUE(data["jobs"][0]["loss"][1][299].is_null());
  EXPECT_EQ(FactOf(data, "Loss"), "not finite");
}

TEST(ReportPageTest, TextsOfUsersAreNeverMarkup) {
  const std::string evil = "</script><img src=x onerror=alert(1)><!--<script>&\"'@DATA@";
  ReportInput input = MakeRun({});
  input.job.job.set_id(evil);
  input.job.job.set_owner(evil);
  input.job.job.set_state_reason(evil);
  input.compared[0].job.set_id(evil + "2");
  input.events[3].text = evil;
  input.job.revisions[1].revision.set_reason(evil);
  input.job.revisions[1].recipe = evil;
  input.job.record.layers[0] = evil;
  input.job.record.validation[evil] = {{3, 1.0}};
  input.spec_yaml = evil;
  input.recipe_table = evil;
  input.notes = {evil, "\xff not UTF-8"};
  const std::string page = ReportPage(ReportData(input));
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_EQ(Count(page, "</script>"), 2u);
  EXPECT_EQ(Count(page, "<script"), 2u);
  EXPECT_THAT(page, HasSubstr("<title>&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;"));
  // The data are what they were.
  const size_t from = page.find("id=\"data\">") + 10;
  const Json data = Json::parse(page.substr(from, page.find("</script>") - from));
  EXPECT_EQ(data["job"]["id"], evil);
  EXPECT_EQ(data["spec"], evil);
}

TEST(ReportPageTest, ThePageNamesNoOtherFileAndNoHost) {
  const std::string page = ReportPage(ReportData(MakeRun({})));
  for (const char* part :
       {"src=", "@import", "url(http", "fetch(", "XMLHttpRequest", "href=\"http"}) {
    EXPECT_THAT(page, Not(HasSubstr(part)));
  }
  // SVG's namespace is the only address, and nothing loads it.
  EXPECT_EQ(Count(page, "http"),
            Count(page, "http-equiv") + Count(page, "http://www.w3.org/2000/svg"));
  EXPECT_THAT(page, Not(HasSubstr("@STYLE@")));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
}

TEST(ReportPageTest, ALongRunOfADeepModelIsBelowFiveMegabytes) {
  const std::string page =
      ReportPage(ReportData(MakeRun({.steps = 100'000, .blocks = 62, .precision_every = 100})));
  EXPECT_LT(page.size(), 5'000'000u);
  EXPECT_GT(page.size(), 500'000u);
  ReportInput many = MakeRun({.steps = 100'000, .blocks = 62, .precision_every = 1000});
  while (many.compared.size() < 15) {
    many.compared.push_back(many.compared[0]);
    many.compared.back().job.set_id(absl::StrCat("other-", many.compared.size()));
  }
  EXPECT_LT(ReportPage(ReportData(many)).size(), 5'000'000u);
}

}  // namespace
}  // namespace nibble
