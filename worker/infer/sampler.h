// Which token follows: a pure function of the logits, the options, and (seed, stream, position).
//
// Probabilities are softmax(logits / temperature). Of all tokens, in the order of their logits and
// where these are equal of their ids, top_k keeps the first so many; of what is left, top_p keeps
// the smallest beginning whose share of the probability is at least top_p. One is drawn among those
// by its share.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_INFER_SAMPLER_H_
#define NIBBLE_WORKER_INFER_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace nibble {

struct SamplerOptions {
  double temperature = 0;  // 0: the first token of the order
  int64_t top_k = 0;       // 0: all
  double top_p = 1;        // in (0, 1]
  uint64_t seed = 0;
  uint32_t stream = 0;  // tells samples of one prompt apart
};

// InvalidArgument naming the option, its value and the bound.
absl::Status Validate(const SamplerOptions& options);

// The token at `position`, given valid options. InvalidArgument for no logits; DataLoss naming the
// token whose logit is NaN or +inf, or where all are −inf.
absl::StatusOr<int32_t> Sample(absl::Span<const float> logits, const SamplerOptions& options,
                               uint64_t position);

// What Sample draws from: the tokens kept, in their order, and their shares, which add up to 1.
struct Candidate {
  int32_t token = 0;
  double share = 0;
};
// For a temperature above 0. Errors as Sample.
absl::StatusOr<std::vector<Candidate>> Candidates(absl::Span<const float> logits,
                                                  const SamplerOptions& options);

// In [0, 1), of 53 random bits.
double SamplerUniform(uint64_t seed, uint32_t stream, uint64_t position);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_SAMPLER_H_
