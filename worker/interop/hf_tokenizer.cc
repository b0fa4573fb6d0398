#include "worker/interop/hf_tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/errno_error.h"
#include "common/files/files.h"
#include "common/json_text.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/trainer/data/bpe_tokenizer.h"
#include "worker/trainer/data/sentencepiece.h"
#include "worker/trainer/data/sentencepiece_model.h"
#include "worker/trainer/data/tokenizer.h"
#include "worker/trainer/data/tokenizer_json.h"

namespace nibble {
namespace {

using Json = nlohmann::json;
using Files = std::map<std::string, std::string>;

constexpr std::string_view kModelFile = "tokenizer.model";
constexpr std::string_view kConfigFile = "tokenizer_config.json";
constexpr std::string_view kTokenizerFile = "tokenizer.json";
constexpr std::string_view kOwnKey = "nibble_tokenizer";
constexpr std::string_view kEndOfDocument = "<|endofdocument|>";

std::string FileIn(const std::string& directory, std::string_view name) {
  return (std::filesystem::path(directory) / name).string();
}

Json ByteVocabulary() {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[ByteSpellings()[byte]] = byte;
  return vocabulary;
}

Json SpecialToken(int64_t id, std::string_view content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

// tokenizer.json from the parts that determine the tokens.
Json WithRest(Json parts) {
  parts["version"] = "1.0";
  for (const char* part : {"added_tokens", "decoder", "normalizer", "padding", "post_processor",
                           "pre_tokenizer", "truncation"}) {
    if (!parts.contains(part)) parts[part] = nullptr;
  }
  if (parts["added_tokens"].is_null()) parts["added_tokens"] = Json::array();
  return parts;
}

Json FastConfig() {
  return {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
}

Json BpeModel(Json vocabulary, Json merges, Json unknown) {
  const bool fallback = !unknown.is_null();
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", std::move(unknown)},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", fallback},
          {"byte_fallback", fallback},
          {"vocab", std::move(vocabulary)},
          {"merges", std::move(merges)}};
}

Files ByteFiles() {
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", false},
                           {"use_regex", false}};
  const Json end = SpecialToken(ByteTokenizer::kEndOfDocument, kEndOfDocument);
  Json config = FastConfig();
  config[std::string(kOwnKey)] = ByteTokenizer().label();
  config["eos_token"] = kEndOfDocument;
  const Json tokenizer = {{"added_tokens", Json::array({end})},
                          {"pre_tokenizer", byte_level},
                          {"decoder", byte_level},
                          {"model", BpeModel(ByteVocabulary(), Json::array(), nullptr)}};
  return {{std::string(kTokenizerFile), FileJson(WithRest(tokenizer))},
          {std::string(kConfigFile), FileJson(config)}};
}

// The merges that produce a piece: SentencePiece joins any two pieces whose concatenation is a
// piece, best score first.
Json MergesOf(const SentencePieceFacts& pieces) {
  std::vector<const SentencePieceFacts::Piece*> normal;
  absl::flat_hash_set<std::string> known;
  for (const SentencePieceFacts::Piece& piece : pieces.pieces) {
    if (piece.type != PieceType::kNormal) continue;
    normal.push_back(&piece);
    known.insert(piece.text);
  }
  std::stable_sort(normal.begin(), normal.end(),
                   [](const auto* a, const auto* b) { return a->score > b->score; });
  Json merges = Json::array();
  for (const SentencePieceFacts::Piece* piece : normal) {
    for (size_t at = 1; at < piece->text.size(); ++at) {
      if ((static_cast<uint8_t>(piece->text[at]) & 0xc0) == 0x80) continue;
      std::string left = piece->text.substr(0, at), right = piece->text.substr(at);
      if (!known.contains(left) || !known.contains(right)) continue;
      merges.push_back(Json::array({std::move(left), std::move(right)}));
    }
  }
  return merges;
}

// Pieces use U+2581 for spaces, and the model may prepend one to a text: a normalizer's Prepend
// always does, whereas a Metaspace would not prepend one to another. Training tokenized each line
// separately (see SentencePieceTokenizer); otherwise unigram's sums would accumulate rounding over
// a whole text.
std::string PiecesJson(const SentencePieceFacts& pieces) {
  Json added = Json::array();
  Json scored = Json::array();
  Json vocabulary = Json::object();
  Json unknown, unknown_text;
  for (const SentencePieceFacts::Piece& piece : pieces.pieces) {
    const auto id = static_cast<int64_t>(scored.size());
    scored.push_back(Json::array({piece.text, piece.score}));
    vocabulary[piece.text] = id;
    if (piece.type == PieceType::kUnknown) {
      unknown = id;
      unknown_text = piece.text;
    }
    if (piece.type == PieceType::kUnknown || piece.type == PieceType::kControl) {
      added.push_back(SpecialToken(id, piece.text));
    }
  }
  Json normalizers = Json::array();
  Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}};
  if (pieces.space_before_text) {
    normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpaceMark}});
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  normalizers.push_back(
      {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceMark}});
  Json parts = {{"added_tokens", std::move(added)},
                {"normalizer", {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}}},
                {"decoder", {{"type", "Sequence"}, {"decoders", std::move(decoders)}}}};
  if (pieces.model == PieceModel::kUnigram) {
    parts["model"] = {{"type", "Unigram"},
                      {"unk_id", std::move(unknown)},
                      {"vocab", std::move(scored)},
                      {"byte_fallback", true}};
    parts["pre_tokenizer"] = {{"type", "Split"},
                              {"pattern", {{"String", "\n"}}},
                              {"behavior", "MergedWithPrevious"},
                              {"invert", false}};
  } else {
    parts["model"] = BpeModel(std::move(vocabulary), MergesOf(pieces), std::move(unknown_text));
  }
  return FileJson(WithRest(std::move(parts)));
}

