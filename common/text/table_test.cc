#include "common/text/table.h"

#include <limits>
#include <vector>

#include "common/text/text.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(TextTableTest, NumbersAreAlignedToTheRight) {
  TextTable table({"JOB", "STEP", "SIZE", "WHY"});
  table.Add({"train-7", "12", "1.5 GB", "→ waits"});
  table.Add({"b-12", "1200", "12.0 kB", ""});
  EXPECT_EQ(table.Text(),
            "JOB      STEP     SIZE  WHY\n"
            "train-7    12   1.5 GB  → waits\n"
            "b-12     1200  12.0 kB\n");
}

TEST(TextTableTest, ATableMayHaveNoHead) {
  TextTable table;
  EXPECT_EQ(table.Text(), "");
  table.Add({"bf16", "16 bit everywhere"});
  table.Add({"nvfp4-base", "FP4"});
  EXPECT_EQ(table.Text(),
            "bf16        16 bit everywhere\n"
            "nvfp4-base  FP4\n");
}

TEST(TextListTest, EveryLineOfAValueBeginsInTheSameColumn) {
  TextList list;
  list.Add("state", "running\nsince 3s");
  EXPECT_EQ(list.Text(), "state         running\n              since 3s\n");
}

TEST(SparklineTest, ValuesAreThinnedToTheWidthAndNonFiniteOnesAreMarked) {
  EXPECT_EQ(Sparkline({1, 2, 3, 4, 5, 6, 7, 8}, 40), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(Sparkline({8, 8, 8}, 40), "▁▁▁");
  EXPECT_EQ(WidthOf(Sparkline(std::vector<double>(1000, 1.0), 17)), 17u);
  EXPECT_EQ(Sparkline({1, std::numeric_limits<double>::quiet_NaN(), 2}, 40), "▁!█");
  EXPECT_EQ(Sparkline({}, 40), "");
}

TEST(ProgressBarTest, TheBarIsFullOnlyAtTheEnd) {
  EXPECT_EQ(ProgressBar(0, 10, 12), "[>         ]");
  EXPECT_EQ(ProgressBar(9, 10, 12), "[=========>]");
  EXPECT_EQ(ProgressBar(10, 10, 12), "[==========]");
  EXPECT_EQ(ProgressBar(1, 0, 2), "");
}

}  // namespace
}  // namespace nibble
