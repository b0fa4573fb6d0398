#include "worker/interop/hf_config.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/json_text.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"

namespace nibble {

using Json = nlohmann::json;

const Json* ConfigFields::Find(std::string_view field) {
  asked_.emplace(field);
  const auto found = object_.find(std::string(field));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const Json* ConfigFields::Required(std::string_view field, bool optional) {
  const Json* value = Find(field);
  if (value == nullptr && !optional && status_.ok()) {
    status_ =
        absl::InvalidArgumentError(absl::StrCat(where_, ": ", std::string(field), " is missing"));
  }
  return value;
}

void ConfigFields::Refuse(std::string_view field, const Json& value, std::string_view allowed) {
  if (!status_.ok()) return;
  status_ = absl::InvalidArgumentError(absl::StrCat(where_, ": ", std::string(field), ": ",
                                                    BriefJson(value), " ", std::string(allowed)));
}

int64_t ConfigFields::Size(std::string_view field, int64_t max, std::optional<int64_t> absent) {
  const Json* value = Required(field, absent.has_value());
  if (value == nullptr) return absent.value_or(1);
  if (value->is_number_unsigned()) {  // may exceed int64
    const auto size = value->get<uint64_t>();
    if (size >= 1 && size <= static_cast<uint64_t>(max)) return static_cast<int64_t>(size);
  } else if (value->is_number_integer()) {
    const auto size = value->get<int64_t>();
    if (size >= 1 && size <= max) return size;
  }
  Refuse(field, *value, absl::StrCat("is not an integer in [1, ", max, "]"));
  return 1;
}

double ConfigFields::Number(std::string_view field, double min, double max,
                            std::optional<double> absent) {
  const Json* value = Required(field, absent.has_value());
  if (value == nullptr) return absent.value_or(min);
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (number >= min && number <= max && std::isfinite(number)) return number;
  Refuse(field, *value, absl::StrCat("is not a number in [", min, ", ", max, "]"));
  return min;
}

bool ConfigFields::Bool(std::string_view field, bool absent) {
  const Json* value = Find(field);
  if (value == nullptr) return absent;
  if (value->is_boolean()) return value->get<bool>();
  Refuse(field, *value, "is neither true nor false");
  return absent;
}

std::string ConfigFields::Text(std::string_view field, std::optional<std::string_view> absent) {
  const Json* value = Required(field, absent.has_value());
  if (value == nullptr) return std::string(absent.value_or(""));
  if (value->is_string()) return value->get<std::string>();
  Refuse(field, *value, "is not a string");
  return "";
}

void ConfigFields::Must(std::string_view field, const Json& value, const Json& absent) {
  const Json* found = Find(field);
  const Json& is = found == nullptr ? absent : *found;
  if (is == value) return;
  Refuse(field, is, absl::StrCat("is not supported; it must be ", BriefJson(value)));
}

void ConfigFields::Must(std::string_view field, const Json& value) { Must(field, value, value); }

void ConfigFields::Free(std::initializer_list<std::string_view> fields) {
  for (const std::string_view field : fields) asked_.emplace(field);
}

absl::Status ConfigFields::Finish() {
  for (const auto& [field, value] : object_.items()) {
    if (value.is_null() || asked_.contains(field)) continue;
    Refuse(BriefText(field), value, "belongs to an unknown field");
  }
  return status_;
}

namespace {

using Json = nlohmann::json;

bool Has(const ModelSpec& spec, char mixer) {
  return spec.pattern.find(mixer) != std::string::npos;
}

void AddNemotronH(const ModelSpec& spec, Json& config) {
  config["hybrid_override_pattern"] = spec.pattern;
  config["num_hidden_layers"] = spec.blocks();
  config["layer_norm_epsilon"] = spec.norm_eps;
  config["rescale_prenorm_residual"] = spec.scale_output_init;
  config["use_bias"] = false;
  config["mlp_bias"] = false;
  config["attention_bias"] = false;
  config["mamba_proj_bias"] = false;
  config["use_conv_bias"] = true;
  config["mamba_hidden_act"] = "silu";
  config["mlp_hidden_act"] = "relu2";
  config["residual_in_fp32"] = false;
  if (Has(spec, '*')) {
    config["num_attention_heads"] = spec.heads;
    config["num_key_value_heads"] = spec.kv_heads;
    config["head_dim"] = spec.head_dim;
  }
  if (Has(spec, '-')) config["intermediate_size"] = spec.d_ff;
  if (!Has(spec, 'M')) return;
  config["mamba_num_heads"] = spec.mamba_heads;
  config["mamba_head_dim"] = spec.mamba_head_dim;
  config["n_groups"] = spec.mamba_groups;
  config["ssm_state_size"] = spec.mamba_state;
  config["conv_kernel"] = spec.conv_width;
  config["chunk_size"] = spec.chunk;
  // transformers clamps Δ from below with this; our model does not.
  config["time_step_min"] = 0.0;
}

void AddLlamaLike(const ModelSpec& spec, Json& config) {
  config["num_hidden_layers"] = spec.blocks() / 2;
  config["intermediate_size"] = spec.d_ff;
  config["num_attention_heads"] = spec.heads;
  config["num_key_value_heads"] = spec.kv_heads;
  config["head_dim"] = spec.head_dim;
  config["rms_norm_eps"] = spec.norm_eps;
  config["hidden_act"] = spec.activation == Activation::kSwiglu ? "silu" : "relu2";
  config["attention_bias"] = spec.biases;
  config["mlp_bias"] = spec.biases;
  // Releases up to 4 read the first, later ones the second.
  config["rope_theta"] = spec.rope_theta;
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", spec.rope_theta}};
}

void AddGpt2(const ModelSpec& spec, Json& config) {
  config["n_layer"] = spec.blocks() / 2;
  config["n_embd"] = spec.d_model;
  config["n_head"] = spec.heads;
  config["n_inner"] = spec.d_ff;
  config["n_positions"] = spec.max_positions;
  config["activation_function"] = "gelu_new";
  config["layer_norm_epsilon"] = spec.norm_eps;
  config["scale_attn_weights"] = true;
  config["scale_attn_by_inverse_layer_idx"] = false;
  config["add_cross_attention"] = false;
  for (const char* dropout : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) config[dropout] = 0.0;
}

}  // namespace

absl::StatusOr<Json> HfConfig(const Outline& outline, const HfConfigFacts& facts) {
  NIBBLE_ASSIGN_OR_RETURN(const HfModelLayout layout, HfLayout(outline));
  const HfClassInfo& info = Info(layout.model_class);
  const ModelSpec& spec = outline.spec;
  Json config = {{"architectures", Json::array({info.architecture})},
                 {"model_type", info.model_type},
                 {"torch_dtype", facts.dtype},
                 {"vocab_size", spec.vocab},
                 {"initializer_range", spec.init_std},
                 {"tie_word_embeddings", spec.tied_head},
                 {"use_cache", true},
                 {"bos_token_id", nullptr},
                 {"pad_token_id", nullptr},
                 {"eos_token_id", nullptr}};
  if (facts.end_of_document) config["eos_token_id"] = *facts.end_of_document;
  if (info.id != HfClass::kGpt2) {
    config["hidden_size"] = spec.d_model;
    config["max_position_embeddings"] = facts.context;
  }
  switch (info.id) {
    case HfClass::kNemotronH:
      AddNemotronH(spec, config);
      break;
    case HfClass::kLlama:
    case HfClass::kArcee:
      AddLlamaLike(spec, config);
      break;
    case HfClass::kGpt2:
      AddGpt2(spec, config);
      break;
  }
  return config;
}

}  // namespace nibble
