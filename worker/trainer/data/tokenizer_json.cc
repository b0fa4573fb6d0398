#include "worker/trainer/data/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/files/files.h"
#include "common/json_text.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/trainer/data/unicode.h"

namespace nibble {
namespace {

using Json = nlohmann::json;

// Above any real vocabulary, and small enough for its tables to fit into memory.
constexpr int64_t kMaxTokenCount = int64_t{1} << 21;

std::string Utf8(uint32_t character) {
  if (character < 0x80) return {static_cast<char>(character)};
  return {static_cast<char>(0xc0 | (character >> 6)), static_cast<char>(0x80 | (character & 0x3f))};
}

// The member of an object; null if it is missing or `object` is not an object.
const Json& At(const Json& object, const char* key) {
  static const Json* const null = new Json();
  if (!object.is_object()) return *null;
  const auto found = object.find(key);
  return found == object.end() ? *null : *found;
}
std::string TextAt(const Json& object, const char* key) {
  const Json& value = At(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}
// `otherwise` if the member is missing or null.
bool FlagAt(const Json& object, const char* key, bool otherwise) {
  const Json& value = At(object, key);
  return value.is_boolean() ? value.get<bool>() : otherwise;
}
std::string TypeOf(const Json& part) {
  const std::string type = TextAt(part, "type");
  return type.empty() ? BriefJson(part) : type;
}

// The parts of a Sequence, or the part itself, or none for null.
std::vector<Json> PartsOf(const Json& part, const char* list) {
  if (part.is_null()) return {};
  if (TextAt(part, "type") != "Sequence" || !At(part, list).is_array()) return {part};
  return At(part, list).get<std::vector<Json>>();
}

class Reader {
 public:
  Reader(std::string_view name, const Json& root) : name_(name), root_(root) {}

  absl::StatusOr<TokenizerJson> Read(std::string_view end_of_document) {
    NIBBLE_RETURN_IF_ERROR(ReadModel());
    NIBBLE_RETURN_IF_ERROR(ReadNormalizer());
    NIBBLE_RETURN_IF_ERROR(ReadPreTokenizer());
    NIBBLE_RETURN_IF_ERROR(ReadVocabulary());
    NIBBLE_RETURN_IF_ERROR(ReadMerges());
    NIBBLE_RETURN_IF_ERROR(ReadAdded());
    NIBBLE_RETURN_IF_ERROR(ReadBytes());
    NIBBLE_RETURN_IF_ERROR(ReadEnd(end_of_document));
    SpellPieces();
    WriteCanonical();
    return std::move(out_);
  }

 private:
  absl::Status Refuse(std::string_view field, std::string_view why) const {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(name_), ": ", std::string(field), ": ", std::string(why)));
  }
  absl::Status Unsupported(std::string_view field, const Json& value,
                           std::string_view supported) const {
    return Refuse(field,
                  absl::StrCat(BriefJson(value), " is not supported; ", std::string(supported)));
  }

  absl::Status ReadModel() {
    const Json& model = At(root_, "model");
    if (!model.is_object()) return Refuse("model", "missing: not a tokenizer.json");
    // Files from before 2020 have no type.
    if (const std::string type = TextAt(model, "type"); type != "BPE" && !type.empty()) {
      return Refuse("model.type", absl::StrCat("'", type, "' is not supported; only BPE is"));
    }
    for (const char* prefix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!TextAt(model, prefix).empty()) {
        return Unsupported(absl::StrCat("model.", prefix), At(model, prefix), "it must be empty");
      }
    }
    const Json& dropout = At(model, "dropout");
    if (!dropout.is_null() && dropout != 0.0) {
      return Unsupported("model.dropout", dropout, "it must be 0 or null");
    }
    out_.whole_words = FlagAt(model, "ignore_merges", false);
    return absl::OkStatus();
  }

