#include "worker/trainer/loop/job_data.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/trainer/data/open_tokens.h"
#include "worker/trainer/data/sampler.h"
#include "worker/trainer/data/text_shards.h"
#include "worker/trainer/data/tokenizer_files.h"
#include "worker/trainer/loop/data_tokenizer.h"

namespace nibble {
namespace {

// FNV-1a, 64 bits: names a directory after what is in it.
uint64_t Hash(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

// `path`: as the spec has it, also where `source` is made from it.
absl::Status CheckLength(const JobSpec& spec, const std::string& path, const TokenSource& source) {
  if (SampleCount(source.tokens(), spec.data.sequence) > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      path, " has ", source.tokens(), " tokens to train on; one sample of data.sequence ",
      spec.data.sequence, " takes ", spec.data.sequence + 1));
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
      // Last, and left out where it is the default: runs have shards from before.
      spec.data.text_field == DataSpec().text_field ? ""
                                                    : absl::StrCat("\n", spec.data.text_field));
  options.output_dir = absl::StrFormat("%s/data/%016x", directory, Hash(key));
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

// A file that another tokenizer made than the spec says mostly shows it in its first tokens, before
// any step is made of them.
absl::Status CheckFirstTokens(const TokenSource& source, const std::string& label) {
  constexpr int64_t kTokens = 4096;
  std::vector<int32_t> first(static_cast<size_t>(std::min(kTokens, source.tokens())));
  const absl::Status status = source.Read(0, static_cast<int64_t>(first.size()), first.data());
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat("data.tokenizer: ", label, " did not make these tokens: ", status.message()));
}

// What the spec says of a file that may say less of itself.
template <class Source>
absl::StatusOr<std::shared_ptr<const TokenSource>> OpenSource(const JobSpec& spec,
                                                              const DataTokenizer& tokenizer,
                                                              const Source& source) {
  const absl::StatusOr<TokenFileKind> kind = RecogniseTokens(source.path);
  if (!kind.ok()) return kind.status();
  TokenHints hints;
  if (*kind != TokenFileKind::kShard) {
    hints.tokenizer = tokenizer.label;
    hints.vocabulary =
        tokenizer.tokenizer != nullptr ? tokenizer.tokenizer->vocabulary() : spec.model.vocab;
    hints.token_width = static_cast<int>(source.token_width);
    if (source.document_end >= 0 && *kind != TokenFileKind::kMegatronIndex) {
      hints.document_mark = DocumentMark{.token = static_cast<int32_t>(source.document_end)};
    }
  }
  absl::StatusOr<std::unique_ptr<TokenSource>> opened = OpenTokens(source.path, hints);
  if (!opened.ok()) return opened.status();
  if (*kind != TokenFileKind::kShard) {
    if (absl::Status status = CheckFirstTokens(**opened, tokenizer.label); !status.ok()) {
      return status;
    }
  }
  return std::shared_ptr<const TokenSource>(*std::move(opened));
}

absl::StatusOr<BatchBuilder> MakeBuilder(const JobSpec& spec, const WindowOptions& window,
                                         std::vector<std::shared_ptr<const TokenSource>> sources) {
  const BatchOptions options = {.seed = spec.training.seed,
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
  const absl::StatusOr<DataTokenizer> found = FindDataTokenizer(spec);
  if (!found.ok()) return found.status();
  if (found->tokenizer == nullptr) return absl::OkStatus();  // no source is text
  // Beside the run, so that its checkpoints can be read as text wherever they are taken.
  if (absl::Status status = SaveTokenizer(directory, *found->tokenizer).status(); !status.ok()) {
    return status;
  }
  const Tokenizer& tokenizer = *found->tokenizer;
  const absl::StatusOr<std::vector<TextPlace>> places = TextPlaces(spec, directory, tokenizer);
  if (!places.ok()) return places.status();
  for (const TextPlace& place : *places) {
    // Shards appear whole or not at all, the training shard last.
    if (std::filesystem::exists(place.train())) continue;
    std::error_code error;
    std::filesystem::create_directories(directory + "/data", error);
    if (error) {
      return absl::UnavailableError(
          absl::StrCat("data: cannot make ", directory, "/data: ", error.message()));
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
  absl::StatusOr<DataTokenizer> tokenizer = FindDataTokenizer(spec);
  if (!tokenizer.ok()) return tokenizer.status();
  std::vector<std::shared_ptr<const TokenSource>> training;
  std::vector<ValidationSource> validation;
  for (size_t i = 0; i < spec.data.train.size(); ++i) {
    TrainingSource source = spec.data.train[i];
    const std::string field = absl::StrCat("data.train[", i, "]");
    const std::string named = source.path;
    const absl::StatusOr<SourceKind> kind = KindOfSource(source.path, source.token_width);
    if (!kind.ok()) return kind.status();
    if (*kind == SourceKind::kText) {
      const TextPlace place =
          PlaceOf(spec, directory, *tokenizer->tokenizer, source.path, held_out);
      if (held_out > 0 && std::filesystem::exists(place.validation())) {
        validation.push_back(
            {.name = absl::StrCat("held out of ",
                                  std::filesystem::path(source.path).filename().string()),
             .path = place.validation()});
      }
      source.path = place.train();
    }
    absl::StatusOr<std::shared_ptr<const TokenSource>> opened =
        OpenSource(spec, *tokenizer, source);
    absl::Status status = opened.status();
    if (status.ok()) status = CheckLength(spec, named, **opened);
    if (!status.ok()) return OfField(field, named, status);
    training.push_back(*std::move(opened));
  }
  for (ValidationSource source : spec.data.validation) {
    const absl::StatusOr<SourceKind> kind = KindOfSource(source.path, source.token_width);
    if (!kind.ok()) return kind.status();
    if (*kind == SourceKind::kText) {
      source.path = PlaceOf(spec, directory, *tokenizer->tokenizer, source.path, 0.0).train();
    }
    validation.push_back(std::move(source));
  }
  absl::StatusOr<BatchBuilder> builder = MakeBuilder(spec, window, std::move(training));
  if (!builder.ok()) return builder.status();
  if (builder->vocabulary() > spec.model.vocab) {
    return absl::InvalidArgumentError(absl::StrCat("model.vocab: ", spec.model.vocab,
                                                   " is less than the data's ",
                                                   builder->vocabulary(), " tokens"));
  }
  JobData data(*std::move(builder));
  for (const ValidationSource& source : validation) {
    absl::StatusOr<std::shared_ptr<const TokenSource>> opened =
        OpenSource(spec, *tokenizer, source);
    if (!opened.ok()) return opened.status();
    absl::StatusOr<ValidationSet> set =
        ValidationSet::Create(*std::move(opened), {.global_sequences = spec.training.batch,
                                                   .length = spec.data.sequence,
                                                   .max_batches = spec.training.validation_batches,
                                                   .window = window});
    if (!set.ok()) return OfField("data.validation", source.path, set.status());
    data.validation_.push_back({source.name, *std::move(set)});
  }
  if (tokenizer->tokenizer == nullptr) {
    data.notices_.push_back(
        absl::StrCat("the file of the data's tokenizer, ", tokenizer->label,
                     ", is not beside the data: generating and exporting will ask for it"));
  }
  data.tokenizer_ = std::move(tokenizer->label);
  return data;
}

}  // namespace nibble
