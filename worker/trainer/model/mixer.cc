#include "worker/trainer/model/mixer.h"
#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

using Factory = absl::StatusOr<std::unique_ptr<Mixer>> (*)(const Device&, const Parameters&,
                                                           int64_t, DType);

struct Entry {
  char symbol;
  Factory make;
};

constexpr Entry kMixers[] = {
    {'M', MakeMamba2Mixer},
    {'*', MakeAttentionMixer},
    {'-', MakeMlpMixer},
};

}  // namespace

absl::StatusOr<std::unique_ptr<Mixer>> MakeMixer(const Device& device, const Parameters& parameters,
                                                 int64_t block, DType dtype) {
  const char symbol = parameters.outline().spec.pattern[block];
  for (const Entry& entry : kMixers) {
    if (entry.symbol == symbol) return entry.make(device, parameters, block, dtype);
  }
  return absl::InternalError(
      absl::StrCat("block ", block, ": no mixer for '", std::string(1, symbol), "'"));
}

absl::StatusOr<int64_t> FindLinear(const Outline& outline, int64_t block, const std::string& kind) {
  for (size_t i = 0; i < outline.linears.size(); ++i) {
    const LinearInfo& linear = outline.linears[i];
    if (linear.block == block && linear.kind == kind) return static_cast<int64_t>(i);
  }
  return absl::InternalError(absl::StrCat("the outline has no ", kind, " in block ", block));
}

absl::StatusOr<int64_t> FindBlockParam(const Outline& outline, int64_t block,
                                       const std::string& name) {
  return outline.Find(absl::StrCat("blocks.", block, ".", name));
}

}  // namespace nibble
