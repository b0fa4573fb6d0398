#include "client/local/data_files.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/shell/output.h"
#include "common/status_macros.h"
#include "common/text/table.h"
#include "worker/corpus/text_corpus.h"
#include "worker/corpus/text_sample.h"
#include "worker/corpus/text_shards.h"
#include "worker/trainer/data/sentencepiece.h"
#include "worker/trainer/data/token_source.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

struct ChosenTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;
  std::string model_path;  // beside the shards; empty for bytes
};

double Megabytes(int64_t bytes) { return static_cast<double>(bytes) / 1e6; }

// Reports progress after each tenth of the text.
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
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                          ListTextFiles(request.text.inputs, request.text.extensions));
  NIBBLE_ASSIGN_OR_RETURN(const HoldOut hold_out,
                          HoldOut::Create(request.text.seed, request.text.validation_fraction));
  NIBBLE_ASSIGN_OR_RETURN(const std::string sample, SampleText(files, hold_out,
                                                               {.split = request.text.split,
                                                                .max_bytes = request.sample_bytes,
                                                                .seed = request.text.seed}));
  say(absl::StrFormat("training a SentencePiece model of %d pieces on %.1f MB of text",
                      request.training.vocabulary, Megabytes(static_cast<int64_t>(sample.size()))));
  return TrainSentencePiece(sample, request.training);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const TokenizeRequest& request,
                                                         const Say& say) {
  if (!request.tokenizer.empty()) return LoadTokenizer(request.tokenizer);
  if (request.training.vocabulary == 0) return std::make_unique<ByteTokenizer>();
  NIBBLE_ASSIGN_OR_RETURN(const std::string model, TrainModel(request, say));
  absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> tokenizer =
      SentencePieceTokenizer::FromModel("the trained model", model);
  if (!tokenizer.ok()) return tokenizer.status();
  return *std::move(tokenizer);
}

// Saves the tokenizer's file beside the shards, which cannot be decoded without it.
absl::StatusOr<ChosenTokenizer> ChooseTokenizer(const TokenizeRequest& request, const Say& say) {
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, MakeTokenizer(request, say));
  NIBBLE_ASSIGN_OR_RETURN(std::string path, SaveTokenizer(request.text.output_dir, *tokenizer));
  return ChosenTokenizer{.tokenizer = std::move(tokenizer), .model_path = std::move(path)};
}

double BytesPerToken(const TextShard& shard) {
  return shard.tokens == 0 ? 0
                           : static_cast<double>(shard.bytes) / static_cast<double>(shard.tokens);
}

std::string Table(const PreparedText& prepared, const ChosenTokenizer& chosen) {
  TextList list(11);
  list.Add("tokenizer",
           absl::StrCat(chosen.tokenizer->label(), ", vocabulary ", chosen.tokenizer->vocabulary(),
                        chosen.model_path.empty() ? "" : ", ", chosen.model_path));
  list.Add("files", absl::StrCat(prepared.files));
  if (prepared.skipped.count > 0) list.Add("skipped", SkippedText(prepared.skipped));
  TextTable table({"shard", "documents", "tokens", "bytes", "bytes/token", "path"});
  const auto add = [&](const char* name, const TextShard& shard) {
    table.Add({name, absl::StrCat(shard.documents), absl::StrCat(shard.tokens),
               absl::StrCat(shard.bytes), absl::StrFormat("%.2f", BytesPerToken(shard)),
               shard.path});
  };
  add("train", prepared.train);
  if (prepared.validation.has_value()) add("validation", *prepared.validation);
  return list.Text() + table.Text();
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
      {"skipped", prepared.skipped.count},
      {"train", ShardJson(prepared.train)},
      {"validation", prepared.validation.has_value() ? ShardJson(*prepared.validation) : Json()}};
  return JsonText(json);
}

constexpr const char* kUnknownTokenizer = "unknown";

struct Opened {
  std::unique_ptr<TokenSource> source;
  bool tokenizer_known = true;
  bool vocabulary_known = true;
};

