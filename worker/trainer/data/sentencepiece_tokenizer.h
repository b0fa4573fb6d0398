// A SentencePiece model (BPE, unigram, word or char) as a tokenizer.
//
// What a text's tokens are. Most models of language models take characters as they are, keep spaces
// and have no piece that goes on after a line feed (SentencePieceFacts::lines_apart; every model
// that TrainSentencePiece() makes is such a one). With those the tokens of a text are the tokens of
// its lines, each with its line feed, one line after another; the space that the model may put
// before a text comes before the first line only. Lines can therefore be encoded apart, and
// PieceEnd() cuts after any line feed. For BPE this is to the token what the SentencePiece library
// gives for the whole text. For unigram it is what the library gives for each line; over a long
// text its own sums of scores round, and it settles near ties otherwise.
// Any other model's text is encoded whole, as the library does.
//
// A line, or a whole text, is at most kMaxUnitBytes. Text is UTF-8.
//
// Ownership: owns the model. Thread-safety: immutable.
#ifndef NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_TOKENIZER_H_
#define NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/trainer/data/sentencepiece_library.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  static constexpr size_t kMaxUnitBytes = size_t{1} << 22;

  // From a .model file. Messages name the path.
  //
  //   InvalidArgument  no complete model, one that the library refuses, or one without an
  //                    end-of-sentence piece, which ends documents
  //   FailedPrecondition, NotFound, PermissionDenied, ...  as MappedFile::Open()
  static absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> Load(const std::string& path);

  // From the bytes of such a file, which are copied. `name` is for messages.
  static absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> FromModel(const std::string& name,
                                                                           std::string_view model);

  // See SentencePieceLabel().
  std::string label() const override { return label_; }
  int32_t vocabulary() const override { return vocabulary_; }
  int32_t end_of_document() const override { return end_of_document_; }
  std::string_view file() const override { return model_; }
  bool lines_apart() const { return lines_apart_; }

  size_t PieceEnd(std::string_view text, size_t at_least) const override;

  // InvalidArgument for what is no UTF-8 and for a line or text above kMaxUnitBytes.
  absl::Status EncodePiece(std::string_view piece, int64_t offset, Sink sink) const override;

  // Every document on its own, so that the space before a text goes from each.
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> tokens) const override;

 private:
  SentencePieceTokenizer() = default;

  absl::Status EncodeUnit(std::string_view unit, int64_t offset, Sink sink) const;

  sentencepiece_internal::Model first_;      // of what begins a text
  sentencepiece_internal::Model continued_;  // of what does not
  std::string model_;
  std::string label_;
  int32_t vocabulary_ = 0;
  int32_t end_of_document_ = 0;
  bool lines_apart_ = false;
  size_t unit_bytes_ = 0;  // lines are put together up to so many before the library sees them
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_TOKENIZER_H_
