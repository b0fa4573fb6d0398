#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/local/local_commands.h"
#include "client/shell/nouns.h"
#include "client/shell/output.h"
#include "client/shell/spec_input.h"
#include "common/command_line/command_line.h"
#include "common/counted.h"
#include "common/json_text.h"
#include "common/status_macros.h"
#include "common/text/table.h"
#include "common/text/text.h"
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

std::string TakenText(int64_t unix_nanos) { return TimeText(unix_nanos / 1'000'000); }

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
  if (NestsDeeperThan(kMaxJsonDepth, header.recipe_timeline)) return json();
  json parsed = json::parse(header.recipe_timeline, nullptr, false);
  return parsed.is_discarded() ? json() : parsed;
}

// The recipe that decides which weights are packed.
absl::StatusOr<ResolvedRecipe> ResolveFor(const CheckpointFlags& flags,
                                          const CheckpointWeights& weights) {
  Recipe recipe = {.preset = flags.recipe};
  if (flags.recipe.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(const Timeline timeline,
                            TimelineFromJson(weights.header().recipe_timeline));
    recipe = timeline.RecipeAt(weights.header().step);
  }
  return Resolve(recipe, weights.outline(), 0);
}

absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenStore(const std::string& directory,
                                                           bool read_only) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string path, FindStore(directory));
  NIBBLE_ASSIGN_OR_RETURN(const StoreIdentity identity, CheckpointStore::IdentityOf(path));
  return CheckpointStore::Open(path, {.identity = identity, .read_only = read_only});
}

absl::Status NoCheckpoint(const CheckpointStore& store, const CheckpointName& name) {
  return absl::NotFoundError(
      absl::StrCat(store.path(), " has no checkpoint",
                   name.step.has_value() ? absl::StrCat(" of step ", *name.step) : ""));
}

std::string DescriptionText(const CheckpointSummary& summary,
                            const std::vector<std::pair<std::string, TensorEntry>>& tensors) {
  const CheckpointHeader& header = summary.header;
  TextList list(16);
  list.Add("checkpoint", absl::StrCat("step ", header.step, " of job ", header.identity.job,
                                      summary.pinned ? ", pinned" : ""));
  list.Add("taken", absl::StrCat(TakenText(header.time_unix_nanos), " UTC, attempt ",
                                 header.attempt, ", by ", Counted(header.world, "rank")));
  list.Add("contents",
           absl::StrCat(Counted(summary.tensors, "tensor"), ", ", BytesText(summary.bytes)));
  list.Add("seed", absl::StrCat(header.seed));
  list.Add("samples", absl::StrCat(header.data_position, " trained on"));
  list.Add("formula", absl::StrCat("version ", header.formula_version));
  if (!header.products.empty()) {
    const std::vector<absl::string_view> lines =
        absl::StrSplit(header.products, '\n', absl::SkipEmpty());
    // A line for the text's format, one for the library and the card, then one a shape.
    list.Add("products", absl::StrCat(Counted(static_cast<int64_t>(lines.size()) - 2, "algorithm"),
                                      " of ", lines.size() > 1 ? lines[1] : ""));
  }
  std::string recipe = absl::StrCat("revision ", RevisionAt(header), " in effect");
  if (const auto timeline = TimelineFromJson(header.recipe_timeline); timeline.ok()) {
    for (const Revision& revision : timeline->revisions()) {
      absl::StrAppend(
          &recipe, "\nr", revision.number, " from step ", revision.first_step,
          revision.refused.empty() ? "" : absl::StrCat(", refused (", revision.refused, ")"), ": ",
          ToJson(revision.recipe),
          revision.reason.empty() ? "" : absl::StrCat("  (", revision.reason, ")"));
    }
  }
  list.Add("recipe", recipe);
  std::string text = list.Text();
  for (const auto& [name, entry] : tensors) {
    absl::StrAppendFormat(&text, "  %-4s [%s] %s, %s\n", std::string(FileDTypeName(entry.dtype)),
                          absl::StrJoin(entry.shape, ", "), name,
                          Counted(static_cast<int64_t>(entry.pieces.size()), "slice"));
  }
  return text;
}

