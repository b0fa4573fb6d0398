// The logits of a model, from any source of weights, by the trainer's model in FP32 without
// quantisation.
//
// Ownership: borrows the source during the call. Thread-safety: as the source's.
#ifndef NIBBLE_TESTS_INTEROP_SOURCE_LOGITS_H_
#define NIBBLE_TESTS_INTEROP_SOURCE_LOGITS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/weights/weight_source.h"

namespace nibble {

// [tokens, vocab] FP32 of one sequence. InvalidArgument for a token outside the vocabulary.
absl::StatusOr<std::vector<float>> SourceLogits(WeightSource& source,
                                                absl::Span<const int32_t> tokens);

}  // namespace nibble

#endif  // NIBBLE_TESTS_INTEROP_SOURCE_LOGITS_H_
