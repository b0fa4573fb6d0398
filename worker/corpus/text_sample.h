// The random choices in a corpus: the documents held out for validation, and the lines that a
// tokenizer is trained on. Both are pure functions of a seed and a number.
//
// Ownership: values. Thread-safety: immutable values; SampleText() depends on nothing but the file
// system.
#ifndef NIBBLE_WORKER_CORPUS_TEXT_SAMPLE_H_
#define NIBBLE_WORKER_CORPUS_TEXT_SAMPLE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/corpus/text_corpus.h"

namespace nibble {

// The documents of a corpus that are held out for validation.
//
// The choice depends only on the seed and the document's number: it needs no storage and does not
// change when documents are appended. Copies of one text under two numbers are two documents.
class HoldOut {
 public:
  // InvalidArgument unless `fraction` is in [0, 1). Each document is held out with this
  // probability, independently of the others.
  static absl::StatusOr<HoldOut> Create(uint64_t seed, double fraction);

  bool Contains(int64_t document) const;

 private:
  HoldOut(uint64_t seed, uint64_t threshold) : seed_(seed), threshold_(threshold) {}

  uint64_t seed_;
  uint64_t threshold_;  // of 2^64
};

struct TextSampleOptions {
  DocumentSplit split;
  // From a larger corpus, each line is drawn with probability max_bytes / corpus bytes, until
  // max_bytes is reached. At least 1.
  int64_t max_bytes = int64_t{1} << 26;
  uint64_t seed = 0;  // of the draws
};

// The text to train a tokenizer on: the whole corpus if it is small, otherwise lines drawn from it,
// in their order, each with a line feed. Held-out documents and lines with a zero byte are
// excluded. Equal files and options give equal samples.
//
//   InvalidArgument  max_bytes is out of bounds, or a file is not UTF-8; names file and byte
//   any other        as Validate() of the split, FileSizes() and ForEachDocument()
absl::StatusOr<std::string> SampleText(absl::Span<const std::string> files, const HoldOut& hold_out,
                                       const TextSampleOptions& options);

}  // namespace nibble

#endif  // NIBBLE_WORKER_CORPUS_TEXT_SAMPLE_H_
