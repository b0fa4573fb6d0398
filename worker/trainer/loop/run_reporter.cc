#include "worker/trainer/loop/run_reporter.h"

#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/process/host.h"
#include "common/status_macros.h"
#include "common/version/build_version.h"
#include "kernels/tensor/quant_stats.h"
#include "recipe/recipe_json.h"
#include "recipe/render.h"
#include "worker/trainer/report/events.h"
#include "worker/trainer/report/progress.h"
#include "worker/trainer/report/run_event.h"

namespace nibble {

namespace {

ResolvedRecipe ResolveOrEmpty(const Recipe& recipe, const Outline& outline) {
  absl::StatusOr<ResolvedRecipe> resolved = Resolve(recipe, outline, 0);
  return resolved.ok() ? *std::move(resolved) : ResolvedRecipe();
}

}  // namespace

StartEvent StartOf(const JobSpec& spec, const Outline& outline, int64_t first_step, int threads,
                   const std::string& collectives) {
  const HostDescription host = DescribeHost();
  return {.job = spec.name,
          .version = BuildVersion(),
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
          .collectives = collectives,
          .host = host.name,
          .processor = ProcessorText(host),
          .seed = spec.training.seed,
          .spec = ToYaml(spec)};
}

MemoryEvent MemoryOf(const Trainer& trainer, const MemoryUse& use, int64_t step) {
  const MemoryPlan plan = trainer.memory();
  return {.step = step,
          .weights = static_cast<int64_t>(plan.weights),
          .gradients = static_cast<int64_t>(plan.gradients),
          .moments = static_cast<int64_t>(plan.moments),
          .working_weights = static_cast<int64_t>(plan.working_weights),
          .activations = static_cast<int64_t>(plan.activations),
          .scratch = static_cast<int64_t>(plan.scratch),
          .operations = static_cast<int64_t>(plan.operations),
          .fixed = static_cast<int64_t>(plan.fixed),
          .total = static_cast<int64_t>(plan.total()),
          .capacity = static_cast<int64_t>(use.capacity)};
}

std::vector<link::v1::PrecisionSample> PrecisionOf(const StepReport& report, const Outline& outline,
                                                   const Timeline& timeline) {
  std::vector<link::v1::PrecisionSample> samples;
  if (report.figures.empty()) return samples;
  const int64_t step = report.sample.step();
  const ResolvedRecipe recipe = ResolveOrEmpty(timeline.RecipeAt(step), outline);
  for (const OperandFigures& f : report.figures) {
    const QuantStats stats = Finish(f.head, f.elements);
    link::v1::PrecisionSample& sample = samples.emplace_back();
    sample.set_step(step);
    sample.set_layer(outline.linears[f.linear].name);
    sample.set_operand(std::string(OperandRoleName(f.role)));
    sample.set_relative_error(stats.relative_error);
    sample.set_snr_db(stats.snr_db);
    sample.set_underflow(stats.underflow);
    sample.set_clipped(stats.clipped);
    sample.set_amax(stats.amax);
    sample.set_scale_spread_octaves(stats.scale_spread_octaves);
    sample.set_non_finite(static_cast<int64_t>(stats.non_finite));
    if (f.linear < static_cast<int64_t>(recipe.layers.size())) {
      const OperandFormat& format = recipe.layers[f.linear][f.role];
      if (format.has_value()) sample.set_format(format->Name());
    }
  }
  return samples;
}

std::vector<link::v1::ProductPath> ProductsOf(const Trainer& trainer, int64_t step) {
  std::vector<link::v1::ProductPath> paths;
  for (const ProductUse& product : trainer.model().Products()) {
    link::v1::ProductPath& path = paths.emplace_back();
    path.set_step(step);
    path.set_gemm(std::string(LinearGemmName(product.gemm)));
    path.set_path(product.path);
    path.set_reason(product.reason);
    path.set_linears(product.linears);
  }
  return paths;
}

std::vector<GuardEvent> GuardsOf(const StepReport& report) {
  std::vector<GuardEvent> events;
  for (const GuardDecision& decision : report.decisions) {
    events.push_back({.step = report.sample.step(),
                      .guard = decision.guard,
                      .action = decision.action,
                      .loss = report.sample.loss(),
                      .gradient_norm = report.sample.gradient_norm(),
                      .z = decision.z,
                      .detail = decision.detail,
                      .operands = decision.operands});
  }
  return events;
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
  if (revision.lr_scale != timeline.At(revision.first_step - 1).lr_scale) {
    event.changes.push_back(absl::StrCat("learning rate times ", revision.lr_scale));
  }
  return event;
}

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

namespace {

constexpr double kPlainLineSeconds = 10;
constexpr double kBoardFlushSeconds = 1;

}  // namespace

absl::StatusOr<std::unique_ptr<RunReporter>> RunReporter::Open(const JobSpec& spec,
                                                               const Options& options) {
  std::unique_ptr<RunReporter> reporter(new RunReporter(spec, options.clock));
  if (!options.writes) return reporter;
  NIBBLE_ASSIGN_OR_RETURN(
      std::unique_ptr<EventLog> log,
      EventLog::Open(absl::StrCat(options.directory, "/", kEventLogFile), absl::Now));
  reporter->log_ = std::move(log);
  const std::string board = TensorboardDirectory(spec, options.directory);
  if (!board.empty()) {
    auto file = TensorboardFile::Create(board, absl::Now(), TensorboardFile::Earlier::kKeep);
    if (!file.ok()) {
      return absl::Status(file.status().code(),
                          absl::StrCat("output.tensorboard: ", file.status().message()));
    }
    reporter->board_ = *std::move(file);
  }
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

void RunReporter::AddToBoard(const std::string& line) {
  const absl::StatusOr<RunEvent> event = ParseRunEvent(line);
  absl::Status status = event.ok() ? board_->Add(*event) : event.status();
  const double now = clock_();
  if (status.ok() && now - flushed_at_ >= kBoardFlushSeconds) {
    flushed_at_ = now;
    status = board_->Flush();
  }
  if (!status.ok()) LoseBoard(status);
}

void RunReporter::LoseBoard(const absl::Status& status) {
  // A record that is partly written ends what TensorBoard reads of the file.
  const std::string path = board_->path();
  board_.reset();
  Notice(step_,
         absl::StrCat("output.tensorboard: ", path, " ends here: ", std::string(status.message()),
                      "; 'nibble job metrics --tensorboard' makes it from the event log"));
}

void RunReporter::NoteLogState(const absl::Status& status) {
  if (status.ok()) {
    if (!trouble_.empty()) Note("the event log is written again");
    trouble_.clear();
    return;
  }
  if (!trouble_.empty()) return;
  const std::string error(status.message());
  Note(absl::StrCat(error, "; events wait in memory, training continues"));
  trouble_ =
      absl::IsResourceExhausted(status)
          ? absl::StrCat("the disk is full: events wait in memory for room in ", log_->path())
          : absl::StrCat(error, ": events wait in memory");
}

void RunReporter::Close() {
  if (log_ == nullptr) return;
  if (board_ != nullptr) {
    const absl::Status status = board_->Flush();
    if (!status.ok()) LoseBoard(status);
  }
  NoteLogState(log_->Flush());
  if (log_->missing() > 0) {
    Note(absl::StrCat(log_->missing(), " events could not be written to ", log_->path()));
  }
}

void RunReporter::RevisionBegins(const Trainer& trainer, const Revision& revision, int64_t step) {
  const RevisionEvent event = RevisionOf(trainer.timeline(), revision, trainer.outline());
  Write(event);
  for (const link::v1::ProductPath& path : ProductsOf(trainer, step)) {
    Write(path);
  }
  if (revision_ != 0) {
    Note(absl::StrCat("recipe revision ", revision.number, " in effect from step ",
                      revision.first_step, event.changes.empty() ? "" : ": ",
                      event.changes.empty() ? "" : event.changes.front()));
  }
  revision_ = revision.number;
}

void RunReporter::PromotionsChange(const Trainer& trainer, int64_t step) {
  const Timeline& timeline = trainer.timeline();
  PromotionEvent event = {.step = step, .revision = timeline.At(step).number};
  for (const Promotion& promotion : timeline.promotions()) {
    if (promotion.first_step > step || promotion.end_step <= step) continue;
    event.layers.push_back(absl::StrCat(promotion.layers, " until step ", promotion.end_step,
                                        ", by ", promotion.guard));
  }
  Write(event);
  for (const link::v1::ProductPath& path : ProductsOf(trainer, step)) {
    Write(path);
  }
  Note(absl::StrCat("step ", step, ": ",
                    event.layers.empty()
                        ? "promotions to BF16 have ended"
                        : absl::StrCat("in BF16: ", absl::StrJoin(event.layers, "; "))));
  promoted_ = timeline.PromotedAt(step);
}

void RunReporter::StepDone(const StepReport& report, const Trainer& trainer,
                           const std::vector<link::v1::PrecisionSample>& precision) {
  if (!writes()) return;
  const int64_t step = report.sample.step();
  step_ = step;
  const Revision& revision = trainer.timeline().At(step);
  if (revision.number != revision_) RevisionBegins(trainer, revision, step);
  if (trainer.timeline().PromotedAt(step) != promoted_) PromotionsChange(trainer, step);
  for (const GuardEvent& guard : GuardsOf(report)) {
    Write(guard);
    // Operands that a guard only observes are many, and in the event log.
    if (guard.action == "observed" && !guard.operands.empty()) continue;
    Note(absl::StrCat("step ", step, ": ", guard.guard, " guard ", guard.action, ": ",
                      guard.detail));
  }
  tokens_since_ += report.tokens;
  const bool last = step + 1 == EndStep(spec_);
  if (step % spec_.metrics.log_every == 0 || last) {
    const double now = clock_();
    const double seconds = now - logged_at_;
    v1::StepSample sample = report.sample;
    sample.set_tokens_per_second(seconds > 0 ? static_cast<double>(tokens_since_) / seconds : 0);
    Write(sample);
    logged_at_ = now;
    tokens_since_ = 0;
  }
  for (const link::v1::PrecisionSample& sample : precision) Write(sample);
  if (progress_ != nullptr) {
    progress_->StepDone(report.sample, report.tokens, revision.recipe.preset);
  }
}

}  // namespace nibble
