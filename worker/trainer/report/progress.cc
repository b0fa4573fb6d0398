#include "worker/trainer/report/progress.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace nibble {
namespace {

// To the first column; and from the cursor to the end of the line, nothing.
constexpr char kReturn[] = "\r";
constexpr char kClear[] = "\x1b[K";

}  // namespace

Progress::Progress(Options options, std::ostream& out) : options_(std::move(options)), out_(out) {}

Progress::~Progress() { EndDrawing(); }

void Progress::Start(int64_t first_step, int64_t steps) {
  state_ = {.done = first_step, .steps = steps};
  shown_any_ = false;
  pace_.Start(options_.clock());
}

bool Progress::LineIsDue(int64_t step, double now) const {
  return step - shown_step_ >= options_.line_steps && now - shown_at_ >= options_.line_seconds;
}

void Progress::StepDone(const Step& step) {
  const double now = options_.clock();
  pace_.Step(now, step.tokens);
  state_.done = step.step + 1;
  state_.loss = step.loss;
  state_.learning_rate = step.learning_rate;
  state_.revision = step.revision;
  state_.recipe = step.recipe;
  if (!step.updated) ++state_.skipped;
  state_.tokens_per_second = pace_.tokens_per_second();
  state_.eta_seconds =
      pace_.seconds_per_step() > 0
          ? pace_.seconds_per_step() * static_cast<double>(state_.steps - state_.done)
          : -1;

  const bool due =
      options_.terminal ? now - shown_at_ >= options_.redraw_seconds : LineIsDue(step.step, now);
  if (shown_any_ && !due && state_.done < state_.steps) return;
  shown_any_ = true;
  shown_at_ = now;
  shown_step_ = step.step;
  if (options_.terminal) {
    Draw();
  } else {
    out_ << RenderLine(state_) << '\n' << std::flush;
  }
}

void Progress::ValidationDone(const std::string& set, double loss) {
  state_.validation_loss = loss;
  Note(absl::StrFormat("step %d  validation %s %.4f", state_.done, set, loss));
  pace_.Pause(options_.clock());
}

void Progress::Note(std::string_view text) {
  if (drawn_) out_ << kReturn << kClear;
  out_ << text << '\n' << std::flush;
  if (drawn_) Draw();
}

void Progress::Draw() {
  // The last column stays free: a full line wraps on some terminals.
  out_ << kReturn << RenderBar(state_, options_.columns() - 1) << kClear << std::flush;
  drawn_ = true;
}

void Progress::EndDrawing() {
  if (drawn_) out_ << '\n' << std::flush;
  drawn_ = false;
}

}  // namespace nibble
