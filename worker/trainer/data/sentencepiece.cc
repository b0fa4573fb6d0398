#include "worker/trainer/data/sentencepiece.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/bytes.h"
#include "common/status_macros.h"
#include "worker/trainer/data/mapped_file.h"
#include "worker/trainer/data/sentencepiece_library.h"
#include "worker/trainer/data/tokenizer.h"
#include "worker/trainer/data/unicode.h"

namespace nibble {

namespace {

// Field numbers of sentencepiece_model.proto.
constexpr uint32_t kPieces = 1, kTrainerSpec = 2, kNormalizerSpec = 3, kSelfTest = 4;
constexpr uint32_t kPieceText = 1, kPieceScore = 2, kPieceType = 3;
constexpr uint32_t kModelType = 3, kWhitespaceAsSuffix = 24, kByteFallback = 35;
constexpr uint32_t kCharacterMap = 2, kAddDummyPrefix = 3, kRemoveExtraWhitespaces = 4;

// normalizer_spec { add_dummy_prefix: false }. Protobuf merges a second occurrence of a message
// field into the first.
constexpr std::string_view kNoDummyPrefix("\x1a\x02\x18\x00", 4);

struct Field {
  uint32_t number = 0;
  uint64_t value = 0;      // of a varint or a 32-bit field
  std::string_view bytes;  // of a length-delimited field
  std::string_view whole;  // with its tag
};

bool TakeVarint(std::string_view& rest, uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64 && !rest.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(rest.front());
    rest.remove_prefix(1);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

// Takes the value of a field of `wire_type` off the front of `rest`.
bool TakeValue(uint64_t wire_type, std::string_view& rest, Field& field) {
  uint64_t size = 0;
  switch (wire_type) {
    case 0:
      return TakeVarint(rest, field.value);
    case 1:
      size = 8;
      break;
    case 2:
      if (!TakeVarint(rest, size)) return false;
      break;
    case 5:
      size = 4;
      break;
    default:  // groups are obsolete
      return false;
  }
  if (size > rest.size()) return false;
  if (wire_type == 2) field.bytes = rest.substr(0, size);
  if (wire_type == 5) field.value = LoadLittle<uint32_t>(rest.data());
  rest.remove_prefix(size);
  return true;
}

absl::Status ForEachField(const char* message, std::string_view bytes,
                          absl::FunctionRef<absl::Status(const Field&)> visit) {
  for (std::string_view rest = bytes; !rest.empty();) {
    const std::string_view begin = rest;
    uint64_t tag = 0;
    Field field;
    if (!TakeVarint(rest, tag) || tag >> 3 == 0 || tag >> 32 != 0 ||
        !TakeValue(tag & 7, rest, field)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: no valid field at byte %d of %d: not a SentencePiece model, or truncated", message,
          begin.data() - bytes.data(), bytes.size()));
    }
    field.number = static_cast<uint32_t>(tag >> 3);
    field.whole = begin.substr(0, begin.size() - rest.size());
    NIBBLE_RETURN_IF_ERROR(visit(field));
  }
  return absl::OkStatus();
}

// Parsed fields beside the facts, with the format's defaults.
struct Parts {
  bool trainer_spec = false;
  bool normalizer_spec = false;
  bool feed_inside_a_piece = false;
  bool feed_is_a_piece = false;
  bool unused_piece = false;
  bool whitespace_as_suffix = false;
  bool character_map = false;
  bool remove_extra_whitespaces = true;
};

// Sets `to`, whose values are 1 to `last`.
template <class Enum>
absl::Status ReadEnum(const char* field, uint64_t value, Enum last, Enum& to) {
  if (value < 1 || value > static_cast<uint64_t>(last)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is %d, not in [1, %d]", field, value, static_cast<uint64_t>(last)));
  }
  to = static_cast<Enum>(value);
  return absl::OkStatus();
}

absl::Status ReadPiece(std::string_view bytes, SentencePieceFacts& facts, Parts& parts) {
  SentencePieceFacts::Piece& piece = facts.pieces.emplace_back();
  NIBBLE_RETURN_IF_ERROR(ForEachField("pieces", bytes, [&](const Field& field) {
    if (field.number == kPieceText) piece.text = std::string(field.bytes);
    if (field.number == kPieceScore) {
      piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
    }
    if (field.number != kPieceType) return absl::OkStatus();
    return ReadEnum("pieces: type", field.value, PieceType::kByte, piece.type);
  }));
  if (!std::isfinite(piece.score)) {
    return absl::InvalidArgumentError(absl::StrFormat("pieces: the score of piece %d is %g",
                                                      facts.pieces.size() - 1, piece.score));
  }
  const bool unused = piece.type == PieceType::kUnused;
  // Pieces of other types never occur in a text.
  if (piece.type != PieceType::kNormal && piece.type != PieceType::kUserDefined && !unused) {
    return absl::OkStatus();
  }
  const size_t feed = piece.text.find('\n');
  if (feed != std::string::npos && feed + 1 < piece.text.size()) parts.feed_inside_a_piece = true;
  if (piece.text == "\n" && !unused) parts.feed_is_a_piece = true;
  if (unused) parts.unused_piece = true;
  return absl::OkStatus();
}

absl::Status ReadTrainerSpec(std::string_view bytes, SentencePieceFacts& facts, Parts& parts) {
  parts.trainer_spec = true;
  return ForEachField("trainer_spec", bytes, [&](const Field& field) {
    if (field.number == kWhitespaceAsSuffix) parts.whitespace_as_suffix = field.value != 0;
    if (field.number == kByteFallback) facts.byte_fallback = field.value != 0;
    if (field.number != kModelType) return absl::OkStatus();
    return ReadEnum("trainer_spec: model_type", field.value, PieceModel::kChar, facts.model);
  });
}

absl::Status ReadNormalizerSpec(std::string_view bytes, SentencePieceFacts& facts, Parts& parts) {
  parts.normalizer_spec = true;
  return ForEachField("normalizer_spec", bytes, [&](const Field& field) {
    if (field.number == kCharacterMap) parts.character_map = !field.bytes.empty();
    if (field.number == kAddDummyPrefix) facts.space_before_text = field.value != 0;
    if (field.number == kRemoveExtraWhitespaces) parts.remove_extra_whitespaces = field.value != 0;
    return absl::OkStatus();
  });
}

}  // namespace

