// The quick look at sensitivity, without forks: the quantisation error of each layer, from the
// precision statistics in a job's event log (docs/reference/events.md).
//
// The two operands of a GEMM have independent errors, so the error of a GEMM is estimated as the
// root of the sum of squares of its operands' relative errors, and that of a layer as the root of
// the sum of squares over its three GEMMs. Errors say where numbers are lost, not what that costs:
// the ranking of forks (ranking.h) does.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_CLIENT_SENSITIVITY_PRECISION_TABLE_H_
#define NIBBLE_CLIENT_SENSITIVITY_PRECISION_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "recipe/operand_roles.h"

namespace nibble {

// An operand as the newest sample describes it.
struct OperandError {
  std::string layer;    // "blocks.3.mlp.up"
  std::string operand;  // "fprop.weight"
  std::string format;
  double relative_error = 0;
  double underflow = 0;
  double clipped = 0;
};

struct PrecisionSampleSet {
  int64_t step = -1;  // the sampled step
  std::vector<OperandError> operands;
};

// The newest sampled step in the lines of an event log; lines that are not of it are ignored. A
// last line that is cut is ignored, too. FailedPrecondition if there is none.
absl::StatusOr<PrecisionSampleSet> NewestSample(const std::vector<std::string>& lines);

struct LayerError {
  std::string layer;
  std::array<double, kLinearGemms> gemm = {};  // 0: neither operand is quantised
  double total = 0;
  double underflow = 0;  // the largest of its operands
  double clipped = 0;
  bool keep = false;  // suggested to stay in BF16
};

struct PrecisionTable {
  int64_t step = 0;
  std::vector<LayerError> layers;  // the largest error first
  double median = 0;               // of the layers' errors
  double bound = 0;  // layers above it stand out: the median + 3 robust standard deviations

  std::vector<std::string> Kept() const;
};

// Suggests to keep the layers that stand out, at most 15 % of all quantised layers, rounded up.
PrecisionTable MakePrecisionTable(const PrecisionSampleSet& sample);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_SENSITIVITY_PRECISION_TABLE_H_
