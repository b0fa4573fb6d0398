// Precision statistics over layers and time, as a report draws them: one byte for each layer,
// operand, figure and part of the run.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_REPORT_PRECISION_MAP_H_
#define NIBBLE_CLIENT_REPORT_PRECISION_MAP_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/report/run_events.h"

namespace nibble {

// Codes 0 to kHighestCode are values on a logarithmic scale: low · (high / low)^(code / 253). Code
// 0 also stands for everything below.
inline constexpr uint8_t kHighestCode = 253;
inline constexpr uint8_t kNotFiniteCode = 254;
inline constexpr uint8_t kNoDataCode = 255;  // not quantised, or not sampled

struct PrecisionFigure {
  std::string label;
  double low = 0, high = 0;
  bool low_is_zero = false;  // the scale has no zero: code 0 stands for it
  // By operand: [layers, columns] codes, row-major.
  std::vector<std::string> cells;
};

struct WorstOperand {
  std::string layer, operand, format;
  double relative_error = 0, underflow = 0, clipped = 0;
};

struct PrecisionMap {
  std::vector<std::string> layers, operands;
  // Steps at which the columns begin, and the one at which the last column ends. Empty: no samples.
  std::vector<int64_t> edges;
  std::vector<PrecisionFigure> figures;  // relative error, underflow, clipped
  int64_t worst_step = 0;                // of the last sample
  std::vector<WorstOperand> worst;       // in it, by relative error, largest first

  size_t columns() const { return edges.empty() ? 0 : edges.size() - 1; }
};

// A column is the largest value of one or more samples, so that nothing bad disappears. At most
// `most_cells` codes in all, except that there are at least 24 columns if there are so many
// samples.
PrecisionMap MapPrecision(const RunRecord& record, size_t most_cells);

uint8_t PrecisionCode(double value, double low, double high);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REPORT_PRECISION_MAP_H_
