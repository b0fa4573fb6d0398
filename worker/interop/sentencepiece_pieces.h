// The vocabulary of a SentencePiece model and how it is used, for writing it in another form.
//
// Ownership: results own everything. Thread-safety: a pure function.
#ifndef NIBBLE_WORKER_INTEROP_SENTENCEPIECE_PIECES_H_
#define NIBBLE_WORKER_INTEROP_SENTENCEPIECE_PIECES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble {

// As sentencepiece_model.proto numbers them.
enum class PieceType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};
enum class PieceModel : uint8_t { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };

struct SentencePieces {
  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::kNormal;
  };
  std::vector<Piece> pieces;  // by token
  PieceModel model = PieceModel::kUnigram;
  bool byte_fallback = false;
  bool space_before_text = true;
};

// InvalidArgument for what is no complete model, or has a type that is not known.
absl::StatusOr<SentencePieces> ReadSentencePieces(std::string_view model);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INTEROP_SENTENCEPIECE_PIECES_H_
