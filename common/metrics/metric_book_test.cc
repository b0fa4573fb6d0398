#include "common/metrics/metric_book.h"

#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/metrics/exposition_testing.h"
#include "common/metrics/program_table.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

struct Oven : ProgramTable {
  const MetricSpec& loaves = Counter("nibble_loaves_total", "loaves", {"kind", "size"}, "baked");
  const MetricSpec& heat = Gauge("nibble_heat", "kelvin", {}, "inside");
  const MetricSpec& bake =
      Histogram("nibble_bake_seconds", "seconds", {"kind"}, "in the oven", {1, 10});
};

class MetricBookTest : public testing::Test {
 protected:
  Exposition Scrape() {
    const auto read = Exposition::Parse(RenderPage(
        table_, page_, book_, {.program = "oven", .version = "1.0", .data_directory = directory_}));
    EXPECT_EQ(read.status(), absl::OkStatus());
    return read.ok() ? *read : Exposition();
  }

  const Oven table_{};
  MetricBook book_{table_};
  MetricPage page_{table_};
  std::string directory_ = testing::TempDir();
};

TEST_F(MetricBookTest, EveryRowIsExposedEvenWithoutAValue) {
  const Exposition exposed = Scrape();
  EXPECT_EQ(exposed.MissingOf(table_), std::vector<std::string>());
  EXPECT_EQ(exposed.SeriesOf("nibble_loaves_total"), 0u);
  EXPECT_EQ(exposed.Value("nibble_build_info{program=\"oven\",version=\"1.0\"}"), 1);
  EXPECT_GT(exposed.Value("nibble_process_resident_memory_bytes"), 1e5);
  EXPECT_GT(exposed.Value("nibble_process_open_fds"), 2);
  EXPECT_GT(exposed.Value("nibble_process_start_time_seconds"), 1.5e9);
}

TEST_F(MetricBookTest, TheDiskOfTheDataIsMeasuredWhereThereIsOne) {
  const Exposition exposed = Scrape();
  EXPECT_GT(exposed.Value("nibble_disk_size_bytes"), 0);
  EXPECT_LE(exposed.Value("nibble_disk_free_bytes"), exposed.Value("nibble_disk_size_bytes"));
  directory_ += "/removed";
  EXPECT_EQ(Scrape().SeriesOf("nibble_disk_size_bytes"), 0u);
  directory_.clear();
  EXPECT_EQ(Scrape().SeriesOf("nibble_disk_free_bytes"), 0u);
}

TEST_F(MetricBookTest, CountersAndHistogramsAccumulateAndGaugesAreSet) {
  book_.Add(table_.loaves, {"rye", "big"});
  book_.Add(table_.loaves, {"rye", "big"}, 2);
  book_.Add(table_.loaves, {"rye", "small"}, 0);
  book_.Observe(table_.bake, {"rye"}, 1);
  book_.Observe(table_.bake, {"rye"}, 20);
  page_.Set(table_.heat, {}, 500);
  const Exposition exposed = Scrape();
  EXPECT_EQ(exposed.Value("nibble_loaves_total{kind=\"rye\",size=\"big\"}"), 3);
  EXPECT_EQ(exposed.SeriesOf("nibble_loaves_total"), 1u);
  EXPECT_EQ(exposed.Value("nibble_bake_seconds_bucket{kind=\"rye\",le=\"1\"}"), 1);
  EXPECT_EQ(exposed.Value("nibble_bake_seconds_bucket{kind=\"rye\",le=\"10\"}"), 1);
  EXPECT_EQ(exposed.Value("nibble_bake_seconds_count{kind=\"rye\"}"), 2);
  EXPECT_EQ(exposed.Value("nibble_bake_seconds_sum{kind=\"rye\"}"), 21);
  EXPECT_EQ(exposed.Value("nibble_heat"), 500);
}

