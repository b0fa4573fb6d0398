// Shows a person how a run goes: on a terminal one line that is drawn anew in place, elsewhere
// plain lines, not too many.
//
// Ownership: borrows the stream; owns its clock. Thread-safety: none.
#ifndef NIBBLE_WORKER_TRAINER_REPORT_PROGRESS_H_
#define NIBBLE_WORKER_TRAINER_REPORT_PROGRESS_H_

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>

#include "worker/trainer/report/pace.h"
#include "worker/trainer/report/progress_text.h"

namespace nibble {

class Progress {
 public:
  struct Options {
    bool terminal = false;
    std::function<int()> columns;   // of the terminal, asked at each drawing
    std::function<double()> clock;  // seconds; never goes back
    // On a terminal: the least time between drawings.
    double redraw_seconds = 0.1;
    // Elsewhere a line follows the last one when so many steps and so much time have gone by.
    int64_t line_steps = 1;
    double line_seconds = 0;
  };

  struct Step {
    int64_t step = 0;  // that has ended, counted from 0
    int64_t tokens = 0;
    double loss = 0;
    double learning_rate = 0;
    int64_t revision = 0;
    std::string recipe;
    bool updated = true;
  };

  Progress(Options options, std::ostream& out);
  // Ends a line that is being drawn.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Before the first step. Speed and remaining time count from here.
  void Start(int64_t first_step, int64_t steps);
  // The first and the last step are always shown.
  void StepDone(const Step& step);
  // A validation is over; the time it took slows nothing down.
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
