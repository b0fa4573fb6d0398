// SpecFromHfConfig: config.json to a ModelSpec, class by class.
#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/json_text.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/interop/hf_config.h"

namespace nibble {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFile = "config.json";
// Bound of every size, so that products of two fit in 64 bits; Validate(ModelSpec) checks each
// size's own bound.
constexpr int64_t kMaxSize = int64_t{1} << 24;
constexpr int64_t kMaxLayers = int64_t{1} << 16;
constexpr double kMost = std::numeric_limits<double>::max();
constexpr double kLeast = std::numeric_limits<double>::min();

std::string Repeat(std::string_view unit, int64_t times) {
  std::string pattern;
  for (int64_t i = 0; i < times; ++i) pattern += unit;
  return pattern;
}

// Fields that the file of any class may have.
void ReadCommon(const HfClassInfo& info, ConfigFields& fields, ModelSpec& spec) {
  spec.name = std::string(info.model_type);
  spec.vocab = fields.Size("vocab_size", kMaxSize);
  spec.init_std = fields.Number("initializer_range", kLeast, kMost, 0.02);
  fields.Must("architectures", Json::array({info.architecture}));
  fields.Must("is_encoder_decoder", false);
  fields.Must("add_cross_attention", false);
  if (const Json* found = fields.Find("quantization_config")) {
    fields.Refuse("quantization_config", *found,
                  "is not supported; weights must be F32, BF16 or F16");
  }
  // Metadata; training's dropout; text generation; classification heads, which a model with a
  // language-model head does not have.
  fields.Free({"model_type",
               "transformers_version",
               "torch_dtype",
               "dtype",
               "use_cache",
               "_name_or_path",
               "auto_map",
               "bos_token_id",
               "eos_token_id",
               "pad_token_id",
               "return_dict",
               "output_hidden_states",
               "output_attentions",
               "chunk_size_feed_forward",
               "id2label",
               "label2id",
               "problem_type",
               "task_specific_params",
               "_attn_implementation",
               "_attn_implementation_autoset",
               "attention_dropout",
               "hidden_dropout"});
}

// The layer types of newer files ("linear_attention", …); empty after an error.
std::string PatternOfTypes(const Json& types, ConfigFields& fields) {
  static const std::pair<std::string_view, char> kTypes[] = {{"linear_attention", 'M'},
                                                             {"mamba", 'M'},
                                                             {"full_attention", '*'},
                                                             {"attention", '*'},
                                                             {"mlp", '-'}};
  std::string pattern;
  if (types.is_array()) {
    for (const Json& type : types) {
      const auto known = std::find_if(std::begin(kTypes), std::end(kTypes),
                                      [&](const auto& entry) { return type == entry.first; });
      if (known == std::end(kTypes)) {
        fields.Refuse("layers_block_type", type,
                      "is not supported; blocks are linear_attention, full_attention or mlp");
        return "";
      }
      pattern += known->second;
    }
    return pattern;
  }
  fields.Refuse("layers_block_type", types, "is not a list of strings");
  return "";
}

std::string ReadPattern(ConfigFields& fields) {
  const Json* text = fields.Find("hybrid_override_pattern");
  const Json* types = fields.Find("layers_block_type");
  std::string pattern;
  if (types != nullptr) pattern = PatternOfTypes(*types, fields);
  if (text != nullptr || types == nullptr) {
    const std::string written = fields.Text("hybrid_override_pattern");
    // Validate checks the letters with the rest of the spec, except one with an error of its own.
    if (written.find('E') != std::string::npos) {
      fields.Refuse("hybrid_override_pattern", *text,
                    "has E, mixtures of experts; M, * and - are supported");
    }
    if (types != nullptr && written != pattern) {
      fields.Refuse("hybrid_override_pattern", *text, "does not match layers_block_type");
    }
    pattern = written;
  }
  fields.Must("num_hidden_layers", pattern.size());
  return pattern;
}

// The bounds of Δ. Files have only the lower one: its field is also the lower end of the range that
// dt_bias is initialised from, so nearly every file has it.
void ReadTimeStep(ConfigFields& fields, HfModelConfig& config) {
  const Json unbounded = Json::array({0.0, {{"__float__", "Infinity"}}});
  fields.Must("time_step_limit", unbounded);
  const double least = fields.Number("time_step_min", 0, kMaxTimeStepMin, kMaxTimeStepMin);
  fields.Free({"time_step_max", "time_step_floor"});
  if (least == 0) return;
  config.remarks.push_back(absl::StrCat(
      "time_step_min: transformers raises steps below ", least,
      " to it, here and in the kernels that train such models steps have no bound; logits differ "
      "where steps are that small"));
}

void ReadNemotronH(ConfigFields& fields, HfModelConfig& config) {
  ModelSpec& spec = config.spec;
  spec.pattern = ReadPattern(fields);
  const auto has = [&](char mixer) { return spec.pattern.find(mixer) != std::string::npos; };
  spec.d_model = fields.Size("hidden_size", kMaxSize);
  spec.norm = NormKind::kRmsNorm;
  spec.norm_eps = fields.Number("layer_norm_epsilon", kLeast, kMost, 1e-5);
  fields.Must("rms_norm_eps", spec.norm_eps);
  spec.positions = Positions::kNone;
  spec.activation = Activation::kSquaredRelu;
  spec.scale_output_init = fields.Bool("rescale_prenorm_residual", true);
  fields.Must("tie_word_embeddings", false);
  for (const char* bias : {"use_bias", "mlp_bias", "attention_bias", "mamba_proj_bias"}) {
    fields.Must(bias, false);
  }
  fields.Must("use_conv_bias", true);
  fields.Must("mlp_hidden_act", "relu2");
  fields.Must("mamba_hidden_act", "silu");
  fields.Must("residual_in_fp32", false);
  fields.Must("num_nextn_predict_layers", 0);
  fields.Must("sliding_window", nullptr);
  if (has('*')) {
    spec.heads = fields.Size("num_attention_heads", kMaxSize);
    spec.kv_heads = fields.Size("num_key_value_heads", kMaxSize, spec.heads);
    // Older files use the other name.
    const Json* older = fields.Find("attention_head_dim");
    const char* name = older != nullptr ? "attention_head_dim" : "head_dim";
    spec.head_dim = fields.Size(name, kMaxSize);
    if (older != nullptr) fields.Must("head_dim", spec.head_dim);
  }
  if (has('-')) spec.d_ff = fields.Size("intermediate_size", kMaxSize);
  if (has('M')) {
    spec.mamba_heads = fields.Size("mamba_num_heads", kMaxSize);
    spec.mamba_head_dim = fields.Size("mamba_head_dim", kMaxSize);
    spec.mamba_groups = fields.Size("n_groups", kMaxSize);
    spec.mamba_state = fields.Size("ssm_state_size", kMaxSize);
    spec.conv_width = fields.Size("conv_kernel", kMaxSize, 4);
    spec.chunk = fields.Size("chunk_size", kMaxSize, 128);
    ReadTimeStep(fields, config);
  }
  // Sizes of mixers that the pattern lacks, of experts, and the choice of kernels and caches.
  // Mamba's inner width follows from its heads, regardless of `expand`.
  fields.Free({"num_attention_heads",
               "num_key_value_heads",
               "head_dim",
               "attention_head_dim",
               "intermediate_size",
               "mamba_num_heads",
               "mamba_head_dim",
               "n_groups",
               "ssm_state_size",
               "conv_kernel",
               "chunk_size",
               "expand",
               "time_step_min",
               "time_step_max",
               "time_step_floor",
               "time_step_limit",
               "use_mamba_kernels",
               "mamba_ssm_cache_dtype",
               "num_logits_to_keep",
               "n_routed_experts",
               "n_shared_experts",
               "moe_intermediate_size",
               "moe_latent_size",
               "moe_shared_expert_intermediate_size",
               "moe_shared_expert_overlap",
               "num_experts_per_tok",
               "routed_scaling_factor",
               "n_group",
               "topk_group",
               "norm_topk_prob",
               "output_router_logits",
               "mtp_layers_block_type",
               "mtp_hybrid_override_pattern"});
}

void ReadRope(ConfigFields& fields, ModelSpec& spec) {
  spec.positions = Positions::kRope;
  spec.rope_theta = fields.Number("rope_theta", kLeast, kMost, 10000.0);
  const bool told = fields.Find("rope_theta") != nullptr;
  fields.Must("partial_rotary_factor", 1.0);
  // Two names of the RoPE settings; `rope_scaling` is older.
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const Json* rope = fields.Find(name);
    if (rope == nullptr) continue;
    if (!rope->is_object()) {
      fields.Refuse(name, *rope, "is not an object");
      continue;
    }
    ConfigFields inside(*rope, absl::StrCat(std::string(kFile), ": ", name));
    inside.Must("rope_type", "default");
    inside.Must("type", "default");
    inside.Must("partial_rotary_factor", 1.0);
    const double theta = inside.Number("rope_theta", kLeast, kMost, spec.rope_theta);
    const absl::Status status = inside.Finish();
    if (!status.ok()) {
      fields.Refuse(name, *rope, absl::StrCat("is not supported (", status.message(), ")"));
    } else if (told && theta != spec.rope_theta) {
      fields.Refuse(name, *rope, absl::StrCat("has another theta than rope_theta, ", theta));
    }
    spec.rope_theta = theta;
  }
}

