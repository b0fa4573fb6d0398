#include "worker/trainer/loop/run_reporter.h"

#include <unistd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "kernels/tensor/quant_stats.h"
#include "recipe/recipe_json.h"
#include "recipe/render.h"
#include "worker/trainer/report/events.h"
#include "worker/trainer/report/progress.h"

namespace nibble {

namespace {

ResolvedRecipe ResolveOrEmpty(const Recipe& recipe, const Outline& outline) {
  absl::StatusOr<ResolvedRecipe> resolved = Resolve(recipe, outline, 0);
  return resolved.ok() ? *std::move(resolved) : ResolvedRecipe();
}

}  // namespace

StartEvent StartOf(const JobSpec& spec, const Outline& outline, int64_t first_step, int threads) {
  return {.job = spec.name,
          .version = kTrainerVersion,
          .model = spec.model.name,
          .parameters = outline.parameters(),
          .recipe = spec.recipe.preset,
          .precision = std::string(ChoiceName(spec.training.precision)),
          .first_step = first_step,
          .steps = spec.training.steps,
          .tokens_per_step = TokensPerStep(spec),
          .sequence = spec.data.sequence,
          .batch = spec.training.batch,
          .micro_batch = MicroBatch(spec),
          .ranks = spec.resources.ranks,
          .threads = threads,
          .device = std::string(ChoiceName(spec.resources.device)),
          .seed = spec.training.seed,
          .spec = ToYaml(spec)};
}

StepEvent StepOf(const StepReport& report, double tokens_per_second) {
  const StepSeconds& s = report.seconds;
  return {.step = report.step,
          .tokens = (report.step + 1) * report.tokens,
          .loss = report.loss,
          .gradient_norm = report.gradient_norm,
          .learning_rate = report.learning_rate,
          .revision = report.revision,
          .updated = report.updated,
          .tokens_per_second = tokens_per_second,
          .seconds = s.total,
          .data_seconds = s.data,
          .weights_seconds = s.weights,
          .forward_seconds = s.forward,
          .backward_seconds = s.backward,
          .reduce_seconds = s.reduce,
          .update_seconds = s.update};
}

std::vector<PrecisionEvent> PrecisionOf(const StepReport& report, const Outline& outline,
                                        const Timeline& timeline) {
  const ResolvedRecipe recipe = ResolveOrEmpty(timeline.At(report.step).recipe, outline);
  std::vector<PrecisionEvent> events;
  for (const OperandFigures& f : report.figures) {
    const QuantStats stats = Finish(f.head, f.elements);
    PrecisionEvent event = {.step = report.step,
                            .layer = outline.linears[f.linear].name,
                            .operand = std::string(OperandRoleName(f.role)),
                            .relative_error = stats.relative_error,
                            .snr_db = stats.snr_db,
                            .underflow = stats.underflow,
                            .clipped = stats.clipped,
                            .amax = stats.amax,
                            .scale_spread_octaves = stats.scale_spread_octaves,
                            .non_finite = static_cast<int64_t>(stats.non_finite)};
    if (f.linear < static_cast<int64_t>(recipe.layers.size())) {
      const OperandFormat& format = recipe.layers[f.linear][f.role];
      if (format.has_value()) event.format = format->Name();
    }
    events.push_back(std::move(event));
  }
  return events;
}

std::optional<GuardEvent> GuardOf(const StepReport& report, const GuardSpec& guards) {
  if (report.updated && !report.spike) return std::nullopt;
  GuardEvent event = {.step = report.step,
                      .guard = report.spike ? "spike" : "non-finite",
                      .loss = report.loss,
                      .gradient_norm = report.gradient_norm,
                      .z = report.spike_z,
                      .detail = report.skip_reason};
  if (report.updated) {
    event.action = "observed";
  } else {
    const bool stops = !report.spike && guards.non_finite == NonFinitePolicy::kStop;
    event.action = stops              ? "stopped"
                   : report.last_skip ? std::string(ChoiceName(guards.after_skips))
                                      : "skipped";
  }
  for (const BadOperand& bad : report.bad_operands) {
    event.operands.push_back(absl::StrCat(bad.linear, " ", std::string(OperandRoleName(bad.role)),
                                          ": ", bad.count, " values"));
  }
  return event;
}

RevisionEvent RevisionOf(const Timeline& timeline, const Revision& revision,
                         const Outline& outline) {
  RevisionEvent event = {.step = revision.first_step,
                         .revision = revision.number,
                         .author = revision.author,
                         .reason = revision.reason,
                         .recipe = ToJson(revision.recipe)};
  if (revision.first_step == 0) return event;
  const absl::StatusOr<RecipeDiff> diff =
      Diff(ResolveOrEmpty(timeline.At(revision.first_step - 1).recipe, outline),
           ResolveOrEmpty(revision.recipe, outline), outline);
  if (diff.ok()) {
    event.changes = absl::StrSplit(DiffText(*diff, outline), '\n', absl::SkipEmpty());
  }
  return event;
}

namespace {

std::string Clipped(std::string name) {
  if (name.size() > kMaxLayerNameBytes) name.resize(kMaxLayerNameBytes);
  return name;
}

void AddTotals(const StepReport& report, StepTotals& made) {
  ++made.steps;
  made.skipped += report.updated ? 0 : 1;
  made.tokens += report.tokens;
  made.seconds += report.seconds.total;
  made.data_seconds += report.seconds.data;
  made.weights_seconds += report.seconds.weights;
  made.forward_seconds += report.seconds.forward;
  made.backward_seconds += report.seconds.backward;
  made.reduce_seconds += report.seconds.reduce;
  made.update_seconds += report.seconds.update;
}

}  // namespace

void AddStep(const StepReport& report, const Outline& outline, const Timeline& timeline,
             bool with_precision, RankNews& news) {
  AddTotals(report, news.made);
  news.has_sample = true;
  news.step = report.step;
  news.tokens = (report.step + 1) * report.tokens;
  news.loss = report.loss;
  news.gradient_norm = report.gradient_norm;
  news.learning_rate = report.learning_rate;
  news.step_seconds = report.seconds.total;
  news.tokens_per_second =
      report.seconds.total > 0 ? static_cast<double>(report.tokens) / report.seconds.total : 0;
  news.revision = report.revision;
  news.revision_first_step = timeline.At(report.step).first_step;
  news.updated = report.updated;
  news.precision.clear();
  if (!with_precision || report.figures.empty()) return;
  for (PrecisionEvent& event : PrecisionOf(report, outline, timeline)) {
    if (news.precision.size() == kMaxPrecisionSamples) break;
    news.precision.push_back({.step = event.step,
                              .layer = Clipped(std::move(event.layer)),
                              .operand = Clipped(std::move(event.operand)),
                              .format = Clipped(std::move(event.format)),
                              .relative_error = event.relative_error,
                              .underflow = event.underflow,
                              .clipped = event.clipped,
                              .amax = event.amax,
                              .scale_spread_octaves = event.scale_spread_octaves,
                              .non_finite = event.non_finite});
  }
}

bool NoteBegun(const RevisionBegun& begun, RankNews& news) {
  if (!news.begun.empty() && news.begun.back() == begun) return false;
  if (news.begun.size() == kMaxRevisionsBegun) news.begun.erase(news.begun.begin());
  news.begun.push_back(begun);
  return true;
}

void NoteRefused(RevisionRefused refused, RankNews& news) {
  if (news.refused.size() == kMaxRevisionsRefused) news.refused.erase(news.refused.begin());
  news.refused.push_back(std::move(refused));
}

void AddCheckpoint(const CheckpointGuest::Outcome& outcome, RankNews& news) {
  CheckpointTotals& totals = news.checkpoints;
  totals.stall_seconds += outcome.stall_seconds;
  totals.write_seconds += outcome.write_seconds;
  if (!outcome.status.ok()) {
    ++totals.failed;
    return;
  }
  ++totals.stored;
  totals.bytes += outcome.bytes;
}

namespace {

constexpr double kPlainLineSeconds = 10;

}  // namespace

absl::StatusOr<std::unique_ptr<RunReporter>> RunReporter::Open(const JobSpec& spec,
                                                               const Options& options) {
  std::unique_ptr<RunReporter> reporter(new RunReporter(spec, options.clock));
  if (!options.speaks) return reporter;
  NIBBLE_ASSIGN_OR_RETURN(
      std::unique_ptr<EventLog> log,
      EventLog::Open(absl::StrCat(options.directory, "/", kEventLogFile), absl::Now));
  reporter->log_ = std::move(log);
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
