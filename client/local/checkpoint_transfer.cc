#include "client/local/checkpoint_transfer.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/local/json_text.h"
#include "client/local/read_spec.h"
#include "recipe/presets.h"
#include "recipe/recipe.h"
#include "recipe/recipe_json.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/interop/hf_export.h"
#include "worker/weights/checkpoint_name.h"
#include "worker/weights/checkpoint_weights.h"
#include "worker/weights/initial_checkpoint.h"
#include "worker/weights/open_weights.h"
#include "worker/weights/state_names.h"

namespace nibble {
namespace {

// The recipe that decides which weights are packed.
absl::StatusOr<ResolvedRecipe> ResolveFor(const ExportRequest& request,
                                          const CheckpointWeights& weights) {
  Recipe recipe = {.preset = request.recipe};
  if (request.recipe.empty()) {
    const absl::StatusOr<Timeline> timeline = TimelineFromJson(weights.header().recipe_timeline);
    if (!timeline.ok()) return timeline.status();
    recipe = timeline->At(weights.header().step).recipe;
  }
  return Resolve(recipe, weights.outline(), 0);
}

}  // namespace

absl::StatusOr<std::string> ExportCheckpoint(const ExportRequest& request,
                                             std::vector<std::string>& notices) {
  const absl::StatusOr<CheckpointName> name = ParseCheckpointName(request.source);
  if (!name.ok()) return name.status();
  const absl::StatusOr<std::unique_ptr<CheckpointWeights>> weights =
      CheckpointWeights::Open(name->directory, name->step);
  if (!weights.ok()) return weights.status();
  notices = (*weights)->notices();
  HfExportOptions options = {.dtype = request.dtype == "fp32" ? FileDType::kF32 : FileDType::kBF16,
                             .context = (*weights)->spec().data.sequence,
                             .overwrite = request.overwrite};
  std::optional<ResolvedRecipe> recipe;
  if (request.quantised || !request.recipe.empty()) {
    absl::StatusOr<ResolvedRecipe> resolved = ResolveFor(request, **weights);
    if (!resolved.ok()) return resolved.status();
    recipe = *std::move(resolved);
    options.quantise = &*recipe;
  }
  const absl::StatusOr<HfExportReport> report = ExportHf(**weights, request.directory, options);
  if (!report.ok()) return report.status();
  if (request.json) {
    return JsonText({{"directory", request.directory},
                     {"source", (*weights)->description()},
                     {"tensors", report->tensors},
                     {"files", report->shards},
                     {"bytes", report->bytes},
                     {"quantised_layers", report->quantised_linears},
                     {"tokenizer", report->tokenizer}});
  }
  return absl::StrFormat("%s of %s: %d tensors in %d files, %.1f MB%s%s\n", request.directory,
                         (*weights)->description(), report->tensors, report->shards,
                         static_cast<double>(report->bytes) / 1e6,
                         report->quantised_linears > 0
                             ? absl::StrFormat(", %d layers in NVFP4", report->quantised_linears)
                             : std::string(),
                         report->tokenizer ? ", with its tokenizer" : "");
}

absl::StatusOr<std::string> ImportWeights(const ImportRequest& request,
                                          std::vector<std::string>& notices) {
  const absl::StatusOr<JobSpec> spec = ReadJobSpec(request.spec);
  if (!spec.ok()) return spec.status();
  const absl::StatusOr<std::unique_ptr<WeightSource>> source = OpenWeights(request.source);
  if (!source.ok()) return source.status();
  notices = (*source)->notices();
  const std::string directory = absl::StrCat(OutputDirectory(*spec), "/", kCheckpointDirectoryName);
  const absl::StatusOr<std::unique_ptr<CheckpointStore>> store =
      CheckpointStore::Open(directory, {.identity = {.cluster = "", .job = spec->name}});
  if (!store.ok()) return store.status();
  const absl::Status status =
      WriteInitialCheckpoint(**store, *spec, **source, absl::ToUnixNanos(absl::Now()));
  if (!status.ok()) return status;
  if (request.json) {
    return JsonText({{"job", spec->name},
                     {"source", (*source)->description()},
                     {"directory", directory},
                     {"step", 0}});
  }
  return absl::StrCat("job ", spec->name, " begins from ", (*source)->description(), ": step 0 in ",
                      directory, "\n");
}

}  // namespace nibble
