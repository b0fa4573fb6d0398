// Text from a prompt: the prompt in one go, then token by token, each handed out as it is drawn.
//
// Ownership: borrows the decoder. Thread-safety: as Decoder.
#ifndef NIBBLE_WORKER_INFER_GENERATOR_H_
#define NIBBLE_WORKER_INFER_GENERATOR_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/infer/decoder.h"
#include "worker/infer/sampler.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

struct GenerateOptions {
  int64_t max_tokens = 0;  // of each sample; at least 1
  int64_t samples = 1;     // continuations of one prompt; sample i draws from stream i
  SamplerOptions sampler;
  // Tokens drawn are below it: what the tokenizer knows, where the model's table is larger. 0: the
  // model's vocabulary.
  int64_t vocabulary = 0;
  int32_t end_of_document = -1;  // ends a sample; −1: none does
};

enum class StopReason : uint8_t { kEndOfDocument, kMaxTokens };
std::string_view StopReasonName(StopReason reason);  // "end-of-document", "max-tokens"

struct GeneratedSample {
  std::vector<int32_t> tokens;  // without the end of the document
  StopReason stop = StopReason::kMaxTokens;
};
struct Generated {
  std::vector<GeneratedSample> samples;
  int64_t prompt_tokens = 0;
  int64_t decoded_tokens = 0;  // run one at a time, over all samples
  double prefill_seconds = 0;
  double decode_seconds = 0;  // of running and drawing them, not of who took them
};

// Draws from the logits of the prompt's last token on; sample after sample, each from a copy of the
// state that the prompt left. `take` gets every token as it is drawn; its error ends the run.
//
//   InvalidArgument  an option, with its value and bound; an empty prompt
//   any other        of Decoder (a sequence too long for it is refused before anything runs) and of
//                    Sample
absl::StatusOr<Generated> Generate(
    Decoder& decoder, absl::Span<const int32_t> prompt, const GenerateOptions& options,
    absl::FunctionRef<absl::Status(int64_t sample, int32_t token)> take);

// A prompt's tokens; of an empty text the end of a document, after which a new one begins. Errors
// as Tokenizer::Encode.
absl::StatusOr<std::vector<int32_t>> PromptTokens(const Tokenizer& tokenizer,
                                                  std::string_view text);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_GENERATOR_H_
