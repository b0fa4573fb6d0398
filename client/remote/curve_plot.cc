#include "client/remote/curve_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/text/text.h"

namespace nibble {
namespace {

constexpr size_t kRowsPerTick = 3;
constexpr size_t kColumnsPerTick = 12;

// Bits of a braille character by row and column of its dots; U+2800 has none.
constexpr uint8_t kBrailleDots[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};

std::string Braille(uint8_t dots) {
  // U+2800 + dots in UTF-8.
  return {static_cast<char>(0xe2), static_cast<char>(0xa0 + (dots >> 6)),
          static_cast<char>(0x80 + (dots & 0x3f))};
}

// 1, 2 or 5 times a power of ten, the smallest that gives at most `most` ticks.
double TickDistance(double span, size_t most) {
  const double least = span / static_cast<double>(std::max<size_t>(1, most));
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    // At most floor(span / distance) + 1 ticks.
    if (std::floor(span / (factor * power) + 1e-9) + 1 <= static_cast<double>(most)) {
      return factor * power;
    }
  }
  return 10 * power;
}

// As many decimals as it takes to tell ticks apart.
std::string TickLabel(double value, const std::vector<double>& ticks) {
  double distance = HUGE_VAL;
  for (size_t i = 1; i < ticks.size(); ++i) distance = std::min(distance, ticks[i] - ticks[i - 1]);
  if (!std::isfinite(distance) || distance <= 0) distance = std::abs(value) > 0 ? value / 10 : 1;
  if (std::abs(value) >= 1e6 || distance < 1e-5) return absl::StrFormat("%.1e", value);
  const int decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(distance) - 1e-9)));
  return absl::StrFormat("%.*f", decimals, value);
}

// The dots of all curves: each of `across` by `down` cells has `wide` by `high` dots.
class Canvas {
 public:
  explicit Canvas(const PlotArea& area)
      : area_(area), wide_(area.utf8 ? 2 : 1), high_(area.utf8 ? 4 : 1) {
    cells_.resize(area.columns * area.rows);
  }

  void Draw(const PlotCurve& curve) {
    // The range of the curve in each column of dots.
    struct Extent {
      bool set = false;
      double low = 0, high = 0;  // in rows of dots from the bottom
    };
    std::vector<Extent> extents(area_.columns * wide_);
    if (extents.empty()) return;
    std::optional<PlotPoint> before;
    for (const PlotPoint& point : curve.points) {
      if (point.x >= area_.x_from && point.x <= area_.x_to) {
        Extent& extent = extents[DotColumn(point.x)];
        const double low = DotRow(point.least), high = DotRow(point.most);
        extent.low = extent.set ? std::min(extent.low, low) : low;
        extent.high = extent.set ? std::max(extent.high, high) : high;
        extent.set = true;
      }
      if (before) Connect(*before, point, extents);
      before = point;
    }
    double last_low = 0, last_high = 0;
    bool connects = false;
    for (size_t column = 0; column < extents.size(); ++column) {
      const Extent& extent = extents[column];
      if (!extent.set) {
        connects = false;
        continue;
      }
      double low = extent.low, high = extent.high;
      // Fill the step from the column before.
      if (connects && low > last_high + 1) low = last_high + 1;
      if (connects && high < last_low - 1) high = last_low - 1;
      last_low = extent.low;
      last_high = extent.high;
      connects = true;
      if (curve.dashed && column / wide_ % 2 == 1) continue;
      Fill(curve, column, low, high);
    }
  }

  StyledLine Row(size_t row) const {
    StyledLine line;
    for (size_t column = 0; column < area_.columns; ++column) {
      const Cell& cell = cells_[row * area_.columns + column];
      if (cell.dots == 0) {
        line.Add(" ");
      } else {
        line.Add(area_.utf8 ? Braille(cell.dots) : std::string(1, cell.ascii), cell.ink);
      }
    }
    return line;
  }

 private:
  struct Cell {
    uint8_t dots = 0;
    Ink ink = Ink::kPlain;
    char ascii = ' ';
  };

  size_t DotColumn(double x) const {
    const double share = (x - area_.x_from) / (area_.x_to - area_.x_from);
    const double columns = static_cast<double>(area_.columns * wide_);
    return static_cast<size_t>(std::clamp(std::floor(share * columns), 0.0, columns - 1));
  }

  // May be outside of the area.
  double DotRow(double y) const {
    double share = 0;
    if (area_.log) {
      share = std::log(std::max(y, 1e-300) / area_.y_from) / std::log(area_.y_to / area_.y_from);
    } else {
      share = (y - area_.y_from) / (area_.y_to - area_.y_from);
    }
    return std::round(share * static_cast<double>(area_.rows * high_ - 1));
  }

  // Interpolates the columns between two points that have no point of their own.
  template <class Extents>
  void Connect(const PlotPoint& from, const PlotPoint& to, Extents& extents) const {
    if (to.x < area_.x_from || from.x > area_.x_to) return;
    const size_t first = DotColumn(from.x), last = DotColumn(to.x);
    const double from_row = 0.5 * (DotRow(from.least) + DotRow(from.most));
    const double to_row = 0.5 * (DotRow(to.least) + DotRow(to.most));
    for (size_t column = first + 1; column < last; ++column) {
      const double share = static_cast<double>(column - first) / static_cast<double>(last - first);
      auto& extent = extents[column];
      if (extent.set) continue;
      extent.set = true;
      extent.low = extent.high = std::round(from_row + share * (to_row - from_row));
    }
  }

