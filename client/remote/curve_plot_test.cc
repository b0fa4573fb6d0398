#include "client/remote/curve_plot.h"

#include <cmath>
#include <string>

#include "common/text/text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string Drawn(const std::vector<PlotCurve>& curves, const PlotArea& area) {
  std::string text;
  for (const StyledLine& line : DrawPlot(curves, area)) text += line.Text(false) + "\n";
  return text;
}

PlotCurve Falling(double from, double to, int points) {
  PlotCurve curve;
  for (int i = 0; i <= points; ++i) {
    const double loss = from + (to - from) * i / points;
    curve.points.push_back({static_cast<double>(i), loss, loss});
  }
  return curve;
}

TEST(NiceTicksTest, TicksAreRoundNumbersInTheRange) {
  EXPECT_THAT(NiceTicks(0, 10, 5), ElementsAre(0, 5, 10));
  EXPECT_THAT(NiceTicks(0, 10, 6), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(NiceTicks(2.13, 4.4, 5), ElementsAre(2.5, 3, 3.5, 4));
  EXPECT_THAT(NiceTicks(0, 123'456, 4), ElementsAre(0, 50'000, 100'000));
  EXPECT_THAT(NiceTicks(3, 3, 4), IsEmpty());
  EXPECT_THAT(NiceTicks(0, INFINITY, 4), IsEmpty());
  for (size_t most = 1; most < 12; ++most) {
    for (const double to : {0.001, 0.7, 1.0, 3.0, 99.0, 1e9}) {
      EXPECT_LE(NiceTicks(0, to, most).size(), most) << to;
    }
  }
}

TEST(NiceTicksTest, ALogarithmicScaleHasPowersOfTenOrNumbersBetween) {
  EXPECT_THAT(NiceLogTicks(1.5, 12, 5), ElementsAre(2, 5, 10));
  EXPECT_THAT(NiceLogTicks(0.001, 1000, 4),
              ElementsAre(0.001, testing::DoubleNear(0.1, 1e-9), testing::DoubleNear(10, 1e-9),
                          testing::DoubleNear(1000, 1e-6)));
  EXPECT_THAT(NiceLogTicks(2.1, 2.9, 5), ElementsAre(2.2, testing::DoubleNear(2.4, 1e-9), 2.6,
                                                     testing::DoubleNear(2.8, 1e-9)));
  EXPECT_THAT(NiceLogTicks(0, 10, 5), IsEmpty());
}

TEST(DrawPlotTest, BrailleDotsFormTheCurve) {
  PlotArea area = {.columns = 16, .rows = 4, .margin = 6, .x_from = 0, .x_to = 32, .y_to = 32};
  EXPECT_EQ(Drawn({Falling(32, 0, 32)}, area),
            R"(     │⠉⠒⠤⣀            
  20 ┤    ⠉⠒⠤⣀⡀       
     │        ⠈⠑⠢⢄⡀   
   0 ┤            ⠈⠑⠢⢄
     └┬─────────┬─────
step  0        20
)");
}

TEST(DrawPlotTest, WithoutUtf8TheCurveIsMadeOfAsciiSigns) {
  PlotArea area = {.columns = 16, .rows = 4, .margin = 6, .x_to = 32, .y_to = 32, .utf8 = false};
  EXPECT_EQ(Drawn({Falling(32, 0, 32)}, area),
            R"(     |***             
  20 +   ******       
     |        ******  
   0 +             ***
     ++---------+-----
step  0        20
)");
}

TEST(DrawPlotTest, ADashedCurveDiffersWithoutColoursAndTheLastCurveIsOnTop) {
  PlotCurve flat = {.points = {{0, 10, 10}, {32, 10, 10}}, .ascii = 'o', .dashed = true};
  PlotCurve cross = Falling(32, 0, 32);
  PlotArea area = {.columns = 16, .rows = 4, .margin = 6, .x_to = 32, .y_to = 32, .utf8 = false};
  EXPECT_EQ(Drawn({flat, cross}, area),
            R"(     |***             
  20 +   ******       
     |o o o o ******o 
   0 +             ***
     ++---------+-----
step  0        20
)");
}

TEST(DrawPlotTest, WhatIsBeyondTheAreaIsLeftOut) {
  PlotArea area = {.columns = 8,
                   .rows = 2,
                   .margin = 4,
                   .x_from = 10,
                   .x_to = 20,
                   .y_from = 5,
                   .y_to = 10,
                   .utf8 = false};
  const PlotCurve above = {.points = {{0, 20, 20}, {40, 20, 20}}};
  for (const std::string& row : {Drawn({above}, area), Drawn({}, area)}) {
    EXPECT_EQ(row.find('*'), std::string::npos);
  }
}

TEST(DrawPlotTest, EveryLineFitsAndEveryRowIsDrawnAtAnySize) {
  for (size_t columns = 1; columns < 90; ++columns) {
    for (const size_t rows : {1, 2, 7, 30}) {
      for (const bool log : {false, true}) {
        const PlotArea area = {
            .columns = columns, .rows = rows, .x_to = 1e6, .y_from = 0.5, .y_to = 12, .log = log};
        const std::vector<StyledLine> lines = DrawPlot({Falling(12, 0.5, 1000)}, area);
        ASSERT_EQ(lines.size(), rows + 2);
        for (const StyledLine& line : lines) {
          EXPECT_LE(line.width(), area.margin + columns) << line.Text(false);
        }
      }
    }
  }
  EXPECT_THAT(DrawPlot({}, {.columns = 0}), IsEmpty());
}

TEST(DrawPlotTest, ASpikeOfOneStepIsDrawnToItsHeight) {
  PlotCurve curve = Falling(2, 2, 1000);
  curve.points[500].most = 10;
  const PlotArea area = {
      .columns = 20, .rows = 6, .x_to = 1000, .y_from = 1, .y_to = 10, .utf8 = false};
  const std::vector<StyledLine> lines = DrawPlot({curve}, area);
  for (size_t row = 0; row < 5; ++row) {
    EXPECT_NE(lines[row].Text(false).find('*'), std::string::npos) << row;
  }
}

}  // namespace
}  // namespace nibble