  absl::Status ReadNormalizer() {
    const std::vector<Json> parts = PartsOf(At(root_, "normalizer"), "normalizers");
    for (size_t i = 0; i < parts.size(); ++i) {
      const Json& part = parts[i];
      if (i == 0 && TypeOf(part) == "Prepend" && TextAt(part, "prepend") == kSpaceMark) {
        out_.mark = TokenizerJson::Mark::kBefore;
      } else if (i + 1 == parts.size() && TypeOf(part) == "Replace" &&
                 TextAt(At(part, "pattern"), "String") == " " &&
                 TextAt(part, "content") == kSpaceMark) {
        out_.mark_spaces = true;
      } else {
        return Unsupported("normalizer", part,
                           "only null, and Prepend and Replace of spaces by U+2581, are");
      }
    }
    if (out_.mark != TokenizerJson::Mark::kNone && !out_.mark_spaces) {
      return Refuse("normalizer", "it prepends U+2581 but does not replace spaces by it");
    }
    return absl::OkStatus();
  }

  absl::Status ReadByteLevel(const Json& part, bool with_split) {
    if (FlagAt(part, "add_prefix_space", true)) {
      return Refuse("pre_tokenizer.add_prefix_space", "true is not supported; only false is");
    }
    if (FlagAt(part, "use_regex", true)) {
      if (with_split)
        return Refuse("pre_tokenizer.use_regex", "true is not supported after a Split");
      out_.split = kGpt2Split;
    }
    out_.bytes = true;
    return absl::OkStatus();
  }

  absl::Status ReadSplit(const Json& part) {
    const std::string expression = TextAt(At(part, "pattern"), "Regex");
    const std::optional<WordSplit> split = WordSplitOf(expression);
    if (!split.has_value()) {
      return Unsupported("pre_tokenizer.pattern", At(part, "pattern"),
                         "only the expressions of GPT-2, Llama 3 and Qwen 2 are");
    }
    if (TextAt(part, "behavior") != "Isolated" || FlagAt(part, "invert", false)) {
      return Unsupported("pre_tokenizer.behavior", At(part, "behavior"),
                         "only Isolated, not inverted, is");
    }
    out_.split = *split;
    return absl::OkStatus();
  }

  absl::Status ReadMetaspace(const Json& part) {
    const std::string scheme = TextAt(part, "prepend_scheme");
    if (TextAt(part, "replacement") != kSpaceMark || FlagAt(part, "split", true) ||
        out_.mark_spaces || (scheme != "always" && scheme != "first" && scheme != "never")) {
      return Unsupported(
          "pre_tokenizer", part,
          "Metaspace needs the replacement U+2581, a prepend_scheme, split false and "
          "no normalizer");
    }
    out_.mark_spaces = true;
    out_.mark = scheme == "always"  ? TokenizerJson::Mark::kUnlessThere
                : scheme == "first" ? TokenizerJson::Mark::kFirst
                                    : TokenizerJson::Mark::kNone;
    return absl::OkStatus();
  }

  absl::Status ReadPreTokenizer() {
    const std::vector<Json> parts = PartsOf(At(root_, "pre_tokenizer"), "pretokenizers");
    if (parts.empty()) return absl::OkStatus();
    const std::string last = TypeOf(parts.back());
    if (parts.size() == 1 && last == "Metaspace") return ReadMetaspace(parts[0]);
    if (parts.size() > 2 || last != "ByteLevel" ||
        (parts.size() == 2 && TypeOf(parts[0]) != "Split")) {
      std::string types;
      for (const Json& part : parts)
        absl::StrAppend(&types, types.empty() ? "" : ", ", TypeOf(part));
      return Refuse("pre_tokenizer",
                    absl::StrCat(types,
                                 " is not supported; only null, Metaspace and ByteLevel, alone or "
                                 "after a Split, are"));
    }
    if (parts.size() == 2) {
      NIBBLE_RETURN_IF_ERROR(ReadSplit(parts[0]));
    }
    if (out_.mark_spaces) return Refuse("normalizer", "is not supported before ByteLevel");
    return ReadByteLevel(parts.back(), parts.size() == 2);
  }

  // Sets the text of a token; each text belongs to one token.
  absl::Status Name(std::string_view field, const std::string& text, const Json& id) {
    if (!id.is_number_integer() || id < 0 || id >= kMaxTokenCount) {
      return Refuse(field, absl::StrCat("the token of ", BriefText(text), " is ", BriefJson(id),
                                        ", not in [0, ", kMaxTokenCount, ")"));
    }
    const auto token = id.get<int32_t>();
    if (static_cast<size_t>(token) >= out_.pieces.size()) out_.pieces.resize(token + 1);
    std::string& piece = out_.pieces[token];
    if (!piece.empty() && piece != text) {
      return Refuse(field, absl::StrCat("token ", token, " is both ", BriefText(piece), " and ",
                                        BriefText(text)));
    }
    const auto [entry, first] = tokens_.try_emplace(text, token);
    if (!first && entry->second != token) {
      return Refuse(
          field, absl::StrCat(BriefText(text), " is both token ", entry->second, " and ", token));
    }
    piece = text;
    return absl::OkStatus();
  }

