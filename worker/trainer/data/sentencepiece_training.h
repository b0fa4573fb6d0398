// Makes SentencePiece models. Equal texts and options give equal bytes, on any machine.
//
// Thread-safety: pure, but for the SentencePiece library's log level, which is of the process: it
// is set so that the library reports through its status and not on stderr.
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

  int64_t vocabulary = 0;  // pieces, control pieces and bytes included
  SentencePieceType type = SentencePieceType::kBpe;
};

// The bytes of a .model file: <unk> 0, <s> 1, </s> 2, the bytes 3 to 258, then pieces. Characters
// are taken as they are and what is no piece is bytes, so that every text comes back as it was;
// digits are pieces of their own; the tokens of a text are those of its lines (see
// SentencePieceFacts::lines_apart).
//
//   InvalidArgument  the text is empty or not UTF-8; the vocabulary is out of bounds, too small for
//                    the text's characters or too large for its words
absl::StatusOr<std::string> TrainSentencePiece(std::string_view text,
                                               const SentencePieceTraining& training);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_TRAINING_H_
