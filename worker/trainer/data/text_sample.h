// The part of a corpus that a tokenizer is trained on: all of a small one, lines drawn from a large
// one, in their order. Held-out documents are left out, as from all training.
//
// Ownership: none taken. Thread-safety: pure functions of the file system.
#ifndef NIBBLE_WORKER_TRAINER_DATA_TEXT_SAMPLE_H_
#define NIBBLE_WORKER_TRAINER_DATA_TEXT_SAMPLE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/trainer/data/document_split.h"
#include "worker/trainer/data/hold_out.h"

namespace nibble {

struct TextSampleOptions {
  DocumentSplit split;
  // Of a corpus with more bytes, each line is drawn with a probability of max_bytes over its bytes,
  // and what would pass max_bytes is left out. At least 1.
  int64_t max_bytes = int64_t{1} << 26;
  uint64_t seed = 0;  // of which lines
};

// Whole lines of the files, each ended by a line feed. Equal files and options give equal samples.
//
//   InvalidArgument  max_bytes is out of bounds, or a file is no UTF-8 text; names file and byte
//   any other        as Validate() of the split, FileSizes() and ForEachDocument()
absl::StatusOr<std::string> SampleText(absl::Span<const std::string> files, const HoldOut& hold_out,
                                       const TextSampleOptions& options);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_TEXT_SAMPLE_H_
