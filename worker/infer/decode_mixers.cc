#include <string>

#include "absl/strings/str_cat.h"
#include "worker/infer/decode_mixer.h"

namespace nibble {
namespace {

struct Entry {
  char symbol;
  absl::StatusOr<std::unique_ptr<DecodeMixer>> (*make)(DecodeDevice&, const LoadedWeights&,
                                                       int64_t);
};

constexpr Entry kMixers[] = {
    {'M', MakeMamba2Decoder},
    {'*', MakeAttentionDecoder},
    {'-', MakeMlpDecoder},
};

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeMixer>> MakeDecodeMixer(DecodeDevice& device,
                                                             const LoadedWeights& weights,
                                                             int64_t block) {
  const char symbol = weights.outline().spec.pattern[static_cast<size_t>(block)];
  for (const Entry& entry : kMixers) {
    if (entry.symbol == symbol) return entry.make(device, weights, block);
  }
  return absl::InternalError(
      absl::StrCat("block ", block, ": no decoder for '", std::string(1, symbol), "'"));
}

}  // namespace nibble
