#include "worker/trainer/loop/job_data.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/trainer/data/byte_tokenizer.h"
#include "worker/trainer/data/open_tokens.h"
#include "worker/trainer/data/sentencepiece_tokenizer.h"
#include "worker/trainer/data/text_shards.h"
#include "worker/trainer/data/tokenizer_files.h"

namespace nibble {
namespace {

// FNV-1a, 64 bits: names a directory after what is in it.
uint64_t Hash(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

// Whether tokens are in the file already; a directory, and a file that begins like none of the
// kinds, is text. NotFound names the path.
absl::StatusOr<bool> HoldsTokens(const std::string& path, int64_t token_width) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    return absl::NotFoundError(absl::StrCat("data: there is no ", path));
  }
  if (!std::filesystem::is_regular_file(status)) return false;
  if (token_width != 0) return true;
  const absl::StatusOr<TokenFileKind> kind = RecogniseTokens(path);
  if (!kind.ok()) return kind.status();
  return *kind != TokenFileKind::kNone;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const JobSpec& spec) {
  if (spec.data.tokenizer == JobTokenizer::kBytes) return std::make_unique<ByteTokenizer>();
  absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> loaded =
      SentencePieceTokenizer::Load(spec.data.tokenizer_model);
  if (!loaded.ok()) return loaded.status();
  return std::unique_ptr<Tokenizer>(*std::move(loaded));
}

// A text source's shards; `held_out`: with documents kept for validation.
struct TextPlace {
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
  options.validation_fraction = held_out;
  options.seed = spec.training.seed;
  options.threads = static_cast<int>(spec.resources.threads);
  const std::string key =
      absl::StrCat(path, "\n", tokenizer.label(), "\n", static_cast<int>(options.split.rule), "\n",
                   held_out, "\n", held_out > 0 ? spec.training.seed : 0);
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
  const auto add = [&](const auto& source, double held_out) -> absl::Status {
    const absl::StatusOr<bool> tokens = HoldsTokens(source.path, source.token_width);
    if (!tokens.ok()) return tokens.status();
    if (!*tokens) places.push_back(PlaceOf(spec, directory, tokenizer, source.path, held_out));
    return absl::OkStatus();
  };
  for (const TrainingSource& source : spec.data.train) {
    if (absl::Status status = add(source, HeldOut(spec)); !status.ok()) return status;
  }
  for (const ValidationSource& source : spec.data.validation) {
    if (absl::Status status = add(source, 0.0); !status.ok()) return status;
  }
  return places;
}

// What the spec says of a file that may say less of itself.
template <class Source>
absl::StatusOr<std::shared_ptr<const TokenSource>> OpenSource(const JobSpec& spec,
                                                              const Tokenizer& tokenizer,
                                                              const Source& source) {
  const absl::StatusOr<TokenFileKind> kind = RecogniseTokens(source.path);
  if (!kind.ok()) return kind.status();
  TokenHints hints;
  if (*kind != TokenFileKind::kShard) {
    hints.tokenizer = tokenizer.label();
    hints.vocabulary = spec.model.vocab;
    hints.token_width = static_cast<int>(source.token_width);
    if (source.document_end >= 0 && *kind != TokenFileKind::kMegatronIndex) {
      hints.document_mark = DocumentMark{.token = static_cast<int32_t>(source.document_end)};
    }
  }
  absl::StatusOr<std::unique_ptr<TokenSource>> opened = OpenTokens(source.path, hints);
  if (!opened.ok()) return opened.status();
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
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = MakeTokenizer(spec);
  if (!tokenizer.ok()) return tokenizer.status();
  if (spec.data.tokenizer == JobTokenizer::kSentencePiece) {
    // Beside the run, so that its checkpoints can be read as text wherever they are taken.
    const absl::StatusOr<std::string> copy =
        CopySentencePieceModel(directory, spec.data.tokenizer_model);
    if (!copy.ok()) return copy.status();
  }
  const absl::StatusOr<std::vector<TextPlace>> places = TextPlaces(spec, directory, **tokenizer);
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
    const absl::StatusOr<PreparedText> prepared = PrepareText(options, **tokenizer);
    if (!prepared.ok()) return prepared.status();
  }
  return absl::OkStatus();
}

absl::StatusOr<JobData> JobData::Open(const JobSpec& spec, const std::string& directory) {
  const double held_out = HeldOut(spec);
  const WindowOptions window = {.reset_at_documents = spec.data.reset_at_documents};
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = MakeTokenizer(spec);
  if (!tokenizer.ok()) return tokenizer.status();
  std::vector<std::shared_ptr<const TokenSource>> training;
  std::vector<ValidationSource> validation;
  for (TrainingSource source : spec.data.train) {
    const absl::StatusOr<bool> tokens = HoldsTokens(source.path, source.token_width);
    if (!tokens.ok()) return tokens.status();
    if (!*tokens) {
      const TextPlace place = PlaceOf(spec, directory, **tokenizer, source.path, held_out);
      if (held_out > 0 && std::filesystem::exists(place.validation())) {
        validation.push_back(
            {.name = absl::StrCat("held out of ",
                                  std::filesystem::path(source.path).filename().string()),
             .path = place.validation()});
      }
      source.path = place.train();
    }
    absl::StatusOr<std::shared_ptr<const TokenSource>> opened =
        OpenSource(spec, **tokenizer, source);
    if (!opened.ok()) return opened.status();
    training.push_back(*std::move(opened));
  }
  for (ValidationSource source : spec.data.validation) {
    const absl::StatusOr<bool> tokens = HoldsTokens(source.path, source.token_width);
    if (!tokens.ok()) return tokens.status();
    if (!*tokens) source.path = PlaceOf(spec, directory, **tokenizer, source.path, 0.0).train();
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
        OpenSource(spec, **tokenizer, source);
    if (!opened.ok()) return opened.status();
    absl::StatusOr<ValidationSet> set =
        ValidationSet::Create(*std::move(opened), {.global_sequences = spec.training.batch,
                                                   .length = spec.data.sequence,
                                                   .max_batches = spec.training.validation_batches,
                                                   .window = window});
    if (!set.ok()) return set.status();
    data.validation_.push_back({source.name, *std::move(set)});
  }
  return data;
}

}  // namespace nibble
