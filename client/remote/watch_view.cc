#include "client/remote/watch_view.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/remote/enum_words.h"
#include "client/remote/job_text.h"
#include "common/counted.h"
#include "common/text/table.h"
#include "common/text/text.h"

namespace nibble {
namespace {

constexpr size_t kPaceSamples = 16;  // for the estimate of the remaining time
constexpr size_t kShownEvents = 6;
constexpr size_t kShownWorkers = 8;
constexpr size_t kShownRevisions = 3;
constexpr size_t kMostBar = 40;
constexpr size_t kCutLines = 3;      // the head, the bar and the loss
constexpr size_t kNameColumns = 10;  // "recipe    "
constexpr int64_t kSilentMs = 3000;

int64_t Percent(int64_t done, int64_t whole) { return whole > 0 ? done * 100 / whole : 0; }

std::string SpeedAndEta(const WatchState& state, const char* between) {
  std::string text;
  if (!state.samples().empty() && state.samples().back().tokens_per_second() > 0 &&
      state.job().has_attempt()) {
    absl::StrAppend(&text, between, CountText(state.samples().back().tokens_per_second()),
                    " tok/s");
  }
  if (state.eta_seconds() >= 0) {
    absl::StrAppend(&text, between, "eta ", DurationText(state.eta_seconds()));
  }
  return text;
}

std::string HeadLine(const v1::Job& job, int64_t now_unix_ms) {
  std::string line = absl::StrCat(
      job.id(), "  ", Word(job.state()), "  ",
      DurationText(static_cast<double>(now_unix_ms - job.state_since_unix_ms()) / 1000));
  if (job.goal() == v1::JOB_GOAL_PAUSE && job.state() != v1::JOB_STATE_PAUSED) {
    absl::StrAppend(&line, "  (to be paused)");
  }
  if (job.goal() == v1::JOB_GOAL_CANCEL && !IsOver(job.state())) {
    absl::StrAppend(&line, "  (to be cancelled)");
  }
  return absl::StrCat(line, "  ", job.owner(), ", queue ", job.scheduling().queue());
}

std::string BarLine(const WatchState& state, size_t columns) {
  const int64_t steps = state.job().shape().steps();
  const std::string numbers =
      absl::StrCat("  ", state.next_step(), "/", steps, "  ", Percent(state.next_step(), steps),
                   "%", SpeedAndEta(state, "  "));
  const size_t room = columns > WidthOf(numbers) ? columns - WidthOf(numbers) : 0;
  return absl::StrCat(ProgressBar(state.next_step(), steps, std::min(room, kMostBar)), numbers);
}

std::string LossLine(const WatchState& state, size_t columns) {
  if (state.samples().empty()) return "loss      no step yet";
  const v1::StepSample& last = state.samples().back();
  std::string text =
      absl::StrFormat("  gradient %.3g  lr %.3g", last.gradient_norm(), last.learning_rate());
  if (!last.updated()) absl::StrAppend(&text, "  (no update: a guard skipped it)");
  const std::string head = absl::StrFormat("loss      %.4f  ", last.loss());
  std::vector<double> losses;
  for (const v1::StepSample& sample : state.samples()) losses.push_back(sample.loss());
  const size_t used = WidthOf(head) + WidthOf(text);
  const size_t room = columns > used ? columns - used : 0;
  return absl::StrCat(head, Sparkline(losses, std::min(room, kMostBar)), text);
}

void AddRecipe(const WatchState& state, std::vector<std::string>& lines) {
  const int64_t in_effect = std::max<int64_t>(1, state.job().revision_in_force());
  size_t pending = 0;
  for (const v1::RecipeRevision& revision : state.revisions()) {
    if (revision.number() == in_effect) {
      lines.push_back(absl::StrCat("recipe    r", in_effect, "  ", RecipeText(revision.recipe())));
    } else if (revision.number() > in_effect && revision.refused().empty() &&
               pending++ < kShownRevisions) {
      lines.push_back(absl::StrCat("          r", revision.number(), " from step ",
                                   revision.first_step(), "  ", RecipeText(revision.recipe()),
                                   revision.reason().empty() ? "" : ": ", revision.reason()));
    }
  }
  if (pending > kShownRevisions) {
    lines.push_back(absl::StrCat("          and ", pending - kShownRevisions, " more pending"));
  }
}

std::string WorkerHealth(const WatchState& state, const std::string& name) {
  for (const v1::Worker& worker : state.workers()) {
    if (worker.identity().name() != name) continue;
    std::string text;
    if (!worker.present()) {
      text = "  absent";
    } else if (worker.last_heard_ms() > kSilentMs) {
      text = absl::StrCat("  silent for ",
                          DurationText(static_cast<double>(worker.last_heard_ms()) / 1000));
    }
    if (worker.mode() != v1::WORKER_MODE_OPEN) absl::StrAppend(&text, "  ", Word(worker.mode()));
    if (!worker.flags().empty()) {
      absl::StrAppend(&text, "  ! ", worker.flags(worker.flags_size() - 1));
    }
    return text;
  }
  return "";
}

void AddAttempt(const WatchState& state, std::vector<std::string>& lines) {
  const v1::Job& job = state.job();
  if (!job.has_attempt()) return;
  const v1::Attempt& attempt = job.attempt();
  std::string line =
      absl::StrCat("attempt   ", attempt.number(), "  ", Counted(attempt.world(), "rank"));
  if (job.restarts_without_progress() > 0) {
    absl::StrAppend(&line, "  ", job.restarts_without_progress(), " of ",
                    job.restart_policy().max_without_progress(),
                    " restarts without a new checkpoint");
  }
  lines.push_back(std::move(line));
  // Placements that do not run come first: users look for them.
  std::vector<const v1::Placement*> placements;
  for (const v1::Placement& placement : attempt.placements()) placements.push_back(&placement);
  std::stable_partition(placements.begin(), placements.end(), [](const v1::Placement* placement) {
    return placement->phase() != v1::RANK_PHASE_RUNNING;
  });
  for (size_t i = 0; i < std::min(placements.size(), kShownWorkers); ++i) {
    lines.push_back(absl::StrCat("          ", PlacementText(*placements[i]),
                                 WorkerHealth(state, placements[i]->worker())));
  }
  if (placements.size() > kShownWorkers) {
    lines.push_back(absl::StrCat("          and ", placements.size() - kShownWorkers, " more"));
  }
}

// The newest events that fit, unabridged, in `room` lines; oldest first.
std::vector<std::string> NewestEvents(const WatchState& state, size_t columns, size_t room) {
  std::vector<std::string> lines;
  size_t events = 0;
  for (auto event = state.events().rbegin();
       event != state.events().rend() && events < kShownEvents; ++event, ++events) {
    const std::string text =
        absl::StrCat(absl::FormatTime("%H:%M:%S", absl::FromUnixMillis(event->time_unix_ms()),
                                      absl::UTCTimeZone()),
                     "  ", EventText(*event));
    const std::vector<std::string> wrapped = Wrap(text, columns, kNameColumns);
    if (lines.size() + wrapped.size() > room) break;
    lines.insert(lines.begin(), wrapped.begin(), wrapped.end());
  }
  return lines;
}

}  // namespace

bool WatchState::AddEvent(const v1::JobEvent& event) {
  if (!events_.empty() && event.number() <= events_.back().number()) return false;
  events_.push_back(event);
  if (events_.size() > kMostEvents) events_.pop_front();
  return true;
}

void WatchState::AddSample(const v1::StepSample& sample) {
  while (!samples_.empty() && samples_.back().step() >= sample.step()) samples_.pop_back();
  samples_.push_back(sample);
  if (samples_.size() < kMostSamples) return;
  // Drop every second sample of the older half: the pace needs only the newest samples, and the
  // curve only its shape.
  std::vector<v1::StepSample> kept;
  for (size_t i = 0; i < samples_.size(); ++i) {
    if (i >= samples_.size() / 2 || i % 2 == 0) kept.push_back(std::move(samples_[i]));
  }
  samples_ = std::move(kept);
}

int64_t WatchState::next_step() const {
  const int64_t sampled = samples_.empty() ? 0 : samples_.back().step() + 1;
  return std::max(job_.next_step(), job_.has_attempt() ? sampled : 0);
}

double WatchState::eta_seconds() const {
  if (samples_.empty() || job_.state() != v1::JOB_STATE_RUNNING) return -1;
  double seconds = 0;
  const size_t counted = std::min(samples_.size(), kPaceSamples);
  for (size_t i = samples_.size() - counted; i < samples_.size(); ++i) {
    seconds += samples_[i].step_seconds();
  }
  const auto left = static_cast<double>(job_.shape().steps() - next_step());
  return std::max(0.0, seconds / static_cast<double>(counted) * left);
}

std::vector<std::string> RenderWatch(const WatchState& state, const ViewSize& size,
                                     int64_t now_unix_ms, const std::string& note) {
  const size_t columns = static_cast<size_t>(std::max(1, size.columns - 1));
  const size_t rows = static_cast<size_t>(std::max(2, size.rows - 1));
  std::vector<std::string> lines = {HeadLine(state.job(), now_unix_ms), BarLine(state, columns),
                                    LossLine(state, columns)};
  const bool show_reason = state.job().state() != v1::JOB_STATE_RUNNING;
  if (!state.job().trouble().empty()) {
    lines.push_back(absl::StrCat("trouble   ", state.job().trouble()));
  }
  if (show_reason && !state.job().state_reason().empty()) {
    lines.push_back(absl::StrCat("why       ", state.job().state_reason()));
  }
  AddRecipe(state, lines);
  AddAttempt(state, lines);
  // On a narrow screen numbers are cut off, but sentences are wrapped, so that a reason is
  // complete.
  std::vector<std::string> shown;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i < kCutLines) {
      shown.push_back(Fit(lines[i], columns));
    } else {
      for (std::string& line : Wrap(lines[i], columns, kNameColumns)) {
        shown.push_back(std::move(line));
      }
    }
  }
  const size_t below = note.empty() ? 0 : 1;
  const size_t room = rows > shown.size() + below ? rows - shown.size() - below : 0;
  const std::vector<std::string> events = NewestEvents(state, columns, room);
  shown.insert(shown.end(), events.begin(), events.end());
  if (shown.size() + below > rows) shown.resize(rows - below);
  if (!note.empty()) shown.push_back(Fit(note, columns));
  return shown;
}

std::string SampleLine(const WatchState& state) {
  const v1::StepSample& last = state.samples().back();
  const int64_t steps = state.job().shape().steps();
  return absl::StrFormat("step %d/%d (%d%%)  loss %.4f%s  recipe r%d%s", last.step() + 1, steps,
                         Percent(last.step() + 1, steps), last.loss(), SpeedAndEta(state, "  "),
                         last.revision(), last.updated() ? "" : "  no update");
}

}  // namespace nibble
