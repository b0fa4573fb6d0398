#include "worker/infer/generator.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/formats/philox.h"
#include "worker/trainer/data/unicode.h"

namespace nibble {
namespace {

// Separates sampling's random numbers from those of data, weights and rounding under the same seed.
constexpr uint32_t kSamplingDraws = 0x53414d50u;  // "SAMP"

// By logit, then by id: the order of candidates.
struct Before {
  absl::Span<const float> logits;
  bool operator()(int32_t a, int32_t b) const {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  }
};

absl::StatusOr<int32_t> Largest(absl::Span<const float> logits) {
  if (logits.empty()) return absl::InvalidArgumentError("there are no logits to sample from");
  size_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity()) {
      return absl::DataLossError(absl::StrCat("the logit of token ", i, " is ", logits[i]));
    }
    if (logits[i] > logits[best]) best = i;
  }
  if (std::isinf(logits[best])) return absl::DataLossError("the logits of all tokens are -inf");
  return static_cast<int32_t>(best);
}

}  // namespace

absl::Status Validate(const SamplerOptions& options) {
  if (!std::isfinite(options.temperature) || options.temperature < 0) {
    return absl::InvalidArgumentError(absl::StrCat("temperature: ", options.temperature,
                                                   " is not a finite number of at least 0"));
  }
  if (options.top_k < 0) {
    return absl::InvalidArgumentError(absl::StrCat("top_k: ", options.top_k, " is below 0"));
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("top_p: ", options.top_p, " is not in (0, 1]"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Candidate>> Candidates(absl::Span<const float> logits,
                                                  const SamplerOptions& options) {
  NIBBLE_ASSIGN_OR_RETURN(const int32_t best, Largest(logits));
  const double top = logits[static_cast<size_t>(best)];
  const auto weight = [&](int32_t token) {
    return std::exp((logits[static_cast<size_t>(token)] - top) / options.temperature);
  };
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const Before before = {logits};

  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < order.size()) {
    std::nth_element(order.begin(), order.begin() + options.top_k, order.end(), before);
    order.resize(static_cast<size_t>(options.top_k));
    std::sort(order.begin(), order.end());
  }
  double total = 0;
  for (const int32_t token : order) total += weight(token);

  std::vector<Candidate> kept;
  double kept_weight = 0;
  // Sorted as far as needed: the prefix is short compared with a large vocabulary.
  for (size_t begin = 0, size = 256; begin < order.size(); begin += size, size *= 4) {
    const size_t end = std::min(order.size(), begin + size);
    std::partial_sort(order.begin() + static_cast<int64_t>(begin),
                      order.begin() + static_cast<int64_t>(end), order.end(), before);
    for (size_t i = begin; i < end; ++i) {
      const double w = weight(order[i]);
      // A probability that underflows, or a logit of −inf, cannot be drawn.
      if (w == 0 || kept_weight >= options.top_p * total) {
        begin = order.size();
        break;
      }
      kept.push_back({order[i], w});
      kept_weight += w;
    }
  }
  for (Candidate& candidate : kept) candidate.share /= kept_weight;
  return kept;
}

double SamplerUniform(uint64_t seed, uint32_t stream, uint64_t position) {
  const PhiloxWords<uint32_t> bits =
      Philox4x32<uint32_t>({{static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                             stream, kSamplingDraws}},
                           static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  const uint64_t word = (uint64_t{bits.word[0]} << 32) | bits.word[1];
  return static_cast<double>(word >> 11) * 0x1p-53;
}

absl::StatusOr<int32_t> Sample(absl::Span<const float> logits, const SamplerOptions& options,
                               uint64_t position) {
  if (options.temperature == 0) return Largest(logits);
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<Candidate> candidates, Candidates(logits, options));
  const double drawn = SamplerUniform(options.seed, options.stream, position);
  double sum = 0;
  for (const Candidate& candidate : candidates) {
    sum += candidate.share;
    if (drawn < sum) return candidate.token;
  }
  // Rounding: the shares add up to just below 1.
  return candidates.back().token;
}

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";
// Tokenizers treat the first token of a text specially, so tokens are decoded after this many
// others.
constexpr size_t kContext = 64;

// The number of bytes, 0 to 3, at the end of `text` that may begin a well-formed character.
size_t UnfinishedUtf8(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;
    const size_t needs = byte >= 0xc2 && byte < 0xe0   ? 2
                         : byte >= 0xe0 && byte < 0xf0 ? 3
                         : byte >= 0xf0 && byte < 0xf5 ? 4
                                                       : 1;
    return needs > back ? back : 0;
  }
  return 0;
}

// `text` with U+FFFD for each byte that is not part of a well-formed character.
std::string WellFormedUtf8(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t bad = std::min(FindInvalidUtf8(text), text.size());
    result += text.substr(0, bad);
    if (bad == text.size()) break;
    result += kReplacement;
    text.remove_prefix(bad + 1);
  }
  return result;
}

