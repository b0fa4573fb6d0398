#include "client/export/figure_rows.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using testing::ElementsAre;

TEST(FigureRowsTest, TheColumnsAreTheFieldsThatTheMessageDeclares) {
  EXPECT_THAT(FigureColumns("step"),
              ElementsAre("time", "step", "tokens", "loss", "gradient_norm", "learning_rate",
                          "revision", "updated", "tokens_per_second", "seconds", "data_seconds",
                          "weights_seconds", "forward_seconds", "backward_seconds",
                          "reduce_seconds", "update_seconds", "bytes_sent"));
  EXPECT_THAT(FigureColumns("precision"),
              ElementsAre("time", "step", "layer", "operand", "format", "relative_error", "snr_db",
                          "underflow", "clipped", "amax", "scale_spread_octaves", "non_finite"));
}

TEST(FigureRowsTest, RowsHaveAnEmptyCellForAMissingFieldAndQuotesAroundCommas) {
  const std::vector<std::string> columns = {"time", "step", "set", "loss", "batches"};
  EXPECT_EQ(CsvHead(columns), "time,step,set,loss,batches\n");
  const auto parsed =
      ParseRunEvent(R"({"schema":1,"event":"validation","time":"2026-01-31T12:00:00.250Z",)"
                    R"("step":4,"set":"a \"b\", c","loss":"nan"})");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const RunEvent& event = *parsed;
  EXPECT_EQ(CsvRow(event, columns), "2026-01-31T12:00:00.250Z,4,\"a \"\"b\"\", c\",nan,\n");
  EXPECT_EQ(RowObject(event, columns).dump(),
            R"({"time":"2026-01-31T12:00:00.250Z","step":4,"set":"a \"b\", c","loss":"nan"})");
}

}  // namespace
}  // namespace nibble
