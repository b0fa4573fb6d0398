// Every query of the dashboards, and every rule and alert, in a real Prometheus that scrapes a real
// cluster to which things happen: restarts, a lost worker, a changed recipe, copies of checkpoints,
// a run that diverges.
#include <signal.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cluster/local_processes.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"
#include "tests/metrics/dashboard_queries.h"
#include "tests/metrics/prometheus_process.h"

namespace nibble {
namespace {

using nlohmann::json;

constexpr int kWorkers = 4;
constexpr char kDeploy[] = "deploy";
constexpr int64_t kEndless = 10'000'000;  // steps

class Dashboards : public testing::Test {
 protected:
  Dashboards() {
    auto started = PrometheusProcess::Start(absl::StrCat(kDeploy, "/prometheus"), http_,
                                            bed_.root() + "/prometheus");
    EXPECT_TRUE(started.ok()) << started.status();
    if (started.ok()) prometheus_ = std::make_unique<PrometheusProcess>(*std::move(started));
  }

  static std::string Local() { return absl::StrCat("127.0.0.1:", ChooseFreePort().value()); }
  void Await(const std::string& expression) {
    EXPECT_TRUE(Eventually([&] { return prometheus_->HasData(expression).ok(); }))
        << expression << "\n"
        << prometheus_->Log();
  }
  // Waits until the coordinator has launched so many attempts, as Prometheus has seen. A later one
  // is then an increase of the histogram.
  void AwaitLaunches(int count) {
    Await(absl::StrCat("nibble_job_queue_wait_seconds_count >= ", count));
  }
  // A worker without ranks.
  std::string IdleWorker() {
    std::set<std::string> idle;
    for (int number = 1; number <= kWorkers; ++number) idle.insert(WorkerRole(number));
    for (const ClusterBed::Rank& rank : bed_.LiveRanks()) idle.erase(rank.worker);
    return idle.empty() ? "" : *idle.begin();
  }

  const std::string http_ = Local();
  const std::string unreachable_ = Local();
  ClusterBed bed_{{.workers = kWorkers,
                   .slots = 2,
                   .coordinator_flags = {"--http", http_, "--notify-allow", unreachable_},
                   .worker_flags = {"--peak-flops", "1e12"}}};
  std::unique_ptr<PrometheusProcess> prometheus_;
};

TEST_F(Dashboards, EveryQueryOfEveryPanelRuleAndAlertReturnsDataOfARealRun) {
  ASSERT_NE(prometheus_, nullptr);
  Await(absl::StrCat("count(up == 1) == ", kWorkers + 1));
  // Its daemons lose their streams.
  bed_.Kill(kCoordinatorRole);
  bed_.Restart(kCoordinatorRole);

  const std::string job = bed_.Submit(
      {.name = "train",
       .ranks = 2,
       .steps = kEndless,
       .every = 50,
       .precision_every = 20,
       .more = absl::StrCat("notify: [{url: \"http://", unreachable_, "/\", on: [started]}]\n")});
  AwaitLaunches(1);
  const std::string reference = bed_.Submit({.name = "reference", .steps = kEndless, .every = 50});
  AwaitLaunches(2);
  // Every update multiplies its weights by about a hundred, until they are infinite.
  const std::string broken = bed_.SubmitSpec(absl::StrReplaceAll(
      TinyJob{.name = "broken", .steps = kEndless, .more = "guards: {max_skips: 10000000}\n"}.Yaml(
          bed_.corpus()),
      {{"lr: 0.002", "lr: 10, weight_decay: 10"}}));
  bed_.ExpectStep(broken, 100);
  bed_.ExpectStep(reference, 100);
  bed_.ExpectCopied(job);

  (void)bed_.Ask(kSetRecipe, RecipeChange(job, "fprop", "bf16"));
  Await("nibble_recipe_revisions_in_force_total > 0");
  SignalProcess(bed_.LiveRank(job, 1).process, SIGKILL);
  bed_.ExpectSeen(job, [](const JobWatch::Seen& seen) { return seen.job.attempt().number() >= 2; });
  bed_.ExpectState(job, v1::JOB_STATE_RUNNING);
  const std::string lost = IdleWorker();
  ASSERT_FALSE(lost.empty());
  bed_.Kill(lost);
  Await("nibble_workers{lease=\"lost\"} > 0");

  const std::vector<DashboardQuery> queries = ReadDashboardQueries(
      absl::StrCat(kDeploy, "/grafana/dashboards"), {{"cluster", "local"},
                                                     {"job", job},
                                                     {"reference", reference},
                                                     {"reference_age", "1s"},
                                                     {"operand", ".*"},
                                                     {"worker", ".*"},
                                                     {"__rate_interval", "20s"}});
  ASSERT_GT(queries.size(), 100u);
  std::map<std::string, std::string> missing;  // expressions without data, by place
  for (const DashboardQuery& query : queries) missing[query.place] = query.expression;
  EXPECT_EQ(missing.size(), queries.size()) << "places are not distinct";
  for (const auto& [name, rule] : prometheus_->Rules()) {
    if (rule.at("type") == "recording") missing["rule " + name] = name;
  }
  std::string last;
  EXPECT_TRUE(Eventually([&] {
    // So that there are calls, also failing ones, at any time.
    (void)bed_.Ask(kListJobs);
    v1::DescribeJobResponse none;
    (void)bed_.Call(kDescribeJob, OfJob<v1::DescribeJobRequest>("no-such-job"), &none);
    last.clear();
    for (auto at = missing.begin(); at != missing.end();) {
      const absl::Status status = prometheus_->HasData(at->second);
      if (!status.ok())
        absl::StrAppend(&last, at->first, "\n  ", at->second, "\n  ", status.ToString(), "\n");
      at = status.ok() ? missing.erase(at) : std::next(at);
    }
    return missing.empty();
  })) << last
      << bed_.Story(job);

  // The run that diverges, and the lost worker, are seen.
  const auto is_seen = [&](const std::string& alert, const std::string& of) {
    const auto rules = prometheus_->Rules();
    const auto rule = rules.find(alert);
    if (rule == rules.end()) return false;
    for (const json& one : rule->second.at("alerts")) {
      if (absl::StrContains(one.at("labels").dump(), absl::StrCat("\"", of, "\""))) return true;
    }
    return false;
  };
  for (const auto& [alert, of] :
       std::map<std::string, std::string>{{"NibbleLossNotFinite", broken},
                                          {"NibbleGuardActed", broken},
                                          {"NibbleWorkerLost", "local"}}) {
    EXPECT_TRUE(Eventually([&] { return is_seen(alert, of); })) << alert;
  }
  EXPECT_FALSE(is_seen("NibbleLossNotFinite", job));
  size_t alerts = 0;
  for (const auto& [name, rule] : prometheus_->Rules()) {
    EXPECT_EQ(rule.at("health"), "ok") << name << ": " << rule.value("lastError", "");
    if (rule.at("type") == "alerting") ++alerts;
  }
  EXPECT_GE(alerts, 16u);
}

}  // namespace
}  // namespace nibble