  void Fill(const PlotCurve& curve, size_t dot_column, double low, double high) {
    const double top = static_cast<double>(area_.rows * high_ - 1);
    low = std::ceil(std::max(0.0, low));
    high = std::floor(std::min(top, high));
    for (double dot = low; dot <= high; ++dot) {
      const size_t from_top = area_.rows * high_ - 1 - static_cast<size_t>(dot);
      Cell& cell = cells_[from_top / high_ * area_.columns + dot_column / wide_];
      cell.dots |= kBrailleDots[from_top % high_][dot_column % wide_];
      cell.ink = curve.ink;
      cell.ascii = curve.ascii;
    }
  }

  const PlotArea& area_;
  const size_t wide_, high_;
  std::vector<Cell> cells_;
};

// The labels of the y axis by row; "" for rows without a tick.
std::vector<std::string> YLabels(const PlotArea& area) {
  std::vector<std::string> labels(area.rows);
  const size_t most = std::max<size_t>(2, (area.rows + 1) / kRowsPerTick + 1);
  const std::vector<double> ticks = area.log ? NiceLogTicks(area.y_from, area.y_to, most)
                                             : NiceTicks(area.y_from, area.y_to, most);
  for (const double tick : ticks) {
    const double share = area.log ? std::log(tick / area.y_from) / std::log(area.y_to / area.y_from)
                                  : (tick - area.y_from) / (area.y_to - area.y_from);
    const double row = std::round((1 - share) * static_cast<double>(area.rows - 1));
    std::string& label =
        labels[static_cast<size_t>(std::clamp(row, 0.0, static_cast<double>(area.rows - 1)))];
    if (label.empty()) label = TickLabel(tick, ticks);
  }
  return labels;
}

}  // namespace

std::vector<double> NiceTicks(double from, double to, size_t most) {
  std::vector<double> ticks;
  if (!(to > from) || !std::isfinite(to - from) || most == 0) return ticks;
  const double distance = TickDistance(to - from, most);
  const double first = std::ceil(from / distance - 1e-9);
  const double last = std::floor(to / distance + 1e-9);
  // + 0.0 makes 0 of -0.
  for (double i = first; i <= last && ticks.size() < most; ++i) ticks.push_back(i * distance + 0.0);
  return ticks;
}

std::vector<double> NiceLogTicks(double from, double to, size_t most) {
  if (!(from > 0) || !(to > from) || !std::isfinite(to)) return {};
  std::vector<double> all, powers;
  for (double power = std::pow(10, std::floor(std::log10(from))); power <= to; power *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * power;
      if (tick < from * (1 - 1e-9) || tick > to * (1 + 1e-9)) continue;
      all.push_back(tick);
      if (factor == 1) powers.push_back(tick);
    }
  }
  if (all.size() < 3) return NiceTicks(from, to, most);
  if (all.size() <= most) return all;
  if (powers.size() < 2) return NiceTicks(from, to, most);
  std::vector<double> kept;
  const size_t stride = (powers.size() + most - 1) / std::max<size_t>(1, most);
  for (size_t i = 0; i < powers.size(); i += stride) kept.push_back(powers[i]);
  return kept;
}

size_t PlotColumn(const PlotArea& area, double x) {
  if (area.columns == 0) return 0;
  const double share = (x - area.x_from) / (area.x_to - area.x_from);
  const auto columns = static_cast<double>(area.columns);
  return static_cast<size_t>(std::clamp(std::floor(share * columns), 0.0, columns - 1));
}

std::vector<StyledLine> DrawPlot(const std::vector<PlotCurve>& curves, const PlotArea& area) {
  if (area.columns == 0 || area.rows == 0 || area.margin < 2) return {};
  Canvas canvas(area);
  for (const PlotCurve& curve : curves) canvas.Draw(curve);
  const std::vector<std::string> labels = YLabels(area);
  std::vector<StyledLine> lines;
  for (size_t row = 0; row < area.rows; ++row) {
    const std::string label = Fit(labels[row], area.margin - 2);
    StyledLine line(std::string(area.margin - 2 - WidthOf(label), ' ') + label + " ", Ink::kFaint);
    const bool ticked = !labels[row].empty();
    line.Add(area.utf8 ? (ticked ? "┤" : "│") : (ticked ? "+" : "|"), Ink::kFaint);
    lines.push_back(line.Append(canvas.Row(row)));
  }
  const std::vector<double> ticks =
      NiceTicks(area.x_from, area.x_to, std::max<size_t>(3, area.columns / kColumnsPerTick));
  std::vector<bool> ticked(area.columns, false);
  const std::string name = Fit(area.x_name, area.margin - 1);
  std::string below = name + std::string(area.margin - WidthOf(name), ' ');
  for (const double tick : ticks) {
    const size_t column = PlotColumn(area, tick);
    ticked[column] = true;
    // Centred below its tick, and one column apart from the label before.
    const std::string label = CountText(tick);
    const size_t half = label.size() / 2;
    const size_t at = area.margin + column - std::min(column, half);
    if (at + label.size() > area.margin + area.columns) continue;
    if (below.size() > area.margin && at < below.size() + 1) continue;
    below.resize(at, ' ');
    below += label;
  }
  std::string axis = std::string(area.margin - 1, ' ') + (area.utf8 ? "└" : "+");
  for (const bool tick : ticked) {
    axis += area.utf8 ? (tick ? "┬" : "─") : (tick ? "+" : "-");
  }
  lines.emplace_back(axis, Ink::kFaint);
  lines.emplace_back(below, Ink::kFaint);
  return lines;
}

}  // namespace nibble
