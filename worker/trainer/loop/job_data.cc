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

struct Source {
  std::string field;
  std::string path;
  SourceKind kind;
  std::string label;  // of a shard
};

std::string DirectoryOf(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

absl::StatusOr<Source> LookAt(std::string field, const std::string& path, int64_t token_width) {
  const absl::StatusOr<SourceKind> kind = KindOfSource(path, token_width);
  if (!kind.ok()) return OfField(field, path, kind.status());
  Source source = {.field = std::move(field), .path = path, .kind = *kind};
  if (*kind == SourceKind::kShard) {
    const absl::StatusOr<std::unique_ptr<TokenShard>> shard = TokenShard::Open(path);
    if (!shard.ok()) return OfField(source.field, path, shard.status());
    source.label = (*shard)->tokenizer();
  }
  return source;
}

absl::StatusOr<std::vector<Source>> SourcesOf(const JobSpec& spec) {
  std::vector<Source> sources;
  const auto add = [&](const auto& list, const char* name) -> absl::Status {
    for (size_t i = 0; i < list.size(); ++i) {
      NIBBLE_ASSIGN_OR_RETURN(Source source, LookAt(absl::StrCat("data.", name, "[", i, "]"),
                                                    list[i].path, list[i].token_width));
      sources.push_back(std::move(source));
    }
    return absl::OkStatus();
  };
  absl::Status status = add(spec.data.train, "train");
  if (status.ok()) status = add(spec.data.validation, "validation");
  if (!status.ok()) return status;
  return sources;
}

// The tokenizer that the spec names, if it names one.
absl::StatusOr<std::optional<DataTokenizer>> Named(const DataSpec& data) {
  std::shared_ptr<const Tokenizer> tokenizer;
  if (data.tokenizer == JobTokenizer::kBytes) {
    tokenizer = std::make_shared<ByteTokenizer>();
  } else if (!data.tokenizer_model.empty()) {
    absl::StatusOr<std::unique_ptr<Tokenizer>> loaded = LoadTokenizer(data.tokenizer_model);
    if (!loaded.ok()) {
      return absl::Status(loaded.status().code(),
                          absl::StrCat("data.tokenizer_model: ", loaded.status().message()));
    }
    tokenizer = *std::move(loaded);
  } else {
    return std::optional<DataTokenizer>();
  }
  const std::string label = tokenizer->label();
  const bool other_kind =
      (data.tokenizer == JobTokenizer::kSentencePiece && !label.starts_with("sp:")) ||
      (data.tokenizer == JobTokenizer::kHuggingFace && !label.starts_with("hf:"));
  if (other_kind) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.tokenizer_model: ", data.tokenizer_model, " is the tokenizer ", label,
                     ", but data.tokenizer is ", std::string(ChoiceName(data.tokenizer))));
  }
  return DataTokenizer{.label = label, .tokenizer = std::move(tokenizer)};
}

// Null if the label's file does not exist.
absl::StatusOr<std::shared_ptr<const Tokenizer>> FindFile(const std::string& label,
                                                          const std::vector<Source>& sources) {
  if (label == ByteTokenizer().label()) return std::make_shared<const ByteTokenizer>();
  if (TokenizerFileName(label).empty()) return std::shared_ptr<const Tokenizer>();
  for (const Source& source : sources) {
    absl::StatusOr<std::unique_ptr<Tokenizer>> opened =
        OpenTokenizer(label, DirectoryOf(source.path));
    if (absl::IsNotFound(opened.status())) continue;
    if (!opened.ok()) return opened.status();
    return std::shared_ptr<const Tokenizer>(*std::move(opened));
  }
  return std::shared_ptr<const Tokenizer>();
}

// The tokenizer of the data: that of its first shard; the label that the spec gives for files
// without one; bytes if all sources are text.
absl::StatusOr<DataTokenizer> OfData(const DataSpec& data, const std::vector<Source>& sources) {
  std::string label;
  const Source* others = nullptr;
  for (const Source& source : sources) {
    if (source.kind == SourceKind::kShard && label.empty()) label = source.label;
    if (source.kind == SourceKind::kOthers && others == nullptr) others = &source;
  }
  if (label.empty()) label = data.tokenizer_label;
  if (label.empty() && others != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.tokenizer: ", others->path, " (", others->field,
        ") does not record its tokenizer; give the tokenizer's file in data.tokenizer_model, "
        "'data.tokenizer: bytes', or its name alone in data.tokenizer_label"));
  }
  if (label.empty()) label = ByteTokenizer().label();
  NIBBLE_ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, FindFile(label, sources));
  return DataTokenizer{.label = std::move(label), .tokenizer = std::move(tokenizer)};
}

