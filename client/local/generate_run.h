// What `nibble generate` does: opens the model, reads the prompt, writes what it makes of it.
//
// Ownership: none kept. Thread-safety: calls are independent.
#ifndef NIBBLE_CLIENT_LOCAL_GENERATE_RUN_H_
#define NIBBLE_CLIENT_LOCAL_GENERATE_RUN_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/infer/sampler.h"
#include "worker/infer/weight_opener.h"

namespace nibble {

struct GenerateRequest {
  std::string from;
  std::string prompt;
  std::string tokenizer;  // as ChooseTokenizer; empty: the model's own
  int64_t max_tokens = 128;
  int64_t samples = 1;
  SamplerOptions sampler;
  std::string precision = "bf16";
  int threads = 0;
  bool json = false;
};

inline constexpr int64_t kMaxPromptBytes = int64_t{1} << 26;
// The whole file; "-" is stdin. Errors name the path; InvalidArgument above kMaxPromptBytes.
absl::StatusOr<std::string> ReadPrompt(const std::string& path);

struct GenerateOutput {
  // Takes a piece of what goes to stdout; its error ends the run.
  std::function<absl::Status(std::string_view text)> write;
  // Takes one line about the run, without its end.
  std::function<void(std::string_view line)> say;
};

// Text is written as it is made, in whole characters; JSON at the end, in one piece. Errors are
// those of opening, of ChooseTokenizer, Decoder and Generate.
absl::Status RunGenerate(const GenerateRequest& request, const WeightOpener& open,
                         const GenerateOutput& output);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_GENERATE_RUN_H_