// Opens a token file; files of other trainers need neither a known tokenizer nor vocabulary.
absl::StatusOr<Opened> OpenLeniently(const std::string& path, TokenHints hints) {
  NIBBLE_ASSIGN_OR_RETURN(const TokenFileKind kind, RecogniseTokens(path));
  Opened opened;
  if (kind != TokenFileKind::kShard) {
    opened.tokenizer_known = !hints.tokenizer.empty();
    opened.vocabulary_known = hints.vocabulary != 0;
    if (!opened.tokenizer_known) hints.tokenizer = kUnknownTokenizer;
    if (!opened.vocabulary_known) hints.vocabulary = int64_t{1} << 31;
  }
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<TokenSource> source, OpenTokens(path, hints));
  opened.source = std::move(source);
  return opened;
}

struct Lengths {
  int64_t shortest = 0;
  int64_t longest = 0;
};
Lengths DocumentLengths(const TokenSource& source) {
  Lengths lengths{.shortest = source.documents() > 0 ? source.tokens() : 0};
  int64_t begin = 0;
  for (int64_t d = 1; d <= source.documents(); ++d) {
    const int64_t end = source.DocumentBegin(d);
    lengths.shortest = std::min(lengths.shortest, end - begin);
    lengths.longest = std::max(lengths.longest, end - begin);
    begin = end;
  }
  return lengths;
}

double MeanLength(const TokenSource& source) {
  return source.documents() == 0
             ? 0
             : static_cast<double>(source.tokens()) / static_cast<double>(source.documents());
}

struct ShownDocument {
  int64_t number;
  int64_t begin;
  int64_t tokens;
  std::vector<int32_t> first;  // its first tokens, up to all
  std::string text;            // `first` decoded
};

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerOf(const Opened& opened,
                                                       const InspectRequest& request) {
  const std::string& label = opened.source->tokenizer();
  if (request.tokenizer.empty()) {
    if (!opened.tokenizer_known) {
      return absl::InvalidArgumentError(absl::StrCat(
          request.file, ": text: the file does not name its tokenizer; give --tokenizer"));
    }
    return OpenTokenizer(label, std::filesystem::path(request.file).parent_path().string());
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(request.tokenizer);
  if (!tokenizer.ok()) return tokenizer.status();
  if (opened.tokenizer_known && (*tokenizer)->label() != label) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tokenizer: %s is \"%s\", but %s was made with \"%s\"", request.tokenizer,
                        (*tokenizer)->label(), request.file, label));
  }
  return tokenizer;
}

absl::StatusOr<std::vector<ShownDocument>> ReadDocuments(const Opened& opened,
                                                         const InspectRequest& request) {
  const TokenSource& source = *opened.source;
  std::vector<ShownDocument> shown;
  if (request.documents == 0) return shown;
  if (request.first_document >= source.documents()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: document %d is not in [0, %d)",
                                                      request.file, request.first_document,
                                                      source.documents()));
  }
  std::unique_ptr<Tokenizer> tokenizer;
  if (request.text) {
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> found, TokenizerOf(opened, request));
    tokenizer = std::move(found);
  }
  const int64_t count = std::min(request.documents, source.documents() - request.first_document);
  for (int64_t d = request.first_document; d < request.first_document + count; ++d) {
    ShownDocument document{.number = d, .begin = source.DocumentBegin(d)};
    document.tokens = source.DocumentBegin(d + 1) - document.begin;
    document.first.resize(static_cast<size_t>(std::min(document.tokens, request.max_tokens)));
    absl::Status status = source.Read(document.begin, static_cast<int64_t>(document.first.size()),
                                      document.first.data());
    if (!status.ok()) return status;
    if (tokenizer != nullptr) {
      NIBBLE_ASSIGN_OR_RETURN(std::string text, tokenizer->Decode(document.first));
      document.text = std::move(text);
    }
    shown.push_back(std::move(document));
  }
  return shown;
}

std::string InspectTable(const Opened& opened, const std::vector<ShownDocument>& shown,
                         const InspectRequest& request) {
  const TokenSource& source = *opened.source;
  const Lengths lengths = DocumentLengths(source);
  TextList list(18);
  list.Add("file", request.file);
  list.Add("format", source.format());
  list.Add("tokenizer", source.tokenizer());
  list.Add("vocabulary",
           opened.vocabulary_known ? absl::StrCat(source.vocabulary()) : std::string("unknown"));
  list.Add("token width", absl::StrCat(source.token_width(), " bytes"));
  list.Add("end of document", source.end_of_document().has_value()
                                  ? absl::StrCat(*source.end_of_document())
                                  : std::string("unknown"));
  list.Add("tokens", absl::StrCat(source.tokens()));
  list.Add("documents", absl::StrCat(source.documents()));
  list.Add("document tokens", absl::StrFormat("%d to %d, %.1f on average", lengths.shortest,
                                              lengths.longest, MeanLength(source)));
  std::string table = list.Text();
  for (const ShownDocument& document : shown) {
    absl::StrAppendFormat(&table, "\ndocument %d: %d tokens from token %d", document.number,
                          document.tokens, document.begin);
    const auto first = static_cast<int64_t>(document.first.size());
    table += first < document.tokens ? absl::StrFormat(", the first %d\n", first) : "\n";
    table += request.text ? document.text : absl::StrJoin(document.first, " ");
    if (table.back() != '\n') table += '\n';
  }
  return table;
}

