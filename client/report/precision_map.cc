#include "client/report/precision_map.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace nibble {
namespace {

constexpr size_t kFigures = 3;
constexpr size_t kLeastColumns = 24, kMostColumns = 240;
constexpr size_t kWorstRows = 12;

std::array<double, kFigures> FiguresOf(const OperandSample& sample) {
  return {sample.relative_error, sample.underflow, sample.clipped};
}

// From the smallest to the largest positive value, but over at most `decades`.
void SetScale(const std::vector<double>& values, double decades, PrecisionFigure& figure) {
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const double value : values) {
    if (!std::isfinite(value) || value <= 0) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  if (high == 0) {
    low = 1e-4;
    high = 1e-2;
  }
  figure.high = high;
  figure.low = std::max(low, high * std::pow(10, -decades));
  // Nearly equal values would otherwise fill the whole range of colours.
  figure.low = std::min(figure.low, high / 2);
}

}  // namespace

uint8_t PrecisionCode(double value, double low, double high) {
  if (!std::isfinite(value)) return kNotFiniteCode;
  if (value <= low) return 0;
  const double share = std::log(value / low) / std::log(high / low);
  return static_cast<uint8_t>(std::lround(std::min(share, 1.0) * kHighestCode));
}

PrecisionMap MapPrecision(const RunRecord& record, size_t most_cells) {
  PrecisionMap map;
  map.layers = record.layers;
  map.operands = record.operands;
  const size_t layers = map.layers.size(), operands = map.operands.size();
  const size_t samples = record.precision.size();
  if (samples == 0) return map;
  const size_t columns = std::min(samples, std::clamp(most_cells / (kFigures * layers * operands),
                                                      kLeastColumns, kMostColumns));

  // The largest value of each cell: -1 for none, infinity for one that is not finite.
  constexpr double kNone = -1, kBroken = std::numeric_limits<double>::infinity();
  std::array<std::vector<double>, kFigures> values;
  for (std::vector<double>& all : values) all.assign(operands * layers * columns, kNone);
  size_t sample_index = 0;
  int64_t last_step = 0, last_gap = 1;
  for (const auto& [step, cells] : record.precision) {
    const size_t column = sample_index * columns / samples;
    if (column == map.edges.size()) map.edges.push_back(step);
    if (sample_index++ > 0) last_gap = step - last_step;
    last_step = step;
    for (const OperandSample& cell : cells) {
      if (record.formats[static_cast<size_t>(cell.format)].empty()) continue;
      const size_t at =
          (static_cast<size_t>(cell.operand) * layers + static_cast<size_t>(cell.layer)) * columns +
          column;
      const std::array<double, kFigures> figures = FiguresOf(cell);
      for (size_t i = 0; i < kFigures; ++i) {
        const double value = std::isfinite(figures[i]) ? figures[i] : kBroken;
        values[i][at] = std::max(values[i][at], value);
      }
    }
  }
  map.edges.push_back(last_step + last_gap);

  const std::array<const char*, kFigures> labels = {"relative error", "underflow", "clipped"};
  for (size_t i = 0; i < kFigures; ++i) {
    PrecisionFigure& figure = map.figures.emplace_back();
    figure.label = labels[i];
    figure.low_is_zero = i > 0;
    SetScale(values[i], i == 0 ? 3 : 4, figure);
    for (size_t operand = 0; operand < operands; ++operand) {
      std::string& codes = figure.cells.emplace_back();
      codes.reserve(layers * columns);
      for (size_t cell = 0; cell < layers * columns; ++cell) {
        const double value = values[i][operand * layers * columns + cell];
        codes.push_back(static_cast<char>(
            value == kNone ? kNoDataCode : PrecisionCode(value, figure.low, figure.high)));
      }
    }
  }

  map.worst_step = last_step;
  for (const OperandSample& cell : record.precision.rbegin()->second) {
    const std::string& format = record.formats[static_cast<size_t>(cell.format)];
    if (format.empty()) continue;
    map.worst.push_back({.layer = map.layers[static_cast<size_t>(cell.layer)],
                         .operand = map.operands[static_cast<size_t>(cell.operand)],
                         .format = format,
                         .relative_error = cell.relative_error,
                         .underflow = cell.underflow,
                         .clipped = cell.clipped});
  }
  // One that is not finite comes first.
  const auto rank = [](const WorstOperand& one) {
    return std::isfinite(one.relative_error) ? one.relative_error
                                             : std::numeric_limits<double>::infinity();
  };
  std::stable_sort(map.worst.begin(), map.worst.end(),
                   [&](const auto& a, const auto& b) { return rank(a) > rank(b); });
  if (map.worst.size() > kWorstRows) map.worst.resize(kWorstRows);
  return map;
}

}  // namespace nibble
