#include "docs/reference/metrics_reference.h"

#include <fstream>
#include <iterator>
#include <string>

#include "common/metrics/metric_table.h"
#include "gtest/gtest.h"
#include "server/controller/coordinator_table.h"
#include "worker/metrics/worker_table.h"

namespace nibble {
namespace {

TEST(MetricsReferenceTest, ThePageMatchesTheTables) {
  std::ifstream file("docs/reference/metrics.md", std::ios::binary);
  const std::string page{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_EQ(page, MetricsReferenceMarkdown())
      << "bazel run //docs/reference:write_metrics_reference > docs/reference/metrics.md";
}

TEST(MetricsReferenceTest, TheTablesFollowTheNamingRules) {
  EXPECT_EQ(CheckMetricTable(CoordinatorRows()), absl::OkStatus());
  EXPECT_EQ(CheckMetricTable(WorkerRows()), absl::OkStatus());
}

}  // namespace
}  // namespace nibble
