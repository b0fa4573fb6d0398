// The alerts of certificates fire in a real Prometheus when certificates of a real coordinator and
// a real worker have little time left, and end when these are renewed in place.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cluster/local_processes.h"
#include "common/process/spawn.h"
#include "gtest/gtest.h"
#include "tests/metrics/dashboard_queries.h"
#include "tests/metrics/prometheus_process.h"
#include "tests/processes/processes.h"
#include "tests/security/secure_coordinator.h"

namespace nibble {
namespace {

constexpr int64_t kDaySeconds = 24 * 3600;

class CertificateAlerts : public testing::Test {
 protected:
  CertificateAlerts() {
    const std::string http = absl::StrCat("127.0.0.1:", coordinator_.process().http_port());
    auto started =
        PrometheusProcess::Start("deploy/prometheus", http, coordinator_.Path("prometheus"));
    EXPECT_TRUE(started.ok()) << started.status();
    if (started.ok()) prometheus_ = std::make_unique<PrometheusProcess>(*std::move(started));
    const TlsFiles files = IssueWorker(10 * kDaySeconds - 3600);
    const auto worker = StartDetached(
        {.arguments = {BuiltProgram("worker/agent/nibble-worker"), "--coordinator",
                       coordinator_.process().address(), "--data", coordinator_.Path("w1"),
                       "--name", "w1", "--http", absl::StrCat("127.0.0.1:", *ChooseFreePort()),
                       "--tls-cert", files.certificate, "--tls-key", files.key, "--tls-ca",
                       files.authority},
         .log_path = coordinator_.Path("w1.log")});
    EXPECT_TRUE(worker.ok()) << worker.status();
    if (worker.ok()) worker_ = *worker;
  }
  ~CertificateAlerts() override {
    if (worker_.pid > 0) (void)EndProcess(worker_, std::chrono::seconds(10));
  }

  TlsFiles IssueWorker(int64_t valid_s) const {
    return coordinator_.authority().Issue("w1", {PeerKind::kWorker, "w1"}, valid_s);
  }
  bool Fires(const std::string& alert, const std::string& role,
             const std::string& certificate) const {
    const auto rules = prometheus_->Rules();
    const auto rule = rules.find(alert);
    if (rule == rules.end()) return false;
    for (const auto& one : rule->second.at("alerts")) {
      if (one.at("state") == "firing" && one.at("labels").value("role", "") == role &&
          one.at("labels").value("certificate", "") == certificate) {
        return true;
      }
    }
    return false;
  }
  void AwaitFiring(const std::string& alert, const std::string& role,
                   const std::string& certificate) const {
    EXPECT_TRUE(Eventually([&] { return Fires(alert, role, certificate); }))
        << alert << " of " << role << ", " << certificate << "\n"
        << prometheus_->Log();
  }
  void AwaitResolved(const std::string& alert, const std::string& role) const {
    EXPECT_TRUE(Eventually([&] { return !Fires(alert, role, "own"); })) << alert << " of " << role;
  }

  SecureCoordinator coordinator_{40 * kDaySeconds};
  std::unique_ptr<PrometheusProcess> prometheus_;
  ProcessIdentity worker_;
};

TEST_F(CertificateAlerts, FireBeforeCertificatesExpireAndEndWithTheirRenewal) {
  ASSERT_NE(prometheus_, nullptr);
  const std::string soon = "NibbleCertificateExpiring", now = "NibbleCertificateExpiringNow";
  AwaitFiring(soon, "worker", "own");
  EXPECT_FALSE(Fires(now, "worker", "own"));
  // The dashboards show all four.
  int shown = 0;
  for (const DashboardQuery& query :
       ReadDashboardQueries("deploy/grafana/dashboards", {{"cluster", "test"},
                                                          {"job", ".*"},
                                                          {"reference", ".*"},
                                                          {"reference_age", "1s"},
                                                          {"operand", ".*"},
                                                          {"worker", ".*"},
                                                          {"__rate_interval", "20s"}})) {
    if (!query.NeedsTls()) continue;
    ++shown;
    const std::string all = absl::StrCat("count(", query.expression, ") == 4");
    EXPECT_TRUE(Eventually([&] { return prometheus_->HasData(all).ok(); })) << all;
  }
  EXPECT_GT(shown, 0);
  // The log has said so at the start.
  EXPECT_TRUE(Eventually([&] {
    return TextOf(coordinator_.Path("w1.log")).find("w1.pem' expires in 9 days") !=
           std::string::npos;
  })) << TextOf(coordinator_.Path("w1.log"));
  // The authority of the test is valid for a day.
  AwaitFiring(now, "coordinator", "authority");
  EXPECT_FALSE(Fires(soon, "coordinator", "own"));
  coordinator_.authority().Issue("coordinator", {PeerKind::kCoordinator, ""}, 3600);
  AwaitFiring(now, "coordinator", "own");
  IssueWorker(3600);
  AwaitFiring(now, "worker", "own");

  IssueWorker(40 * kDaySeconds);
  coordinator_.authority().Issue("coordinator", {PeerKind::kCoordinator, ""}, 40 * kDaySeconds);
  for (const char* const role : {"worker", "coordinator"}) {
    AwaitResolved(now, role);
    AwaitResolved(soon, role);
  }
  AwaitFiring(now, "coordinator", "authority");
}

}  // namespace
}  // namespace nibble
