#include "worker/corpus/text_sample.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "worker/corpus/text_corpus.h"
#include "worker/trainer/data/random_choice.h"
#include "worker/trainer/data/unicode.h"

namespace nibble {

namespace {

// A draw falls below the threshold with this probability, in [0, 1).
uint64_t ThresholdOf(double probability) {
  return static_cast<uint64_t>(std::ldexp(probability, 64));
}

bool IsDrawn(RandomDomain domain, uint64_t seed, int64_t number, uint64_t threshold) {
  const auto words = Draw(domain, seed, static_cast<uint64_t>(number), 0);
  return (uint64_t{words.word[1]} << 32 | words.word[0]) < threshold;
}

}  // namespace

absl::StatusOr<HoldOut> HoldOut::Create(uint64_t seed, double fraction) {
  if (!(fraction >= 0 && fraction < 1)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("validation_fraction is %g, not in [0, 1)", fraction));
  }
  return HoldOut(seed, ThresholdOf(fraction));
}

bool HoldOut::Contains(int64_t document) const {
  return IsDrawn(RandomDomain::kHoldOut, seed_, document, threshold_);
}

absl::StatusOr<std::string> SampleText(absl::Span<const std::string> files, const HoldOut& hold_out,
                                       const TextSampleOptions& options) {
  if (options.max_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("max_bytes is %d, not at least 1", options.max_bytes));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, FileSizes(files));
  const int64_t corpus_bytes = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const auto max_bytes = static_cast<size_t>(options.max_bytes);
  const bool all = corpus_bytes <= options.max_bytes;
  const uint64_t threshold =
      all ? 0
          : ThresholdOf(static_cast<double>(options.max_bytes) / static_cast<double>(corpus_bytes));
  std::string sample;
  int64_t line_number = 0;
  NIBBLE_RETURN_IF_ERROR(
      ForEachDocument(files, options.split, [&](const CorpusDocument& document) -> absl::Status {
        if (hold_out.Contains(document.number)) return absl::OkStatus();
        if (const size_t bad = FindInvalidUtf8(document.text); bad != std::string_view::npos) {
          return absl::InvalidArgumentError(absl::StrFormat(
              "%s: byte %d, 0x%02x, is not UTF-8", files[document.file], document.offset + bad,
              static_cast<unsigned char>(document.text[bad])));
        }
        for (std::string_view rest = document.text; !rest.empty(); ++line_number) {
          const std::string_view line = rest.substr(0, rest.find('\n'));
          rest.remove_prefix(std::min(rest.size(), line.size() + 1));
          // Trainers of tokenizers end texts there.
          if (line.find('\0') != std::string_view::npos) continue;
          const bool wanted = all || (IsDrawn(RandomDomain::kTokenizerSample, options.seed,
                                              line_number, threshold) &&
                                      sample.size() + line.size() + 1 <= max_bytes);
          if (!wanted) continue;
          sample.append(line).push_back('\n');
        }
        return absl::OkStatus();
      }));
  return sample;
}

}  // namespace nibble
