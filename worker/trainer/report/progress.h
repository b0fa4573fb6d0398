// Progress output for people: the speed of a run, its progress as text, and Progress, which draws
// it on a terminal or writes lines.
//
// Ownership: Progress borrows its stream and owns its clock. Thread-safety: none for objects; the
// free functions are pure or only ask the system.
#ifndef NIBBLE_WORKER_TRAINER_REPORT_PROGRESS_H_
#define NIBBLE_WORKER_TRAINER_REPORT_PROGRESS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include "proto/nibble/v1/metrics.pb.h"

namespace nibble {

// The speed of a run over its last steps, so that it follows changes and a single slow step matters
// little. Times are passed in, in seconds.
class Pace {
 public:
  static constexpr size_t kSteps = 32;

  // The run begins or resumes: forgets earlier steps.
  void Start(double now);
  // A step with this number of tokens has ended. Times never decrease.
  void Step(double now, int64_t tokens);
  // Excludes the time since the last call, for example a validation.
  void Pause(double now);

  // Both 0 until a step has taken time.
  double tokens_per_second() const;
  double seconds_per_step() const;

 private:
  struct Done {
    double seconds;
    int64_t tokens;
  };
  double seconds() const;

  double last_ = 0;
  std::deque<Done> steps_;  // the last kSteps
};

struct ProgressState {
  int64_t done = 0;  // steps
  int64_t steps = 0;
  std::optional<double> loss;
  std::optional<double> validation_loss;
  double learning_rate = 0;
  double tokens_per_second = 0;  // 0: unknown
  double eta_seconds = -1;       // negative: unknown
  int64_t revision = 0;          // of the recipe in effect
  std::string recipe;            // its preset
  int64_t skipped = 0;           // steps without an update
};

// For a terminal: at most `columns` ASCII characters without a line feed. Parts that do not fit are
// omitted in the order recipe, revision, validation loss, percentage, speed, remaining time, loss;
// the bar fills the remaining columns.
//   "120/300 [=====>       ] 40%  loss 3.1416  val 3.2012  12.3k tok/s  eta 2m05s  r2 nvfp4"
std::string RenderBar(const ProgressState& state, int columns);

// For a log:
//   "step 120/300 (40%)  loss 3.1416  val 3.2012  lr 0.001  12.3k tok/s  eta 2m05s  recipe r2
//   nvfp4"
std::string RenderLine(const ProgressState& state);

bool IsTerminal(int file);

// The columns of a terminal; 80 if it is not a terminal or the number is unknown.
int TerminalColumns(int file);

// Shows the progress of a run: on a terminal one line that is redrawn in place, elsewhere plain
// lines at limited intervals.
class Progress {
 public:
  struct Options {
    bool terminal = false;
    std::function<int()> columns;   // of the terminal, called for each drawing
    std::function<double()> clock;  // seconds; never goes back
    // On a terminal: the least time between drawings.
    double redraw_seconds = 0.1;
    // Elsewhere: the least steps and the least time between lines.
    int64_t line_steps = 1;
    double line_seconds = 0;
  };

  Progress(Options options, std::ostream& out);
  // Ends a drawn line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Before the first step. Speed and remaining time count from here.
  void Start(int64_t first_step, int64_t steps);
  // After a step of `tokens` tokens under a recipe of the preset `recipe`. The first and the last
  // step are always shown.
  void StepDone(const v1::StepSample& step, int64_t tokens, std::string_view recipe);
  // After a validation, whose time does not count as the steps'.
  void ValidationDone(const std::string& set, double loss);
  // A line of its own, above the bar.
  void Note(std::string_view text);

  const ProgressState& state() const { return state_; }

 private:
  void Draw();
  void EndDrawing();
  bool LineIsDue(int64_t step, double now) const;

  const Options options_;
  std::ostream& out_;
  ProgressState state_;
  Pace pace_;
  bool drawn_ = false;      // the cursor is in a line that Draw wrote
  bool shown_any_ = false;  // since Start
  double shown_at_ = 0;
  int64_t shown_step_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_REPORT_PROGRESS_H_
