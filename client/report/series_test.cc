#include "client/report/series.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::DoubleEq;
using ::testing::Each;
using ::testing::ElementsAre;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Points Of(std::vector<double> y) {
  Points points;
  for (const double value : y) points.Add(static_cast<double>(points.size()), value);
  return points;
}

TEST(SeriesTest, SmoothingTakesTheMeanOfBothSides) {
  EXPECT_THAT(Smooth(Of({1, 2, 6, 4, 2}), 1).y,
              ElementsAre(1, DoubleEq(3), DoubleEq(4), DoubleEq(4), 2));
}

TEST(SeriesTest, SmoothingDoesNotBendATrend) {
  Points line;
  for (int i = 0; i < 50; ++i) line.Add(i, 3.0 * i);
  const Points smooth = Smooth(line, 7);
  for (size_t i = 0; i < 50; ++i) EXPECT_NEAR(smooth.y[i], line.y[i], 1e-12) << i;
}

TEST(SeriesTest, SmoothingLeavesGapsAndDoesNotCountThem) {
  const Points smooth = Smooth(Of({2, kNan, 4, 6, 8}), 1);
  EXPECT_TRUE(std::isnan(smooth.y[1]));
  EXPECT_EQ(smooth.y[2], 5);
}

TEST(SeriesTest, AThinnedCurveKeepsTheExtremesOfEachColumn) {
  Points points;
  for (int i = 0; i < 10'000; ++i) points.Add(i, std::sin(i * 0.01));
  points.y[5'003] = 9;
  points.y[5'004] = -7;
  points.y[7'000] = kNan;
  const Points thin = Thin(points, 100);
  EXPECT_LE(thin.size(), 3u * 100 + 2);
  EXPECT_EQ(thin.x.front(), 0);
  EXPECT_EQ(thin.x.back(), 9'999);
  int spikes = 0, gaps = 0;
  for (size_t i = 0; i < thin.size(); ++i) {
    if (i > 0) {
      EXPECT_LT(thin.x[i - 1], thin.x[i]);
    }
    spikes += thin.y[i] == 9 || thin.y[i] == -7 ? 1 : 0;
    gaps += std::isnan(thin.y[i]) ? 1 : 0;
  }
  EXPECT_EQ(spikes, 2);
  EXPECT_EQ(gaps, 1);
}

TEST(SeriesTest, AShortCurveIsNotThinned) {
  const Points points = Of({1, 5, 2, 4});
  EXPECT_EQ(Thin(points, 2), points);
}

TEST(SeriesTest, MeansCoverEachSampleOnce) {
  const Points means = Means(Of({1, 3, 5, 7, 9}), 2);
  EXPECT_THAT(means.y, ElementsAre(2, 7));
  EXPECT_THAT(means.x, ElementsAre(0, 3));
}

TEST(SeriesTest, CornersOfABentLineAreItsEndsAndTheBend) {
  Points line;
  for (int i = 0; i <= 10; ++i) line.Add(i, i <= 4 ? 100.0 * i : 400 + 20.0 * (i - 4));
  const Points corners = Corners(line);
  EXPECT_THAT(corners.x, ElementsAre(0, 4, 10));
  EXPECT_THAT(corners.y, ElementsAre(0, 400, 520));
}

TEST(SeriesTest, TheRelativeDifferenceIsInPercentOfTheReference) {
  const Points difference = RelativeDifference(Of({4.04, 3.0, 2.2}), Of({4.0, 3.0, 2.0}));
  EXPECT_THAT(difference.x, ElementsAre(0, 1, 2));
  EXPECT_NEAR(difference.y[0], 1, 1e-9);
  EXPECT_EQ(difference.y[1], 0);
  EXPECT_NEAR(difference.y[2], 10, 1e-9);
}

TEST(SeriesTest, CurvesWithCommonStepsAreComparedAtThese) {
  Points all, every_second;
  for (int i = 0; i < 10; ++i) {
    all.Add(i, i % 2 == 0 ? 2 : 100);
    if (i % 2 == 0) every_second.Add(i, 1);
  }
  const Points difference = RelativeDifference(every_second, all);
  EXPECT_THAT(difference.x, ElementsAre(0, 2, 4, 6, 8));
  EXPECT_THAT(difference.y, Each(-50));
}

TEST(SeriesTest, HalfOfTheShorterCurvesPointsAreEnoughToCompareAtThese) {
  Points points, reference;
  for (const double x : {0.0, 1.0, 2.0, 3.0}) points.Add(x, 2);
  for (const double x : {0.0, 1.0, 2.5, 2.75, 2.875}) reference.Add(x, 1);
  EXPECT_THAT(RelativeDifference(points, reference).x, ElementsAre(0, 1));
  reference.x[1] = 0.5;
  EXPECT_THAT(RelativeDifference(points, reference).x, ElementsAre(0, 0.5, 2.5, 2.75, 2.875));
}

TEST(SeriesTest, CurvesWithoutCommonPointsAreInterpolatedInsideOfBoth) {
  Points points, reference;
  for (int i = 0; i < 5; ++i) {
    points.Add(10 * i + 5, 10 * i + 5);
    reference.Add(10 * i, 10);
  }
  const Points difference = RelativeDifference(points, reference);
  EXPECT_THAT(difference.x, ElementsAre(10, 20, 30, 40));
  EXPECT_NEAR(difference.y[2], 200, 1e-9);
}

TEST(SeriesTest, AMedianLeavesOutWhatIsNotFinite) {
  EXPECT_EQ(Median({kNan, 5, 1, 3}), 3);
  EXPECT_TRUE(std::isnan(Median({kNan})));
}

TEST(LastMeanTest, IsOverATwentiethButAtLeastTenSamples) {
  Points points;
  for (int i = 0; i < 400; ++i) points.Add(i, i < 380 ? 100 : 3);
  EXPECT_EQ(LastMean(points).samples, 20u);
  EXPECT_EQ(LastMean(points).mean, 3);
  EXPECT_EQ(LastMean(points).error, 0);
  points.y.back() = std::nan("");
  EXPECT_EQ(LastMean(points).samples, 19u);
  Points few;
  for (int i = 0; i < 40; ++i) few.Add(i, i);
  EXPECT_EQ(LastMean(few).samples, 10u);
  EXPECT_EQ(LastMean(few).mean, 34.5);
  EXPECT_TRUE(std::isnan(LastMean(Points{}).mean));
  Points one;
  one.Add(0, 2);
  EXPECT_EQ(LastMean(one).Text(2), "2.00");
}

TEST(LastMeanTest, NeighboursThatAreCorrelatedMakeTheErrorLarger) {
  Points slow, fast;
  for (int i = 0; i < 10; ++i) {
    slow.Add(i, i < 5 ? 0 : 1);
    fast.Add(i, i % 2);
  }
  // Both have the variance 0.25 · 10 / 9. The slow one's neighbours are correlated by
  // (8 · 0.25 − 0.25) / 2.5.
  EXPECT_NEAR(LastMean(fast).error, std::sqrt(0.25 / 9), 1e-12);
  EXPECT_NEAR(LastMean(slow).error, std::sqrt(0.25 / 9 * 1.7 / 0.3), 1e-12);
  EXPECT_EQ(LastMean(fast).Text(2), "0.50 ± 0.17");
}

}  // namespace
}  // namespace nibble
