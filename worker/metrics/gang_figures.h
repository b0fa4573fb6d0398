// What a daemon knows of its gangs at one moment, and how it is exposed.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_METRICS_GANG_FIGURES_H_
#define NIBBLE_WORKER_METRICS_GANG_FIGURES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/metrics/metric_book.h"
#include "worker/trainer/link/link_message.h"

namespace nibble {

struct RankFigures {
  int32_t rank = 0;
  std::string phase;  // "running", "paused", …
  bool ended = false;
  bool hung = false;
  RankNews news;
  int64_t log_bytes = 0;
  double since_step_seconds = 0;
  double median_step_seconds = 0;                                 // 0: not known
  std::shared_ptr<const std::vector<PrecisionSample>> precision;  // null: none
};

struct GangFigures {
  std::string job;
  int64_t attempt = 0;
  int32_t world = 0;
  int64_t planned_steps = 0;       // 0: not known
  double flops_per_token = 0;      // of training; 0: not known
  std::vector<RankFigures> ranks;  // that are here
};

struct FigureLimits {
  // Layers whose precision is shown, evenly spread from the first to the last; 0: all.
  size_t precision_layers = 16;
  double peak_flops = 0;  // of a slot, FLOP/s; 0: not known
};

void FillGangs(absl::Span<const GangFigures> gangs, const FigureLimits& limits, MetricPage& page);

// Of `count` things in order so many, evenly spread, the first and the last among them; all where
// `most` is 0 or enough. Ascending.
std::vector<size_t> EvenlySpread(size_t count, size_t most);

}  // namespace nibble

#endif  // NIBBLE_WORKER_METRICS_GANG_FIGURES_H_
