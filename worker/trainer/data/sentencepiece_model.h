// What Nibble itself reads of a SentencePiece model, a serialized ModelProto: whether its tokens
// can be made line by line.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_MODEL_H_
#define NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_MODEL_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace nibble {

inline constexpr size_t kMaxSentencePieceModelBytes = size_t{1} << 28;

// "sp:" and 16 hexadecimal digits, the 64-bit FNV-1a hash of the model's bytes.
std::string SentencePieceLabel(std::string_view model);

struct SentencePieceFacts {
  // A token never reaches across a line feed's end and nothing before a line changes how it is
  // written: characters are taken as they are, spaces are kept, no piece has a line feed before its
  // last byte, and a line feed has a piece of its own or is a byte.
  bool lines_apart = false;
  // Pieces are joined by rank (BPE), so that lines do not see one another even in rounding.
  bool by_rank = false;
  // The model for what does not begin a text: without the space that is put before a text, and
  // without the self-test, whose answers have it.
  std::string continued;
};

// InvalidArgument, naming the field or the byte, for what is no complete model.
absl::StatusOr<SentencePieceFacts> ReadSentencePieceModel(std::string_view model);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_MODEL_H_
