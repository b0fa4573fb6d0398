// Curves of a report: smoothing, thinning and comparison.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_REPORT_SERIES_H_
#define NIBBLE_CLIENT_REPORT_SERIES_H_

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace nibble {

// A curve. x ascends strictly and is finite; a y that is not finite is a gap. Equal sizes.
struct Points {
  std::vector<double> x, y;

  size_t size() const { return x.size(); }
  void Add(double at, double value) {
    x.push_back(at);
    y.push_back(value);
  }
  friend bool operator==(const Points&, const Points&) = default;
};

// Samples on each side of a mean: 1 % of the curve's, at least 1.
size_t SmoothingReach(size_t samples);

// The mean of each sample and up to `reach` finite ones on each side; near the ends of the curve
// both sides are as short as the shorter one, so that a trend is not bent. Gaps stay gaps.
Points Smooth(const Points& points, size_t reach);

// For each of `columns` equal parts of the range its lowest and its highest point, in order, so
// that the thinned curve covers the same pixels; a part with a gap keeps one. The first and last
// points stay. A curve of at most 2 × `columns` points is returned unchanged.
Points Thin(const Points& points, size_t columns);

// The means of at most `columns` runs of about equally many samples, at the run's middle sample.
Points Means(const Points& points, size_t columns);

// Without the points on the straight line between their neighbours, to within 1e-9 of the y range.
Points Corners(const Points& points);

// 100 · (y − reference) / reference. At the x that both have, if these are at least half of the
// shorter curve's; otherwise at the reference's x inside of both ranges, with y on the straight
// line between the neighbouring points. Points that are not finite are left out.
Points RelativeDifference(const Points& points, const Points& reference);

// A mean with its standard error.
struct MeanWithError {
  double mean = std::numeric_limits<double>::quiet_NaN();   // NaN: no sample is finite
  double error = std::numeric_limits<double>::quiet_NaN();  // NaN: below two samples
  size_t samples = 0;                                       // finite ones

  // "2.6134 ± 0.0021", with this number of decimals; without an error that is not known.
  std::string Text(int decimals) const;
};
// Of the last twentieth of the curve's samples, but at least of ten. Neighbouring samples of a run
// are correlated: n of them count as n · (1 − r) / (1 + r), with r the correlation of neighbours
// if it is positive.
MeanWithError LastMean(const Points& points);

// The middle value of the finite ones; NaN if there are none.
double Median(std::vector<double> values);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REPORT_SERIES_H_
