#include "worker/interop/hf_tokenizer.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "worker/interop/json_text.h"
#include "worker/interop/sentencepiece_pieces.h"
#include "worker/trainer/data/byte_tokenizer.h"
#include "worker/trainer/data/sentencepiece_model.h"
#include "worker/trainer/data/sentencepiece_tokenizer.h"

namespace nibble {
namespace {

using Json = nlohmann::json;
using Files = std::map<std::string, std::string>;

constexpr std::string_view kModelFile = "tokenizer.model";
constexpr std::string_view kConfigFile = "tokenizer_config.json";
constexpr std::string_view kTokenizerFile = "tokenizer.json";
constexpr std::string_view kSpace = "\u2581";
constexpr std::string_view kOwnKey = "nibble_tokenizer";
constexpr std::string_view kEndOfDocument = "<|endofdocument|>";

std::string PathIn(const std::string& directory, std::string_view name) {
  return (std::filesystem::path(directory) / name).string();
}

std::string Utf8(uint32_t character) {
  if (character < 0x80) return {static_cast<char>(character)};
  return {static_cast<char>(0xc0 | (character >> 6)), static_cast<char>(0x80 | (character & 0x3f))};
}

// Byte-level vocabularies spell a byte as a character that can be seen: itself where it is one in
// Latin-1, otherwise the next of those from 256 on.
Json ByteVocabulary() {
  Json vocabulary = Json::object();
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool seen = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    vocabulary[Utf8(seen ? byte : next++)] = byte;
  }
  return vocabulary;
}

Json SpecialToken(int64_t id, std::string_view content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

// tokenizer.json, whose parts come in this order's fields.
Json TokenizerJson(Json added, Json pre_tokenizer, Json decoder, Json model) {
  return {{"version", "1.0"},          {"truncation", nullptr},
          {"padding", nullptr},        {"added_tokens", std::move(added)},
          {"normalizer", nullptr},     {"pre_tokenizer", std::move(pre_tokenizer)},
          {"post_processor", nullptr}, {"decoder", std::move(decoder)},
          {"model", std::move(model)}};
}

Files ByteFiles() {
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", false},
                           {"use_regex", false}};
  const Json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"vocab", ByteVocabulary()},
                      {"merges", Json::array()}};
  const Json end = SpecialToken(ByteTokenizer::kEndOfDocument, kEndOfDocument);
  const Json config = {{std::string(kOwnKey), ByteTokenizer().label()},
                       {"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"eos_token", kEndOfDocument},
                       {"clean_up_tokenization_spaces", false}};
  return {{std::string(kTokenizerFile),
           FileJson(TokenizerJson(Json::array({end}), byte_level, byte_level, model))},
          {std::string(kConfigFile), FileJson(config)}};
}

// Spaces are the letter U+2581, one goes before the text; no piece crosses it otherwise.
std::string UnigramJson(const SentencePieces& pieces) {
  Json added = Json::array();
  Json vocabulary = Json::array();
  Json unknown;
  for (const SentencePieces::Piece& piece : pieces.pieces) {
    const auto id = static_cast<int64_t>(vocabulary.size());
    vocabulary.push_back(Json::array({piece.text, piece.score}));
    if (piece.type == PieceType::kUnknown) unknown = id;
    if (piece.type == PieceType::kUnknown || piece.type == PieceType::kControl) {
      added.push_back(SpecialToken(id, piece.text));
    }
  }
  const Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
                         {{"type", "ByteFallback"}},
                         {{"type", "Fuse"}},
                         {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}};
  return FileJson(TokenizerJson(std::move(added),
                                {{"type", "Metaspace"},
                                 {"replacement", kSpace},
                                 {"prepend_scheme", "first"},
                                 {"split", false}},
                                {{"type", "Sequence"}, {"decoders", decoders}},
                                {{"type", "Unigram"},
                                 {"unk_id", std::move(unknown)},
                                 {"vocab", std::move(vocabulary)},
                                 {"byte_fallback", true}}));
}

// What both classes assume; empty where it holds.
std::string Misfit(const SentencePieceFacts& facts, const SentencePieces& pieces) {
  if (pieces.model != PieceModel::kBpe && pieces.model != PieceModel::kUnigram) {
    return "it is of words or characters, not BPE or unigram";
  }
  if (!facts.lines_apart) return "it changes text before it looks for pieces";
  if (!pieces.space_before_text) return "it puts no space before a text";
  if (!pieces.byte_fallback) return "what is no piece does not become bytes";
  for (const SentencePieces::Piece& piece : pieces.pieces) {
    if (piece.type == PieceType::kUserDefined) return "it has pieces that a user defined";
  }
  return "";
}

