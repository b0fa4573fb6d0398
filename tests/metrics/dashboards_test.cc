// Every query of the dashboards, and every rule and alert, in a real Prometheus that scrapes a real
// cluster to which things happen: restarts, a lost worker, a changed recipe, copies of checkpoints,
// a run that diverges.
#include <signal.h>

#include <cstddef>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/metrics/dashboard_queries.h"
#include "tests/metrics/scraped_cluster.h"

namespace nibble {
namespace {

class Dashboards : public ScrapedCluster {
 protected:
  // Waits until the coordinator has launched so many attempts, as Prometheus has seen. A later one
  // is then an increase of the histogram.
  void AwaitLaunches(int count) {
    Await(absl::StrCat("nibble_job_queue_wait_seconds_count >= ", count));
  }
};

TEST_F(Dashboards, EveryQueryOfEveryPanelRuleAndAlertReturnsDataOfARealRun) {
  ASSERT_NE(prometheus_, nullptr);
  StartCardWorker();
  AwaitScrapes();
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
  const std::string broken =
      SubmitWithOptimizer("broken", "lr: 10, warmup_steps: 2, weight_decay: 10");
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
  size_t with_tls = 0;
  for (const DashboardQuery& query : queries) {
    with_tls += query.NeedsTls() ? 1 : 0;
    if (!query.NeedsTls()) missing[query.place] = query.expression;
  }
  EXPECT_EQ(missing.size() + with_tls, queries.size()) << "places are not distinct";
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

  size_t alerts = 0;
  for (const auto& [name, rule] : prometheus_->Rules()) {
    EXPECT_EQ(rule.at("health"), "ok") << name << ": " << rule.value("lastError", "");
    if (rule.at("type") == "alerting") ++alerts;
  }
  EXPECT_GE(alerts, 16u);
}

}  // namespace
}  // namespace nibble
