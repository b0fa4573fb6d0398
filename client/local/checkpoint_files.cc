#include "client/local/checkpoint_files.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/shell/output.h"
#include "client/shell/spec_input.h"
#include "common/status_macros.h"
#include "recipe/presets.h"
#include "recipe/recipe.h"
#include "recipe/recipe_json.h"
#include "recipe/timeline.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/interop/hf_export.h"
#include "worker/interop/hf_import.h"
#include "worker/weights/checkpoint_weights.h"

namespace nibble {
namespace {

using nlohmann::json;

std::string TimeText(int64_t unix_nanos) {
  if (unix_nanos == 0) return "";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixNanos(unix_nanos),
                          absl::UTCTimeZone());
}

std::string Megabytes(int64_t bytes) { return absl::StrFormat("%.1f MB", bytes / 1e6); }

// The recipe revision in effect at the checkpoint's step; 0 if the timeline cannot be read.
int64_t RevisionAt(const CheckpointHeader& header) {
  const absl::StatusOr<Timeline> timeline = TimelineFromJson(header.recipe_timeline);
  return timeline.ok() && !timeline->revisions().empty() ? timeline->At(header.step).number : 0;
}

json SummaryJson(const CheckpointSummary& summary) {
  json entry = {{"step", summary.step},
                {"attempt", summary.attempt},
                {"pinned", summary.pinned},
                {"readable", summary.status.ok()}};
  if (!summary.status.ok()) {
    entry["problem"] = std::string(summary.status.message());
    return entry;
  }
  entry["bytes"] = summary.bytes;
  entry["tensors"] = summary.tensors;
  entry["ranks"] = summary.header.world;
  entry["revision"] = RevisionAt(summary.header);
  entry["time_unix_nanos"] = summary.header.time_unix_nanos;
  return entry;
}

json TimelineJson(const CheckpointHeader& header) {
  json parsed = json::parse(header.recipe_timeline, nullptr, false);
  return parsed.is_discarded() ? json() : parsed;
}

// The recipe that decides which weights are packed.
absl::StatusOr<ResolvedRecipe> ResolveFor(const ExportRequest& request,
                                          const CheckpointWeights& weights) {
  Recipe recipe = {.preset = request.recipe};
  if (request.recipe.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(const Timeline timeline,
                            TimelineFromJson(weights.header().recipe_timeline));
    recipe = timeline.At(weights.header().step).recipe;
  }
  return Resolve(recipe, weights.outline(), 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenStore(const std::string& directory,
                                                           bool read_only) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string path, FindStore(directory));
  NIBBLE_ASSIGN_OR_RETURN(const StoreIdentity identity, CheckpointStore::IdentityOf(path));
  return CheckpointStore::Open(path, {.identity = identity, .read_only = read_only});
}

absl::StatusOr<std::string> ListCheckpoints(const std::string& directory, bool as_json) {
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointStore> store, OpenStore(directory, true));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<CheckpointSummary> list, store->List());
  if (as_json) {
    json entries = json::array();
    for (const CheckpointSummary& summary : list) entries.push_back(SummaryJson(summary));
    return JsonText({{"store", store->path()},
                     {"job", store->identity().job},
                     {"checkpoints", std::move(entries)}});
  }
  std::string text = absl::StrFormat("%10s %8s %12s %6s %9s  %-19s  %s\n", "STEP", "ATTEMPT",
                                     "SIZE", "RANKS", "REVISION", "TAKEN (UTC)", "");
  for (const CheckpointSummary& summary : list) {
    if (!summary.status.ok()) {
      absl::StrAppendFormat(&text, "%10d %8d  damaged: %s\n", summary.step, summary.attempt,
                            std::string(summary.status.message()));
      continue;
    }
    absl::StrAppendFormat(&text, "%10d %8d %12s %6d %9d  %-19s  %s\n", summary.step,
                          summary.attempt, Megabytes(summary.bytes), summary.header.world,
                          RevisionAt(summary.header), TimeText(summary.header.time_unix_nanos),
                          summary.pinned ? "pinned" : "");
  }
  return text;
}

absl::StatusOr<std::string> DescribeCheckpoint(const CheckpointName& name, bool as_json) {
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointStore> store,
                          OpenStore(name.directory, true));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<CheckpointSummary> list, store->List());
  const auto found = std::find_if(list.rbegin(), list.rend(), [&](const auto& summary) {
    return !name.step.has_value() || summary.step == *name.step;
  });
  if (found == list.rend()) {
    return absl::NotFoundError(absl::StrCat(
        store->path(), " has no checkpoint",
        name.step.has_value() ? absl::StrCat(" of step ", *name.step) : std::string()));
  }
  if (!found->status.ok()) return found->status;
  NIBBLE_ASSIGN_OR_RETURN(const std::shared_ptr<const CheckpointReader> reader,
                          store->OpenCheckpoint(found->step));
  const CheckpointHeader& header = reader->manifest().header;
  std::vector<std::pair<std::string, TensorEntry>> tensors(reader->tensors().begin(),
                                                           reader->tensors().end());
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  if (as_json) {
    json described = SummaryJson(*found);
    described["job"] = header.identity.job;
    described["cluster"] = header.identity.cluster;
    described["seed"] = header.seed;
    described["data_position"] = header.data_position;
    described["formula_version"] = header.formula_version;
    described["recipe_timeline"] = TimelineJson(header);
    described["spec"] = header.spec;
    described["tensors"] = json::array();
    for (const auto& [tensor, entry] : tensors) {
      described["tensors"].push_back({{"name", tensor},
                                      {"dtype", std::string(FileDTypeName(entry.dtype))},
                                      {"shape", entry.shape},
                                      {"slices", entry.pieces.size()}});
    }
    return JsonText(described);
  }
  std::string text = absl::StrFormat(
      "checkpoint      step %d of job %s%s\ntaken           %s UTC, attempt %d, by %d ranks\n"
      "holds           %d tensors, %s\nseed            %d\nsamples         %d trained on\n"
      "formula         version %d\nrecipe          revision %d in force\n",
      header.step, header.identity.job, found->pinned ? ", pinned" : "",
      TimeText(header.time_unix_nanos), header.attempt, header.world, found->tensors,
      Megabytes(found->bytes), header.seed, header.data_position, header.formula_version,
      RevisionAt(header));
  if (const auto timeline = TimelineFromJson(header.recipe_timeline); timeline.ok()) {
    for (const Revision& revision : timeline->revisions()) {
      absl::StrAppend(&text, "                r", revision.number, " from step ",
                      revision.first_step, revision.refused.empty() ? "" : ", refused (",
                      revision.refused, revision.refused.empty() ? "" : ")", ": ",
                      ToJson(revision.recipe), revision.reason.empty() ? "" : "  (",
                      revision.reason, revision.reason.empty() ? "" : ")", "\n");
    }
  }
  for (const auto& [tensor, entry] : tensors) {
    absl::StrAppendFormat(&text, "  %-4s [%s] %s, %d slices\n",
                          std::string(FileDTypeName(entry.dtype)), absl::StrJoin(entry.shape, ", "),
                          tensor, entry.pieces.size());
  }
  return text;
}