absl::StatusOr<Reply> List(const CheckpointFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointStore> store,
                          OpenStore(flags.name, true));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<CheckpointSummary> list, store->List());
  json entries = json::array();
  TextTable table({"STEP", "ATTEMPT", "SIZE", "RANKS", "REVISION", "TAKEN (UTC)", "STATE"});
  for (const CheckpointSummary& summary : list) {
    entries.push_back(SummaryJson(summary));
    const std::string step = absl::StrCat(summary.step), attempt = absl::StrCat(summary.attempt);
    if (summary.status.ok()) {
      table.Add({step, attempt, BytesText(summary.bytes), absl::StrCat(summary.header.world),
                 absl::StrCat(RevisionAt(summary.header)),
                 TakenText(summary.header.time_unix_nanos), summary.pinned ? "pinned" : ""});
    } else {
      table.Add({step, attempt, "-", "-", "-", "-",
                 absl::StrCat("damaged: ", std::string(summary.status.message()))});
    }
  }
  return Reply{.text = table.Text(),
               .json = JsonText({{"store", store->path()},
                                 {"job", store->identity().job},
                                 {"checkpoints", std::move(entries)}})};
}

absl::StatusOr<Reply> Describe(const CheckpointFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const CheckpointName name, ParseCheckpointName(flags.name));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointStore> store,
                          OpenStore(name.directory, true));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<CheckpointSummary> list, store->List());
  const auto found = std::find_if(list.rbegin(), list.rend(), [&](const auto& summary) {
    return !name.step.has_value() || summary.step == *name.step;
  });
  if (found == list.rend()) return NoCheckpoint(*store, name);
  if (!found->status.ok()) return found->status;
  NIBBLE_ASSIGN_OR_RETURN(const std::shared_ptr<const CheckpointReader> reader,
                          store->OpenCheckpoint(found->step));
  const CheckpointHeader& header = reader->manifest().header;
  std::vector<std::pair<std::string, TensorEntry>> tensors(reader->tensors().begin(),
                                                           reader->tensors().end());
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  json described = SummaryJson(*found);
  described["job"] = header.identity.job;
  described["cluster"] = header.identity.cluster;
  described["seed"] = header.seed;
  described["data_position"] = header.data_position;
  described["formula_version"] = header.formula_version;
  described["recipe_timeline"] = TimelineJson(header);
  described["spec"] = header.spec;
  described["products"] = header.products;
  described["tensors"] = json::array();
  for (const auto& [tensor, entry] : tensors) {
    described["tensors"].push_back({{"name", tensor},
                                    {"dtype", std::string(FileDTypeName(entry.dtype))},
                                    {"shape", entry.shape},
                                    {"slices", entry.pieces.size()}});
  }
  return Reply{.text = DescriptionText(*found, tensors), .json = JsonText(described)};
}

// Without a step: every checkpoint.
absl::StatusOr<Reply> Verify(const CheckpointFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const CheckpointName name, ParseCheckpointName(flags.name));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointStore> store,
                          OpenStore(name.directory, true));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<StoredDirectory> committed, store->Committed());
  Reply reply;
  json entries = json::array();
  for (const StoredDirectory& directory : committed) {
    if (name.step.has_value() && directory.step != *name.step) continue;
    const absl::StatusOr<Verification> verified = store->Verify(directory.step);
    const absl::Status status = verified.ok() ? verified->ToStatus() : verified.status();
    const int64_t chunks = verified.ok() ? verified->chunks : 0;
    json entry = {{"step", directory.step}, {"good", status.ok()}, {"chunks", chunks}};
    absl::StrAppend(&reply.text, "step ", directory.step, ": ");
    if (status.ok()) {
      absl::StrAppend(&reply.text, "good, ", Counted(chunks, "chunk"), "\n");
    } else {
      absl::StrAppend(&reply.text, "damaged: ", std::string(status.message()), "\n");
      entry["problem"] = std::string(status.message());
      if (reply.exit_code == kExitDone) reply.exit_code = ExitCodeOf(status);
    }
    entries.push_back(std::move(entry));
  }
  if (entries.empty() && name.step.has_value()) return NoCheckpoint(*store, name);
  reply.json = JsonText({{"store", store->path()}, {"checkpoints", entries}});
  return reply;
}

