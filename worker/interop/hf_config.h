// config.json of a Hugging Face model, both ways. What it says of the model's function is either
// represented by a ModelSpec or refused; nothing that changes a logit is passed over.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_INTEROP_HF_CONFIG_H_
#define NIBBLE_WORKER_INTEROP_HF_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/model_spec.h"
#include "model/outline.h"
#include "nlohmann/json_fwd.hpp"
#include "worker/interop/hf_layout.h"

namespace nibble {

// What config.json says beside the model itself.
struct HfConfigFacts {
  std::string_view dtype = "float32";  // of the weights, as PyTorch calls it
  std::optional<int32_t> end_of_document;
  // max_position_embeddings where positions are not learned: how long a text the model is for.
  int64_t context = 4096;
};

// An object. FailedPrecondition as HfLayout().
absl::StatusOr<nlohmann::json> HfConfig(const Outline& outline, const HfConfigFacts& facts);

// What a config.json was found to say.
struct HfModelConfig {
  ModelSpec spec;  // valid; sizes of mixers that its pattern lacks are 0
  HfClass model_class = HfClass::kLlama;
  // What a reader should know and that no logit of this model depends on.
  std::vector<std::string> remarks;
};

// The largest lower bound of Mamba's Δ that is taken for the initialisation's: see time_step_min in
// docs/formats/hugging-face.md.
inline constexpr double kMaxTimeStepMin = 1e-3;

// From the file's text. InvalidArgument naming the field, its value and what is allowed: for what a
// ModelSpec has no place for (other activations, scaled RoPE, windows, experts, quantised weights),
// for fields that are not known, and for sizes out of bounds. Fields with null are as if absent.
absl::StatusOr<HfModelConfig> SpecFromHfConfig(std::string_view text);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INTEROP_HF_CONFIG_H_
