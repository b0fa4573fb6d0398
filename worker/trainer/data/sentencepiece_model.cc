#include "worker/trainer/data/sentencepiece_model.h"

#include <bit>
#include <cmath>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/bytes.h"
#include "common/status_macros.h"
#include "worker/trainer/data/tokenizer.h"

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

}  // namespace nibble
