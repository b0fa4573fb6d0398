// Tokenizers of SentencePiece models (BPE, unigram, word or char).
//
// Ownership: a tokenizer owns its model. Thread-safety: tokenizers are immutable.
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

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_H_
