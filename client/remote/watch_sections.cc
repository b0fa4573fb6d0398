#include "client/remote/watch_sections.h"

#include <algorithm>
#include <cmath>
#include <optional>

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

constexpr size_t kShownEvents = 6;
constexpr size_t kShownWorkers = 8;
constexpr size_t kShownRevisions = 3;
constexpr size_t kMostBar = 40;
constexpr size_t kLeastCurve = 4;
constexpr int64_t kSilentMs = 3000;

Ink InkOf(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_RUNNING:
    case v1::JOB_STATE_SUCCEEDED:
      return Ink::kGreen;
    case v1::JOB_STATE_FAILED:
      return Ink::kRed;
    default:
      return Ink::kYellow;
  }
}

std::vector<StyledLine> Wrapped(const std::string& text, const LineFormat& format,
                                Ink ink = Ink::kPlain) {
  std::vector<StyledLine> lines;
  for (const std::string& line :
       Wrap(format.utf8 ? text : AsciiText(text), format.columns, kNameColumns)) {
    lines.emplace_back(line, ink);
  }
  return lines;
}

void Extend(std::vector<StyledLine>& lines, const std::vector<StyledLine>& more) {
  lines.insert(lines.end(), more.begin(), more.end());
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

Ink InkOfEvent(v1::JobEventKind kind) {
  switch (kind) {
    case v1::JOB_EVENT_KIND_TROUBLE:
    case v1::JOB_EVENT_KIND_EXCLUDED:
    case v1::JOB_EVENT_KIND_ALERT:
      return Ink::kYellow;
    case v1::JOB_EVENT_KIND_RECIPE:
      return Ink::kCyan;
    default:
      return Ink::kPlain;
  }
}

}  // namespace

namespace {

std::string EtaText(const WatchState& state, const char* between) {
  if (state.eta_seconds() < 0) return "";
  return absl::StrCat(between, "eta ", DurationText(state.eta_seconds()));
}

}  // namespace

std::string SpeedAndEta(const WatchState& state, const char* between) {
  std::string text;
  if (!state.recent().empty() && state.recent().back().tokens_per_second() > 0 &&
      state.job().has_attempt()) {
    absl::StrAppend(&text, between, CountText(state.recent().back().tokens_per_second()), " tok/s");
  }
  return absl::StrCat(text, EtaText(state, between));
}

std::string DifferenceText(const WatchState& state) {
  const std::optional<LossDifference> difference = state.relative_difference();
  if (!difference) return "";
  std::string text =
      absl::StrFormat("%+.2f%% from %s", difference->relative * 100, state.reference());
  if (difference->reference_ended) absl::StrAppend(&text, " at step ", difference->step);
  return text;
}

int64_t PercentOf(int64_t done, int64_t whole) { return whole > 0 ? done * 100 / whole : 0; }

StyledLine HeadLine(const WatchState& state, int64_t now_unix_ms, size_t columns, bool keys) {
  const v1::Job& job = state.job();
  StyledLine line(job.id(), Ink::kStrong);
  line.Add("  ").Add(Word(job.state()), InkOf(job.state()));
  line.Add("  ").Add(
      DurationText(static_cast<double>(now_unix_ms - job.state_since_unix_ms()) / 1000));
  if (job.goal() == v1::JOB_GOAL_PAUSE && job.state() != v1::JOB_STATE_PAUSED) {
    line.Add("  (to be paused)");
  }
  if (job.goal() == v1::JOB_GOAL_CANCEL && !IsOver(job.state())) line.Add("  (to be cancelled)");
  StyledLine owner = line;
  // A run without a cluster has neither.
  if (!job.scheduling().queue().empty()) {
    owner.Add(absl::StrCat("  ", job.owner(), ", queue ", job.scheduling().queue()));
  }
  if (!keys) return FirstFitting({owner, line}, columns);
  const StyledLine hint("  ?: keys, q: detach", Ink::kFaint);
  StyledLine all = owner, brief = line;
  return FirstFitting({all.Append(hint), brief.Append(hint), line}, columns);
}