void ReadLlamaLike(const HfClassInfo& info, ConfigFields& fields, ModelSpec& spec) {
  const bool llama = info.id == HfClass::kLlama;
  const int64_t layers = fields.Size("num_hidden_layers", kMaxLayers);
  spec.pattern = Repeat("*-", layers);
  spec.d_model = fields.Size("hidden_size", kMaxSize);
  spec.d_ff = fields.Size("intermediate_size", kMaxSize);
  spec.heads = fields.Size("num_attention_heads", kMaxSize);
  spec.kv_heads = fields.Size("num_key_value_heads", kMaxSize, spec.heads);
  if (spec.d_model % spec.heads != 0) {
    fields.Refuse("hidden_size", spec.d_model,
                  absl::StrCat("is not a multiple of num_attention_heads, ", spec.heads));
  }
  spec.head_dim = fields.Size("head_dim", kMaxSize, spec.d_model / spec.heads);
  spec.norm = NormKind::kRmsNorm;
  spec.norm_eps = fields.Number("rms_norm_eps", kLeast, kMost, llama ? 1e-6 : 1e-5);
  spec.activation = llama ? Activation::kSwiglu : Activation::kSquaredRelu;
  fields.Must("hidden_act", llama ? "silu" : "relu2");
  spec.tied_head = fields.Bool("tie_word_embeddings", false);
  spec.biases = fields.Bool("attention_bias", false);
  // Either all linears have biases or none.
  fields.Must("mlp_bias", spec.biases, false);
  ReadRope(fields, spec);
  fields.Must("sliding_window", nullptr);
  fields.Must("use_sliding_window", false);
  fields.Must("layer_types",
              Json(std::vector<Json>(static_cast<size_t>(layers), "full_attention")));
  // How matmuls were split.
  fields.Free({"pretraining_tp"});
}