std::string SentencePieceLabel(std::string_view model) {
  return absl::StrCat("sp:", TokenizerHash(model));
}

absl::StatusOr<SentencePieceFacts> ReadSentencePieceModel(std::string_view model) {
  if (model.size() > kMaxSentencePieceModelBytes) {
    return absl::InvalidArgumentError(absl::StrFormat("the model has %d bytes, more than %d",
                                                      model.size(), kMaxSentencePieceModelBytes));
  }
  SentencePieceFacts facts;
  facts.continued.reserve(model.size() + kNoDummyPrefix.size());
  Parts parts;
  NIBBLE_RETURN_IF_ERROR(ForEachField("model", model, [&](const Field& field) {
    if (field.number != kSelfTest) facts.continued.append(field.whole);
    if (field.number == kPieces) return ReadPiece(field.bytes, facts, parts);
    if (field.number == kTrainerSpec) return ReadTrainerSpec(field.bytes, facts, parts);
    if (field.number == kNormalizerSpec) return ReadNormalizerSpec(field.bytes, facts, parts);
    return absl::OkStatus();
  }));
  const char* missing = facts.pieces.empty()     ? "pieces"
                        : !parts.trainer_spec    ? "trainer_spec"
                        : !parts.normalizer_spec ? "normalizer_spec"
                                                 : nullptr;
  if (missing != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is missing: not a SentencePiece model, or truncated", missing));
  }
  facts.continued.append(kNoDummyPrefix);
  // BPE splits an unused piece as it was last merged, which may have been in another line.
  const bool by_line =
      facts.model == PieceModel::kBpe ? !parts.unused_piece : facts.model == PieceModel::kUnigram;
  facts.lines_apart = by_line && !parts.whitespace_as_suffix && !parts.character_map &&
                      !parts.remove_extra_whitespaces && !parts.feed_inside_a_piece &&
                      (facts.byte_fallback || parts.feed_is_a_piece);
  return facts;
}

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

namespace {

// The library skips sentences above its configured maximum, so longer lines are cut.
constexpr size_t kMaxSentenceBytes = size_t{1} << 16;
// U+2585, which the library uses for rare characters; it skips sentences that contain it.
constexpr std::string_view kReserved = "\xe2\x96\x85";

// Removes and returns the next sentence: a line, or a part of a line that the library would skip.
// Empty only at the end of the text.
std::string TakeSentence(std::string_view& rest) {
  while (!rest.empty()) {
    std::string_view sentence = rest.substr(0, rest.find('\n'));
    size_t after = sentence.size() + 1;
    if (const size_t reserved = sentence.find(kReserved); reserved != std::string_view::npos) {
      sentence = sentence.substr(0, reserved);
      after = reserved + kReserved.size();
    }
    if (sentence.size() > kMaxSentenceBytes) {
      after = kMaxSentenceBytes;
      while ((sentence[after] & 0xc0) == 0x80) --after;  // to the first byte of a character
      sentence = sentence.substr(0, after);
    }
    rest.remove_prefix(std::min(after, rest.size()));
    if (!sentence.empty()) return std::string(sentence);
  }
  return "";
}

}  // namespace

absl::StatusOr<std::string> TrainSentencePiece(std::string_view text,
                                               const SentencePieceTraining& training) {
  using Training = SentencePieceTraining;
  if (training.vocabulary < Training::kMinVocabulary ||
      training.vocabulary > Training::kMaxVocabulary) {
    return absl::InvalidArgumentError(
        absl::StrFormat("vocabulary is %d, not in [%d, %d]", training.vocabulary,
                        int64_t{Training::kMinVocabulary}, int64_t{Training::kMaxVocabulary}));
  }
  if (const size_t bad = FindInvalidUtf8(text); bad != std::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the text to train on is not UTF-8 at byte %d", bad));
  }
  if (text.find_first_not_of('\n') == std::string_view::npos) {
    return absl::InvalidArgumentError("there is no text to train on");
  }
  const std::unordered_map<std::string, std::string> options = {
      {"model_type", training.type == SentencePieceType::kBpe ? "bpe" : "unigram"},
      {"vocab_size", absl::StrCat(training.vocabulary)},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"allow_whitespace_only_pieces", "true"},
      {"byte_fallback", "true"},
      {"split_digits", "true"},
      {"max_sentence_length", absl::StrCat(kMaxSentenceBytes)},
      // Sums of scores depend on how the sentences are divided among threads.
      {"num_threads", "1"},
      {"minloglevel", "2"},
  };
  std::string model;
  std::string_view rest = text;
  const sentencepiece_internal::Error error = sentencepiece_internal::Train(
      options, [&] { return TakeSentence(rest); }, model);
  if (!error.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "training a SentencePiece model of %d pieces on %d bytes of text failed: %s",
        training.vocabulary, text.size(), error));
  }
  return model;
}

}  // namespace nibble
