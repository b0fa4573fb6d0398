#include "worker/trainer/loop/run_reporter.h"

#include <unistd.h>

#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "worker/trainer/loop/run_events.h"
#include "worker/trainer/report/terminal.h"

namespace nibble {
namespace {

constexpr double kPlainLineSeconds = 10;

}  // namespace

absl::StatusOr<std::unique_ptr<RunReporter>> RunReporter::Open(const JobSpec& spec,
                                                               const Options& options) {
  std::unique_ptr<RunReporter> reporter(new RunReporter(spec, options.clock));
  if (!options.speaks) return reporter;
  absl::StatusOr<std::unique_ptr<EventLog>> log =
      EventLog::Open(absl::StrCat(options.directory, "/", kEventLogFile), absl::Now);
  if (!log.ok()) return log.status();
  reporter->log_ = *std::move(log);
  if (options.progress != nullptr) {
    reporter->progress_ = std::make_unique<Progress>(
        Progress::Options{.terminal = options.terminal,
                          .columns = [] { return TerminalColumns(STDERR_FILENO); },
                          .clock = options.clock,
                          .line_steps = spec.metrics.log_every,
                          .line_seconds = kPlainLineSeconds},
        *options.progress);
  }
  return reporter;
}

void RunReporter::LookAtLog(const absl::Status& status) {
  if (status.ok() && log_failed_) Note("the event log is written again");
  if (!status.ok() && !log_failed_) {
    Note(absl::StrCat(std::string(status.message()), "; events wait in memory, training goes on"));
  }
  log_failed_ = !status.ok();
}

void RunReporter::Close() {
  if (log_ == nullptr) return;
  LookAtLog(log_->Flush());
  if (log_->missing() > 0) {
    Note(absl::StrCat(log_->missing(), " events could not be written to ", log_->path()));
  }
}

std::string RunReporter::trouble() const {
  if (!log_failed_) return "";
  return absl::StrCat("events wait in memory for room in ", log_->path());
}

void RunReporter::RevisionBegins(const Trainer& trainer, const Revision& revision) {
  const RevisionEvent event = RevisionOf(trainer.timeline(), revision, trainer.outline());
  Write(event);
  if (revision_ != 0) {
    Note(absl::StrCat("recipe revision ", revision.number, " in force from step ",
                      revision.first_step, event.changes.empty() ? "" : ": ",
                      event.changes.empty() ? "" : event.changes.front()));
  }
  revision_ = revision.number;
}

void RunReporter::StepDone(const StepReport& report, const Trainer& trainer) {
  if (!speaks()) return;
  const Revision& revision = trainer.timeline().At(report.step);
  if (revision.number != revision_) RevisionBegins(trainer, revision);
  if (std::optional<GuardEvent> guard = GuardOf(report, spec_.guards); guard.has_value()) {
    Write(*guard);
    Note(absl::StrCat("step ", report.step, ": ", guard->guard, " guard ", guard->action, ": ",
                      guard->detail));
  }
  tokens_since_ += report.tokens;
  const bool last = report.step + 1 == spec_.training.steps;
  if (report.step % spec_.metrics.log_every == 0 || last) {
    const double now = clock_();
    const double seconds = now - logged_at_;
    Write(StepOf(report, seconds > 0 ? static_cast<double>(tokens_since_) / seconds : 0.0));
    logged_at_ = now;
    tokens_since_ = 0;
  }
  for (const PrecisionEvent& event : PrecisionOf(report, trainer.outline(), trainer.timeline())) {
    Write(event);
  }
  if (progress_ != nullptr) {
    progress_->StepDone({.step = report.step,
                         .tokens = report.tokens,
                         .loss = report.loss,
                         .learning_rate = report.learning_rate,
                         .revision = report.revision,
                         .recipe = revision.recipe.preset,
                         .updated = report.updated});
  }
}

}  // namespace nibble