// Why tokenizer.json cannot represent a model; empty if it can.
std::string Misfit(const SentencePieceFacts& pieces) {
  if (pieces.model != PieceModel::kBpe && pieces.model != PieceModel::kUnigram) {
    return "its model splits into words or characters; supported are BPE and unigram";
  }
  if (!pieces.lines_apart) return "it changes text before it looks for pieces";
  if (!pieces.byte_fallback) return "text outside its pieces is not encoded as bytes";
  absl::flat_hash_set<float> scores;
  for (const SentencePieceFacts::Piece& piece : pieces.pieces) {
    if (piece.type == PieceType::kUserDefined) return "it has pieces that a user defined";
    if (pieces.model == PieceModel::kBpe && piece.type == PieceType::kNormal &&
        !scores.insert(piece.score).second) {
      return absl::StrCat("two of its pieces have the score ", piece.score);
    }
  }
  return "";
}

absl::StatusOr<Files> SentencePieceFiles(const Tokenizer& tokenizer) {
  NIBBLE_ASSIGN_OR_RETURN(const SentencePieceFacts pieces,
                          ReadSentencePieceModel(tokenizer.file()));
  if (const std::string misfit = Misfit(pieces); !misfit.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("tokenizer: tokenizer.json cannot say what '",
                                                      tokenizer.label(), "' does: ", misfit,
                                                      "; export without the tokenizer"));
  }
  Json config = FastConfig();
  for (size_t id = 0; id < pieces.pieces.size(); ++id) {
    const SentencePieceFacts::Piece& piece = pieces.pieces[id];
    if (piece.type == PieceType::kUnknown) config["unk_token"] = piece.text;
    if (piece.text == "<s>") config["bos_token"] = piece.text;
    if (static_cast<int32_t>(id) == tokenizer.end_of_document()) config["eos_token"] = piece.text;
  }
  return Files{{std::string(kTokenizerFile), PiecesJson(pieces)},
               {std::string(kConfigFile), FileJson(config)},
               {std::string(kModelFile), std::string(tokenizer.file())}};
}

absl::StatusOr<Files> BpeFiles(const Tokenizer& tokenizer) {
  NIBBLE_ASSIGN_OR_RETURN(Json parts, ParseJsonObject(tokenizer.label(), tokenizer.file()));
  Json config = FastConfig();
  config["eos_token"] = parts["end_of_document"];
  parts.erase("end_of_document");
  return Files{{std::string(kTokenizerFile), FileJson(WithRest(std::move(parts)))},
               {std::string(kConfigFile), FileJson(config)}};
}

// Whether the directory's tokenizer_config.json names the byte tokenizer.
absl::StatusOr<bool> NamesBytes(const std::string& directory) {
  const std::string path = FileIn(directory, kConfigFile);
  const absl::StatusOr<std::string> text = ReadWholeFile(path, kMaxConfigBytes);
  if (absl::IsNotFound(text.status())) return false;
  if (!text.ok()) return text.status();
  NIBBLE_ASSIGN_OR_RETURN(const Json config, ParseJsonObject(path, *text));
  const auto own = config.find(std::string(kOwnKey));
  return own != config.end() && *own == ByteTokenizer().label();
}

}  // namespace

absl::StatusOr<Files> HfTokenizerFiles(const Tokenizer& tokenizer) {
  const std::string label = tokenizer.label();
  if (label == ByteTokenizer().label()) return ByteFiles();
  return label.starts_with("sp:") ? SentencePieceFiles(tokenizer) : BpeFiles(tokenizer);
}

absl::StatusOr<HfTokenizer> ReadHfTokenizer(const std::string& directory) {
  NIBBLE_ASSIGN_OR_RETURN(const bool bytes, NamesBytes(directory));
  if (bytes) return HfTokenizer{.tokenizer = std::make_shared<const ByteTokenizer>()};
  const std::string path = FileIn(directory, kTokenizerFile);
  std::error_code error;
  const bool has_json = std::filesystem::exists(path, error);
  if (error) return ErrnoError(error.value(), "looking for", path);
  absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> pieces =
      SentencePieceTokenizer::Load(FileIn(directory, kModelFile));
  if (pieces.ok()) return HfTokenizer{.tokenizer = *std::move(pieces)};
  // Some models have a tokenizer.model of another kind beside tokenizer.json.
  const bool other_kind = absl::IsInvalidArgument(pieces.status()) && has_json;
  if (!absl::IsNotFound(pieces.status()) && !other_kind) return pieces.status();
  if (!has_json) return HfTokenizer();
  absl::StatusOr<std::unique_ptr<BpeTokenizer>> read = BpeTokenizer::Load(path);
  if (!read.ok()) return HfTokenizer{.notice = std::string(read.status().message())};
  return HfTokenizer{.tokenizer = *std::move(read)};
}

}  // namespace nibble
