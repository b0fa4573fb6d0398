#include "client/cluster/local_dashboards.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;

class LocalDashboardsTest : public testing::Test {
 protected:
  LocalDashboardsTest() { EXPECT_NE(mkdtemp(root_.data()), nullptr); }
  ~LocalDashboardsTest() override { fs::remove_all(root_); }
  void MakeProgram(const std::string& path) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << "#!/bin/sh\n";
    fs::permissions(root_ + path, fs::perms::owner_all);
  }
  std::string Text(const std::string& path) {
    std::ifstream file(root_ + path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  std::string root_ = testing::TempDir() + "/dashboards-XXXXXX";
  const DashboardPorts ports_ = {.coordinator_http = 7711, .prometheus = 9091, .grafana = 3001};
};

TEST_F(LocalDashboardsTest, WithoutPrometheusTheErrorNamesDebiansPackage) {
  MakeProgram("/bin/grafana");
  const auto programs = FindDashboardPrograms(absl::StrCat(root_, "/none:", root_, "/bin"));
  EXPECT_TRUE(absl::IsNotFound(programs.status()));
  EXPECT_THAT(std::string(programs.status().message()), HasSubstr("apt-get install prometheus"));
}

TEST_F(LocalDashboardsTest, GrafanaIsFoundUnderEitherNameAndMayBeMissing) {
  MakeProgram("/bin/prometheus");
  EXPECT_EQ(FindDashboardPrograms(root_ + "/bin")->grafana, "");
  MakeProgram("/sbin/grafana-server");
  const std::string search = absl::StrCat(root_, "/bin::", root_, "/sbin");
  EXPECT_EQ(FindDashboardPrograms(search)->grafana, root_ + "/sbin/grafana-server");
  MakeProgram("/sbin/grafana");
  EXPECT_EQ(FindDashboardPrograms(search)->grafana, root_ + "/sbin/grafana");
  EXPECT_EQ(FindDashboardPrograms(search)->prometheus, root_ + "/bin/prometheus");
}

TEST_F(LocalDashboardsTest, FilesAreThoseOfDeployWithTheCoordinatorsAddress) {
  const ClusterPaths paths = {root_};
  ASSERT_EQ(WriteDashboardFiles(paths, ports_, ""), absl::OkStatus());
  EXPECT_THAT(Text("/prometheus/prometheus.yml"), HasSubstr("http://127.0.0.1:7711/sd"));
  EXPECT_THAT(Text("/prometheus/prometheus.yml"), HasSubstr("- targets: [127.0.0.1:7711]\n"));
  EXPECT_THAT(Text("/prometheus/prometheus.yml"), Not(HasSubstr("authorization")));
  EXPECT_THAT(Text("/prometheus/rules/alerts.yml"), HasSubstr("NibbleWorkerLost"));
  EXPECT_THAT(Text("/grafana/dashboards/job.json"), HasSubstr("\"uid\": \"nibble-job\""));
  EXPECT_THAT(Text("/grafana/provisioning/dashboards/nibble.yaml"), HasSubstr("NIBBLE_DASHBOARDS"));
  EXPECT_FALSE(fs::exists(root_ + "/prometheus/tests"));
  // Again, after a change of ports.
  DashboardPorts other = ports_;
  other.coordinator_http = 7712;
  ASSERT_EQ(WriteDashboardFiles(paths, other, "/lab/identity/alerts.token"), absl::OkStatus());
  EXPECT_THAT(Text("/prometheus/prometheus.yml"), HasSubstr("http://127.0.0.1:7712/sd"));
  EXPECT_THAT(Text("/prometheus/prometheus.yml"),
              HasSubstr("    - static_configs:\n        - targets: [127.0.0.1:7712]\n"
                        "      authorization:\n"
                        "        credentials_file: '/lab/identity/alerts.token'\n"));
}

TEST_F(LocalDashboardsTest, GrafanaGetsItsOwnFilesAndTheAddressOfPrometheus) {
  MakeProgram("/grafana-10/bin/grafana");
  fs::create_directories(root_ + "/grafana-10/conf");
  std::ofstream(root_ + "/grafana-10/conf/defaults.ini") << "\n";
  const std::string program = root_ + "/grafana-10/bin/grafana";
  const DetachedProgram started =
      DashboardProgram(kGrafanaRole, {.grafana = program}, {"/lab"}, ports_);
  EXPECT_THAT(started.arguments,
              ElementsAre(program, "server",
                          "--homepath=" + fs::canonical(root_ + "/grafana-10").string()));
  EXPECT_THAT(started.environment, Contains(Pair("GF_SERVER_HTTP_PORT", "3001")));
  EXPECT_THAT(started.environment, Contains(Pair("GF_SERVER_HTTP_ADDR", "127.0.0.1")));
  EXPECT_THAT(started.environment,
              Contains(Pair("NIBBLE_PROMETHEUS_URL", "http://127.0.0.1:9091")));
  EXPECT_THAT(started.environment,
              Contains(Pair("GF_PATHS_PROVISIONING", "/lab/grafana/provisioning")));
}

}  // namespace
}  // namespace nibble