  absl::Status ReadVocabulary() {
    const Json& vocabulary = At(At(root_, "model"), "vocab");
    if (!vocabulary.is_object() || vocabulary.empty()) {
      return Refuse("model.vocab", "missing, or not an object with the token of each piece");
    }
    for (const auto& [text, id] : vocabulary.items()) {
      if (text.empty()) return Refuse("model.vocab", "a piece is empty");
      NIBBLE_RETURN_IF_ERROR(Name("model.vocab", text, id));
    }
    return absl::OkStatus();
  }

  // "a b" or ["a", "b"].
  bool SidesOf(const Json& merge, std::string& left, std::string& right) const {
    if (merge.is_array()) {
      if (merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string()) return false;
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
      return true;
    }
    if (!merge.is_string()) return false;
    const auto& both = merge.get_ref<const std::string&>();
    const size_t space = both.find(' ');
    if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos) return false;
    left = both.substr(0, space);
    right = both.substr(space + 1);
    return true;
  }

  absl::Status ReadMerges() {
    const Json& merges = At(At(root_, "model"), "merges");
    if (!merges.is_array()) return Refuse("model.merges", "missing, or not a list");
    std::string left, right;
    for (size_t i = 0; i < merges.size(); ++i) {
      const std::string field = absl::StrCat("model.merges[", i, "]");
      if (!SidesOf(merges[i], left, right)) {
        return Refuse(field, absl::StrCat(BriefJson(merges[i]), " is not two pieces"));
      }
      BytePairs::Merge merge = {};
      const std::string joined = left + right;
      for (const auto& [text, token] : {std::pair<const std::string&, int32_t&>(left, merge.left),
                                        {right, merge.right},
                                        {joined, merge.joined}}) {
        const auto found = tokens_.find(text);
        if (found == tokens_.end()) {
          return Refuse(field, absl::StrCat(BriefText(text), " is not in model.vocab"));
        }
        token = found->second;
      }
      out_.merges.push_back(merge);
    }
    return absl::OkStatus();
  }

  absl::Status ReadAdded() {
    const Json& added = At(root_, "added_tokens");
    if (added.is_null()) return absl::OkStatus();
    if (!added.is_array()) return Refuse("added_tokens", "not a list");
    for (size_t i = 0; i < added.size(); ++i) {
      const std::string field = absl::StrCat("added_tokens[", i, "]");
      const std::string text = TextAt(added[i], "content");
      if (text.empty()) return Refuse(field, "it has no content");
      for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
        if (FlagAt(added[i], flag, false)) {
          return Refuse(absl::StrCat(field, ".", flag),
                        absl::StrCat("true, of ", BriefText(text), ", is not supported"));
        }
      }
      const bool normalized = FlagAt(added[i], "normalized", !FlagAt(added[i], "special", false));
      if (normalized && (!At(root_, "normalizer").is_null())) {
        return Refuse(
            absl::StrCat(field, ".normalized"),
            absl::StrCat("true, of ", BriefText(text), ", is not supported with a normalizer"));
      }
      NIBBLE_RETURN_IF_ERROR(Name(field, text, At(added[i], "id")));
      out_.added.push_back({text, tokens_.at(text), normalized});
    }
    return absl::OkStatus();
  }

  // Every byte must have a token, so that every text can be encoded.
  absl::Status ReadBytes() {
    if (out_.whole_words && !out_.bytes) {
      return Refuse("model.ignore_merges",
                    "true is not supported without a ByteLevel pre_tokenizer");
    }
    const bool fallback = FlagAt(At(root_, "model"), "byte_fallback", false);
    if (!out_.bytes && !fallback) {
      return Refuse("model.byte_fallback",
                    "false is not supported without a ByteLevel pre_tokenizer: some texts would "
                    "have no tokens");
    }
    for (int byte = 0; byte < 256; ++byte) {
      const std::string spelling =
          out_.bytes ? ByteSpellings()[byte] : absl::StrFormat("<0x%02X>", byte);
      const auto found = tokens_.find(spelling);
      if (found == tokens_.end()) {
        return Refuse("model.vocab", absl::StrFormat("byte 0x%02X, as %s, has no token", byte,
                                                     BriefText(spelling)));
      }
      out_.byte_tokens[byte] = found->second;
    }
    return absl::OkStatus();
  }

  absl::Status ReadEnd(std::string_view given) {
    end_ = TextAt(root_, "end_of_document");
    if (end_.empty()) end_ = std::string(given);
    if (end_.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(std::string(name_),
                       ": no end-of-document token; name it as \"eos_token\" in a "
                       "tokenizer_config.json beside the file"));
    }
    const auto found = tokens_.find(end_);
    if (found == tokens_.end()) {
      return Refuse("eos_token", absl::StrCat(BriefText(end_), " is not one of its tokens"));
    }
    out_.end_of_document = found->second;
    return absl::OkStatus();
  }

  // Unescapes the pieces, so that they equal the text.
  void SpellPieces() {
    absl::flat_hash_map<std::string, char> bytes;
    if (out_.bytes) {
      for (int byte = 0; byte < 256; ++byte) {
        bytes.emplace(ByteSpellings()[byte], static_cast<char>(byte));
      }
    }
    std::vector<bool> added(out_.pieces.size());
    for (const TokenizerJson::Added& token : out_.added) added[token.token] = true;
    for (size_t token = 0; token < out_.pieces.size(); ++token) {
      if (added[token]) continue;
      std::string& piece = out_.pieces[token];
      std::string text;
      for (size_t at = 0, size = 0; at < piece.size(); at += size) {
        FirstCharacter(std::string_view(piece).substr(at), size);
        const std::string character = piece.substr(at, size);
        if (const auto byte = bytes.find(character); byte != bytes.end()) {
          text += byte->second;
        } else if (out_.mark_spaces && character == kSpaceMark) {
          text += ' ';
        } else {
          text += character;
        }
      }
      piece = std::move(text);
    }
    if (out_.bytes) return;
    for (int byte = 0; byte < 256; ++byte) {
      out_.pieces[out_.byte_tokens[byte]] = std::string(1, static_cast<char>(byte));
    }
  }

  void WriteCanonical() {
    Json kept = Json::object();
    for (const char* part : {"added_tokens", "decoder", "model", "normalizer", "pre_tokenizer"}) {
      if (const Json& value = At(root_, part); !value.is_null()) kept[part] = value;
    }
    kept["end_of_document"] = end_;
    out_.canonical = kept.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
  }

  const std::string_view name_;
  const Json& root_;
  TokenizerJson out_;
  std::string end_;
  absl::flat_hash_map<std::string, int32_t> tokens_;
};

}  // namespace

const std::array<std::string, 256>& ByteSpellings() {
  static const auto* const spellings = [] {
    auto* made = new std::array<std::string, 256>();
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool seen = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
      (*made)[byte] = Utf8(seen ? byte : next++);
    }
    return made;
  }();
  return *spellings;
}

absl::StatusOr<TokenizerJson> ReadTokenizerJson(std::string_view name, std::string_view text,
                                                std::string_view end_of_document) {
  NIBBLE_ASSIGN_OR_RETURN(const Json root, ParseJsonObject(name, text));
  return Reader(name, root).Read(end_of_document);
}

absl::StatusOr<std::string> EndOfDocumentIn(const std::string& directory) {
  const std::string path = (std::filesystem::path(directory) / "tokenizer_config.json").string();
  const absl::StatusOr<std::string> text = ReadWholeFile(path, kMaxConfigBytes);
  if (absl::IsNotFound(text.status())) return std::string();
  if (!text.ok()) return text.status();
  NIBBLE_ASSIGN_OR_RETURN(const Json config, ParseJsonObject(path, *text));
  const Json& token = At(config, "eos_token");
  if (token.is_object()) return TextAt(token, "content");
  return TextAt(config, "eos_token");
}

}  // namespace nibble
