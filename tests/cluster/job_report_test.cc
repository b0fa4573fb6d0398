// `nibble job report` of a real run: what the page shows is what the event log has.
#include <signal.h>

#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/process/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The data in the page.
json ReportOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::string begin = "id=\"data\">";
  const size_t from = page.find(begin);
  if (from == std::string::npos) return nullptr;
  const size_t length = page.find("</script>", from) - from - begin.size();
  return json::parse(page.substr(from + begin.size(), length), nullptr, false);
}

TEST(JobReport, HasTheLossesAndThePrecisionOfTheEventLogAcrossARestart) {
  ClusterBed bed({.workers = 1});
  const std::string job =
      bed.Submit({.name = "run", .steps = 2000, .every = 50, .precision_every = 100});
  bed.ExpectStep(job, 60);
  SignalProcess(bed.LiveRank(job, 0).process, SIGKILL);
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  const std::string other = bed.Submit({.name = "other", .steps = 200, .recipe = "bf16"});
  bed.ExpectState(other, v1::JOB_STATE_SUCCEEDED);

  const std::string path = bed.root() + "/report.html";
  const ShellResult made = Shell(absl::StrCat(NibbleProgram(), " job report ", job, " --compare ",
                                              other, " --server ", bed.address(), " -o ", path));
  ASSERT_EQ(made.code, 0) << made.text;
  EXPECT_THAT(made.text, HasSubstr("2000 steps, 20 precision samples"));
  const json report = ReportOf(path);
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(report["notes"], json::array());

  // Of repeated steps the last one counts.
  std::map<int64_t, double> losses;
  for (const json& step : EventsOf(bed.EventLog(job), "step")) losses[step["step"]] = step["loss"];
  const json& loss = report["jobs"][0]["loss"];
  ASSERT_EQ(loss[0].size(), losses.size());
  for (size_t i = 0; i < loss[0].size(); ++i) {
    EXPECT_NEAR(loss[1][i].get<double>(), losses.at(loss[0][i]), 1e-5) << "step " << loss[0][i];
  }
  EXPECT_EQ(report["jobs"][1]["id"], other);
  EXPECT_EQ(report["difference"]["series"][0]["steps"]["raw"][0].size(), 200u);
  EXPECT_EQ(report["precision"]["edges"].size(), 21u);
  std::set<std::string> layers, operands;
  for (const json& sample : EventsOf(bed.EventLog(job), "precision")) {
    layers.insert(sample["layer"]);
    operands.insert(sample["operand"]);
  }
  EXPECT_EQ(report["precision"]["layers"].size(), layers.size());
  EXPECT_EQ(report["precision"]["operands"].size(), operands.size());
  EXPECT_FALSE(report["parts"]["layers"].empty());
  bool restarted = false;
  for (const json& mark : report["marks"]) restarted |= mark["kind"] == "restart";
  EXPECT_TRUE(restarted);
}

TEST(JobCompare, ReadsTheEventLogsAfterARestartOfTheCoordinatorAndNamesAnAbsentWorker) {
  ClusterBed bed({.workers = 1});
  const std::string run = bed.Submit({.name = "run", .steps = 60});
  const std::string other = bed.Submit({.name = "other", .steps = 60, .recipe = "bf16"});
  bed.ExpectState(run, v1::JOB_STATE_SUCCEEDED);
  bed.ExpectState(other, v1::JOB_STATE_SUCCEEDED);
  const std::string command =
      absl::StrCat(NibbleProgram(), " job compare ", run, " ", other, " --server ", bed.address());
  const ShellResult before = Shell(absl::StrCat(command, " -o csv"));
  ASSERT_EQ(before.code, 0) << before.text;
  bed.Kill("coordinator");
  bed.Restart("coordinator");
  const ShellResult after = Shell(absl::StrCat(command, " -o csv --timeout 20"));
  EXPECT_EQ(after.code, 0);
  EXPECT_EQ(after.text, before.text);

  bed.Kill("worker-1");
  const ShellResult absent = Shell(absl::StrCat(command, " --timeout 2 2>&1"));
  EXPECT_EQ(absent.code, 102);
  EXPECT_THAT(absent.text,
              AllOf(HasSubstr(absl::StrCat(run,
                                           ": the losses of 60 steps are missing, 0 to 59: "
                                           "the event log of worker worker-1, which ran "
                                           "rank 0 in attempt 1, could not be read")),
                    HasSubstr(absl::StrCat(other, ": the losses of "))));
}

}  // namespace
}  // namespace nibble
