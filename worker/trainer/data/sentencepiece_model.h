// What Nibble itself reads of a SentencePiece model file.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_MODEL_H_
#define NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble {

inline constexpr size_t kMaxSentencePieceModelBytes = size_t{1} << 28;

// "sp:" and 16 hexadecimal digits, the 64-bit FNV-1a hash of the model's bytes.
std::string SentencePieceLabel(std::string_view model);

// Numbered as in sentencepiece_model.proto.
enum class PieceType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};
enum class PieceModel : uint8_t { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };

struct SentencePieceFacts {
  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::kNormal;
  };
  std::vector<Piece> pieces;  // by token
  // BPE merges pieces by rank, so that lines do not affect each other even by rounding.
  PieceModel model = PieceModel::kUnigram;
  bool byte_fallback = false;
  bool space_before_text = true;
  // Lines can be encoded independently: no token spans the end of a line, and nothing before a line
  // changes its tokens. True if characters are not normalised, spaces are kept, no piece has a line
  // feed before its last byte, and a line feed has its own piece or byte token.
  bool lines_apart = false;
  // The model for text that does not begin a document: without the dummy prefix space, and without
  // the self-test, whose expected results contain it.
  std::string continued;
};

// `model`: a serialized ModelProto. InvalidArgument, naming the field or the byte, if it is not
// complete or of an unknown type.
absl::StatusOr<SentencePieceFacts> ReadSentencePieceModel(std::string_view model);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_MODEL_H_