void ReadGpt2(ConfigFields& fields, ModelSpec& spec) {
  spec.pattern = Repeat("*-", fields.Size("n_layer", kMaxLayers));
  spec.d_model = fields.Size("n_embd", kMaxSize);
  spec.heads = spec.kv_heads = fields.Size("n_head", kMaxSize);
  if (spec.d_model % spec.heads != 0) {
    fields.Refuse("n_embd", spec.d_model,
                  absl::StrCat("is not a multiple of n_head, ", spec.heads));
  }
  spec.head_dim = spec.d_model / spec.heads;
  spec.d_ff = fields.Size("n_inner", kMaxSize, 4 * spec.d_model);
  spec.positions = Positions::kLearned;
  spec.max_positions = fields.Size("n_positions", kMaxSize, 1024);
  fields.Must("n_ctx", spec.max_positions);
  spec.norm = NormKind::kLayerNorm;
  spec.norm_eps = fields.Number("layer_norm_epsilon", kLeast, kMost, 1e-5);
  spec.biases = true;
  spec.tied_head = fields.Bool("tie_word_embeddings", true);
  spec.activation = Activation::kGelu;
  const Json* activation = fields.Find("activation_function");
  // Two names of the tanh form.
  if (activation != nullptr && *activation != "gelu_new" && *activation != "gelu_pytorch_tanh") {
    fields.Refuse("activation_function", *activation,
                  "is not supported; it must be \"gelu_new\" or \"gelu_pytorch_tanh\"");
  }
  fields.Must("scale_attn_weights", true);
  fields.Must("scale_attn_by_inverse_layer_idx", false);
  // Dropout; the rounding of the softmax; classifiers.
  fields.Free({"resid_pdrop", "embd_pdrop", "attn_pdrop", "reorder_and_upcast_attn",
               "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
               "summary_type", "summary_use_proj"});
}

}  // namespace

absl::StatusOr<HfModelConfig> SpecFromHfConfig(std::string_view text) {
  NIBBLE_ASSIGN_OR_RETURN(const Json object, ParseJsonObject(kFile, text));
  ConfigFields fields(object, kFile);
  const std::string model_type = fields.Text("model_type");
  if (!fields.status().ok()) return fields.status();
  const HfClassInfo* info = FindHfClass(model_type);
  if (info == nullptr) {
    std::string known;
    for (const HfClassInfo& known_class : HfClasses()) {
      absl::StrAppend(&known, known.empty() ? "" : ", ", std::string(known_class.model_type));
    }
    fields.Refuse("model_type", model_type, absl::StrCat("is not one of ", known));
    return fields.status();
  }
  HfModelConfig config;
  config.model_class = info->id;
  ReadCommon(*info, fields, config.spec);
  switch (info->id) {
    case HfClass::kNemotronH:
      ReadNemotronH(fields, config);
      break;
    case HfClass::kLlama:
    case HfClass::kArcee:
      ReadLlamaLike(*info, fields, config.spec);
      break;
    case HfClass::kGpt2:
      ReadGpt2(fields, config.spec);
      config.context = config.spec.max_positions;
      break;
  }
  // No logit depends on it: RoPE has no limit.
  if (info->id != HfClass::kGpt2) {
    const Json* const context = fields.Find("max_position_embeddings");
    if (context != nullptr && context->is_number_integer() && *context > 0) {
      config.context = context->get<int64_t>();
    }
  }
  NIBBLE_RETURN_IF_ERROR(fields.Finish());
  if (absl::Status status = Validate(config.spec); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(kFile), ": the model that it describes: ", status.message()));
  }
  return config;
}

}  // namespace nibble
