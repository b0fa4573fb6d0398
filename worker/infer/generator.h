// Text generation: the prompt in one pass, then token by token, each passed on as it is sampled.
//
// Sample is a pure function of the logits, the options, and (seed, stream, position). Probabilities
// are softmax(logits / temperature). Tokens are ordered by logit, ties by id; top_k keeps the first
// k of them, then top_p keeps the shortest prefix whose share of the probability is at least top_p.
// One of these is drawn by its share.
//
// TextStream turns tokens into text as they come, in whole UTF-8 characters: its output is never
// revised and adds up to what the tokenizer decodes from all tokens together. Each byte that is not
// valid UTF-8 becomes U+FFFD.
//
// Ownership: borrows decoder and tokenizer. Thread-safety: pure functions; Generate as Decoder; a
// TextStream: one thread at a time.
#ifndef NIBBLE_WORKER_INFER_GENERATOR_H_
#define NIBBLE_WORKER_INFER_GENERATOR_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/infer/decoder.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

struct SamplerOptions {
  double temperature = 0;  // 0: the most likely token
  int64_t top_k = 0;       // 0: all
  double top_p = 1;        // in (0, 1]
  uint64_t seed = 0;
  uint32_t stream = 0;  // distinguishes samples of one prompt
};

// InvalidArgument naming the option, its value and the bound.
absl::Status Validate(const SamplerOptions& options);

// The token at `position`, given valid options. InvalidArgument for no logits; DataLoss, naming the
// token, for a logit that is NaN or +inf, or if all are −inf.
absl::StatusOr<int32_t> Sample(absl::Span<const float> logits, const SamplerOptions& options,
                               uint64_t position);

// A token that Sample may draw, and its share; the shares of all candidates add up to 1.
struct Candidate {
  int32_t token = 0;
  double share = 0;
};
// The tokens kept, in order. The temperature must be above 0. Errors as Sample.
absl::StatusOr<std::vector<Candidate>> Candidates(absl::Span<const float> logits,
                                                  const SamplerOptions& options);

// A uniform number in [0, 1) from 53 random bits.
double SamplerUniform(uint64_t seed, uint32_t stream, uint64_t position);

class TextStream {
 public:
  // The text continues the tokens `before`, which are not returned. Errors as Tokenizer::Decode.
  static absl::StatusOr<TextStream> Create(const Tokenizer& tokenizer,
                                           absl::Span<const int32_t> before);

  // The text that the token adds. A character that may be incomplete is held back until later
  // tokens. Errors as Tokenizer::Decode.
  absl::StatusOr<std::string> Add(int32_t token);
  // The text held back.
  std::string Finish();

 private:
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  const Tokenizer& tokenizer_;
  std::vector<int32_t> tokens_;  // a few already returned, then the pending ones
  size_t given_ = 0;             // bytes of their text already returned
  std::string waiting_;
};

struct GenerateOptions {
  int64_t max_tokens = 0;  // of each sample; at least 1
  int64_t samples = 1;     // continuations of one prompt; sample i draws from stream i
  SamplerOptions sampler;
  // Only tokens below this are drawn: the tokenizer's vocabulary if the model's table is larger. 0:
  // the model's vocabulary.
  int64_t vocabulary = 0;
  int32_t end_of_document = -1;  // ends a sample; −1: no such token
};

enum class StopReason : uint8_t { kEndOfDocument, kMaxTokens };
std::string_view StopReasonName(StopReason reason);  // "end-of-document", "max-tokens"

struct GeneratedSample {
  std::vector<int32_t> tokens;  // without the end-of-document token
  StopReason stop = StopReason::kMaxTokens;
};
struct Generated {
  std::vector<GeneratedSample> samples;
  int64_t prompt_tokens = 0;
  int64_t decoded_tokens = 0;  // decoded one at a time, over all samples
  double prefill_seconds = 0;
  double decode_seconds = 0;  // of decoding and sampling, without `take`
};

// Generates the samples one after the other, each from a copy of the state after the prompt. `take`
// receives every token as it is drawn; its error ends the run.
//
//   InvalidArgument  an option, with its value and bound; an empty prompt
//   any other        of Decoder (a sequence too long for it is refused before anything runs) and of
//                    Sample
absl::StatusOr<Generated> Generate(
    Decoder& decoder, absl::Span<const int32_t> prompt, const GenerateOptions& options,
    absl::FunctionRef<absl::Status(int64_t sample, int32_t token)> take);

// A prompt's tokens; for an empty text the end-of-document token, after which a new document
// begins. Errors as Tokenizer::Encode.
absl::StatusOr<std::vector<int32_t>> PromptTokens(const Tokenizer& tokenizer,
                                                  std::string_view text);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_GENERATOR_H_