absl::Status Check(const JobSpec& spec, const DataTokenizer& found,
                   const std::vector<Source>& sources) {
  const DataSpec& data = spec.data;
  if (!data.tokenizer_label.empty() && data.tokenizer_label != found.label) {
    return absl::InvalidArgumentError(absl::StrCat("data.tokenizer_label: ", data.tokenizer_label,
                                                   ", but the tokenizer is ", found.label));
  }
  for (const Source& source : sources) {
    if (source.kind == SourceKind::kShard && source.label != found.label) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data.tokenizer: ", found.label, ", but ", source.path, " (", source.field,
          ") was made with ", source.label,
          "; a run has one tokenizer, and without data.tokenizer and data.tokenizer_model it is "
          "that of its shards"));
    }
    if (source.kind == SourceKind::kText && found.tokenizer == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data.tokenizer_model: missing; ", source.path, " (", source.field,
          ") is text, and the file of the tokenizer ", found.label, " is not beside the data"));
    }
  }
  if (found.tokenizer != nullptr && found.tokenizer->vocabulary() > spec.model.vocab) {
    return absl::InvalidArgumentError(absl::StrCat("model.vocab: ", spec.model.vocab, " is under ",
                                                   found.tokenizer->vocabulary(),
                                                   ", the tokens of the tokenizer ", found.label));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status OfField(absl::string_view field, const std::string& path, const absl::Status& status) {
  if (status.ok()) return status;
  const bool named = absl::StrContains(status.message(), path);
  return absl::Status(status.code(), absl::StrCat(field, ": ", named ? "" : path, named ? "" : ": ",
                                                  status.message()));
}

absl::StatusOr<SourceKind> KindOfSource(const std::string& path, int64_t token_width) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file or directory"));
  }
  if (error) return ErrnoError(error.value(), "looking at", path);
  if (!std::filesystem::is_regular_file(status)) return SourceKind::kText;
  NIBBLE_ASSIGN_OR_RETURN(const TokenFileKind kind, RecogniseTokens(path));
  if (kind == TokenFileKind::kShard) return SourceKind::kShard;
  const bool tokens = kind != TokenFileKind::kNone || token_width != 0;
  return tokens ? SourceKind::kOthers : SourceKind::kText;
}

absl::StatusOr<DataTokenizer> FindDataTokenizer(const JobSpec& spec) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<Source> sources, SourcesOf(spec));
  NIBBLE_ASSIGN_OR_RETURN(const std::optional<DataTokenizer> named, Named(spec.data));
  NIBBLE_ASSIGN_OR_RETURN(const DataTokenizer found, named.has_value()
                                                         ? absl::StatusOr<DataTokenizer>(*named)
                                                         : OfData(spec.data, sources));
  NIBBLE_RETURN_IF_ERROR(Check(spec, found, sources));
  return found;
}

namespace {

// `path`: as in the spec, also if `source` is made from it.
absl::Status CheckLength(const JobSpec& spec, const std::string& path, const TokenSource& source) {
  if (SampleCount(source.tokens(), spec.data.sequence) > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      path, " has ", source.tokens(), " tokens to train on; one sample of data.sequence ",
      spec.data.sequence, " takes ", spec.data.sequence + 1));
}

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

// Reads the first tokens before any step: a file made by another tokenizer than the spec names
// usually fails there.
absl::Status CheckFirstTokens(const TokenSource& source, const std::string& label) {
  constexpr int64_t kTokens = 4096;
  std::vector<int32_t> first(static_cast<size_t>(std::min(kTokens, source.tokens())));
  const absl::Status status = source.Read(0, static_cast<int64_t>(first.size()), first.data());
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat("data.tokenizer: ", label, " did not make these tokens: ", status.message()));
}

// The spec's hints for a file that does not record everything.
template <class Source>
absl::StatusOr<std::shared_ptr<const TokenSource>> OpenSource(const JobSpec& spec,
                                                              const DataTokenizer& tokenizer,
                                                              const Source& source) {
  NIBBLE_ASSIGN_OR_RETURN(const TokenFileKind kind, RecogniseTokens(source.path));
  TokenHints hints;
  if (kind != TokenFileKind::kShard) {
    hints.tokenizer = tokenizer.label;
    hints.vocabulary =
        tokenizer.tokenizer != nullptr ? tokenizer.tokenizer->vocabulary() : spec.model.vocab;
    hints.token_width = static_cast<int>(source.token_width);
    if (source.document_end >= 0 && kind != TokenFileKind::kMegatronIndex) {
      hints.document_mark = DocumentMark{.token = static_cast<int32_t>(source.document_end)};
    }
  }
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<TokenSource> opened, OpenTokens(source.path, hints));
  if (kind != TokenFileKind::kShard) {
    NIBBLE_RETURN_IF_ERROR(CheckFirstTokens(*opened, tokenizer.label));
  }
  return std::shared_ptr<const TokenSource>(std::move(opened));
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

absl::Status JobData::Prepare(const JobSpec& spec, const std::string& directory) {
  NIBBLE_ASSIGN_OR_RETURN(const DataTokenizer found, FindDataTokenizer(spec));
  if (found.tokenizer == nullptr) return absl::OkStatus();  // no source is text
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
  }
  return absl::OkStatus();
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
    absl::StatusOr<std::shared_ptr<const TokenSource>> opened = OpenSource(spec, tokenizer, source);
    absl::Status status = opened.status();
    if (status.ok()) status = CheckLength(spec, named, **opened);
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
                            OpenSource(spec, tokenizer, source));
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
