#include "worker/trainer/report/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/text/table.h"
#include "common/text/text.h"

namespace nibble {

void Pace::Start(double now) {
  last_ = now;
  steps_.clear();
}

void Pace::Step(double now, int64_t tokens) {
  steps_.push_back({now - last_, tokens});
  if (steps_.size() > kSteps) steps_.pop_front();
  last_ = now;
}

void Pace::Pause(double now) { last_ = now; }

double Pace::seconds() const {
  double sum = 0;
  for (const Done& step : steps_) sum += step.seconds;
  return sum;
}

double Pace::tokens_per_second() const {
  const double time = seconds();
  if (time <= 0) return 0;
  double tokens = 0;
  for (const Done& step : steps_) tokens += static_cast<double>(step.tokens);
  return tokens / time;
}

double Pace::seconds_per_step() const {
  return steps_.empty() ? 0 : seconds() / static_cast<double>(steps_.size());
}

namespace {

constexpr size_t kLeastBar = 7;  // with its brackets
constexpr size_t kMostBar = 32;
constexpr size_t kMostRecipe = 24;

double Share(const ProgressState& state) {
  if (state.steps <= 0) return 0;
  return std::clamp(static_cast<double>(state.done) / static_cast<double>(state.steps), 0.0, 1.0);
}

// "99%" until all is done.
std::string Percent(const ProgressState& state) {
  return absl::StrFormat("%d%%", static_cast<int>(std::floor(100 * Share(state))));
}

std::string Printable(std::string_view text) {
  std::string safe(text.substr(0, kMostRecipe));
  for (char& c : safe) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return safe;
}

struct Part {
  std::string text;
  int importance;  // 0 stays to the last
  size_t gap = 2;  // blanks before it
  bool shown = false;

  size_t width() const { return gap + text.size(); }
};

// In display order; the bar comes before the second.
std::vector<Part> Parts(const ProgressState& state) {
  std::vector<Part> parts = {{absl::StrFormat("%d/%d", state.done, state.steps), 0, 0},
                             {Percent(state), 4, 1}};
  if (state.loss) parts.push_back({absl::StrFormat("loss %.4f", *state.loss), 1});
  if (state.validation_loss) {
    parts.push_back({absl::StrFormat("val %.4f", *state.validation_loss), 5});
  }
  if (state.tokens_per_second > 0) {
    parts.push_back({absl::StrCat(CountText(state.tokens_per_second), " tok/s"), 3});
  }
  if (state.eta_seconds >= 0) {
    parts.push_back({absl::StrCat("eta ", DurationText(state.eta_seconds)), 2});
  }
  if (state.skipped > 0) parts.push_back({absl::StrCat("skipped ", state.skipped), 1});
  if (state.revision > 0) parts.push_back({absl::StrCat("r", state.revision), 6});
  if (!state.recipe.empty()) parts.push_back({Printable(state.recipe), 7, 1});
  return parts;
}

}  // namespace

std::string RenderBar(const ProgressState& state, int columns) {
  const size_t width = columns > 0 ? static_cast<size_t>(columns) : 0;
  std::vector<Part> parts = Parts(state);
  size_t used = parts[0].width();
  if (used > width) return parts[0].text.substr(0, width);
  // By importance; stops at the first that does not fit.
  std::vector<Part*> wanted;
  for (size_t i = 1; i < parts.size(); ++i) wanted.push_back(&parts[i]);
  std::stable_sort(wanted.begin(), wanted.end(),
                   [](const Part* a, const Part* b) { return a->importance < b->importance; });
  for (Part* part : wanted) {
    if (used + part->width() > width) break;
    part->shown = true;
    used += part->width();
  }
  std::string out = parts[0].text;
  if (used + 1 + kLeastBar <= width) {
    absl::StrAppend(&out, " ",
                    ProgressBar(state.done, state.steps, std::min(kMostBar, width - used - 1)));
  }
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].shown) absl::StrAppend(&out, std::string(parts[i].gap, ' '), parts[i].text);
  }
  return out;
}

std::string RenderLine(const ProgressState& state) {
  std::string out = absl::StrCat("step ", state.done, "/", state.steps, " (", Percent(state), ")");
  if (state.loss) absl::StrAppendFormat(&out, "  loss %.4f", *state.loss);
  if (state.validation_loss) absl::StrAppendFormat(&out, "  val %.4f", *state.validation_loss);
  absl::StrAppendFormat(&out, "  lr %.4g", state.learning_rate);
  if (state.tokens_per_second > 0) {
    absl::StrAppend(&out, "  ", CountText(state.tokens_per_second), " tok/s");
  }
  if (state.eta_seconds >= 0) absl::StrAppend(&out, "  eta ", DurationText(state.eta_seconds));
  if (state.revision > 0) {
    absl::StrAppend(&out, "  recipe r", state.revision, " ", Printable(state.recipe));
  }
  if (state.skipped > 0) absl::StrAppend(&out, "  skipped ", state.skipped);
  return out;
}

constexpr int kUsualColumns = 80;

bool IsTerminal(int file) { return isatty(file) == 1; }

int TerminalColumns(int file) {
  struct winsize size = {};
  if (ioctl(file, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsualColumns;
  return size.ws_col;
}

namespace {

// Moves to the first column, and erases from the cursor to the end of the line.
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

void Progress::StepDone(const v1::StepSample& step, int64_t tokens, std::string_view recipe) {
  const double now = options_.clock();
  pace_.Step(now, tokens);
  state_.done = step.step() + 1;
  state_.loss = step.loss();
  state_.learning_rate = step.learning_rate();
  state_.revision = step.revision();
  state_.recipe = std::string(recipe);
  if (!step.updated()) ++state_.skipped;
  state_.tokens_per_second = pace_.tokens_per_second();
  state_.eta_seconds =
      pace_.seconds_per_step() > 0
          ? pace_.seconds_per_step() * static_cast<double>(state_.steps - state_.done)
          : -1;

  const bool due =
      options_.terminal ? now - shown_at_ >= options_.redraw_seconds : LineIsDue(step.step(), now);
  if (shown_any_ && !due && state_.done < state_.steps) return;
  shown_any_ = true;
  shown_at_ = now;
  shown_step_ = step.step();
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
