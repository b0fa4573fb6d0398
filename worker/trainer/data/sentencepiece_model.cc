#include "worker/trainer/data/sentencepiece_model.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {
namespace {

// Numbers of sentencepiece_model.proto.
constexpr uint32_t kPieces = 1, kTrainerSpec = 2, kNormalizerSpec = 3, kSelfTest = 4;
constexpr uint32_t kPieceText = 1, kPieceType = 3;
constexpr uint32_t kModelType = 3, kWhitespaceAsSuffix = 24, kByteFallback = 35;
constexpr uint32_t kCharacterMap = 2, kRemoveExtraWhitespaces = 4;
constexpr uint64_t kTypeNormal = 1, kTypeUserDefined = 4, kTypeUnused = 5;
constexpr uint64_t kModelUnigram = 1, kModelBpe = 2;

// normalizer_spec { add_dummy_prefix: false }: a message that follows another of its field is
// merged into it.
constexpr std::string_view kNoDummyPrefix("\x1a\x02\x18\x00", 4);

struct Field {
  uint32_t number = 0;
  uint64_t value = 0;      // of a varint
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

// The value of a field of `wire_type` at the front of `rest`.
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
    default:  // groups are of an older time
      return false;
  }
  if (size > rest.size()) return false;
  if (wire_type == 2) field.bytes = rest.substr(0, size);
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
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: no field at byte %d of %d: not a SentencePiece model, or cut short",
                          message, begin.data() - bytes.data(), bytes.size()));
    }
    field.number = static_cast<uint32_t>(tag >> 3);
    field.whole = begin.substr(0, begin.size() - rest.size());
    if (absl::Status status = visit(field); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// What the parts say, with the format's defaults.
struct Parts {
  size_t pieces = 0;
  bool trainer_spec = false;
  bool normalizer_spec = false;
  bool feed_inside_a_piece = false;
  bool feed_is_a_piece = false;
  bool unused_piece = false;
  uint64_t model_type = kModelUnigram;
  bool whitespace_as_suffix = false;
  bool byte_fallback = false;
  bool character_map = false;
  bool remove_extra_whitespaces = true;
};

absl::Status ReadPiece(std::string_view bytes, Parts& parts) {
  std::string_view text;
  uint64_t type = kTypeNormal;
  absl::Status status = ForEachField("pieces", bytes, [&](const Field& field) {
    if (field.number == kPieceText) text = field.bytes;
    if (field.number == kPieceType) type = field.value;
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  ++parts.pieces;
  // Other types are never found in a text.
  if (type != kTypeNormal && type != kTypeUserDefined && type != kTypeUnused) {
    return absl::OkStatus();
  }
  const size_t feed = text.find('\n');
  if (feed != std::string_view::npos && feed + 1 < text.size()) parts.feed_inside_a_piece = true;
  if (text == "\n" && type != kTypeUnused) parts.feed_is_a_piece = true;
  if (type == kTypeUnused) parts.unused_piece = true;
  return absl::OkStatus();
}

absl::Status ReadTrainerSpec(std::string_view bytes, Parts& parts) {
  parts.trainer_spec = true;
  return ForEachField("trainer_spec", bytes, [&](const Field& field) {
    if (field.number == kModelType) parts.model_type = field.value;
    if (field.number == kWhitespaceAsSuffix) parts.whitespace_as_suffix = field.value != 0;
    if (field.number == kByteFallback) parts.byte_fallback = field.value != 0;
    return absl::OkStatus();
  });
}

absl::Status ReadNormalizerSpec(std::string_view bytes, Parts& parts) {
  parts.normalizer_spec = true;
  return ForEachField("normalizer_spec", bytes, [&](const Field& field) {
    if (field.number == kCharacterMap) parts.character_map = !field.bytes.empty();
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
  absl::Status status = ForEachField("model", model, [&](const Field& field) {
    if (field.number != kSelfTest) facts.continued.append(field.whole);
    if (field.number == kPieces) return ReadPiece(field.bytes, parts);
    if (field.number == kTrainerSpec) return ReadTrainerSpec(field.bytes, parts);
    if (field.number == kNormalizerSpec) return ReadNormalizerSpec(field.bytes, parts);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  const char* missing = parts.pieces == 0        ? "pieces"
                        : !parts.trainer_spec    ? "trainer_spec"
                        : !parts.normalizer_spec ? "normalizer_spec"
                                                 : nullptr;
  if (missing != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is missing: not a SentencePiece model, or cut short", missing));
  }
  facts.continued.append(kNoDummyPrefix);
  facts.by_rank = parts.model_type == kModelBpe;
  // BPE takes an unused piece apart again the way it was last put together anywhere in the text.
  facts.lines_apart = (facts.by_rank ? !parts.unused_piece : parts.model_type == kModelUnigram) &&
                      !parts.whitespace_as_suffix && !parts.character_map &&
                      !parts.remove_extra_whitespaces && !parts.feed_inside_a_piece &&
                      (parts.byte_fallback || parts.feed_is_a_piece);
  return facts;
}

}  // namespace nibble
