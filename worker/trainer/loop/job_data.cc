#include "worker/trainer/loop/job_data.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/bytes.h"
#include "common/errno_error.h"
#include "common/status_macros.h"
#include "worker/corpus/text_shards.h"
#include "worker/trainer/data/sampler.h"
#include "worker/trainer/data/shard.h"
#include "worker/trainer/data/token_source.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

namespace {

absl::StatusOr<bool> Exists(const std::string& path) {
  std::error_code error;
  const bool exists = std::filesystem::exists(path, error);
  if (error) return ErrnoError(error.value(), "looking for", path);
  return exists;
}

// A text source's shards; `held_out`: with documents kept for validation.
struct TextPlace {
  std::string field;  // of the spec, that names the source
  PrepareTextOptions options;
  std::string train() const { return options.output_dir + "/train.tokens"; }
  std::string validation() const { return options.output_dir + "/validation.tokens"; }
};
TextPlace PlaceOf(const JobSpec& spec, const std::string& directory, const Tokenizer& tokenizer,
                  const std::string& path, double held_out) {
  TextPlace place;
  PrepareTextOptions& options = place.options;
  options.inputs = {path};
  options.split.rule =
      spec.data.split == JobSplit::kFile ? SplitRule::kFile : SplitRule::kParagraphs;
  options.split.text_field = spec.data.text_field;
  options.validation_fraction = held_out;
  options.seed = spec.training.seed;
  options.threads = static_cast<int>(spec.resources.threads);
  const std::string key = absl::StrCat(
      path, "\n", tokenizer.label(), "\n", static_cast<int>(options.split.rule), "\n", held_out,
      "\n", held_out > 0 ? spec.training.seed : 0,
      // Last, and omitted if it is the default: existing runs have shards without it.
      spec.data.text_field == DataSpec().text_field ? ""
                                                    : absl::StrCat("\n", spec.data.text_field));
  options.output_dir = absl::StrFormat("%s/data/%016x", directory, Fnv1a64(key));
  return place;
}

double HeldOut(const JobSpec& spec) {
  return spec.data.validation.empty() ? spec.data.validation_fraction : 0.0;
}

// Every text source of a spec, training first.
absl::StatusOr<std::vector<TextPlace>> TextPlaces(const JobSpec& spec, const std::string& directory,
                                                  const Tokenizer& tokenizer) {
  std::vector<TextPlace> places;
  const auto add = [&](const auto& sources, const char* name, double held_out) -> absl::Status {
    for (size_t i = 0; i < sources.size(); ++i) {
      const std::string field = absl::StrCat("data.", name, "[", i, "]");
      const std::string& path = sources[i].path;
      const absl::StatusOr<SourceKind> kind = KindOfSource(path, sources[i].token_width);
      if (!kind.ok()) return OfField(field, path, kind.status());
      if (*kind != SourceKind::kText) continue;
      places.push_back(PlaceOf(spec, directory, tokenizer, path, held_out));
      places.back().field = field;
    }
    return absl::OkStatus();
  };
  absl::Status status = add(spec.data.train, "train", HeldOut(spec));
  if (status.ok()) status = add(spec.data.validation, "validation", 0.0);
  if (!status.ok()) return status;
  return places;
}

absl::StatusOr<BatchBuilder> MakeBuilder(const JobSpec& spec, const WindowOptions& window,
                                         std::vector<std::shared_ptr<const TokenSource>> sources) {
  const BatchOptions options = {.seed = RepeatSeed(spec.training),
                                .global_sequences = spec.training.batch,
                                .length = spec.data.sequence,
                                .window = window};
  if (spec.data.phases.empty()) {
    std::vector<BlendedSource> blended;
    for (size_t i = 0; i < sources.size(); ++i) {
      blended.push_back({std::move(sources[i]), spec.data.train[i].weight});
    }
    return BatchBuilder::Create(std::move(blended), options);
  }
  std::vector<BlendPhase> phases;
  for (const DataPhase& phase : spec.data.phases) {
    phases.push_back({.parts = phase.parts, .weights = phase.weights});
  }
  return BatchBuilder::Create(std::move(sources), std::move(phases), spec.training.steps, options);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> JobData::Prepare(const JobSpec& spec,
                                                          const std::string& directory) {
  std::vector<std::string> notices;
  NIBBLE_ASSIGN_OR_RETURN(const DataTokenizer found, FindDataTokenizer(spec));
  if (found.tokenizer == nullptr) return notices;  // no source is text
  // In the run's directory, so that its checkpoints can be used with text wherever they are copied.
  NIBBLE_RETURN_IF_ERROR(SaveTokenizer(directory, *found.tokenizer).status());
  const Tokenizer& tokenizer = *found.tokenizer;
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<TextPlace> places,
                          TextPlaces(spec, directory, tokenizer));
  for (const TextPlace& place : places) {
    // Shards are published atomically, the training shard last.
    NIBBLE_ASSIGN_OR_RETURN(const bool made, Exists(place.train()));
    if (made) continue;
    std::error_code error;
    std::filesystem::create_directories(directory + "/data", error);
    if (error) {
      return ErrnoError(error.value(), absl::StrCat("data: cannot make ", directory, "/data"));
    }
    PrepareTextOptions options = place.options;
    options.overwrite = true;
    const absl::StatusOr<PreparedText> prepared = PrepareText(options, tokenizer);
    if (!prepared.ok()) {
      return OfField(place.field, options.inputs.front(), prepared.status());
    }
    if (prepared->skipped.count > 0) {
      notices.push_back(absl::StrCat(place.field, ": ", SkippedText(prepared->skipped)));
    }
  }
  return notices;
}

absl::StatusOr<JobData> JobData::Open(const JobSpec& spec, const std::string& directory) {
  const double held_out = HeldOut(spec);
  const WindowOptions window = {.reset_at_documents = spec.data.reset_at_documents};
  NIBBLE_ASSIGN_OR_RETURN(DataTokenizer tokenizer, FindDataTokenizer(spec));
  std::vector<std::shared_ptr<const TokenSource>> training;
  std::vector<ValidationSource> validation;
  for (size_t i = 0; i < spec.data.train.size(); ++i) {
    TrainingSource source = spec.data.train[i];
    const std::string field = absl::StrCat("data.train[", i, "]");
    const std::string named = source.path;
    NIBBLE_ASSIGN_OR_RETURN(const SourceKind kind, KindOfSource(source.path, source.token_width));
    if (kind == SourceKind::kText) {
      const TextPlace place = PlaceOf(spec, directory, *tokenizer.tokenizer, source.path, held_out);
      NIBBLE_ASSIGN_OR_RETURN(const bool has_validation, Exists(place.validation()));
      if (held_out > 0 && has_validation) {
        validation.push_back(
            {.name = absl::StrCat("held out of ",
                                  std::filesystem::path(source.path).filename().string()),
             .path = place.validation()});
      }
      source.path = place.train();
    }
    absl::StatusOr<std::shared_ptr<const TokenSource>> opened =
        OpenDataSource(spec, tokenizer, source);
    absl::Status status = opened.status();
    if (status.ok()) status = CheckTrainingLength(spec, named, **opened);
    if (!status.ok()) return OfField(field, named, status);
    training.push_back(*std::move(opened));
  }
  for (ValidationSource source : spec.data.validation) {
    NIBBLE_ASSIGN_OR_RETURN(const SourceKind kind, KindOfSource(source.path, source.token_width));
    if (kind == SourceKind::kText) {
      source.path = PlaceOf(spec, directory, *tokenizer.tokenizer, source.path, 0.0).train();
    }
    validation.push_back(std::move(source));
  }
  NIBBLE_ASSIGN_OR_RETURN(BatchBuilder builder, MakeBuilder(spec, window, std::move(training)));
  if (builder.vocabulary() > spec.model.vocab) {
    return absl::InvalidArgumentError(absl::StrCat("model.vocab: ", spec.model.vocab,
                                                   " is less than the data's ",
                                                   builder.vocabulary(), " tokens"));
  }
  JobData data(std::move(builder));
  for (const ValidationSource& source : validation) {
    NIBBLE_ASSIGN_OR_RETURN(std::shared_ptr<const TokenSource> opened,
                            OpenDataSource(spec, tokenizer, source));
    absl::StatusOr<ValidationSet> set =
        ValidationSet::Create(std::move(opened), {.global_sequences = spec.training.batch,
                                                  .length = spec.data.sequence,
                                                  .max_batches = spec.training.validation_batches,
                                                  .window = window});
    if (!set.ok()) return OfField("data.validation", source.path, set.status());
    data.validation_.push_back({source.name, *std::move(set)});
  }
  if (tokenizer.tokenizer == nullptr) {
    data.notices_.push_back(
        absl::StrCat("the file of the data's tokenizer, ", tokenizer.label,
                     ", is not beside the data: generating and exporting will ask for it"));
  }
  data.tokenizer_ = std::move(tokenizer.label);
  return data;
}

}  // namespace nibble
