#include "client/cluster/cluster_report.h"

#include <nlohmann/json.hpp>
#include <string>

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

TEST(ClusterReportTest, JsonHasTheContentOfTheTable) {
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

TEST(ClusterReportTest, DashboardsAreShownWithTheirAddress) {
  LocalCluster::Status status = Example();
  status.processes.push_back({.role = "prometheus", .alive = true});
  status.processes.push_back({.role = "grafana", .alive = false});
  status.urls["prometheus"] = "http://127.0.0.1:9090";
  EXPECT_THAT(ClusterTable(status, 0), HasSubstr("http://127.0.0.1:9090\ngrafana"));
  const auto json = nlohmann::json::parse(ClusterJson(status, 0));
  EXPECT_EQ(json["processes"][3].at("url"), "http://127.0.0.1:9090");
  EXPECT_FALSE(json["processes"][4].contains("url"));
}

TEST(ClusterReportTest, CertificatesThatExpireSoonAreNamed) {
  constexpr int64_t kDayMs = int64_t{24} * 3600 * 1000;
  LocalCluster::Status status = Example();
  EXPECT_THAT(ClusterTable(status, 0), Not(HasSubstr("certificate")));
  status.certificates = {{"ca", "identity/ca.pem", 3650 * kDayMs / 1000},
                         {"coordinator", "identity/coordinator.pem", 30 * kDayMs / 1000},
                         {"worker-1", "identity/worker-1.pem", 40 * kDayMs / 1000}};
  const std::string early = ClusterTable(status, 0);
  EXPECT_THAT(early, HasSubstr("certificates the first to expire: the certificate "
                               "'identity/coordinator.pem' expires in 30 days"));
  EXPECT_THAT(early, Not(HasSubstr("worker-1.pem")));
  const std::string late = ClusterTable(status, 31 * kDayMs);
  EXPECT_THAT(late, HasSubstr("'identity/coordinator.pem' expired at 1970-01-31T00:00:00Z; renew"));
  EXPECT_THAT(late, HasSubstr("'identity/worker-1.pem' expires in 9 days"));
  EXPECT_THAT(late, Not(HasSubstr("ca.pem")));
  const auto json = nlohmann::json::parse(ClusterJson(status, 0));
  EXPECT_EQ(json.at("certificates").at("coordinator").at("expires_unix_seconds"), 2'592'000);
}

TEST(ClusterReportTest, AClusterThatIsDownShowsNoJobs) {
  LocalCluster::Status status;
  status.processes = {{.role = "coordinator"}, {.role = "worker-1"}};
  const std::string table = ClusterTable(status, 0);
  EXPECT_THAT(table, HasSubstr("not up"));
  EXPECT_THAT(table, Not(HasSubstr("jobs")));
}

}  // namespace
}  // namespace nibble
