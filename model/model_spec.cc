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
    if (FindMixerKind(pattern[i]) != nullptr) continue;
    std::string allowed;
    for (const MixerKind* mixer : AllMixerKinds()) {
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

absl::Status CheckSameShapes(const ModelSpec& ours, const ModelSpec& theirs,
                             std::string_view whose) {
  const auto has = [&ours](char mixer) { return ours.pattern.find(mixer) != std::string::npos; };
  const auto flag = [](bool value) { return std::string(value ? "true" : "false"); };
  // Positions have parameters only if they are learned; an activation changes the shapes only if it
  // has a gate.
  const auto positions = [](const ModelSpec& spec) {
    return spec.positions == Positions::kLearned ? "learned" : "not learned";
  };
  const auto activation = [](const ModelSpec& spec) {
    return spec.activation == Activation::kSwiglu ? "swiglu" : "not swiglu";
  };
  const bool learned = ours.positions == Positions::kLearned;
  struct Compared {
    const char* field;
    bool matters;
    std::string ours, theirs;
  };
  const auto number = [&](const char* field, bool matters, int64_t ModelSpec::*member) {
    return Compared{field, matters, absl::StrCat(ours.*member), absl::StrCat(theirs.*member)};
  };
  const Compared fields[] = {
      {"pattern", true, ours.pattern, theirs.pattern},
      number("vocab", true, &ModelSpec::vocab),
      number("d_model", true, &ModelSpec::d_model),
      {"norm", true, std::string(NormKindName(ours.norm)), std::string(NormKindName(theirs.norm))},
      {"positions", true, positions(ours), positions(theirs)},
      number("max_positions", learned, &ModelSpec::max_positions),
      {"biases", true, flag(ours.biases), flag(theirs.biases)},
      {"tied_head", true, flag(ours.tied_head), flag(theirs.tied_head)},
      number("d_ff", has('-'), &ModelSpec::d_ff),
      {"activation", has('-'), activation(ours), activation(theirs)},
      number("heads", has('*'), &ModelSpec::heads),
      number("kv_heads", has('*'), &ModelSpec::kv_heads),
      number("head_dim", has('*'), &ModelSpec::head_dim),
      number("mamba_heads", has('M'), &ModelSpec::mamba_heads),
      number("mamba_head_dim", has('M'), &ModelSpec::mamba_head_dim),
      number("mamba_groups", has('M'), &ModelSpec::mamba_groups),
      number("mamba_state", has('M'), &ModelSpec::mamba_state),
      number("conv_width", has('M'), &ModelSpec::conv_width),
  };
  for (const Compared& one : fields) {
    if (!one.matters || one.ours == one.theirs) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "model.", one.field, ": ", one.ours, ", but ", one.theirs, " in the model of ",
        std::string(whose), ", whose weights init_from names; shapes must be the same"));
  }
  return absl::OkStatus();
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
  for (const MixerKind* mixer : AllMixerKinds()) {
    if (status.ok() && spec.pattern.find(mixer->symbol) != std::string::npos) {
      status = mixer->validate(spec);
    }
  }
  return status;
}

}  // namespace nibble
