#include "model/model_spec.h"

#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "model/field_check.h"
#include "model/mixers.h"

namespace nibble {
namespace {

absl::Status ValidatePattern(const ModelSpec& spec) {
  const std::string& pattern = spec.pattern;
  if (pattern.empty() || spec.blocks() > kMaxBlocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("pattern: ", spec.blocks(), " blocks are not in [1, ", kMaxBlocks, "]"));
  }
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (FindMixer(pattern[i]) != nullptr) continue;
    std::string allowed;
    for (const Mixer* mixer : AllMixers()) {
      absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", std::string(1, mixer->symbol), " (",
                      std::string(mixer->name), ")");
    }
    return absl::InvalidArgumentError(absl::StrCat("pattern: '",
                                                   absl::CEscape(std::string(1, pattern[i])),
                                                   "' at ", i, " is not one of ", allowed));
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view NormKindName(NormKind kind) {
  switch (kind) {
    case NormKind::kRmsNorm:
      return "rmsnorm";
    case NormKind::kLayerNorm:
      return "layernorm";
  }
  return "unknown";
}

std::string_view ActivationName(Activation kind) {
  switch (kind) {
    case Activation::kSquaredRelu:
      return "relu2";
    case Activation::kGelu:
      return "gelu";
    case Activation::kSwiglu:
      return "swiglu";
  }
  return "unknown";
}

std::string_view PositionsName(Positions positions) {
  switch (positions) {
    case Positions::kNone:
      return "none";
    case Positions::kRope:
      return "rope";
    case Positions::kLearned:
      return "learned";
  }
  return "unknown";
}

absl::Status Validate(const ModelSpec& spec) {
  absl::Status status = ValidatePattern(spec);
  if (status.ok()) status = CheckSize("vocab", spec.vocab, kMaxRows);
  if (status.ok()) status = CheckSize("d_model", spec.d_model, kMaxWidth);
  if (status.ok()) status = CheckReal("norm_eps", spec.norm_eps, kNormEpsBounds);
  if (status.ok()) status = CheckReal("init_std", spec.init_std, kInitStdBounds);
  if (status.ok() && spec.positions == Positions::kRope) {
    status = CheckReal("rope_theta", spec.rope_theta, kRopeThetaBounds);
  }
  if (status.ok() && spec.positions == Positions::kLearned) {
    status = CheckSize("max_positions", spec.max_positions, kMaxRows);
  }
  for (const Mixer* mixer : AllMixers()) {
    if (status.ok() && spec.pattern.find(mixer->symbol) != std::string::npos) {
      status = mixer->validate(spec);
    }
  }
  return status;
}

}  // namespace nibble
