#include "client/local/data_inspect.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/local/json_text.h"
#include "worker/trainer/data/open_tokens.h"
#include "worker/trainer/data/token_hints.h"
#include "worker/trainer/data/token_store.h"
#include "worker/trainer/data/tokenizer.h"
#include "worker/trainer/data/tokenizer_files.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kUnknownTokenizer = "unknown";

struct Opened {
  std::unique_ptr<TokenSource> source;
  bool tokenizer_known = true;
  bool vocabulary_known = true;
};

// To look at a file of other trainers its tokenizer need not be known.
absl::StatusOr<Opened> OpenLeniently(const std::string& path, TokenHints hints) {
  const absl::StatusOr<TokenFileKind> kind = RecogniseTokens(path);
  if (!kind.ok()) return kind.status();
  Opened opened;
  if (*kind != TokenFileKind::kShard) {
    opened.tokenizer_known = !hints.tokenizer.empty();
    opened.vocabulary_known = hints.vocabulary != 0;
    if (!opened.tokenizer_known) hints.tokenizer = kUnknownTokenizer;
    if (!opened.vocabulary_known) hints.vocabulary = int64_t{1} << 31;
  }
  absl::StatusOr<std::unique_ptr<TokenSource>> source = OpenTokens(path, hints);
  if (!source.ok()) return source.status();
  opened.source = *std::move(source);
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
  std::vector<int32_t> first;  // of its tokens, perhaps all
  std::string text;            // of `first`
};

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerOf(const Opened& opened,
                                                       const InspectRequest& request) {
  const std::string& label = opened.source->tokenizer();
  if (request.tokenizer.empty()) {
    if (!opened.tokenizer_known) {
      return absl::InvalidArgumentError(
          absl::StrCat(request.file, ": text: the file does not say its tokenizer; give its file"));
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
    absl::StatusOr<std::unique_ptr<Tokenizer>> found = TokenizerOf(opened, request);
    if (!found.ok()) return found.status();
    tokenizer = *std::move(found);
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
      absl::StatusOr<std::string> text = tokenizer->Decode(document.first);
      if (!text.ok()) return text.status();
      document.text = *std::move(text);
    }
    shown.push_back(std::move(document));
  }
  return shown;
}

std::string InspectTable(const Opened& opened, const std::vector<ShownDocument>& shown,
                         const InspectRequest& request) {
  const TokenSource& source = *opened.source;
  const Lengths lengths = DocumentLengths(source);
  std::string table;
  const auto row = [&](const char* name, const std::string& value) {
    absl::StrAppendFormat(&table, "%-16s  %s\n", name, value);
  };
  row("file", request.file);
  row("format", source.format());
  row("tokenizer", source.tokenizer());
  row("vocabulary",
      opened.vocabulary_known ? absl::StrCat(source.vocabulary()) : std::string("unknown"));
  row("token width", absl::StrCat(source.token_width(), " bytes"));
  row("end of document", source.end_of_document().has_value()
                             ? absl::StrCat(*source.end_of_document())
                             : std::string("none told"));
  row("tokens", absl::StrCat(source.tokens()));
  row("documents", absl::StrCat(source.documents()));
  row("their tokens", absl::StrFormat("%d to %d, %.1f on average", lengths.shortest,
                                      lengths.longest, MeanLength(source)));
  for (const ShownDocument& document : shown) {
    absl::StrAppendFormat(&table, "\ndocument %d: %d tokens from %d on", document.number,
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

absl::StatusOr<std::string> RunInspect(const InspectRequest& request) {
  const absl::StatusOr<Opened> opened = OpenLeniently(request.file, request.hints);
  if (!opened.ok()) return opened.status();
  const absl::StatusOr<std::vector<ShownDocument>> shown = ReadDocuments(*opened, request);
  if (!shown.ok()) return shown.status();
  return request.json ? InspectJson(*opened, *shown, request)
                      : InspectTable(*opened, *shown, request);
}

Verified RunVerify(const VerifyRequest& request,
                   const std::function<void(std::string_view line)>& warn) {
  Verified verified;
  Json json = Json::array();
  for (const std::string& file : request.files) {
    const absl::StatusOr<Opened> opened = OpenLeniently(file, request.hints);
    absl::Status status = opened.status();
    if (status.ok()) {
      if (!opened->vocabulary_known) {
        warn(absl::StrCat(file,
                          ": its vocabulary is not told and was not given, so tokens are "
                          "only checked to be below 2^31"));
      }
      status = opened->source->Verify();
    }
    Json one = {{"file", file}, {"ok", status.ok()}};
    if (status.ok()) {
      const TokenSource& source = *opened->source;
      one["format"] = source.format();
      one["tokens"] = source.tokens();
      one["documents"] = source.documents();
      absl::StrAppendFormat(&verified.output, "ok      %s: %d tokens, %d documents, %s\n", file,
                            source.tokens(), source.documents(), source.format());
    } else {
      one["error"] = std::string(status.message());
      absl::StrAppendFormat(&verified.output, "failed  %s\n", file);
      verified.errors.push_back(status);
    }
    json.push_back(std::move(one));
  }
  if (request.json) verified.output = JsonText(json);
  return verified;
}

}  // namespace nibble