StyledLine ProgressLine(const WatchState& state, size_t columns) {
  const int64_t steps = state.job().shape().steps();
  const std::string done =
      absl::StrCat(state.next_step(), "/", steps, "  ", PercentOf(state.next_step(), steps), "%");
  const std::string numbers = absl::StrCat("  ", done, SpeedAndEta(state, "  "));
  if (WidthOf(numbers) > columns) {
    StyledLine all(absl::StrCat(done, SpeedAndEta(state, "  ")));
    return FirstFitting({all, StyledLine(absl::StrCat(done, EtaText(state, "  ")))}, columns);
  }
  const size_t room = columns - WidthOf(numbers);
  StyledLine line(ProgressBar(state.next_step(), steps, std::min(room, kMostBar)), Ink::kGreen);
  return line.Add(numbers);
}

StyledLine LossLine(const WatchState& state, const LineFormat& format, bool curve, bool reference) {
  if (state.recent().empty()) return StyledLine("loss      no step yet");
  const v1::StepSample& last = state.recent().back();
  StyledLine head("loss      ");
  head.Add(absl::StrFormat("%.4f", last.loss()),
           std::isfinite(last.loss()) ? Ink::kStrong : Ink::kRed);
  StyledLine tail;
  if (reference && !state.reference().empty()) {
    const std::string difference = DifferenceText(state);
    tail.Add(difference.empty() ? absl::StrCat("  no common step with ", state.reference())
                                : absl::StrCat("  ", difference),
             Ink::kYellow);
  }
  const std::string gradient = absl::StrFormat("  gradient %.3g", last.gradient_norm());
  const std::string rate = absl::StrFormat("  lr %.3g", last.learning_rate());
  const StyledLine skipped =
      last.updated() ? StyledLine() : StyledLine("  (no update: a guard skipped it)", Ink::kRed);
  StyledLine all = tail, brief = tail;
  all.Add(gradient).Add(rate).Append(skipped);
  brief.Add(gradient).Append(skipped);
  tail.Append(skipped);
  const size_t left = format.columns > head.width() ? format.columns - head.width() : 0;
  tail = FirstFitting({all, brief, tail}, left);
  if (!curve || !format.utf8) return head.Append(tail);
  std::vector<double> losses;
  for (const LossBucket& bucket : state.losses().buckets()) {
    losses.push_back(bucket.finite > 0 ? bucket.mean() : NAN);
  }
  const size_t used = head.width() + 2 + tail.width();
  const size_t room = format.columns > used ? format.columns - used : 0;
  if (room < kLeastCurve) return head.Append(tail);
  return head.Add("  ").Add(Sparkline(losses, std::min(room, kMostBar)), Ink::kGreen).Append(tail);
}

std::vector<StyledLine> ReasonLines(const WatchState& state, const LineFormat& format) {
  const v1::Job& job = state.job();
  std::vector<StyledLine> lines;
  if (!job.trouble().empty()) {
    Extend(lines, Wrapped(absl::StrCat("trouble   ", job.trouble()), format, Ink::kRed));
  }
  if (job.state() != v1::JOB_STATE_RUNNING && !job.state_reason().empty()) {
    Extend(lines,
           Wrapped(absl::StrCat("why       ", job.state_reason()), format, InkOf(job.state())));
  }
  return lines;
}

std::vector<StyledLine> RecipeLines(const WatchState& state, const LineFormat& format) {
  const int64_t in_effect = std::max<int64_t>(1, state.job().revision_in_force());
  std::vector<StyledLine> lines;
  size_t pending = 0;
  for (const v1::RecipeRevision& revision : state.revisions()) {
    if (revision.number() == in_effect) {
      const auto bits = state.bits().find(in_effect);
      const std::string text = bits == state.bits().end() ? "" : BitsText(bits->second);
      Extend(lines,
             Wrapped(absl::StrCat("recipe    r", in_effect, "  ", RecipeText(revision.recipe()),
                                  text.empty() ? "" : "  (", text, text.empty() ? "" : ")"),
                     format));
    } else if (revision.number() > in_effect && revision.refused().empty() &&
               pending++ < kShownRevisions) {
      Extend(lines, Wrapped(absl::StrCat("          r", revision.number(), " from step ",
                                         revision.first_step(), "  ", RecipeText(revision.recipe()),
                                         revision.reason().empty() ? "" : ": ", revision.reason()),
                            format));
    }
  }
  if (pending > kShownRevisions) {
    lines.emplace_back(absl::StrCat("          and ", pending - kShownRevisions, " more pending"));
  }
  return lines;
}

