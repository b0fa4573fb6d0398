#include "worker/metrics/worker_metrics.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "common/metrics/exposition_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/metrics/worker_http.h"
#include "worker/metrics/worker_table.h"

namespace nibble {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class WorkerMetricsTest : public testing::Test {
 protected:
  WorkerMetricsTest()
      : metrics_({.slots = 4, .version = "1.2", .clock = [this] { return now_.load(); }}) {
    auto http = ServeWorkerHttp(metrics_, {.listen = "127.0.0.1:0"});
    EXPECT_EQ(http.status(), absl::OkStatus());
    http_ = *std::move(http);
  }
  Exposition Scrape() {
    const auto text = HttpGet(http_->port(), "/metrics");
    EXPECT_EQ(text.status(), absl::OkStatus());
    const auto read = Exposition::Parse(text.ok() ? *text : "");
    EXPECT_EQ(read.status(), absl::OkStatus());
    return read.ok() ? *read : Exposition();
  }
  absl::Status Probe(const std::string& path) { return HttpGet(http_->port(), path).status(); }

  std::atomic<double> now_ = 1000;
  WorkerMetrics metrics_;
  std::unique_ptr<HttpExposer> http_;
};

TEST_F(WorkerMetricsTest, AScrapeHasEveryRowOfTheTable) {
  const Exposition exposed = Scrape();
  EXPECT_THAT(exposed.MissingOf(WorkerRows()), IsEmpty());
  EXPECT_EQ(exposed.Value("nibble_worker_slots"), 4);
  EXPECT_EQ(exposed.Value("nibble_coordinator_connected"), 0);
}

TEST_F(WorkerMetricsTest, ReportsAreTimedUntilAnAnswerFollowsFromThem) {
  metrics_.Reported(1);
  now_ += 1;
  metrics_.Reported(2);
  metrics_.Reported(3);
  now_ += 0.5;
  metrics_.Answered(2, 10'000);
  now_ += 4;
  const Exposition exposed = Scrape();
  EXPECT_EQ(exposed.Value("nibble_coordinator_report_seconds_count"), 2);
  EXPECT_EQ(exposed.Value("nibble_coordinator_report_seconds_sum"), 2);
  EXPECT_EQ(exposed.Value("nibble_coordinator_reports_total"), 3);
  EXPECT_EQ(exposed.Value("nibble_coordinator_connected"), 1);
  EXPECT_EQ(exposed.Value("nibble_coordinator_silence_seconds"), 4);
  EXPECT_EQ(exposed.Value("nibble_coordinator_lease_seconds"), 10);
}

TEST_F(WorkerMetricsTest, ReportsOfAStreamThatEndedAreNotTimed) {
  metrics_.Reported(1);
  metrics_.StreamLost(absl::UnavailableError("gone"));
  metrics_.Reported(1);
  now_ += 1;
  metrics_.Answered(1, 10'000);
  const Exposition exposed = Scrape();
  EXPECT_EQ(exposed.Value("nibble_coordinator_report_seconds_count"), 1);
  EXPECT_EQ(exposed.Value("nibble_coordinator_streams_lost_total{code=\"UNAVAILABLE\"}"), 1);
}

TEST_F(WorkerMetricsTest, ItIsReadyWhileConnectedOrWithinTheLease) {
  EXPECT_EQ(Probe("/healthz"), absl::OkStatus());
  EXPECT_THAT(std::string(Probe("/readyz").message()), HasSubstr("not heard yet"));
  metrics_.Answered(0, 10'000);
  now_ += 60;
  EXPECT_EQ(Probe("/readyz"), absl::OkStatus());
  metrics_.Answered(0, 10'000);
  metrics_.StreamLost(absl::UnavailableError("gone"));
  now_ += 9;
  EXPECT_EQ(Probe("/readyz"), absl::OkStatus());
  now_ += 2;
  EXPECT_THAT(std::string(Probe("/readyz").message()), HasSubstr("503: the coordinator was not"));
}

TEST_F(WorkerMetricsTest, SeriesOfAJobGoWithItsGang) {
  GangFigures gang = {.job = "a-1", .attempt = 1};
  gang.ranks.push_back({.rank = 0, .phase = "running"});
  metrics_.Publish({gang});
  EXPECT_EQ(Scrape().SeriesOf("nibble_job_attempt"), 1u);
  metrics_.Publish({});
  const Exposition exposed = Scrape();
  for (const auto& [name, family] : exposed.families()) {
    for (const auto& [series, value] : family.series) {
      EXPECT_EQ(series.find("a-1"), std::string::npos) << series;
    }
  }
}

TEST_F(WorkerMetricsTest, CopiesOfShardsAreCounted) {
  metrics_.Fetched(2, 1000, absl::OkStatus());
  metrics_.Fetched(9, 10, absl::DataLossError("bad"));
  const Exposition exposed = Scrape();
  EXPECT_EQ(exposed.Value("nibble_replicas_fetched_total{result=\"done\"}"), 1);
  EXPECT_EQ(exposed.Value("nibble_replicas_fetched_total{result=\"failed\"}"), 1);
  EXPECT_EQ(exposed.Value("nibble_replica_bytes_total"), 1010);
  EXPECT_EQ(exposed.Value("nibble_replica_seconds_sum"), 2);
}

TEST_F(WorkerMetricsTest, WithoutAnAddressThereIsNoHttp) {
  const auto none = ServeWorkerHttp(metrics_, {});
  ASSERT_EQ(none.status(), absl::OkStatus());
  EXPECT_EQ(*none, nullptr);
}

TEST_F(WorkerMetricsTest, OthersAreToldWhereTheyReachIt) {
  EXPECT_EQ(AdvertisedHttp(*http_, "127.0.0.1:4000"), http_->address());
  EXPECT_EQ(AdvertisedHttp(*http_, "node7:4000"), "");  // on loopback, where they do not get
  const auto every = ServeWorkerHttp(metrics_, {.listen = "0.0.0.0:0", .insecure = true});
  ASSERT_EQ(every.status(), absl::OkStatus());
  EXPECT_EQ(AdvertisedHttp(**every, "node7:4000"), "node7:" + std::to_string((*every)->port()));
}

}  // namespace
}  // namespace nibble
