#include "worker/metrics/worker_metrics.h"

#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/metrics/exposition_testing.h"
#include "common/metrics/http_exposer.h"
#include "common/metrics/program_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/metrics/worker_table.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

Exposition Exposed(const std::vector<GangFigures>& gangs, const FigureLimits& limits = {}) {
  MetricPage page(WorkerRows());
  FillGangs(gangs, limits, page);
  const auto read = Exposition::Parse(RenderPage(WorkerRows(), page, MetricBook(WorkerRows()),
                                                 {.program = "worker", .version = "1"}));
  EXPECT_EQ(read.status(), absl::OkStatus());
  return read.ok() ? *read : Exposition();
}

GangFigures Gang(const std::string& job, int ranks) {
  GangFigures gang = {.job = job, .attempt = 3, .world = ranks, .planned_steps = 100};
  for (int rank = 0; rank < ranks; ++rank) {
    RankFigures& figures = gang.ranks.emplace_back();
    figures.rank = rank;
    figures.phase = "running";
    figures.log_bytes = 1000 + rank;
    figures.report.set_next_step(11);
    figures.report.set_memory_bytes(5000);
    figures.report.mutable_totals()->mutable_sums()->set_forward_seconds(0.5 + rank);
    figures.report.mutable_totals()->mutable_sums()->set_step_seconds(3.5 + rank);
    link::v1::CheckpointTotals& checkpoints = *figures.report.mutable_checkpoints();
    checkpoints.set_stored(2);
    checkpoints.set_bytes(100);
    checkpoints.set_stall_seconds(0.25 * (rank + 1));
  }
  link::v1::RankReport& report = gang.ranks[0].report;
  v1::StepSample& sample = *report.mutable_sample();
  sample.set_loss(2.5);
  sample.set_tokens(1100);
  sample.set_tokens_per_second(200);
  sample.set_step_seconds(0.75);
  sample.set_revision(2);
  sample.set_revision_first_step(7);
  link::v1::GuardTotal& total = *report.add_guards();
  total.set_guard("spike");
  total.set_action("observed");
  total.set_decisions(3);
  for (const char* const reason : {"one", "another"}) {
    link::v1::ProductPath& product = *report.add_products();
    product.set_gemm("fprop");
    product.set_path("emulated BF16");
    product.set_reason(reason);
    product.set_linears(20);
  }
  report.mutable_totals()->set_steps(6);
  report.mutable_totals()->set_tokens(600);
  report.mutable_totals()->set_skipped(1);
  return gang;
}

std::shared_ptr<const RankFigures::Precision> Precision(int layers) {
  auto samples = std::make_shared<RankFigures::Precision>();
  for (int layer = 0; layer < layers; ++layer) {
    for (const char* const operand : {"fprop.weight", "fprop.activation"}) {
      link::v1::PrecisionSample& sample = *samples->Add();
      sample.set_step(8);
      sample.set_layer(absl::StrCat("blocks.", layer));
      sample.set_operand(operand);
      sample.set_format("nvfp4");
      sample.set_relative_error(0.1);
      sample.set_underflow(0.01);
      sample.set_amax(4.0 + layer);
    }
  }
  return samples;
}

TEST(GangFiguresTest, AJobsFiguresAreThoseOfItsRankZero) {
  const Exposition exposed = Exposed({Gang("a-1", 2)});
  EXPECT_EQ(exposed.Value("nibble_job_loss{job=\"a-1\"}"), 2.5);
  EXPECT_EQ(exposed.Value("nibble_job_steps_total{job=\"a-1\"}"), 6);
  EXPECT_EQ(exposed.Value("nibble_job_tokens_total{job=\"a-1\"}"), 600);
  EXPECT_EQ(exposed.Value("nibble_job_trained_tokens{job=\"a-1\"}"), 1100);
  EXPECT_EQ(exposed.Value("nibble_job_skipped_updates_total{job=\"a-1\"}"), 1);
  EXPECT_EQ(exposed.Value("nibble_job_next_step{job=\"a-1\"}"), 11);
  EXPECT_EQ(exposed.Value("nibble_job_planned_steps{job=\"a-1\"}"), 100);
  EXPECT_EQ(exposed.Value("nibble_job_recipe_revision{job=\"a-1\"}"), 2);
  EXPECT_EQ(exposed.Value("nibble_job_recipe_first_step{job=\"a-1\"}"), 7);
  EXPECT_EQ(exposed.Value("nibble_job_step_seconds{job=\"a-1\"}"), 0.75);
  EXPECT_EQ(exposed.Value("nibble_job_attempt{job=\"a-1\"}"), 3);
  EXPECT_EQ(exposed.Value("nibble_job_products{gemm=\"fprop\",job=\"a-1\","
                          "path=\"emulated BF16\"}"),
            40);
  EXPECT_EQ(exposed.Value("nibble_job_guard_decisions_total{action=\"observed\","
                          "guard=\"spike\",job=\"a-1\"}"),
            3);
  EXPECT_EQ(exposed.Value("nibble_job_ranks{job=\"a-1\",phase=\"running\"}"), 2);
  EXPECT_EQ(exposed.Value("nibble_worker_slots_used"), 2);
}