std::string InspectJson(const Opened& opened, const std::vector<ShownDocument>& shown,
                        const InspectRequest& request) {
  const TokenSource& source = *opened.source;
  const Lengths lengths = DocumentLengths(source);
  Json json = {
      {"file", request.file},
      {"format", source.format()},
      {"tokenizer", opened.tokenizer_known ? Json(source.tokenizer()) : Json()},
      {"vocabulary", opened.vocabulary_known ? Json(source.vocabulary()) : Json()},
      {"token_width", source.token_width()},
      {"end_of_document",
       source.end_of_document().has_value() ? Json(*source.end_of_document()) : Json()},
      {"tokens", source.tokens()},
      {"documents", source.documents()},
      {"document_tokens",
       {{"min", lengths.shortest}, {"max", lengths.longest}, {"mean", MeanLength(source)}}}};
  if (request.documents > 0) json["shown"] = Json::array();
  for (const ShownDocument& document : shown) {
    Json one = {{"document", document.number},
                {"begin", document.begin},
                {"tokens", document.tokens},
                {"first_tokens", document.first}};
    if (request.text) one["text"] = document.text;
    json["shown"].push_back(std::move(one));
  }
  return JsonText(json);
}

}  // namespace

absl::StatusOr<Reply> RunTokenize(const TokenizeRequest& request, const Say& say) {
  NIBBLE_RETURN_IF_ERROR(CheckPrepareText(request.text));
  NIBBLE_ASSIGN_OR_RETURN(const ChosenTokenizer chosen, ChooseTokenizer(request, say));
  PrepareTextOptions options = request.text;
  options.progress = ProgressLines(say);
  NIBBLE_ASSIGN_OR_RETURN(const PreparedText prepared, PrepareText(options, *chosen.tokenizer));
  return Reply{.text = Table(prepared, chosen), .json = ReportJson(prepared, chosen)};
}

absl::StatusOr<Reply> RunInspect(const InspectRequest& request) {
  NIBBLE_ASSIGN_OR_RETURN(const Opened opened, OpenLeniently(request.file, request.hints));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<ShownDocument> shown, ReadDocuments(opened, request));
  return Reply{.text = InspectTable(opened, shown, request),
               .json = InspectJson(opened, shown, request)};
}

Reply RunVerify(const VerifyRequest& request) {
  Reply reply;
  Json json = Json::array();
  for (const std::string& file : request.files) {
    const absl::StatusOr<Opened> opened = OpenLeniently(file, request.hints);
    absl::Status status = opened.status();
    if (status.ok()) {
      if (!opened->vocabulary_known) {
        reply.notes.push_back(
            absl::StrCat(file,
                         ": the file does not state its vocabulary, so its tokens are only checked "
                         "to be below 2^31; give --vocabulary to check them"));
      }
      status = opened->source->Verify();
    }
    Json one = {{"file", file}, {"ok", status.ok()}};
    if (status.ok()) {
      const TokenSource& source = *opened->source;
      one["format"] = source.format();
      one["tokens"] = source.tokens();
      one["documents"] = source.documents();
      absl::StrAppendFormat(&reply.text, "ok      %s: %d tokens, %d documents, %s\n", file,
                            source.tokens(), source.documents(), source.format());
    } else {
      one["error"] = std::string(status.message());
      absl::StrAppendFormat(&reply.text, "failed  %s\n", file);
      reply.notes.push_back(std::string(status.message()));
      if (reply.exit_code == kExitDone) reply.exit_code = ExitCodeOf(status);
    }
    json.push_back(std::move(one));
  }
  reply.json = JsonText(json);
  return reply;
}

}  // namespace nibble
