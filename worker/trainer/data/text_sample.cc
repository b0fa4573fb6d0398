#include "worker/trainer/data/text_sample.h"

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
#include "worker/trainer/data/document_split.h"
#include "worker/trainer/data/hold_out.h"
#include "worker/trainer/data/random_domain.h"
#include "worker/trainer/data/text_corpus.h"
#include "worker/trainer/data/utf8.h"

namespace nibble {
namespace {

// Draws lines by their number, so that the choice needs nothing stored.
class LineDraw {
 public:
  LineDraw(uint64_t seed, int64_t wanted, int64_t present)
      : seed_(seed),
        all_(present <= wanted),
        threshold_(all_ ? 0
                        : static_cast<uint64_t>(std::ldexp(
                              static_cast<double>(wanted) / static_cast<double>(present), 64))) {}

  bool all() const { return all_; }

  bool Contains(int64_t line) const {
    if (all_) return true;
    const auto words = Draw(RandomDomain::kTokenizerSample, seed_, static_cast<uint64_t>(line), 0);
    return (uint64_t{words.word[1]} << 32 | words.word[0]) < threshold_;
  }

 private:
  uint64_t seed_;
  bool all_;
  uint64_t threshold_;  // of 2^64
};

}  // namespace

absl::StatusOr<std::string> SampleText(absl::Span<const std::string> files, const HoldOut& hold_out,
                                       const TextSampleOptions& options) {
  if (options.max_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("max_bytes is %d, not at least 1", options.max_bytes));
  }
  const absl::StatusOr<std::vector<int64_t>> sizes = FileSizes(files);
  if (!sizes.ok()) return sizes.status();
  const LineDraw draw(options.seed, options.max_bytes,
                      std::accumulate(sizes->begin(), sizes->end(), int64_t{0}));
  const auto max_bytes = static_cast<size_t>(options.max_bytes);
  std::string sample;
  int64_t line_number = 0;
  absl::Status status =
      ForEachDocument(files, options.split, [&](const CorpusDocument& document) -> absl::Status {
        if (hold_out.Contains(document.number)) return absl::OkStatus();
        if (const size_t bad = FindInvalidUtf8(document.text); bad != std::string_view::npos) {
          return absl::InvalidArgumentError(absl::StrFormat(
              "%s: byte %d, 0x%02x, is no UTF-8", files[document.file], document.offset + bad,
              static_cast<unsigned char>(document.text[bad])));
        }
        for (std::string_view rest = document.text; !rest.empty(); ++line_number) {
          const std::string_view line = rest.substr(0, rest.find('\n'));
          rest.remove_prefix(std::min(rest.size(), line.size() + 1));
          if (!draw.Contains(line_number)) continue;
          if (!draw.all() && sample.size() + line.size() + 1 > max_bytes) continue;
          sample.append(line).push_back('\n');
        }
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return sample;
}

}  // namespace nibble
