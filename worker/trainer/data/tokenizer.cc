#include "worker/trainer/data/tokenizer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/bytes.h"
#include "common/errno_error.h"
#include "common/files/staged_file.h"
#include "common/status_macros.h"
#include "worker/trainer/data/bpe_tokenizer.h"
#include "worker/trainer/data/mapped_file.h"
#include "worker/trainer/data/sentencepiece.h"
#include "worker/trainer/data/unicode.h"

namespace nibble {

std::string TokenizerHash(std::string_view content) {
  return absl::StrFormat("%016x", Fnv1a64(content));
}

absl::Status Tokenizer::Encode(std::string_view text, Sink sink) const {
  for (size_t begin = 0; begin < text.size();) {
    const size_t size = PieceEnd(text.substr(begin), kEncodePieceBytes);
    NIBBLE_RETURN_IF_ERROR(
        EncodePiece(text.substr(begin, size), static_cast<int64_t>(begin), sink));
    begin += size;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text) const {
  std::vector<int32_t> tokens;
  NIBBLE_RETURN_IF_ERROR(Encode(text, [&](absl::Span<const int32_t> some) {
    tokens.insert(tokens.end(), some.begin(), some.end());
    return absl::OkStatus();
  }));
  return tokens;
}

absl::Status Tokenizer::CheckTokens(absl::Span<const int32_t> tokens) const {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < vocabulary()) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "token %d at position %d is outside the vocabulary [0, %d)", tokens[i], i, vocabulary()));
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::CheckUtf8(std::string_view piece, int64_t offset) {
  const size_t bad = FindInvalidUtf8(piece);
  if (bad == std::string_view::npos) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("byte %d of the text, 0x%02x, is not UTF-8",
                                                    offset + bad,
                                                    static_cast<unsigned char>(piece[bad])));
}

absl::Status ByteTokenizer::EncodePiece(std::string_view piece, int64_t, Sink sink) const {
  std::array<int32_t, 4096> tokens;
  while (!piece.empty()) {
    const size_t count = std::min(piece.size(), tokens.size());
    for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<unsigned char>(piece[i]);
    NIBBLE_RETURN_IF_ERROR(sink(absl::MakeConstSpan(tokens.data(), count)));
    piece.remove_prefix(count);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ByteTokenizer::Decode(absl::Span<const int32_t> tokens) const {
  NIBBLE_RETURN_IF_ERROR(CheckTokens(tokens));
  std::string text;
  text.reserve(tokens.size());
  for (const int32_t token : tokens) {
    if (token != kEndOfDocument) text += static_cast<char>(token);
  }
  return text;
}

namespace {

std::string PathIn(const std::string& directory, const std::string& name) {
  return (std::filesystem::path(directory) / name).string();
}

std::string_view TextOf(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& named) {
  if (named == ByteTokenizer().label()) return std::make_unique<ByteTokenizer>();
  NIBBLE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(named));
  const std::string_view content = TextOf(file);
  // No SentencePiece model begins with a brace, which in protobuf is a group.
  const size_t first = content.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && content[first] == '{') {
    return BpeTokenizer::Load(named);
  }
  return SentencePieceTokenizer::FromModel(named, content);
}

std::string TokenizerFileName(std::string_view label) {
  constexpr struct {
    std::string_view kind, before, after;
  } kKinds[] = {{"sp:", "sp-", ".model"}, {"hf:", "hf-", ".json"}};
  for (const auto& [kind, before, after] : kKinds) {
    if (!label.starts_with(kind) || label.size() != kind.size() + 16 ||
        label.find_first_not_of("0123456789abcdef", kind.size()) != std::string_view::npos) {
      continue;
    }
    std::string name(before);
    name += label.substr(kind.size());
    name += after;
    return name;
  }
  return "";
}

absl::StatusOr<std::string> SaveTokenizer(const std::string& directory,
                                          const Tokenizer& tokenizer) {
  const std::string_view content = tokenizer.file();
  if (content.empty()) return std::string();
  std::error_code error;
  std::filesystem::create_directory(directory, error);  // an existing one is no error
  if (error) {
    return ErrnoError(error.value(), absl::StrCat("making the directory ", directory));
  }
  const std::string path = PathIn(directory, TokenizerFileName(tokenizer.label()));
  const absl::StatusOr<MappedFile> present = MappedFile::Open(path);
  if (present.ok()) {
    if (TextOf(*present) == content) return path;
    return absl::DataLossError(absl::StrCat(
        path,
        " exists with other content than the tokenizer of its name; remove it or write to another "
        "directory"));
  }
  if (!absl::IsNotFound(present.status())) return present.status();
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<StagedFile> file, StagedFile::Create(path));
  NIBBLE_RETURN_IF_ERROR(file->Append(AsBytes(content)));
  NIBBLE_RETURN_IF_ERROR(file->Publish());
  return path;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& label,
                                                         const std::string& directory) {
  if (label == ByteTokenizer().label()) return std::make_unique<ByteTokenizer>();
  const std::string name = TokenizerFileName(label);
  if (name.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tokenizer \"%s\" is neither \"bytes\", a SentencePiece model (sp:...) nor "
                        "a tokenizer.json (hf:...)",
                        absl::CHexEscape(label)));
  }
  const std::string path = PathIn(directory, name);
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(path);
  if (tokenizer.ok() && (*tokenizer)->label() != label) {
    return absl::InvalidArgumentError(absl::StrFormat("%s is the tokenizer \"%s\", not \"%s\"",
                                                      path, (*tokenizer)->label(), label));
  }
  return tokenizer;
}

}  // namespace nibble
