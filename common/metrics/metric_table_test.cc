#include "common/metrics/metric_table.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using testing::HasSubstr;

struct OneRow : MetricTable {
  OneRow(MetricKind kind, const std::string& name, const std::string& unit,
         const std::vector<std::string>& labels = {}, const std::string& help = "help") {
    if (kind == MetricKind::kCounter) Counter(name, unit, labels, help);
    if (kind == MetricKind::kGauge) Gauge(name, unit, labels, help);
    if (kind == MetricKind::kHistogram) Histogram(name, unit, labels, help, bounds);
  }
  static inline std::vector<double> bounds = {1, 2};
};

constexpr MetricKind kCounter = MetricKind::kCounter;
constexpr MetricKind kGauge = MetricKind::kGauge;
constexpr MetricKind kHistogram = MetricKind::kHistogram;

TEST(MetricTableTest, RowsThatKeepTheRulesAreAccepted) {
  for (const absl::Status& status :
       {CheckMetricTable(OneRow(kCounter, "nibble_steps_total", "steps", {"job"})),
        CheckMetricTable(OneRow(kCounter, "nibble_written_bytes_total", "bytes")),
        CheckMetricTable(OneRow(kGauge, "nibble_loss", "nats per token")),
        CheckMetricTable(OneRow(kHistogram, "nibble_wait_seconds", "seconds"))}) {
    EXPECT_EQ(status, absl::OkStatus());
  }
}

TEST(MetricTableTest, RowsThatBreakARuleAreNamed) {
  const auto fault = [](const OneRow& table) {
    return std::string(CheckMetricTable(table).message());
  };
  EXPECT_THAT(fault({kGauge, "loss", ""}), HasSubstr("'loss': the name is not nibble_"));
  EXPECT_THAT(fault({kGauge, "nibble_Loss", ""}), HasSubstr("lower-case"));
  EXPECT_THAT(fault({kCounter, "nibble_steps", ""}), HasSubstr("_total"));
  EXPECT_THAT(fault({kGauge, "nibble_steps_total", ""}), HasSubstr("_total"));
  EXPECT_THAT(fault({kGauge, "nibble_wait_ms", "ms"}), HasSubstr("ends with _ms"));
  EXPECT_THAT(fault({kGauge, "nibble_wait", "seconds"}), HasSubstr("go together"));
  EXPECT_THAT(fault({kGauge, "nibble_wait_seconds", ""}), HasSubstr("go together"));
  EXPECT_THAT(fault({kCounter, "nibble_written_total", "bytes"}), HasSubstr("go together"));
  EXPECT_THAT(fault({kGauge, "nibble_x", "", {"le"}}), HasSubstr("label 'le'"));
  EXPECT_THAT(fault({kGauge, "nibble_x", "", {"a", "a"}}), HasSubstr("label 'a'"));
  EXPECT_THAT(fault({kGauge, "nibble_x", "", {}, "a\nb"}), HasSubstr("one line"));
  OneRow::bounds = {2, 1};
  EXPECT_THAT(fault({kHistogram, "nibble_x", ""}), HasSubstr("bounds"));
  OneRow::bounds = {1, 2};
}

TEST(MetricTableTest, DurationBoundsAscendOverTheirWholeRange) {
  EXPECT_EQ(ServiceSeconds().front(), 1e-4);
  EXPECT_NEAR(ServiceSeconds().back(), 10, 1e-9);
  EXPECT_EQ(WaitingSeconds().front(), 1e-2);
  EXPECT_GT(WaitingSeconds().back(), 5000);
  for (const auto& bounds : {ServiceSeconds(), WaitingSeconds()}) {
    EXPECT_TRUE(std::is_sorted(bounds.begin(), bounds.end()));
  }
}

TEST(MetricTableTest, TheMarkdownTableHasALineForEachRow) {
  EXPECT_THAT(MetricTableMarkdown(OneRow(kCounter, "nibble_a_bytes_total", "bytes", {"x", "y"})),
              HasSubstr("| `nibble_a_bytes_total` | counter | bytes | x, y | help |\n"));
}

}  // namespace
}  // namespace nibble
