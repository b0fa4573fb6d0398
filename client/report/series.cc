#include "client/report/series.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_format.h"

namespace nibble {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

// The number of x that both have.
size_t CommonPoints(const Points& a, const Points& b) {
  size_t common = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a.x[i] == b.x[j]) {
      ++common;
      ++i;
      ++j;
    } else if (a.x[i] < b.x[j]) {
      ++i;
    } else {
      ++j;
    }
  }
  return common;
}

}  // namespace

size_t SmoothingReach(size_t samples) { return std::max<size_t>(1, samples / 100); }

Points Smooth(const Points& points, size_t reach) {
  const size_t n = points.size();
  // Sums and counts of the finite values before each index.
  std::vector<double> sum(n + 1, 0);
  std::vector<size_t> count(n + 1, 0);
  for (size_t i = 0; i < n; ++i) {
    const bool finite = std::isfinite(points.y[i]);
    sum[i + 1] = sum[i] + (finite ? points.y[i] : 0);
    count[i + 1] = count[i] + (finite ? 1 : 0);
  }
  Points smooth;
  smooth.x = points.x;
  smooth.y.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    const size_t side = std::min({reach, i, n - 1 - i});
    const size_t from = i - side, to = i + side + 1;
    smooth.y.push_back(std::isfinite(points.y[i])
                           ? (sum[to] - sum[from]) / static_cast<double>(count[to] - count[from])
                           : kNotANumber);
  }
  return smooth;
}

Points Thin(const Points& points, size_t columns) {
  const size_t n = points.size();
  if (columns == 0 || n <= 2 * columns) return points;
  const double first = points.x.front();
  const double width = (points.x.back() - first) / static_cast<double>(columns);
  Points thin;
  thin.Add(points.x[0], points.y[0]);
  const auto column_of = [&](size_t i) {
    return std::min(columns - 1, static_cast<size_t>((points.x[i] - first) / width));
  };
  for (size_t from = 1; from + 1 < n;) {
    const size_t column = column_of(from);
    size_t lowest = n, highest = n, gap = n, to = from;
    for (; to + 1 < n && column_of(to) == column; ++to) {
      if (!std::isfinite(points.y[to])) {
        if (gap == n) gap = to;
        continue;
      }
      if (lowest == n || points.y[to] < points.y[lowest]) lowest = to;
      if (highest == n || points.y[to] > points.y[highest]) highest = to;
    }
    std::vector<size_t> kept;
    for (const size_t i : {lowest, highest, gap}) {
      if (i < n) kept.push_back(i);
    }
    std::sort(kept.begin(), kept.end());
    kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
    for (const size_t i : kept) thin.Add(points.x[i], points.y[i]);
    from = to;
  }
  thin.Add(points.x[n - 1], points.y[n - 1]);
  return thin;
}

Points Means(const Points& points, size_t columns) {
  const size_t n = points.size();
  const size_t runs = std::min(columns, n);
  Points means;
  for (size_t run = 0; run < runs; ++run) {
    const size_t from = run * n / runs, to = (run + 1) * n / runs;
    double sum = 0;
    int count = 0;
    for (size_t i = from; i < to; ++i) {
      if (!std::isfinite(points.y[i])) continue;
      sum += points.y[i];
      ++count;
    }
    means.Add(points.x[(from + to - 1) / 2], count > 0 ? sum / count : kNotANumber);
  }
  return means;
}

Points Corners(const Points& points) {
  const size_t n = points.size();
  if (n <= 2) return points;
  const auto [low, high] = std::minmax_element(points.y.begin(), points.y.end());
  const double tolerance = (*high - *low) * 1e-9;
  Points corners;
  corners.Add(points.x[0], points.y[0]);
  // The slopes with which a line from the last corner passes all later points.
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  for (size_t i = 1; i < n; ++i) {
    const double run = points.x[i] - corners.x.back(), rise = points.y[i] - corners.y.back();
    if (rise / run < least || rise / run > most) {
      corners.Add(points.x[i - 1], points.y[i - 1]);
      least = -std::numeric_limits<double>::infinity();
      most = std::numeric_limits<double>::infinity();
      --i;
      continue;
    }
    least = std::max(least, (rise - tolerance) / run);
    most = std::min(most, (rise + tolerance) / run);
  }
  corners.Add(points.x[n - 1], points.y[n - 1]);
  return corners;
}

Points RelativeDifference(const Points& points, const Points& reference) {
  Points difference;
  if (points.size() == 0 || reference.size() == 0) return difference;
  const bool only_common =
      2 * CommonPoints(points, reference) >= std::min(points.size(), reference.size());
  size_t at = 0;  // the first of `points` that is not before x
  for (size_t i = 0; i < reference.size(); ++i) {
    const double x = reference.x[i];
    while (at < points.size() && points.x[at] < x) ++at;
    if (at == points.size()) break;
    double y = kNotANumber;
    if (points.x[at] == x) {
      y = points.y[at];
    } else if (!only_common && at > 0) {
      const double share = (x - points.x[at - 1]) / (points.x[at] - points.x[at - 1]);
      y = points.y[at - 1] + share * (points.y[at] - points.y[at - 1]);
    }
    const double percent = 100 * (y - reference.y[i]) / reference.y[i];
    if (std::isfinite(percent)) difference.Add(x, percent);
  }
  return difference;
}

std::string MeanWithError::Text(int decimals) const {
  const std::string text = absl::StrFormat("%.*f", decimals, mean);
  return std::isfinite(error) ? absl::StrFormat("%s ± %.*f", text, decimals, error) : text;
}

MeanWithError LastMean(const Points& points) {
  constexpr size_t kShare = 20, kLeast = 10;
  const size_t n = points.size();
  const size_t last = std::min(n, std::max((n + kShare - 1) / kShare, kLeast));
  std::vector<double> values(points.y.end() - static_cast<std::ptrdiff_t>(last), points.y.end());
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  MeanWithError result = {.samples = values.size()};
  if (values.empty()) return result;
  const auto count = static_cast<double>(values.size());
  result.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  if (values.size() < 2) return result;
  double squares = 0, products = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double deviation = values[i] - result.mean;
    squares += deviation * deviation;
    if (i > 0) products += deviation * (values[i - 1] - result.mean);
  }
  constexpr double kMostCorrelated = 0.99;
  const double r = squares > 0 ? std::min(std::max(products / squares, 0.0), kMostCorrelated) : 0;
  result.error = std::sqrt(squares / (count - 1) / (count * (1 - r) / (1 + r)));
  return result;
}

double Median(std::vector<double> values) {
  values.erase(std::remove_if(values.begin(), values.end(),
                              [](double value) { return !std::isfinite(value); }),
               values.end());
  if (values.empty()) return kNotANumber;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace nibble