TEST_F(MetricBookTest, AHistogramCountedElsewhereIsExposed) {
  const std::vector<double> bounds = {1, 10};
  const std::vector<uint64_t> counts = {3, 0, 2};
  page_.SetHistogram(table_.bake, {"rye"}, bounds, counts, 99);
  const Exposition exposed = Scrape();
  EXPECT_EQ(exposed.Value("nibble_bake_seconds_bucket{kind=\"rye\",le=\"10\"}"), 3);
  EXPECT_EQ(exposed.Value("nibble_bake_seconds_bucket{kind=\"rye\",le=\"+Inf\"}"), 5);
  EXPECT_EQ(exposed.Value("nibble_bake_seconds_sum{kind=\"rye\"}"), 99);
}

TEST_F(MetricBookTest, NonFiniteNumbersAndAnyTextAreExposed) {
  page_.Set(table_.heat, {}, std::numeric_limits<double>::quiet_NaN());
  book_.Add(table_.loaves, {"a\"b\\c\nd", ""}, std::numeric_limits<double>::infinity());
  const Exposition exposed = Scrape();
  EXPECT_TRUE(exposed.families().at("nibble_heat").series.contains("nibble_heat"));
  EXPECT_TRUE(std::isnan(exposed.Value("nibble_heat")));
  EXPECT_EQ(exposed.SeriesOf("nibble_loaves_total"), 1u);
}

TEST_F(MetricBookTest, AFamilyIsBoundedAndDroppedValuesAreCounted) {
  for (size_t i = 0; i < MetricTable::kMaxSeries + 5; ++i) {
    book_.Add(table_.loaves, {"rye", absl::StrCat(i)});
  }
  for (size_t i = 0; i < 3; ++i) book_.Add(table_.loaves, {"rye", "0"});
  const Exposition exposed = Scrape();
  EXPECT_EQ(exposed.SeriesOf("nibble_loaves_total"), MetricTable::kMaxSeries);
  EXPECT_EQ(exposed.Value("nibble_loaves_total{kind=\"rye\",size=\"0\"}"), 4);
  EXPECT_EQ(exposed.Value("nibble_metrics_dropped_total"), 5);
}

TEST_F(MetricBookTest, APageIsEmptyAfterRendering) {
  page_.Set(table_.heat, {}, 500);
  EXPECT_EQ(Scrape().SeriesOf("nibble_heat"), 1u);
  EXPECT_EQ(Scrape().SeriesOf("nibble_heat"), 0u);
}

TEST_F(MetricBookTest, ConcurrentIncrementsAreAllCounted) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] {
      for (int j = 0; j < 1000; ++j) book_.Add(table_.loaves, {"rye", j % 2 == 0 ? "a" : "b"});
      book_.Observe(table_.bake, {absl::StrCat(i)}, 1);
    });
  }
  for (int i = 0; i < 20; ++i) Scrape();
  for (std::thread& thread : threads) thread.join();
  const Exposition exposed = Scrape();
  EXPECT_EQ(exposed.Value("nibble_loaves_total{kind=\"rye\",size=\"a\"}") +
                exposed.Value("nibble_loaves_total{kind=\"rye\",size=\"b\"}"),
            4000);
}

TEST(ExpositionTest, InvalidExpositionsAreRefused) {
  const auto code = [](const char* text) { return Exposition::Parse(text).status().code(); };
  const std::string head = "# HELP a x\n# TYPE a gauge\n";
  EXPECT_EQ(code((head + "a 1\n").c_str()), absl::StatusCode::kOk);
  for (const std::string& bad :
       {std::string("a 1\n"), head + "a 1\na 2\n", head + head, head + "a one\n", head + "a\n",
        head + "a{b=\"} 1\n", head + "a{b=\"1\",b=\"2\"} 1\n", head + "a 1"}) {
    EXPECT_EQ(code(bad.c_str()), absl::StatusCode::kInvalidArgument) << bad;
  }
  const std::string histogram = "# HELP h x\n# TYPE h histogram\nh_sum 1\n";
  EXPECT_EQ(code((histogram + "h_bucket{le=\"+Inf\"} 2\nh_count 1\n").c_str()),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble
