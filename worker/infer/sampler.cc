#include "worker/infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/formats/philox.h"

namespace nibble {
namespace {

// Draws of sampling under any seed, apart from those of data, weights and rounding.
constexpr uint32_t kSamplingDraws = 0x53414d50u;  // "SAMP"

// By logit, then by id: the order in which tokens are kept.
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
  const absl::StatusOr<int32_t> best = Largest(logits);
  if (!best.ok()) return best.status();
  const double top = logits[static_cast<size_t>(*best)];
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
  // Sorted as far as needed: the beginning is short beside a large vocabulary.
  for (size_t begin = 0, size = 256; begin < order.size(); begin += size, size *= 4) {
    const size_t end = std::min(order.size(), begin + size);
    std::partial_sort(order.begin() + static_cast<int64_t>(begin),
                      order.begin() + static_cast<int64_t>(end), order.end(), before);
    for (size_t i = begin; i < end; ++i) {
      const double w = weight(order[i]);
      // What underflows or has a logit of −inf cannot be drawn.
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
  const absl::StatusOr<std::vector<Candidate>> candidates = Candidates(logits, options);
  if (!candidates.ok()) return candidates.status();
  const double drawn = SamplerUniform(options.seed, options.stream, position);
  double sum = 0;
  for (const Candidate& candidate : *candidates) {
    sum += candidate.share;
    if (drawn < sum) return candidate.token;
  }
  // Shares that add up to just below 1.
  return candidates->back().token;
}

}  // namespace nibble
