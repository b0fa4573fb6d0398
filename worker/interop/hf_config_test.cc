// config.json written and read, and random damage to it: every outcome is right except a crash, a
// hang or an excessive allocation.
#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "worker/interop/hf_config.h"
#include "worker/interop/hf_layout.h"
#include "worker/interop/interop_testing.h"
#include "worker/interop/shard_index.h"

namespace nibble {
namespace {

using Json = nlohmann::json;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(ConfigFields, AnUnknownFieldIsRefusedWithItsValue) {
  const Json object = {{"size", 3}, {"novelty", 7}};
  ConfigFields fields(object, "f");
  EXPECT_EQ(fields.Size("size", 10), 3);
  EXPECT_EQ(Message(fields.Finish()), "f: \"novelty\": 7 belongs to an unknown field");
}

TEST(ConfigFields, NullIsAsAbsent) {
  const Json object = {{"size", nullptr}, {"flag", nullptr}, {"novelty", nullptr}};
  ConfigFields fields(object, "f");
  EXPECT_EQ(fields.Size("size", 10, 4), 4);
  EXPECT_TRUE(fields.Bool("flag", true));
  EXPECT_TRUE(fields.Finish().ok());
}

TEST(ConfigFields, AMissingFieldIsNamed) {
  const Json object = Json::object();
  ConfigFields fields(object, "f");
  fields.Size("size", 10);
  EXPECT_EQ(Message(fields.Finish()), "f: size is missing");
}

TEST(ConfigFields, SizesOutsideTheirBoundsAreRefused) {
  for (const Json& value : {Json(0), Json(-1), Json(11), Json(3.0), Json("3"), Json(true),
                            Json(~uint64_t{0}), Json(int64_t{1} << 40)}) {
    const Json object = {{"size", value}};
    ConfigFields fields(object, "f");
    fields.Size("size", 10);
    EXPECT_EQ(Message(fields.status()),
              "f: size: " + value.dump() + " is not an integer in [1, 10]");
  }
}

TEST(ConfigFields, NumbersOutsideTheirBoundsAreRefused) {
  for (const Json& value : {Json(-0.1), Json(1.5), Json("x"), Json({{"__float__", "NaN"}})}) {
    const Json object = {{"x", value}};
    ConfigFields fields(object, "f");
    fields.Number("x", 0, 1);
    EXPECT_FALSE(fields.status().ok()) << value;
  }
}

TEST(ConfigFields, ARequiredValueIsNamed) {
  const Json object = {{"window", 512}};
  ConfigFields fields(object, "f");
  fields.Must("window", nullptr);
  EXPECT_EQ(Message(fields.Finish()), "f: window: 512 is not supported; it must be null");
}

TEST(ConfigFields, AnAbsentFieldHasItsDefault) {
  const Json object = Json::object();
  ConfigFields fields(object, "f");
  fields.Must("bias", true, /*absent=*/false);
  EXPECT_EQ(Message(fields.status()), "f: bias: false is not supported; it must be true");
}

TEST(ConfigFields, TheFirstErrorStays) {
  const Json object = {{"a", 0}, {"b", "x"}};
  ConfigFields fields(object, "f");
  fields.Size("a", 10);
  fields.Bool("b", false);
  EXPECT_NE(Message(fields.Finish()).find("a: 0"), std::string::npos);
}

using Json = nlohmann::json;

Json ConfigOf(const ModelSpec& spec) {
  const absl::StatusOr<Json> config = HfConfig(*MakeOutline(spec), {});
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : Json::object();
}

ModelSpec SpecOf(const std::string& text) {
  const absl::StatusOr<HfModelConfig> config = SpecFromHfConfig(text);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? config->spec : ModelSpec();
}

// The message with which the config of `model_type` is refused after `change`.
std::string Refusal(std::string_view model_type, const Json& change) {
  Json config = ConfigOf(ClassSpec(model_type));
  config.update(change);
  const absl::Status status = SpecFromHfConfig(config.dump()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << change;
  return std::string(status.message());
}

TEST(HfConfig, EveryClasssConfigReadsBackAsItsModel) {
  for (const ModelSpec& spec : ClassSpecs()) {
    EXPECT_EQ(SpecOf(ConfigOf(spec).dump()), spec) << spec.name;
  }
}

TEST(HfConfig, EveryPresetsConfigReadsBackAsItsModel) {
  for (const std::string& name : ModelPresetNames()) {
    ModelSpec preset = *ModelPreset(name);
    ModelSpec read = SpecOf(ConfigOf(preset).dump());
    read.name = preset.name;
    // Files of these classes do not record the initialisation.
    if (preset.positions != Positions::kNone) preset.scale_output_init = false;
    EXPECT_EQ(read, preset);
  }
}

TEST(HfConfig, TheEndOfDocumentEndsTexts) {
  const Outline outline = *MakeOutline(ClassSpec("llama"));
  EXPECT_TRUE((*HfConfig(outline, {}))["eos_token_id"].is_null());
  EXPECT_EQ((*HfConfig(outline, {.end_of_document = 7}))["eos_token_id"], 7);
}

TEST(HfConfig, StepsAreWrittenWithoutALowerBound) {
  EXPECT_EQ(ConfigOf(ClassSpec("nemotron_h"))["time_step_min"], 0.0);
  EXPECT_TRUE(SpecFromHfConfig(ConfigOf(ClassSpec("nemotron_h")).dump())->remarks.empty());
}

TEST(SpecFromHfConfig, AReleasedHybridIsThePresetOfItsSizes) {
  // Typical files: infinities as Python writes them, a field for every default.
  const char* text = R"({
    "architectures": ["NemotronHForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "attention_head_dim": 128, "auto_map": {"AutoConfig": "a.B"}, "bos_token_id": 1,
    "chunk_size": 128, "conv_kernel": 4, "eos_token_id": 2, "expand": 2, "hidden_dropout": 0.0,
    "hidden_size": 4096,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "initializer_range": 0.02, "intermediate_size": 21504, "layer_norm_epsilon": 1e-05,
    "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 128,
    "mamba_proj_bias": false, "max_position_embeddings": 8192, "mlp_bias": false,
    "mlp_hidden_act": "relu2", "model_type": "nemotron_h", "n_groups": 8,
    "num_attention_heads": 32, "num_hidden_layers": 52, "num_key_value_heads": 8,
    "num_logits_to_keep": 1, "pad_token_id": 0, "rescale_prenorm_residual": true,
    "residual_in_fp32": false, "rms_norm_eps": 1e-05, "sliding_window": null,
    "ssm_state_size": 128, "tie_word_embeddings": false, "time_step_floor": 0.0001,
    "time_step_limit": [0.0, Infinity], "time_step_max": 0.1, "time_step_min": 0.001,
    "torch_dtype": "bfloat16", "transformers_version": "4.48.0.dev0", "use_bias": false,
    "use_cache": true, "use_conv_bias": true, "use_mamba_kernels": true, "vocab_size": 131072})";
  const absl::StatusOr<HfModelConfig> config = SpecFromHfConfig(text);
  ASSERT_TRUE(config.ok()) << config.status();
  ModelSpec spec = config->spec;
  spec.name = "nemotron-h-8b";
  EXPECT_EQ(spec, *ModelPreset("nemotron-h-8b"));
  ASSERT_EQ(config->remarks.size(), 1u);
  EXPECT_NE(config->remarks[0].find("time_step_min"), std::string::npos);
}

TEST(SpecFromHfConfig, BlocksAreReadByNameToo) {
  Json config = ConfigOf(ClassSpec("nemotron_h"));
  config.erase("hybrid_override_pattern");
  config["layers_block_type"] = {"linear_attention", "mlp", "full_attention", "mlp", "mamba"};
  EXPECT_EQ(SpecOf(config.dump()).pattern, "M-*-M");
  config["hybrid_override_pattern"] = "M-*-*";
  EXPECT_FALSE(SpecFromHfConfig(config.dump()).ok());
}

TEST(SpecFromHfConfig, AnOldGpt2IsThePresetOfItsSizes) {
  ModelSpec spec = SpecOf(R"({
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768,
    "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1,
    "summary_activation": null, "summary_first_dropout": 0.1, "summary_proj_to_labels": true,
    "summary_type": "cls_index", "summary_use_proj": true,
    "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
    "vocab_size": 50257})");
  spec.name = "gpt2-125m";
  spec.scale_output_init = true;
  EXPECT_EQ(spec, *ModelPreset("gpt2-125m"));
}

TEST(SpecFromHfConfig, RopesThetaIsReadWhereverItIs) {
  Json config = ConfigOf(ClassSpec("llama"));
  config.erase("rope_theta");
  EXPECT_EQ(SpecOf(config.dump()).rope_theta, 500);
  config.erase("rope_parameters");
  EXPECT_EQ(SpecOf(config.dump()).rope_theta, 10000);
  config["rope_theta"] = 300.0;
  config["rope_scaling"] = nullptr;
  EXPECT_EQ(SpecOf(config.dump()).rope_theta, 300);
  config["rope_parameters"] = {{"rope_theta", 400.0}};
  EXPECT_FALSE(SpecFromHfConfig(config.dump()).ok());
}

TEST(SpecFromHfConfig, AnUnsupportedModelIsRefusedByFieldAndValue) {
  const auto expect = [](std::string_view model_type, const Json& change, const char* field) {
    const std::string message = Refusal(model_type, change);
    EXPECT_EQ(message.find(std::string("config.json: ") + field + ": "), 0u) << message;
    // The value as in the file, or its prefix.
    EXPECT_NE(message.find(change[field].dump().substr(0, 40)), std::string::npos) << message;
  };
  const Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  expect("llama", {{"rope_scaling", yarn}}, "rope_scaling");
  expect("llama", {{"rope_parameters", yarn}}, "rope_parameters");
  expect("llama", {{"hidden_act", "gelu"}}, "hidden_act");
  expect("llama", {{"sliding_window", 4096}}, "sliding_window");
  expect("llama", {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor");
  expect("llama", {{"num_hidden_layers", 100000}}, "num_hidden_layers");
  expect("llama", {{"hidden_size", 30}}, "hidden_size");
  expect("llama", {{"vocab_size", "96"}}, "vocab_size");
  expect("llama", {{"rms_norm_eps", 0}}, "rms_norm_eps");
  expect("llama", {{"architectures", {"LlamaForSequenceClassification"}}}, "architectures");
  expect("llama", {{"quantization_config", {{"quant_method", "gptq"}}}}, "quantization_config");
  expect("llama", {{"model_type", "mistral"}}, "model_type");
  expect("arcee", {{"hidden_act", "silu"}}, "hidden_act");
  expect("gpt2", {{"activation_function", "relu"}}, "activation_function");
  expect("gpt2", {{"scale_attn_weights", false}}, "scale_attn_weights");
  expect("gpt2", {{"scale_attn_by_inverse_layer_idx", true}}, "scale_attn_by_inverse_layer_idx");
  expect("gpt2", {{"add_cross_attention", true}}, "add_cross_attention");
  expect("nemotron_h", {{"mlp_hidden_act", "silu"}}, "mlp_hidden_act");
  expect("nemotron_h", {{"use_conv_bias", false}}, "use_conv_bias");
  expect("nemotron_h", {{"use_bias", true}}, "use_bias");
  expect("nemotron_h", {{"tie_word_embeddings", true}}, "tie_word_embeddings");
  expect("nemotron_h", {{"time_step_limit", {0.0, 0.5}}}, "time_step_limit");
  expect("nemotron_h", {{"time_step_min", 0.01}}, "time_step_min");
  expect("nemotron_h", {{"hybrid_override_pattern", "ME*-M"}}, "hybrid_override_pattern");
  expect("nemotron_h", {{"num_nextn_predict_layers", 1}}, "num_nextn_predict_layers");
  expect("nemotron_h", {{"num_hidden_layers", 6}}, "num_hidden_layers");
  expect("nemotron_h", {{"rms_norm_eps", 1e-3}}, "rms_norm_eps");
  EXPECT_EQ(Refusal("llama", {{"attention_bias", true}}),
            "config.json: mlp_bias: false is not supported; it must be true");
}

TEST(SpecFromHfConfig, AnUnknownFieldIsRefusedUnlessItIsNull) {
  EXPECT_NE(Refusal("llama", {{"logit_softcap", 30.0}}).find("\"logit_softcap\": 30.0"),
            std::string::npos);
  Json config = ConfigOf(ClassSpec("llama"));
  config["logit_softcap"] = nullptr;
  EXPECT_TRUE(SpecFromHfConfig(config.dump()).ok());
}

TEST(SpecFromHfConfig, MissingSizesAreNamed) {
  for (const ModelSpec& spec : ClassSpecs()) {
    for (const char* field : {"vocab_size", "hidden_size", "intermediate_size", "n_embd",
                              "mamba_num_heads", "num_attention_heads", "model_type"}) {
      Json config = ConfigOf(spec);
      if (config.erase(field) == 0) continue;
      const absl::Status status = SpecFromHfConfig(config.dump()).status();
      EXPECT_EQ(status.message(), std::string("config.json: ") + field + " is missing");
    }
  }
}

constexpr int kMutations = 30'000;

// One to four small damages: bytes changed, cut, repeated, numbers and words put in.
std::string Mutated(std::string text, std::mt19937_64& random) {
  static const std::string kPieces[] = {"-1",       "0",    "9223372036854775808",
                                        "1e999",    "null", "true",
                                        "\"\"",     "[",    "]",
                                        "{",        "}",    ",",
                                        "Infinity", "1.5",  "4096",
                                        "\\u0",     "\xff", "1048576"};
  for (uint64_t n = 1 + random() % 4; n > 0 && !text.empty(); --n) {
    const size_t at = random() % text.size();
    switch (random() % 6) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, 1 + random() % 8);
        break;
      case 2:
        text.insert(at, text.substr(random() % text.size(), 1 + random() % 40));
        break;
      case 3:
        text.insert(at, kPieces[random() % std::size(kPieces)]);
        break;
      case 4: {
        // A whole value in place of another.
        const size_t colon = text.find(':', at);
        if (colon == std::string::npos) break;
        const size_t end = text.find_first_of(",}", colon);
        if (end != std::string::npos) {
          text.replace(colon + 1, end - colon - 1, kPieces[random() % std::size(kPieces)]);
        }
        break;
      }
      default:
        if (random() % 20 == 0) text.resize(at);
    }
  }
  return text;
}

TEST(Mutations, MutatedConfigsAreReadOrRefused) {
  std::mt19937_64 random(1);
  std::vector<std::string> valid;
  for (const ModelSpec& spec : ClassSpecs()) {
    valid.push_back(HfConfig(*MakeOutline(spec), {})->dump());
  }
  int read = 0;
  for (int i = 0; i < kMutations; ++i) {
    const std::string text = Mutated(valid[random() % valid.size()], random);
    const absl::StatusOr<HfModelConfig> config = SpecFromHfConfig(text);
    if (!config.ok()) {
      ASSERT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << text;
      ASSERT_LT(config.status().message().size(), 500u) << text;
      continue;
    }
    ++read;
    // The result is a model of the class that the file names.
    const absl::StatusOr<Outline> outline = MakeOutline(config->spec);
    ASSERT_TRUE(outline.ok()) << outline.status() << text;
    const absl::StatusOr<HfModelLayout> layout = HfLayout(*outline);
    ASSERT_TRUE(layout.ok()) << layout.status() << text;
    ASSERT_EQ(layout->model_class, config->model_class) << text;
  }
  EXPECT_GT(read, kMutations / 100);
  EXPECT_LT(read, kMutations / 2);
}

TEST(Mutations, MutatedIndicesAreReadOrRefused) {
  std::mt19937_64 random(2);
  ShardIndex index;
  for (int i = 0; i < 12; ++i) {
    index.file_of.emplace("model.layers." + std::to_string(i), ShardFileName(1 + i / 4, 3));
  }
  const std::string valid = ShardIndexText(index, 1000);
  int read = 0;
  for (int i = 0; i < kMutations; ++i) {
    const std::string text = Mutated(valid, random);
    const absl::StatusOr<ShardIndex> result = ParseShardIndex(text);
    if (!result.ok()) {
      ASSERT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << text;
      continue;
    }
    ++read;
    for (const std::string& file : result->Files()) {
      ASSERT_EQ(file.find('/'), std::string::npos) << text;
      ASSERT_TRUE(file.ends_with(".safetensors")) << text;
    }
  }
  EXPECT_GT(read, kMutations / 100);
}

}  // namespace
}  // namespace nibble