absl::StatusOr<Reply> Export(const CheckpointFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const CheckpointName name, ParseCheckpointName(flags.name));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointWeights> weights,
                          CheckpointWeights::Open(name.directory, name.step));
  HfExportOptions options = {.dtype = flags.dtype == "fp32" ? FileDType::kF32 : FileDType::kBF16,
                             .context = weights->spec().data.sequence,
                             .overwrite = flags.overwrite};
  std::optional<ResolvedRecipe> recipe;
  if (flags.quantised || !flags.recipe.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(recipe, ResolveFor(flags, *weights));
    options.quantise = &*recipe;
  }
  NIBBLE_ASSIGN_OR_RETURN(const HfExportReport report, ExportHf(*weights, flags.target, options));
  std::string text = absl::StrCat(flags.target, " of ", weights->description(), ": ",
                                  Counted(report.tensors, "tensor"), " in ",
                                  Counted(report.shards, "file"), ", ", BytesText(report.bytes));
  if (report.quantised_linears > 0) {
    absl::StrAppend(&text, ", ", Counted(report.quantised_linears, "layer"), " in NVFP4");
  }
  if (report.tokenizer) absl::StrAppend(&text, ", with its tokenizer");
  return Reply{.text = text + "\n",
               .json = JsonText({{"directory", flags.target},
                                 {"source", weights->description()},
                                 {"tensors", report.tensors},
                                 {"files", report.shards},
                                 {"bytes", report.bytes},
                                 {"quantised_layers", report.quantised_linears},
                                 {"tokenizer", report.tokenizer}}),
               .notes = weights->notices()};
}

// Fails while a run writes to the store, which its process owns. `outcome` is a member of the
// JSON.
absl::StatusOr<Reply> Change(const CheckpointFlags& flags,
                             absl::Status (CheckpointStore::*change)(int64_t step),
                             const char* done, std::pair<const char*, bool> outcome) {
  NIBBLE_ASSIGN_OR_RETURN(const CheckpointName name, ParseCheckpointName(flags.name));
  if (!name.step.has_value()) return StepMissing(flags.name);
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointStore> store,
                          OpenStore(name.directory, /*read_only=*/false));
  NIBBLE_RETURN_IF_ERROR(((*store).*change)(*name.step));
  return Reply{
      .text = absl::StrCat("the checkpoint of step ", *name.step, " ", done, "\n"),
      .json = JsonText(
          {{"directory", name.directory}, {"step", *name.step}, {outcome.first, outcome.second}})};
}

absl::StatusOr<Reply> Pin(const CheckpointFlags& flags) {
  return Change(flags, &CheckpointStore::Pin, "is pinned", {"pinned", true});
}
absl::StatusOr<Reply> Unpin(const CheckpointFlags& flags) {
  return Change(flags, &CheckpointStore::Unpin, "is no longer pinned", {"pinned", false});
}
absl::StatusOr<Reply> Delete(const CheckpointFlags& flags) {
  return Change(flags, &CheckpointStore::Delete, "is deleted", {"deleted", true});
}

struct ImportFlags {
  std::string source;  // an exported model, or another run's checkpoint
  std::string spec;    // of the job that starts from it
  std::string print = "table";
};

absl::StatusOr<Reply> Import(const ImportFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const JobSpec spec, ReadJobSpec(flags.spec));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source, OpenWeights(flags.source));
  const std::string directory = absl::StrCat(OutputDirectory(spec), "/", kCheckpointDirectoryName);
  NIBBLE_ASSIGN_OR_RETURN(
      const std::unique_ptr<CheckpointStore> store,
      CheckpointStore::Open(directory, {.identity = {.cluster = "", .job = spec.name}}));
  NIBBLE_RETURN_IF_ERROR(
      WriteInitialCheckpoint(*store, spec, *source, absl::ToUnixNanos(absl::Now())));
  return Reply{.text = absl::StrCat("job ", spec.name, " starts from ", source->description(),
                                    ": checkpoint of step 0 in ", directory, "\n"),
               .json = JsonText({{"job", spec.name},
                                 {"source", source->description()},
                                 {"directory", directory},
                                 {"step", 0}}),
               .notes = source->notices()};
}

}  // namespace

CheckpointSource DirectoryCheckpoints() {
  return {.list = List,
          .describe = Describe,
          .verify = Verify,
          .write = Export,
          .pin = Pin,
          .unpin = Unpin,
          .remove = Delete};
}

void AddImportVerb(Command checkpoint, int& exit_code) {
  const auto flags = std::make_shared<ImportFlags>();
  const Command verb = checkpoint.AddSubcommand(
      "import", "Start a job from existing weights: write them as its checkpoint of step 0");
  verb.Add("SOURCE", flags->source,
           "a Hugging Face directory, or a run's checkpoint: DIRECTORY@STEP")
      .Required();
  verb.Add("--spec", flags->spec, "the job's spec, in YAML").Required();
  AddOutputOption(verb, flags->print);
  verb.OnParsed([flags, &exit_code] {
    exit_code = Finish("checkpoint import", flags->print, Import(*flags));
  });
}

}  // namespace nibble