TEST(GangFiguresTest, PromtoolFindsNoFault) {
  GangFigures gang = Gang("a-1", 2);
  gang.flops_per_token = 1e6;
  gang.ranks[0].precision = Precision(10);
  MetricPage page(WorkerRows());
  FillGangs({gang}, {.peak_flops = 1e9}, page);
  const absl::Status checked = PromtoolCheck(RenderPage(
      WorkerRows(), page, MetricBook(WorkerRows()), {.program = "worker", .version = "1"}));
  if (absl::IsNotFound(checked)) GTEST_SKIP() << checked;
  EXPECT_EQ(checked, absl::OkStatus());
}

TEST(GangFiguresTest, EachRankHasItsOwnSeries) {
  GangFigures gang = Gang("a-1", 2);
  gang.ranks[1].hung = true;
  const Exposition exposed = Exposed({gang});
  EXPECT_EQ(exposed.Value("nibble_rank_step_part_seconds_total{job=\"a-1\",part=\"forward\","
                          "rank=\"1\"}"),
            1.5);
  EXPECT_EQ(exposed.Value("nibble_rank_steps_seconds_total{job=\"a-1\",rank=\"1\"}"), 4.5);
  EXPECT_EQ(exposed.Value("nibble_rank_log_bytes_total{job=\"a-1\",rank=\"1\"}"), 1001);
  EXPECT_EQ(exposed.Value("nibble_rank_memory_bytes{job=\"a-1\",rank=\"0\"}"), 5000);
  EXPECT_EQ(exposed.Value("nibble_job_ranks_hung{job=\"a-1\"}"), 1);
  EXPECT_EQ(exposed.Value("nibble_job_checkpoint_bytes_total{job=\"a-1\"}"), 200);
  EXPECT_EQ(exposed.Value("nibble_job_checkpoints_total{job=\"a-1\",result=\"stored\"}"), 2);
  EXPECT_EQ(exposed.Value("nibble_job_checkpoint_stall_seconds_total{job=\"a-1\"}"), 0.5);
}

TEST(GangFiguresTest, WithoutRankZeroThereAreNoFiguresOfTraining) {
  GangFigures gang = Gang("a-1", 2);
  gang.ranks.erase(gang.ranks.begin());
  const Exposition exposed = Exposed({gang});
  EXPECT_EQ(exposed.SeriesOf("nibble_job_loss"), 0u);
  EXPECT_EQ(exposed.SeriesOf("nibble_job_steps_total"), 0u);
  EXPECT_EQ(exposed.SeriesOf("nibble_rank_memory_bytes"), 1u);
}

TEST(GangFiguresTest, MfuIsKnownIfTheModelAndTheSlotsAre) {
  GangFigures gang = Gang("a-1", 2);
  gang.flops_per_token = 1e6;
  EXPECT_EQ(Exposed({gang}).SeriesOf("nibble_job_mfu_ratio"), 0u);
  const Exposition exposed = Exposed({gang}, {.peak_flops = 1e9});
  EXPECT_DOUBLE_EQ(exposed.Value("nibble_job_mfu_ratio{job=\"a-1\"}"), 200 * 1e6 / 2e9);
  EXPECT_EQ(exposed.Value("nibble_job_model_flops_total{job=\"a-1\"}"), 6e8);
}

TEST(GangFiguresTest, ASampleOfTheLayersIsShownOrAll) {
  GangFigures gang = Gang("a-1", 1);
  gang.ranks[0].precision = Precision(100);
  const Exposition some = Exposed({gang}, {.precision_layers = 16});
  EXPECT_EQ(some.SeriesOf("nibble_precision_amax"), 32u);
  EXPECT_EQ(some.Value("nibble_precision_amax{job=\"a-1\",layer=\"blocks.99\","
                       "operand=\"fprop.weight\"}"),
            103);
  EXPECT_EQ(some.Value("nibble_precision_layers{job=\"a-1\",shown=\"yes\"}"), 16);
  EXPECT_EQ(some.Value("nibble_precision_layers{job=\"a-1\",shown=\"no\"}"), 84);
  EXPECT_EQ(some.Value("nibble_precision_step{job=\"a-1\"}"), 8);
  EXPECT_EQ(some.Value("nibble_precision_format_info{format=\"nvfp4\",job=\"a-1\","
                       "layer=\"blocks.0\",operand=\"fprop.weight\"}"),
            1);
  const Exposition all = Exposed({gang}, {.precision_layers = 0});
  EXPECT_EQ(all.SeriesOf("nibble_precision_amax"), 200u);
}

