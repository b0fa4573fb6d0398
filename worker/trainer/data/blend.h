// Which of several data sets each sample of a run comes from, and the how-manieth of that data set
// it is: a function of the sample's global index alone.
//
// Weights are whole parts (70, 20, 10), so that proportions are exact: among the first n indices
// data set d has had n·w[d]/Σw, give or take less than one, for every n. One period of Σw indices
// (after division by the common divisor) is laid out as a table by Tijdeman's solution of the
// chairman assignment problem (Discrete Mathematics 32, 1980): of the data sets whose turn has
// come, the one whose turn ends first.
//
// Ownership: owns its table. Thread-safety: immutable.
#ifndef NIBBLE_WORKER_TRAINER_DATA_BLEND_H_
#define NIBBLE_WORKER_TRAINER_DATA_BLEND_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace nibble {

struct BlendPlace {
  int32_t dataset = 0;
  uint64_t ordinal = 0;  // how many earlier indices the data set has had

  friend bool operator==(const BlendPlace&, const BlendPlace&) = default;
};

class Blend {
 public:
  static constexpr int64_t kMaxDatasets = 256;
  static constexpr int64_t kMaxPeriod = 100'000;

  // InvalidArgument, naming the weight, its value and its bound, unless there are 1 to kMaxDatasets
  // weights of at least 1 whose sum, after division by their common divisor, is at most kMaxPeriod.
  static absl::StatusOr<Blend> Create(absl::Span<const int64_t> weights);

  BlendPlace At(uint64_t index) const;

  // How many of the first `indices` indices `dataset` has. O(period).
  uint64_t CountBefore(uint64_t indices, int32_t dataset) const;

  int64_t period() const { return static_cast<int64_t>(turns_.size()); }
  int64_t datasets() const { return static_cast<int64_t>(weights_.size()); }

 private:
  struct Turn {
    int32_t dataset;
    uint32_t ordinal;  // within the period
  };

  Blend(std::vector<uint64_t> weights, std::vector<Turn> turns)
      : weights_(std::move(weights)), turns_(std::move(turns)) {}

  std::vector<uint64_t> weights_;  // without a common divisor
  std::vector<Turn> turns_;        // one period
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_BLEND_H_
