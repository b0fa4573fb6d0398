// Alerts of a real Prometheus about a real job reach the URL in the job's spec, signed.
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "server/metrics/coordinator_http.h"
#include "server/notify/post_plan.h"
#include "server/notify/testing.h"
#include "tests/metrics/scraped_cluster.h"

namespace nibble {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr char kSecret[] = "a secret of both sides";

// What the coordinator's flags name, so it exists before the cluster.
struct Posts {
  Posts() { std::ofstream(secret_file) << kSecret << "\n"; }

  TestReceiver receiver;
  const std::string secret_file = testing::TempDir() + "/notify-secret";
};

class AlertPosts : private Posts, public ScrapedCluster {
 protected:
  AlertPosts()
      : ScrapedCluster(
            {.workers = 1,
             .slots = 1,
             .coordinator_flags = {"--notify-allow", absl::StrCat("127.0.0.1:", receiver.port()),
                                   "--notify-secret-file", secret_file}}) {}

  std::string Submit(const std::string& name, const std::string& optimizer) {
    const TinyJob job = {.name = name,
                         .steps = kEndless,
                         .more = absl::StrCat("guards: {max_skips: 10000000}\nnotify: [{url: \"",
                                              receiver.Url(), "\", on: [alert]}]\n")};
    return bed_.SubmitSpec(
        absl::StrReplaceAll(job.Yaml(bed_.corpus()), {{"lr: 0.002, warmup_steps: 2", optimizer}}));
  }
  // The posted alerts of this name, whose signatures are right.
  std::vector<json> Posted(const std::string& name) {
    std::vector<json> posted;
    for (size_t i = 0; i < receiver.count(); ++i) {
      const std::string request = receiver.Request(i);
      const std::string text = TestReceiver::BodyOf(request);
      EXPECT_THAT(request, HasSubstr(absl::StrCat(
                               "X-Nibble-Signature: ", PostSignature(kSecret, text), "\r\n")));
      const json body = json::parse(text);
      EXPECT_EQ(body.at("event"), "alert") << text;
      if (body.at("alert").at("name") == name) posted.push_back(body);
    }
    return posted;
  }
};

TEST_F(AlertPosts, AnAlertIsPostedWhenItFiresAndWhenItIsResolved) {
  ASSERT_NE(prometheus_, nullptr);
  AwaitScrapes();
  // Every update multiplies its weights by about a hundred, until they are infinite.
  const std::string job = Submit("broken", "lr: 10, warmup_steps: 2, weight_decay: 10");
  constexpr char kName[] = "NibbleLossNotFinite";
  ASSERT_TRUE(Eventually([&] { return Posted(kName).size() == 1; })) << prometheus_->Log();
  const json fired = Posted(kName).front();
  EXPECT_EQ(fired.at("job"), job);
  EXPECT_EQ(fired.at("author"), "prometheus");
  EXPECT_EQ(fired.at("alert").at("status"), "firing");
  EXPECT_EQ(fired.at("alert").at("severity"), "page");
  EXPECT_THAT(fired.at("alert").at("summary").get<std::string>(), HasSubstr(job));
  EXPECT_THAT(fired.at("alert").at("runbook_url").get<std::string>(),
              HasSubstr("#nibblelossnotfinite"));
  const auto alerts = bed_.Describe(job).alerts();
  EXPECT_TRUE(std::any_of(alerts.begin(), alerts.end(),
                          [&](const v1::JobAlert& alert) { return alert.name() == kName; }));

  (void)bed_.AskAbout(job, kKillJob);
  ASSERT_TRUE(Eventually([&] { return Posted(kName).size() == 2; })) << prometheus_->Log();
  const json resolved = Posted(kName).back();
  EXPECT_EQ(resolved.at("alert").at("status"), "resolved");
  EXPECT_EQ(resolved.at("alert").at("starts"), fired.at("alert").at("starts"));
  EXPECT_GT(resolved.at("alert").at("ends"), fired.at("alert").at("starts"));

  httplib::Client client("http://" + http_);
  const auto garbage = client.Post(kAlertsPath, R"([{"labels": 3}])", "application/json");
  ASSERT_TRUE(garbage);
  EXPECT_EQ(garbage->status, 400);
  EXPECT_EQ(garbage->body, "alerts[0].labels: is not an object\n");
}

}  // namespace
}  // namespace nibble