absl::StatusOr<VerifyReport> VerifyCheckpoints(const CheckpointName& name, bool as_json) {
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointStore> store,
                          OpenStore(name.directory, true));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<StoredDirectory> committed, store->Committed());
  VerifyReport report;
  json entries = json::array();
  bool any = false;
  for (const StoredDirectory& directory : committed) {
    if (name.step.has_value() && directory.step != *name.step) continue;
    any = true;
    const absl::StatusOr<Verification> verified = store->Verify(directory.step);
    const absl::Status status = verified.ok() ? verified->ToStatus() : verified.status();
    report.status.Update(status);
    const int64_t chunks = verified.ok() ? verified->chunks : 0;
    absl::StrAppend(&report.text, "step ", directory.step, ": ");
    json entry = {{"step", directory.step}, {"good", status.ok()}, {"chunks", chunks}};
    if (status.ok()) {
      absl::StrAppend(&report.text, "good, ", chunks, " chunks\n");
    } else {
      absl::StrAppend(&report.text, "damaged: ", std::string(status.message()), "\n");
      entry["problem"] = std::string(status.message());
    }
    entries.push_back(std::move(entry));
  }
  if (!any && name.step.has_value()) {
    return absl::NotFoundError(
        absl::StrCat(store->path(), " has no checkpoint of step ", *name.step));
  }
  if (as_json) report.text = JsonText({{"store", store->path()}, {"checkpoints", entries}});
  return report;
}

absl::StatusOr<std::string> ExportCheckpoint(const ExportRequest& request,
                                             std::vector<std::string>& notices) {
  NIBBLE_ASSIGN_OR_RETURN(const CheckpointName name, ParseCheckpointName(request.source));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointWeights> weights,
                          CheckpointWeights::Open(name.directory, name.step));
  notices = weights->notices();
  HfExportOptions options = {.dtype = request.dtype == "fp32" ? FileDType::kF32 : FileDType::kBF16,
                             .context = weights->spec().data.sequence,
                             .overwrite = request.overwrite};
  std::optional<ResolvedRecipe> recipe;
  if (request.quantised || !request.recipe.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(ResolvedRecipe resolved, ResolveFor(request, *weights));
    recipe = std::move(resolved);
    options.quantise = &*recipe;
  }
  NIBBLE_ASSIGN_OR_RETURN(const HfExportReport report,
                          ExportHf(*weights, request.directory, options));
  if (request.json) {
    return JsonText({{"directory", request.directory},
                     {"source", weights->description()},
                     {"tensors", report.tensors},
                     {"files", report.shards},
                     {"bytes", report.bytes},
                     {"quantised_layers", report.quantised_linears},
                     {"tokenizer", report.tokenizer}});
  }
  return absl::StrFormat("%s of %s: %d tensors in %d files, %.1f MB%s%s\n", request.directory,
                         weights->description(), report.tensors, report.shards,
                         static_cast<double>(report.bytes) / 1e6,
                         report.quantised_linears > 0
                             ? absl::StrFormat(", %d layers in NVFP4", report.quantised_linears)
                             : std::string(),
                         report.tokenizer ? ", with its tokenizer" : "");
}

absl::StatusOr<std::string> ImportWeights(const ImportRequest& request,
                                          std::vector<std::string>& notices) {
  const absl::StatusOr<JobSpec> spec = ReadJobSpec(request.spec);
  if (!spec.ok()) return spec.status();
  const absl::StatusOr<std::unique_ptr<WeightSource>> source = OpenWeights(request.source);
  if (!source.ok()) return source.status();
  notices = (*source)->notices();
  const std::string directory = absl::StrCat(OutputDirectory(*spec), "/", kCheckpointDirectoryName);
  NIBBLE_ASSIGN_OR_RETURN(
      const std::unique_ptr<CheckpointStore> store,
      CheckpointStore::Open(directory, {.identity = {.cluster = "", .job = spec->name}}));
  NIBBLE_RETURN_IF_ERROR(
      WriteInitialCheckpoint(*store, *spec, **source, absl::ToUnixNanos(absl::Now())));
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
