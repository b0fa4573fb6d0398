#include "client/cluster/cluster_report.h"

#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using testing::HasSubstr;
using testing::Not;

LocalCluster::Status Example() {
  LocalCluster::Status status = {.address = "127.0.0.1:7700", .serves = true};
  status.processes = {{.role = "coordinator",
                       .alive = true,
                       .process = {.identity = {.pid = 41}, .started_unix_ms = 1'000}},
                      {.role = "worker-1",
                       .alive = true,
                       .process = {.identity = {.pid = 42}, .started_unix_ms = 2'000}},
                      {.role = "worker-2", .alive = false, .process = {.identity = {.pid = 43}}}};
  v1::Worker worker;
  worker.mutable_identity()->set_name("worker-1");
  worker.mutable_identity()->set_slots(4);
  worker.set_present(true);
  worker.set_mode(v1::WORKER_MODE_DRAINING);
  worker.set_used_slots(3);
  status.workers = {worker};
  status.jobs = {{v1::JOB_STATE_QUEUED, 2}, {v1::JOB_STATE_RUNNING, 1}};
  return status;
}

TEST(ClusterReportTest, TheTableHasEveryProcessAndTheJobsByState) {
  const std::string table = ClusterTable(Example(), 92'000);
  EXPECT_THAT(table, HasSubstr("127.0.0.1:7700"));
  EXPECT_THAT(table, HasSubstr("1m31s"));
  EXPECT_THAT(table, HasSubstr("present, draining, 3 of 4 slots used"));
  EXPECT_THAT(table, HasSubstr("does not run"));
  EXPECT_THAT(table, Not(HasSubstr("43")));
  EXPECT_THAT(table, HasSubstr("2 queued, 1 running"));
}

TEST(ClusterReportTest, JsonSaysTheSame) {
  const auto json = nlohmann::json::parse(ClusterJson(Example(), 92'000));
  EXPECT_EQ(json.at("address"), "127.0.0.1:7700");
  EXPECT_EQ(json.at("serves"), true);
  ASSERT_EQ(json.at("processes").size(), 3u);
  EXPECT_EQ(json["processes"][0].at("pid"), 41);
  EXPECT_EQ(json["processes"][0].at("uptime_seconds"), 91.0);
  EXPECT_EQ(json["processes"][1].at("mode"), "draining");
  EXPECT_EQ(json["processes"][1].at("used_slots"), 3);
  EXPECT_EQ(json["processes"][2].at("alive"), false);
  EXPECT_FALSE(json["processes"][2].contains("pid"));
  EXPECT_EQ(json.at("jobs").at("running"), 1);
}

TEST(ClusterReportTest, AClusterThatIsDownHasNoJobsToTellOf) {
  LocalCluster::Status status;
  status.processes = {{.role = "coordinator"}, {.role = "worker-1"}};
  const std::string table = ClusterTable(status, 0);
  EXPECT_THAT(table, HasSubstr("not up"));
  EXPECT_THAT(table, Not(HasSubstr("jobs")));
}

}  // namespace
}  // namespace nibble