TEST(GangFiguresTest, ThousandsOfLayersAreBoundedAndDroppedSeriesAreCounted) {
  GangFigures gang = Gang("a-1", 1);
  gang.ranks[0].precision = Precision(4000);
  const Exposition exposed = Exposed({gang}, {.precision_layers = 0});
  EXPECT_EQ(exposed.SeriesOf("nibble_precision_amax"), MetricTable::kMaxSeries);
  EXPECT_GT(exposed.Value("nibble_metrics_dropped_total"), 0);
}

TEST(GangFiguresTest, OfTwoAttemptsTheNewerRepresentsTheJob) {
  GangFigures old = Gang("a-1", 2);
  old.attempt = 2;
  old.ranks[0].report.mutable_sample()->set_loss(9);
  const Exposition exposed = Exposed({Gang("a-1", 2), old, Gang("b-2", 1)});
  EXPECT_EQ(exposed.Value("nibble_job_loss{job=\"a-1\"}"), 2.5);
  EXPECT_EQ(exposed.SeriesOf("nibble_job_loss"), 2u);
}

TEST(GangFiguresTest, IndicesAreEvenlySpreadAndIncludeBothEnds) {
  EXPECT_THAT(EvenlySpread(10, 4), ElementsAre(0, 3, 6, 9));
  EXPECT_THAT(EvenlySpread(3, 16), ElementsAre(0, 1, 2));
  EXPECT_THAT(EvenlySpread(3, 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(EvenlySpread(5, 1), ElementsAre(0));
  EXPECT_THAT(EvenlySpread(0, 4), ElementsAre());
}

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

TEST_F(WorkerMetricsTest, TrashCountsAsFreeSpaceOfTheDisk) {
  constexpr double kPebibyte = 0x1p50;  // more than others write meanwhile
  WorkerMetrics metrics({.data_directory = testing::TempDir(), .clock = [] { return 0.0; }});
  EXPECT_LT(Exposition::Parse(metrics.Page())->Value("nibble_disk_free_bytes"), kPebibyte);
  metrics.PublishTrash(int64_t{1} << 50);
  const auto exposed = Exposition::Parse(metrics.Page());
  EXPECT_EQ(exposed->Value("nibble_worker_trash_bytes"), kPebibyte);
  EXPECT_GE(exposed->Value("nibble_disk_free_bytes"), kPebibyte);
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
  EXPECT_THAT(std::string(Probe("/readyz").message()), HasSubstr("has not answered yet"));
  metrics_.Answered(0, 10'000);
  now_ += 60;
  EXPECT_EQ(Probe("/readyz"), absl::OkStatus());
  metrics_.Answered(0, 10'000);
  metrics_.StreamLost(absl::UnavailableError("gone"));
  now_ += 9;
  EXPECT_EQ(Probe("/readyz"), absl::OkStatus());
  now_ += 2;
  EXPECT_THAT(std::string(Probe("/readyz").message()), HasSubstr("503: the coordinator has not"));
}

TEST_F(WorkerMetricsTest, SeriesOfAJobAreRemovedWithItsGang) {
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

TEST_F(WorkerMetricsTest, TheAdvertisedAddressIsOneThatOthersReach) {
  EXPECT_EQ(AdvertisedHttp(*http_, "127.0.0.1:4000"), http_->address());
  EXPECT_EQ(AdvertisedHttp(*http_, "node7:4000"), "");  // on loopback, which others cannot reach
  const auto every = ServeWorkerHttp(metrics_, {.listen = "0.0.0.0:0", .insecure = true});
  ASSERT_EQ(every.status(), absl::OkStatus());
  EXPECT_EQ(AdvertisedHttp(**every, "node7:4000"), "node7:" + std::to_string((*every)->port()));
}

TEST(CardFiguresTest, AreShownUntilTheirDriverHangs) {
  double now = 100;
  WorkerMetrics metrics({.clock = [&] { return now; }, .card_seconds = 30});
  EXPECT_THAT(metrics.Page(), Not(HasSubstr("nibble_card_power_watts{")));
  metrics.PublishCards({{.card = "0",
                         .figures = {{&WorkerRows().card_power, "", 650},
                                     {&WorkerRows().card_clock, "sm", 1.5e9}}}});
  EXPECT_THAT(metrics.Page(), HasSubstr("nibble_card_power_watts{card=\"0\"} 650"));
  EXPECT_THAT(metrics.Page(), HasSubstr("nibble_card_clock_hertz{card=\"0\",clock=\"sm\"}"));
  now = 131;
  EXPECT_THAT(metrics.Page(), Not(HasSubstr("nibble_card_power_watts{")));
}

}  // namespace
}  // namespace nibble
