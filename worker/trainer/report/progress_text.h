// How far a run is, as text: a bar for a terminal, a line for a log.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_WORKER_TRAINER_REPORT_PROGRESS_TEXT_H_
#define NIBBLE_WORKER_TRAINER_REPORT_PROGRESS_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>

namespace nibble {

struct ProgressState {
  int64_t done = 0;  // steps
  int64_t steps = 0;
  std::optional<double> loss;
  std::optional<double> validation_loss;
  double learning_rate = 0;
  double tokens_per_second = 0;  // 0: not known yet
  double eta_seconds = -1;       // less than 0: not known yet
  int64_t revision = 0;          // of the recipe in force
  std::string recipe;            // its preset
  int64_t skipped = 0;           // steps without an update
};

// At most `columns` characters, all ASCII, without a line feed. What does not fit goes, the least
// important first: recipe, revision, validation loss, percentage, speed, remaining time, loss; room
// that is left becomes the bar.
//   "120/300 [=====>       ] 40%  loss 3.1416  val 3.2012  12.3k tok/s  eta 2m05s  r2 nvfp4"
std::string RenderBar(const ProgressState& state, int columns);

// "step 120/300 (40%)  loss 3.1416  val 3.2012  lr 0.001  12.3k tok/s  eta 2m05s  recipe r2 nvfp4"
std::string RenderLine(const ProgressState& state);

// "12.3k", "9.99M"; at least three digits of the value.
std::string ShortCount(double value);
// "0s", "59s", "2m05s", "1h02m", "3d04h"
std::string ShortDuration(double seconds);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_REPORT_PROGRESS_TEXT_H_
