// SentencePiece models (BPE, unigram, word or char): what Nibble parses of a model file itself, the
// tokenizer, and training a new model.
//
// Ownership: a tokenizer owns its model. Thread-safety: tokenizers are immutable, functions pure,
// except that training sets the SentencePiece library's process-wide log level, so that the library
// reports through its status and not on stderr.
#ifndef NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_H_
#define NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/trainer/data/sentencepiece_library.h"
#include "worker/trainer/data/tokenizer.h"

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

// A SentencePiece model as a tokenizer. Text is UTF-8.
//
// Most language models' SentencePiece models, and all that TrainSentencePiece() makes, have
// SentencePieceFacts::lines_apart. With these the tokens of a text are the concatenated tokens of
// its lines, each with its line feed; the dummy prefix space, if the model has one, comes before
// the first line only. PieceEnd() therefore cuts after any line feed. For BPE the tokens equal
// those of the SentencePiece library for the whole text. For unigram they equal the library's for
// each line; over a long text the library's sums of scores round, and it may break near ties
// differently. With any other model a text is encoded whole, as the library does.
//
// A line, or a text that is encoded whole, is at most kMaxUnitBytes.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  static constexpr size_t kMaxUnitBytes = size_t{1} << 22;

  // Reads a .model file. Messages name the path.
  //
  //   InvalidArgument  the model is incomplete, the library rejects it, or it has no
  //                    end-of-sentence piece, which ends documents
  //   FailedPrecondition, NotFound, PermissionDenied, ...  as MappedFile::Open()
  static absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> Load(const std::string& path);

  // Copies the bytes of a .model file. `name` is for messages.
  static absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> FromModel(const std::string& name,
                                                                           std::string_view model);

  // See SentencePieceLabel().
  std::string label() const override { return label_; }
  int32_t vocabulary() const override { return vocabulary_; }
  int32_t end_of_document() const override { return end_of_document_; }
  std::string_view file() const override { return model_; }
  bool lines_apart() const { return lines_apart_; }

  size_t PieceEnd(std::string_view text, size_t at_least) const override;

  // InvalidArgument for invalid UTF-8 and for a line or text above kMaxUnitBytes.
  absl::Status EncodePiece(std::string_view piece, int64_t offset, Sink sink) const override;

  // Decodes each document separately, so that the dummy prefix space is removed from each.
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> tokens) const override;

 private:
  SentencePieceTokenizer() = default;

  absl::Status EncodeUnit(std::string_view unit, int64_t offset, Sink sink) const;

  sentencepiece_internal::Model first_;      // for the beginning of a text
  sentencepiece_internal::Model continued_;  // for the rest
  std::string model_;
  std::string label_;
  int32_t vocabulary_ = 0;
  int32_t end_of_document_ = 0;
  bool lines_apart_ = false;
  size_t unit_bytes_ = 0;  // lines are passed to the library in groups of up to this size
};

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
// digit is a piece; lines are independent (see SentencePieceFacts::lines_apart).
//
//   InvalidArgument  the text is empty or not UTF-8; the vocabulary is out of bounds, too small for
//                    the text's characters or too large for its words
absl::StatusOr<std::string> TrainSentencePiece(std::string_view text,
                                               const SentencePieceTraining& training);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_H_
