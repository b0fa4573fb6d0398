#include "worker/interop/sentencepiece_pieces.h"

#include <bit>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

// Numbers of sentencepiece_model.proto.
constexpr uint32_t kPieces = 1, kTrainerSpec = 2, kNormalizerSpec = 3;
constexpr uint32_t kText = 1, kScore = 2, kType = 3;
constexpr uint32_t kModelType = 3, kByteFallback = 35;
constexpr uint32_t kAddDummyPrefix = 3;

struct Field {
  uint32_t number = 0;
  uint64_t value = 0;      // of a varint or 32 bits
  std::string_view bytes;  // of a length-delimited field
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

bool TakeFixed(std::string_view& rest, size_t size, uint64_t& value) {
  if (rest.size() < size) return false;
  value = 0;
  for (size_t i = 0; i < size; ++i) {
    value |= uint64_t{static_cast<unsigned char>(rest[i])} << (8 * i);
  }
  rest.remove_prefix(size);
  return true;
}

bool TakeField(std::string_view& rest, Field& field) {
  uint64_t tag = 0;
  if (!TakeVarint(rest, tag) || tag >> 32 != 0) return false;
  field.number = static_cast<uint32_t>(tag >> 3);
  switch (tag & 7) {
    case 0:
      return TakeVarint(rest, field.value);
    case 1:
      return TakeFixed(rest, 8, field.value);
    case 2: {
      uint64_t size = 0;
      if (!TakeVarint(rest, size) || size > rest.size()) return false;
      field.bytes = rest.substr(0, size);
      rest.remove_prefix(size);
      return true;
    }
    case 5:
      return TakeFixed(rest, 4, field.value);
    default:  // groups are of an older time
      return false;
  }
}

// False where the bytes are no message.
bool ForEachField(std::string_view message, absl::FunctionRef<void(const Field&)> visit) {
  while (!message.empty()) {
    Field field;
    if (!TakeField(message, field)) return false;
    visit(field);
  }
  return true;
}

}  // namespace

absl::StatusOr<SentencePieces> ReadSentencePieces(std::string_view model) {
  SentencePieces result;
  bool whole = true;
  uint64_t model_type = static_cast<uint64_t>(PieceModel::kUnigram);
  const auto read_piece = [&](const Field& piece) {
    SentencePieces::Piece read;
    uint64_t type = static_cast<uint64_t>(PieceType::kNormal);
    whole = ForEachField(piece.bytes,
                         [&](const Field& field) {
                           if (field.number == kText) read.text = std::string(field.bytes);
                           if (field.number == kScore)
                             read.score = std::bit_cast<float>(uint32_t(field.value));
                           if (field.number == kType) type = field.value;
                         }) &&
            whole && type >= 1 && type <= 6;
    read.type = static_cast<PieceType>(type);
    result.pieces.push_back(std::move(read));
  };
  whole = ForEachField(model,
                       [&](const Field& part) {
                         if (part.number == kPieces) read_piece(part);
                         if (part.number == kTrainerSpec) {
                           whole = ForEachField(part.bytes,
                                                [&](const Field& field) {
                                                  if (field.number == kModelType)
                                                    model_type = field.value;
                                                  if (field.number == kByteFallback)
                                                    result.byte_fallback = field.value != 0;
                                                }) &&
                                   whole;
                         }
                         if (part.number == kNormalizerSpec) {
                           whole = ForEachField(part.bytes,
                                                [&](const Field& field) {
                                                  if (field.number == kAddDummyPrefix)
                                                    result.space_before_text = field.value != 0;
                                                }) &&
                                   whole;
                         }
                       }) &&
          whole;
  if (!whole || result.pieces.empty() || model_type < 1 || model_type > 4) {
    return absl::InvalidArgumentError(
        absl::StrCat(model.size(), " bytes are no complete SentencePiece model"));
  }
  result.model = static_cast<PieceModel>(model_type);
  return result;
}

}  // namespace nibble
