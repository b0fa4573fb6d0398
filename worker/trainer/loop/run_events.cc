#include "worker/trainer/loop/run_events.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/tensor/quant_stats.h"
#include "recipe/diff.h"
#include "recipe/recipe_json.h"

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

}  // namespace nibble
