#include "client/local/checkpoint_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/local/json_text.h"
#include "recipe/recipe_json.h"
#include "recipe/timeline.h"
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

// The revision in force at the checkpoint's step; 0 where the timeline cannot be read.
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

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenStore(const std::string& directory,
                                                           bool read_only) {
  const absl::StatusOr<std::string> path = FindStore(directory);
  if (!path.ok()) return path.status();
  const absl::StatusOr<StoreIdentity> identity = CheckpointStore::IdentityOf(*path);
  if (!identity.ok()) return identity.status();
  return CheckpointStore::Open(*path, {.identity = *identity, .read_only = read_only});
}

absl::StatusOr<std::string> ListCheckpoints(const std::string& directory, bool as_json) {
  const absl::StatusOr<std::unique_ptr<CheckpointStore>> store = OpenStore(directory, true);
  if (!store.ok()) return store.status();
  const absl::StatusOr<std::vector<CheckpointSummary>> list = (*store)->List();
  if (!list.ok()) return list.status();
  if (as_json) {
    json entries = json::array();
    for (const CheckpointSummary& summary : *list) entries.push_back(SummaryJson(summary));
    return JsonText({{"store", (*store)->path()},
                     {"job", (*store)->identity().job},
                     {"checkpoints", std::move(entries)}});
  }
  std::string text = absl::StrFormat("%10s %8s %12s %6s %9s  %-19s  %s\n", "STEP", "ATTEMPT",
                                     "SIZE", "RANKS", "REVISION", "TAKEN (UTC)", "");
  for (const CheckpointSummary& summary : *list) {
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
  const absl::StatusOr<std::unique_ptr<CheckpointStore>> store = OpenStore(name.directory, true);
  if (!store.ok()) return store.status();
  const absl::StatusOr<std::vector<CheckpointSummary>> list = (*store)->List();
  if (!list.ok()) return list.status();
  const auto found = std::find_if(list->rbegin(), list->rend(), [&](const auto& summary) {
    return !name.step.has_value() || summary.step == *name.step;
  });
  if (found == list->rend()) {
    return absl::NotFoundError(absl::StrCat(
        (*store)->path(), " has no checkpoint",
        name.step.has_value() ? absl::StrCat(" of step ", *name.step) : std::string()));
  }
  if (!found->status.ok()) return found->status;
  const absl::StatusOr<std::shared_ptr<const CheckpointReader>> reader =
      (*store)->OpenCheckpoint(found->step);
  if (!reader.ok()) return reader.status();
  const CheckpointHeader& header = (*reader)->manifest().header;
  std::vector<std::pair<std::string, TensorEntry>> tensors((*reader)->tensors().begin(),
                                                           (*reader)->tensors().end());
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
  const absl::StatusOr<std::unique_ptr<CheckpointStore>> store = OpenStore(name.directory, true);
  if (!store.ok()) return store.status();
  const absl::StatusOr<std::vector<StoredDirectory>> committed = (*store)->Committed();
  if (!committed.ok()) return committed.status();
  VerifyReport report;
  json entries = json::array();
  bool any = false;
  for (const StoredDirectory& directory : *committed) {
    if (name.step.has_value() && directory.step != *name.step) continue;
    any = true;
    const absl::StatusOr<Verification> verified = (*store)->Verify(directory.step);
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
        absl::StrCat((*store)->path(), " has no checkpoint of step ", *name.step));
  }
  if (as_json) report.text = JsonText({{"store", (*store)->path()}, {"checkpoints", entries}});
  return report;
}

}  // namespace nibble
