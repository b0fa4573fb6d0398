#include "worker/infer/generator.h"

#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

absl::Status Check(const Decoder& decoder, absl::Span<const int32_t> prompt,
                   const GenerateOptions& options) {
  const auto at_least_one = [](const char* name, int64_t value) {
    if (value >= 1) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", value, " is below 1"));
  };
  absl::Status status = at_least_one("max_tokens", options.max_tokens);
  if (status.ok()) status = at_least_one("samples", options.samples);
  if (status.ok()) status = Validate(options.sampler);
  if (!status.ok()) return status;
  if (prompt.empty()) return absl::InvalidArgumentError("the prompt has no tokens");
  if (options.vocabulary < 0 || options.vocabulary > decoder.vocab()) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocabulary: ", options.vocabulary, " is not in [0, ", decoder.vocab(), "]"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view StopReasonName(StopReason reason) {
  return reason == StopReason::kEndOfDocument ? "end-of-document" : "max-tokens";
}

absl::StatusOr<std::vector<int32_t>> PromptTokens(const Tokenizer& tokenizer,
                                                  std::string_view text) {
  std::vector<int32_t> tokens;
  absl::Status status = tokenizer.Encode(text, [&](absl::Span<const int32_t> some) {
    tokens.insert(tokens.end(), some.begin(), some.end());
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  if (tokens.empty()) tokens.push_back(tokenizer.end_of_document());
  return tokens;
}

absl::StatusOr<Generated> Generate(
    Decoder& decoder, absl::Span<const int32_t> prompt, const GenerateOptions& options,
    absl::FunctionRef<absl::Status(int64_t sample, int32_t token)> take) {
  absl::Status status = Check(decoder, prompt, options);
  if (!status.ok()) return status;
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  // The last token drawn is never run.
  const int64_t length = prompt_tokens + options.max_tokens - 1;
  if (const absl::Status room = decoder.CheckLength(length); !room.ok()) return room;
  const bool several = options.samples > 1;
  absl::StatusOr<std::unique_ptr<SequenceState>> after_prompt =
      decoder.NewSequence(several ? prompt_tokens : length);
  if (!after_prompt.ok()) return after_prompt.status();

  Generated generated;
  generated.prompt_tokens = prompt_tokens;
  std::vector<float> first(static_cast<size_t>(decoder.vocab()));
  double begin = Now();
  status = decoder.Prefill(**after_prompt, prompt, absl::MakeSpan(first));
  generated.prefill_seconds = Now() - begin;
  if (!status.ok()) return status;

  const auto drawn_from =
      static_cast<size_t>(options.vocabulary > 0 ? options.vocabulary : decoder.vocab());
  for (int64_t i = 0; i < options.samples; ++i) {
    std::unique_ptr<SequenceState> copy;
    if (several) {
      absl::StatusOr<std::unique_ptr<SequenceState>> fresh = decoder.NewSequence(length);
      if (!fresh.ok()) return fresh.status();
      copy = *std::move(fresh);
      status = decoder.CopySequence(**after_prompt, *copy);
      if (!status.ok()) return status;
    }
    SequenceState& state = several ? *copy : **after_prompt;
    SamplerOptions sampler = options.sampler;
    sampler.stream = static_cast<uint32_t>(i);
    GeneratedSample& sample = generated.samples.emplace_back();
    std::vector<float> logits = first;
    for (int64_t t = 0; t < options.max_tokens; ++t) {
      begin = Now();
      const absl::StatusOr<int32_t> token =
          Sample(absl::MakeConstSpan(logits).first(drawn_from), sampler,
                 static_cast<uint64_t>(prompt_tokens + t));
      if (!token.ok()) return token.status();
      generated.decode_seconds += Now() - begin;
      if (*token == options.end_of_document) {
        sample.stop = StopReason::kEndOfDocument;
        break;
      }
      sample.tokens.push_back(*token);
      status = take(i, *token);
      if (!status.ok()) return status;
      if (t + 1 == options.max_tokens) break;
      begin = Now();
      status = decoder.Step(state, *token, absl::MakeSpan(logits));
      if (!status.ok()) return status;
      generated.decode_seconds += Now() - begin;
      ++generated.decoded_tokens;
    }
  }
  return generated;
}

}  // namespace nibble
