// config.json of a Hugging Face model, written and read. Every setting that affects the model's
// function is either represented by a ModelSpec or refused; none that changes a logit is ignored.
//
// ConfigFields enforces that on reading: each field of the JSON object must be requested, and a
// field that was not is an error at the end. The first error stays; answers after it are
// meaningless. A field with null counts as absent.
//
// Ownership: ConfigFields borrows the object. Thread-safety: pure functions; ConfigFields: none.
#ifndef NIBBLE_WORKER_INTEROP_HF_CONFIG_H_
#define NIBBLE_WORKER_INTEROP_HF_CONFIG_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/model_spec.h"
#include "model/outline.h"
#include "nlohmann/json_fwd.hpp"
#include "worker/interop/hf_layout.h"

namespace nibble {

// Fields of config.json beside the model itself.
struct HfConfigFacts {
  std::string_view dtype = "float32";  // of the weights, as PyTorch calls it
  std::optional<int32_t> end_of_document;
  // max_position_embeddings of a model without learned positions: its intended context length.
  int64_t context = 4096;
};

// config.json as an object. FailedPrecondition as HfLayout().
absl::StatusOr<nlohmann::json> HfConfig(const Outline& outline, const HfConfigFacts& facts);

// A parsed config.json.
struct HfModelConfig {
  ModelSpec spec;  // valid; sizes of mixers that its pattern lacks are 0
  HfClass model_class = HfClass::kLlama;
  // The context length: max_position_embeddings, or GPT-2's n_positions; unset if the file has
  // none.
  std::optional<int64_t> context;
  // Notices about settings that no logit of this model depends on.
  std::vector<std::string> remarks;
};

// The largest time_step_min that is taken as the initialisation's and not as a bound of Δ: see
// time_step_min in docs/formats/hugging-face.md.
inline constexpr double kMaxTimeStepMin = 1e-3;

// Parses the file's text. InvalidArgument, naming the field, its value and what is allowed, for
// settings that a ModelSpec cannot represent (other activations, scaled RoPE, windows, experts,
// quantised weights), unknown fields, and sizes out of bounds. Fields with null count as absent.
absl::StatusOr<HfModelConfig> SpecFromHfConfig(std::string_view text);

class ConfigFields {
 public:
  // `where` is the prefix of messages: "config.json".
  ConfigFields(const nlohmann::json& object, std::string_view where)
      : object_(object), where_(where) {}

  // Null if it is absent. Counts as requested.
  const nlohmann::json* Find(std::string_view field);

  // An integer in [1, max]. `absent` is the default; without it the field is required.
  int64_t Size(std::string_view field, int64_t max, std::optional<int64_t> absent = {});
  // Finite, in [min, max].
  double Number(std::string_view field, double min, double max, std::optional<double> absent = {});
  bool Bool(std::string_view field, bool absent);
  std::string Text(std::string_view field, std::optional<std::string_view> absent = {});

  // Requires the only supported value. `absent` is the value that an absent field means.
  void Must(std::string_view field, const nlohmann::json& value, const nlohmann::json& absent);
  void Must(std::string_view field,
            const nlohmann::json& value);  // also the meaning of an absent field
  // Accepts any value: no logit depends on these fields.
  void Free(std::initializer_list<std::string_view> fields);

  // Sets the error for `value`; `allowed` ends the message: "is not one of mamba, attention, mlp".
  void Refuse(std::string_view field, const nlohmann::json& value, std::string_view allowed);

  const absl::Status& status() const { return status_; }
  // The first error, or that of a field that was never requested.
  absl::Status Finish();

 private:
  const nlohmann::json* Required(std::string_view field, bool optional);

  const nlohmann::json& object_;
  const std::string where_;
  std::set<std::string, std::less<>> asked_;
  absl::Status status_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_INTEROP_HF_CONFIG_H_