AttemptView AttemptLines(const WatchState& state, const LineFormat& format) {
  const v1::Job& job = state.job();
  AttemptView text;
  if (!job.has_attempt()) return text;
  const v1::Attempt& attempt = job.attempt();
  std::string line =
      absl::StrCat("attempt   ", attempt.number(), "  ", Counted(attempt.world(), "rank"));
  if (job.restarts_without_progress() > 0) {
    absl::StrAppend(&line, "  ", job.restarts_without_progress(), " of ",
                    job.restart_policy().max_without_progress(),
                    " restarts without a new checkpoint");
  }
  text.lines = Wrapped(line, format);
  // Placements that do not run, or whose worker is not in order, come first: users look for them.
  struct Shown {
    std::string text;
    bool troubled;
  };
  std::vector<Shown> placements;
  for (const v1::Placement& placement : attempt.placements()) {
    const std::string health = WorkerHealth(state, placement.worker());
    placements.push_back({absl::StrCat("          ", PlacementText(placement), health),
                          placement.phase() != v1::RANK_PHASE_RUNNING || !health.empty()});
  }
  std::stable_partition(placements.begin(), placements.end(),
                        [](const Shown& shown) { return shown.troubled; });
  const size_t shown = std::min(placements.size(), kShownWorkers);
  for (size_t i = 0; i < shown; ++i) {
    const std::vector<StyledLine> wrapped =
        Wrapped(placements[i].text, format, placements[i].troubled ? Ink::kYellow : Ink::kPlain);
    Extend(text.lines, wrapped);
    if (placements[i].troubled) text.troubled += wrapped.size();
  }
  if (placements.size() > shown) {
    text.lines.emplace_back(absl::StrCat("          and ", placements.size() - shown, " more"));
  }
  return text;
}

std::vector<StyledLine> EventLines(const WatchState& state, const LineFormat& format, size_t room) {
  std::vector<StyledLine> lines;
  size_t events = 0;
  for (auto event = state.events().rbegin();
       event != state.events().rend() && events < kShownEvents; ++event, ++events) {
    const std::string text =
        absl::StrCat(absl::FormatTime("%H:%M:%S", absl::FromUnixMillis(event->time_unix_ms()),
                                      absl::UTCTimeZone()),
                     "  ", EventText(*event));
    const std::vector<StyledLine> wrapped = Wrapped(text, format, InkOfEvent(event->kind()));
    if (lines.size() + wrapped.size() > room) break;
    lines.insert(lines.begin(), wrapped.begin(), wrapped.end());
  }
  return lines;
}

std::vector<StyledLine> HelpLines(bool utf8) {
  const std::string shades = utf8 ? "░ 4 bits, ▒ 8 bits, ▓ some GEMMs in 16 bits, █ all in 16 bits"
                                  : ". 4 bits, : 8 bits, = some GEMMs in 16 bits, # all in 16 bits";
  std::vector<StyledLine> lines;
  lines.emplace_back("Keys: none of them changes the job", Ink::kStrong);
  for (const char* const text : {
           "  q  detach; the job keeps running",
           "  r  show or hide the reference's losses (--reference JOB)",
           "  l  linear or logarithmic losses",
           "  s  smoothing of the losses: light, strong, none",
           "  t  steps or tokens on the x axis",
           "  w  the run so far, or the whole planned run",
           "  ?  this page",
       }) {
    lines.emplace_back(text);
  }
  lines.emplace_back("");
  lines.emplace_back("Under the plot, to its scale", Ink::kStrong);
  lines.emplace_back(absl::StrCat("  timeline  recipe revisions: ", shades));
  lines.emplace_back("  marks     c checkpoint, R restart, g spike or guard, ! loss not finite");
  return lines;
}

}  // namespace nibble
