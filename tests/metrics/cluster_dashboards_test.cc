// `nibble cluster up --dashboards` as a user runs it, with Debian's Prometheus.
#include <stdlib.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cluster/cluster_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "tests/cluster/cluster_bed.h"
#include "tests/metrics/prometheus_process.h"
#include "tests/processes/processes.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

class ClusterDashboards : public testing::Test {
 protected:
  ClusterDashboards() {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
    fs::create_directories(root_ + "/tmp");
  }
  ~ClusterDashboards() override {
    EXPECT_EQ(Cluster("down --grace 1").code, 0);
    fs::remove_all(root_);
  }
  // The output includes standard error.
  ShellResult Cluster(const std::string& arguments, const std::string& variables = "") const {
    const ClusterPrograms programs = TestPrograms();
    const std::string flags =
        !arguments.starts_with("up")
            ? ""
            : absl::StrCat(" --coordinator-program ", programs.coordinator, " --worker-program ",
                           programs.worker, " --trainer-program ", programs.trainer);
    return Shell(absl::StrCat(variables, " TMPDIR=", root_, "/tmp NIBBLE_HOME=", root_, " ",
                              NibbleProgram(), " cluster ", arguments, flags, " 2>&1"));
  }
  // The role's entry in the output of `status`; null if there is none.
  json StatusOf(const std::string& role) const {
    const json status = Cluster("status -o json").json();
    for (const json& process : status.at("processes")) {
      if (process.at("role") == role) return process;
    }
    return nullptr;
  }

  std::string root_ = "/tmp/nibble-boards-XXXXXX";
};

TEST_F(ClusterDashboards, PrometheusScrapesTheClusterUntilDown) {
  const ShellResult up = Cluster("up --workers 2 --dashboards", "PATH=/usr/bin:/bin");
  ASSERT_EQ(up.code, 0) << up.text;
  const json process = StatusOf("prometheus");
  ASSERT_TRUE(process.is_object());
  const std::string url = process.at("url");
  EXPECT_THAT(up.text, HasSubstr("prometheus: " + url));
  EXPECT_THAT(up.text, HasSubstr("grafana: not started"));
  EXPECT_TRUE(fs::exists(root_ + "/cluster/grafana/dashboards/job.json"));
  EXPECT_THAT(Cluster("status").text, HasSubstr(url));

  const std::string address = url.substr(std::string("http://").size());
  const auto all_up = [&] { return PrometheusHasData(address, "count(up == 1) == 3").ok(); };
  EXPECT_TRUE(Eventually(all_up));
  EXPECT_TRUE(Eventually([&] { return !PrometheusRules(address).empty(); }));

  // Once more: nothing is started.
  const ShellResult again = Cluster("up --dashboards", "PATH=/usr/bin:/bin");
  EXPECT_EQ(again.code, 0) << again.text;
  EXPECT_THAT(again.text, HasSubstr("was already up"));
  EXPECT_EQ(StatusOf("prometheus").at("pid"), process.at("pid"));

  EXPECT_EQ(Cluster("down").code, 0);
  const auto record = ReadClusterRecord({root_ + "/cluster"});
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_FALSE(record->AnyAlive());
  EXPECT_EQ(Cluster("down --purge").code, 0);
  EXPECT_FALSE(fs::exists(root_ + "/cluster"));
}

TEST_F(ClusterDashboards, ASecureClusterTakesAlertsWithTheTokenOfItsPrometheusOnly) {
  const ShellResult up = Cluster("up --workers 1 --secure --dashboards", "PATH=/usr/bin:/bin");
  ASSERT_EQ(up.code, 0) << up.text;
  const auto record = ReadClusterRecord({root_ + "/cluster"});
  ASSERT_TRUE(record.ok()) << record.status();
  const std::string file = root_ + "/cluster/identity/alerts-token";
  EXPECT_THAT(TextOf(root_ + "/cluster/prometheus/prometheus.yml"),
              HasSubstr("credentials_file: '" + file + "'"));
  std::string token = TextOf(file);
  while (token.ends_with('\n')) token.pop_back();
  httplib::Client client("127.0.0.1", record->dashboards.coordinator_http);
  const auto refused = client.Post("/api/v2/alerts", "[]", "application/json");
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 401) << refused->body;
  const httplib::Headers right = {{"Authorization", "Bearer " + token}};
  const auto taken = client.Post("/api/v2/alerts", right, "[]", "application/json");
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->status, 200) << taken->body;
}

TEST_F(ClusterDashboards, WithoutPrometheusNothingStartsAndTheErrorNamesThePackage) {
  const ShellResult up = Cluster("up --dashboards", "PATH=/nonexistent");
  EXPECT_NE(up.code, 0);
  EXPECT_THAT(up.text, HasSubstr("install Debian's package prometheus"));
  EXPECT_FALSE(fs::exists(root_ + "/cluster"));
}

TEST_F(ClusterDashboards, ACoordinatorThatRunsWithoutThemIsToBeRestarted) {
  ASSERT_EQ(Cluster("up --workers 1").code, 0);
  const ShellResult up = Cluster("up --dashboards", "PATH=/usr/bin:/bin");
  EXPECT_EQ(up.code, 1);
  EXPECT_THAT(up.text, HasSubstr("run 'nibble cluster down' first"));
}

}  // namespace
}  // namespace nibble
