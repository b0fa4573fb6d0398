#include "worker/trainer/data/sentencepiece.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "worker/trainer/data/mapped_file.h"
#include "worker/trainer/data/sentencepiece_library.h"
#include "worker/trainer/data/sentencepiece_model.h"
#include "worker/trainer/data/tokenizer.h"
#include "worker/trainer/data/unicode.h"

namespace nibble {

namespace {

using sentencepiece_internal::Error;

// Smaller units are dominated by the library's cost per call; much larger ones slow BPE down, whose
// queue of possible merges grows with the text.
constexpr size_t kBpeUnitBytes = 4096;

// The size of the first line of `text`, including its line feed.
size_t LineBytes(std::string_view text) {
  const size_t feed = text.find('\n');
  return feed == std::string_view::npos ? text.size() : feed + 1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> SentencePieceTokenizer::Load(
    const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const std::string_view model(reinterpret_cast<const char*>(file.bytes().data()),
                               file.bytes().size());
  return FromModel(path, model);
}

absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> SentencePieceTokenizer::FromModel(
    const std::string& name, std::string_view model) {
  const absl::StatusOr<SentencePieceFacts> facts = ReadSentencePieceModel(model);
  if (!facts.ok()) {
    return absl::Status(facts.status().code(), absl::StrCat(name, ": ", facts.status().message()));
  }
  std::unique_ptr<SentencePieceTokenizer> tokenizer(new SentencePieceTokenizer);
  Error error = tokenizer->first_.Load(model);
  if (error.empty()) error = tokenizer->continued_.Load(facts->continued);
  if (!error.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": the SentencePiece library rejects the model: ", error));
  }
  tokenizer->model_ = std::string(model);
  tokenizer->label_ = SentencePieceLabel(model);
  tokenizer->vocabulary_ = tokenizer->first_.pieces();
  tokenizer->end_of_document_ = tokenizer->first_.end_of_sentence();
  tokenizer->lines_apart_ = facts->lines_apart;
  tokenizer->unit_bytes_ = facts->model == PieceModel::kBpe ? kBpeUnitBytes : 1;
  if (tokenizer->end_of_document_ < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": the model has no end-of-sentence piece (eos_id is -1), which ends documents"));
  }
  return tokenizer;
}

size_t SentencePieceTokenizer::PieceEnd(std::string_view text, size_t at_least) const {
  if (!lines_apart_ || at_least >= text.size()) return text.size();
  const size_t feed = text.find('\n', at_least - 1);
  return feed == std::string_view::npos ? text.size() : feed + 1;
}

absl::Status SentencePieceTokenizer::EncodePiece(std::string_view piece, int64_t offset,
                                                 Sink sink) const {
  NIBBLE_RETURN_IF_ERROR(CheckUtf8(piece, offset));
  if (!lines_apart_) return EncodeUnit(piece, offset, sink);
  while (!piece.empty()) {
    size_t size = 0;
    while (size < piece.size() && size < unit_bytes_) {
      const size_t line = LineBytes(piece.substr(size));
      // A long line starts a unit of its own, so that an error names its position.
      if (size > 0 && line > kMaxUnitBytes - unit_bytes_) break;
      size += line;
    }
    NIBBLE_RETURN_IF_ERROR(EncodeUnit(piece.substr(0, size), offset, sink));
    piece.remove_prefix(size);
    offset += static_cast<int64_t>(size);
  }
  return absl::OkStatus();
}

absl::Status SentencePieceTokenizer::EncodeUnit(std::string_view unit, int64_t offset,
                                                Sink sink) const {
  if (unit.size() > kMaxUnitBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the %s from byte %d on has %d bytes, more than the %d that are encoded at once%s",
        lines_apart_ ? "line" : "text", offset, unit.size(), size_t{kMaxUnitBytes},
        lines_apart_ ? "" : " (tokens of this model may span line feeds)"));
  }
  std::vector<int> tokens;
  const Error error = (offset == 0 ? first_ : continued_).Encode(unit, tokens);
  if (!error.empty()) {
    return absl::InternalError(absl::StrFormat("%s, encoding the %d bytes from %d on: %s", label_,
                                               unit.size(), offset, error));
  }
  return sink(tokens);
}

absl::StatusOr<std::string> SentencePieceTokenizer::Decode(absl::Span<const int32_t> tokens) const {
  NIBBLE_RETURN_IF_ERROR(CheckTokens(tokens));
  std::string text;
  std::vector<int> document;
  const auto decode = [&]() -> absl::Status {
    std::string part;
    const Error error = first_.Decode(document, part);
    if (!error.empty()) {
      return absl::InternalError(
          absl::StrFormat("%s, decoding %d tokens: %s", label_, document.size(), error));
    }
    text += part;
    document.clear();
    return absl::OkStatus();
  };
  for (const int32_t token : tokens) {
    if (token != end_of_document_) {
      document.push_back(token);
    } else {
      NIBBLE_RETURN_IF_ERROR(decode());
    }
  }
  NIBBLE_RETURN_IF_ERROR(decode());
  return text;
}

}  // namespace nibble
