// Training SentencePiece models.
//
// Ownership: values. Thread-safety: all functions. Training sets the SentencePiece library's
// process-wide log level, so that the library reports through its status and not on stderr.
#ifndef NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_TRAINING_H_
#define NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_TRAINING_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace nibble {

enum class SentencePieceType : uint8_t { kBpe, kUnigram };

struct SentencePieceTraining {
  static constexpr int64_t kMinVocabulary = 260;  // 3 control pieces, 256 bytes, a character
  static constexpr int64_t kMaxVocabulary = int64_t{1} << 20;

  int64_t vocabulary = 0;  // pieces, including control and byte pieces
  SentencePieceType type = SentencePieceType::kBpe;
};

// Trains a model and returns the bytes of its .model file; equal texts and options give equal bytes
// on any machine. The pieces are <unk> 0, <s> 1, </s> 2, the bytes 3 to 258, then those learned.
// There is no normalisation and bytes are the fallback, so that decoding restores any text; each
// digit is a piece; lines are independent (SentencePieceFacts::lines_apart in
// sentencepiece_model.h).
//
//   InvalidArgument  the text is empty or not UTF-8; the vocabulary is out of bounds, too small for
//                    the text's characters or too large for its words
absl::StatusOr<std::string> TrainSentencePiece(std::string_view text,
                                               const SentencePieceTraining& training);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_TRAINING_H_