absl::StatusOr<Files> SentencePieceFiles(const Tokenizer& tokenizer, std::string model) {
  const absl::StatusOr<SentencePieceFacts> facts = ReadSentencePieceModel(model);
  if (!facts.ok()) return facts.status();
  const absl::StatusOr<SentencePieces> pieces = ReadSentencePieces(model);
  if (!pieces.ok()) return pieces.status();
  if (const std::string misfit = Misfit(*facts, *pieces); !misfit.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("tokenizer: no class of transformers reads '",
                                                      tokenizer.label(),
                                                      "' as it is meant: ", misfit));
  }
  Json config = {// Texts began without one in training.
                 {"add_bos_token", false},
                 {"add_eos_token", false},
                 {"clean_up_tokenization_spaces", false}};
  for (size_t id = 0; id < pieces->pieces.size(); ++id) {
    const SentencePieces::Piece& piece = pieces->pieces[id];
    if (piece.type == PieceType::kUnknown) config["unk_token"] = piece.text;
    if (piece.text == "<s>") config["bos_token"] = piece.text;
    if (static_cast<int32_t>(id) == tokenizer.end_of_document()) config["eos_token"] = piece.text;
  }
  Files files;
  const bool unigram = pieces->model == PieceModel::kUnigram;
  config["tokenizer_class"] = unigram ? "PreTrainedTokenizerFast" : "LlamaTokenizer";
  if (unigram) {
    files[std::string(kTokenizerFile)] = UnigramJson(*pieces);
  } else {
    config["legacy"] = false;
  }
  files[std::string(kConfigFile)] = FileJson(config);
  files[std::string(kModelFile)] = std::move(model);
  return files;
}

}  // namespace

absl::StatusOr<Files> HfTokenizerFiles(const Tokenizer& tokenizer, const std::string& directory) {
  const std::string label = tokenizer.label();
  if (label == ByteTokenizer().label()) return ByteFiles();
  const std::string file_name = SentencePieceFileName(label);
  if (file_name.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("tokenizer: '", label,
                     "' is neither bytes nor a SentencePiece model, which can be written"));
  }
  for (const std::string_view name : {std::string_view(file_name), kModelFile}) {
    absl::StatusOr<std::string> model =
        ReadSmallFile(PathIn(directory, name), kMaxSentencePieceModelBytes);
    if (absl::IsNotFound(model.status())) continue;
    if (!model.ok()) return model.status();
    if (SentencePieceLabel(*model) != label) continue;
    return SentencePieceFiles(tokenizer, *std::move(model));
  }
  return absl::FailedPreconditionError(absl::StrCat("tokenizer: the model of '", label,
                                                    "' is not in '", directory, "' as ", file_name,
                                                    " or ", std::string(kModelFile)));
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> ReadHfTokenizer(const std::string& directory) {
  const std::string path = PathIn(directory, kModelFile);
  const absl::StatusOr<std::string> model = ReadSmallFile(path, kMaxSentencePieceModelBytes);
  if (model.ok()) {
    absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> tokenizer =
        SentencePieceTokenizer::FromModel(path, *model);
    if (!tokenizer.ok()) return tokenizer.status();
    return std::shared_ptr<const Tokenizer>(*std::move(tokenizer));
  }
  if (!absl::IsNotFound(model.status())) return model.status();
  const std::string config_path = PathIn(directory, kConfigFile);
  const absl::StatusOr<std::string> text = ReadSmallFile(config_path, kMaxConfigBytes);
  if (absl::IsNotFound(text.status())) return std::shared_ptr<const Tokenizer>();
  if (!text.ok()) return text.status();
  const absl::StatusOr<Json> config = ParseJsonObject(config_path, *text);
  if (!config.ok()) return config.status();
  const auto own = config->find(std::string(kOwnKey));
  if (own == config->end() || *own != ByteTokenizer().label()) {
    return std::shared_ptr<const Tokenizer>();
  }
  return std::make_shared<const ByteTokenizer>();
}

}  // namespace nibble
