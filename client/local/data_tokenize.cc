#include "client/local/data_tokenize.h"

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "client/local/json_text.h"
#include "worker/trainer/data/byte_tokenizer.h"
#include "worker/trainer/data/hold_out.h"
#include "worker/trainer/data/sentencepiece_tokenizer.h"
#include "worker/trainer/data/sentencepiece_training.h"
#include "worker/trainer/data/text_corpus.h"
#include "worker/trainer/data/text_sample.h"
#include "worker/trainer/data/text_shards.h"
#include "worker/trainer/data/tokenizer.h"
#include "worker/trainer/data/tokenizer_files.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

struct ChosenTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;
  std::string model_path;  // beside the shards; empty for bytes
};

double Megabytes(int64_t bytes) { return static_cast<double>(bytes) / 1e6; }

// A line for each tenth of the text.
class ProgressLines {
 public:
  explicit ProgressLines(const Say& say) : say_(say) {}

  void operator()(const TextProgress& progress) {
    const int64_t tenth =
        progress.total_bytes == 0 ? 10 : 10 * progress.bytes / progress.total_bytes;
    if (tenth <= tenth_) return;
    tenth_ = tenth;
    say_(absl::StrFormat("tokenized %3d %%, %.1f of %.1f MB, %d documents, %d tokens", 10 * tenth,
                         Megabytes(progress.bytes), Megabytes(progress.total_bytes),
                         progress.documents, progress.tokens));
  }

 private:
  const Say& say_;
  int64_t tenth_ = 0;
};

absl::StatusOr<std::string> TrainModel(const TokenizeRequest& request, const Say& say) {
  const absl::StatusOr<std::vector<std::string>> files =
      ListTextFiles(request.text.inputs, request.text.extensions);
  if (!files.ok()) return files.status();
  const absl::StatusOr<HoldOut> hold_out =
      HoldOut::Create(request.text.seed, request.text.validation_fraction);
  if (!hold_out.ok()) return hold_out.status();
  const absl::StatusOr<std::string> sample = SampleText(
      *files, *hold_out,
      {.split = request.text.split, .max_bytes = request.sample_bytes, .seed = request.text.seed});
  if (!sample.ok()) return sample.status();
  say(absl::StrFormat("training a SentencePiece model of %d pieces on %.1f MB of text",
                      request.training.vocabulary,
                      Megabytes(static_cast<int64_t>(sample->size()))));
  return TrainSentencePiece(*sample, request.training);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const TokenizeRequest& request,
                                                         const Say& say) {
  if (!request.tokenizer.empty()) return LoadTokenizer(request.tokenizer);
  if (request.training.vocabulary == 0) return std::make_unique<ByteTokenizer>();
  const absl::StatusOr<std::string> model = TrainModel(request, say);
  if (!model.ok()) return model.status();
  absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> tokenizer =
      SentencePieceTokenizer::FromModel("the trained model", *model);
  if (!tokenizer.ok()) return tokenizer.status();
  return *std::move(tokenizer);
}

// Puts its file beside the shards to be, which would be of no use without it.
absl::StatusOr<ChosenTokenizer> ChooseTokenizer(const TokenizeRequest& request, const Say& say) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = MakeTokenizer(request, say);
  if (!tokenizer.ok()) return tokenizer.status();
  absl::StatusOr<std::string> path = SaveTokenizer(request.text.output_dir, **tokenizer);
  if (!path.ok()) return path.status();
  return ChosenTokenizer{.tokenizer = *std::move(tokenizer), .model_path = *std::move(path)};
}

double BytesPerToken(const TextShard& shard) {
  return shard.tokens == 0 ? 0
                           : static_cast<double>(shard.bytes) / static_cast<double>(shard.tokens);
}

std::string Table(const PreparedText& prepared, const ChosenTokenizer& chosen) {
  std::string table = absl::StrFormat("tokenizer  %s, vocabulary %d%s%s\n",
                                      chosen.tokenizer->label(), chosen.tokenizer->vocabulary(),
                                      chosen.model_path.empty() ? "" : ", ", chosen.model_path);
  absl::StrAppendFormat(&table, "files      %d\n", prepared.files);
  const auto row = [&](const char* name, const TextShard& shard) {
    absl::StrAppendFormat(&table, "%-10s  %10d  %14d  %14d  %11.2f  %s\n", name, shard.documents,
                          shard.tokens, shard.bytes, BytesPerToken(shard), shard.path);
  };
  absl::StrAppendFormat(&table, "%-10s  %10s  %14s  %14s  %11s  %s\n", "shard", "documents",
                        "tokens", "bytes", "bytes/token", "path");
  row("train", prepared.train);
  if (prepared.validation.has_value()) row("validation", *prepared.validation);
  return table;
}

Json ShardJson(const TextShard& shard) {
  return {{"path", shard.path},
          {"documents", shard.documents},
          {"tokens", shard.tokens},
          {"bytes", shard.bytes}};
}

std::string ReportJson(const PreparedText& prepared, const ChosenTokenizer& chosen) {
  Json json = {
      {"tokenizer", chosen.tokenizer->label()},
      {"vocabulary", chosen.tokenizer->vocabulary()},
      {"model", chosen.model_path.empty() ? Json() : Json(chosen.model_path)},
      {"files", prepared.files},
      {"train", ShardJson(prepared.train)},
      {"validation", prepared.validation.has_value() ? ShardJson(*prepared.validation) : Json()}};
  return JsonText(json);
}

}  // namespace

absl::StatusOr<std::string> RunTokenize(const TokenizeRequest& request, const Say& say) {
  if (absl::Status status = CheckPrepareText(request.text); !status.ok()) return status;
  const absl::StatusOr<ChosenTokenizer> chosen = ChooseTokenizer(request, say);
  if (!chosen.ok()) return chosen.status();
  PrepareTextOptions options = request.text;
  options.progress = ProgressLines(say);
  const absl::StatusOr<PreparedText> prepared = PrepareText(options, *chosen->tokenizer);
  if (!prepared.ok()) return prepared.status();
  return request.json ? ReportJson(*prepared, *chosen) : Table(*prepared, *chosen);
}

}  // namespace nibble
