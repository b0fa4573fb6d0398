#include <string>
#include <utility>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "worker/interop/hf_config.h"

namespace nibble {
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
  // transformers bounds Δ from below by this; the model here does not.
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
  const absl::StatusOr<HfModelLayout> layout = HfLayout(outline);
  if (!layout.ok()) return layout.status();
  const HfClassInfo& info = Info(layout->model_class);
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