// Text that later tokens may still change, if tokens are parts of characters.
size_t Unsettled(std::string_view text) {
  size_t bytes = UnfinishedUtf8(text);
  for (int i = 0; i < 3; ++i) {
    const std::string_view rest = text.substr(0, text.size() - bytes);
    if (!rest.ends_with(kReplacement)) break;
    bytes += kReplacement.size();
  }
  return bytes;
}

}  // namespace

absl::StatusOr<TextStream> TextStream::Create(const Tokenizer& tokenizer,
                                              absl::Span<const int32_t> before) {
  TextStream stream(tokenizer);
  const size_t context = std::min(before.size(), kContext);
  const absl::Span<const int32_t> tail = before.last(context);
  stream.tokens_.assign(tail.begin(), tail.end());
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, tokenizer.Decode(stream.tokens_));
  stream.given_ = text.size();
  return stream;
}

absl::StatusOr<std::string> TextStream::Add(int32_t token) {
  tokens_.push_back(token);
  const absl::StatusOr<std::string> text = tokenizer_.Decode(tokens_);
  if (!text.ok()) {
    tokens_.pop_back();
    return text.status();
  }
  const std::string_view fresh = std::string_view(*text).substr(std::min(given_, text->size()));
  const size_t settled = fresh.size() - std::min(Unsettled(fresh), fresh.size());
  std::string result = WellFormedUtf8(fresh.substr(0, settled));
  waiting_ = fresh.substr(settled);
  given_ += settled;
  if (waiting_.empty() && tokens_.size() > 2 * kContext) {
    tokens_.erase(tokens_.begin(), tokens_.end() - kContext);
    NIBBLE_ASSIGN_OR_RETURN(const std::string kept, tokenizer_.Decode(tokens_));
    given_ = kept.size();
  }
  return result;
}

std::string TextStream::Finish() {
  given_ += waiting_.size();
  std::string result = WellFormedUtf8(waiting_);
  waiting_.clear();
  return result;
}

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
  NIBBLE_RETURN_IF_ERROR(at_least_one("max_tokens", options.max_tokens));
  NIBBLE_RETURN_IF_ERROR(at_least_one("samples", options.samples));
  NIBBLE_RETURN_IF_ERROR(Validate(options.sampler));
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
  NIBBLE_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, tokenizer.Encode(text));
  if (tokens.empty()) tokens.push_back(tokenizer.end_of_document());
  return tokens;
}

absl::StatusOr<Generated> Generate(
    Decoder& decoder, absl::Span<const int32_t> prompt, const GenerateOptions& options,
    absl::FunctionRef<absl::Status(int64_t sample, int32_t token)> take) {
  absl::Status status = Check(decoder, prompt, options);
  if (!status.ok()) return status;
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  // The last token drawn is never decoded. A sum beyond 64 bits is too long, too.
  const int64_t room = std::numeric_limits<int64_t>::max() - prompt_tokens;
  const int64_t length = prompt_tokens + std::min(options.max_tokens - 1, room);
  NIBBLE_RETURN_IF_ERROR(decoder.CheckLength(length));
  const bool several = options.samples > 1;
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<SequenceState> after_prompt,
                          decoder.NewSequence(several ? prompt_tokens : length));

  Generated generated;
  generated.prompt_tokens = prompt_tokens;
  std::vector<float> first(static_cast<size_t>(decoder.vocab()));
  double begin = Now();
  status = decoder.Prefill(*after_prompt, prompt, absl::MakeSpan(first));
  generated.prefill_seconds = Now() - begin;
  if (!status.ok()) return status;

  const auto drawn_from =
      static_cast<size_t>(options.vocabulary > 0 ? options.vocabulary : decoder.vocab());
  for (int64_t i = 0; i < options.samples; ++i) {
    std::unique_ptr<SequenceState> copy;
    if (several) {
      NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<SequenceState> fresh, decoder.NewSequence(length));
      copy = std::move(fresh);
      status = decoder.CopySequence(*after_prompt, *copy);
      if (!status.ok()) return status;
    }
    SequenceState& state = several ? *copy : *after_prompt;
    SamplerOptions sampler = options.sampler;
    sampler.stream = static_cast<uint32_t>(i);
    GeneratedSample& sample = generated.samples.emplace_back();
    std::vector<float> logits = first;
    for (int64_t t = 0; t < options.max_tokens; ++t) {
      begin = Now();
      NIBBLE_ASSIGN_OR_RETURN(const int32_t token,
                              Sample(absl::MakeConstSpan(logits).first(drawn_from), sampler,
                                     static_cast<uint64_t>(prompt_tokens + t)));
      generated.decode_seconds += Now() - begin;
      if (token == options.end_of_document) {
        sample.stop = StopReason::kEndOfDocument;
        break;
      }
      sample.tokens.push_back(token);
      status = take(i, token);
      if (!status.ok()) return status;
      if (t + 1 == options.max_tokens) break;
      begin = Now();
      status = decoder.Step(state, token, absl::MakeSpan(logits));
      if (!status.ok()) return status;
      generated.decode_seconds += Now() - begin;
      ++generated.decoded_tokens;
    }
  }
  return generated;
}

}  // namespace nibble
