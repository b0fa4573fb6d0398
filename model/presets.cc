// The presets: the models of the papers, with the sizes of the released configurations if there are
// any, and small ones for a laptop.
//
// Vocabularies are those of the released tokenizers: 131072 (Nemotron-H), 50257 (GPT-2), 32000
// (LLaMA). They need not be multiples of a quantisation block: embedding and head are never
// quantised. The vocabulary of the 1.2B transformer is not published; 65536, with which it is
// measured here, gives it 1.02 B parameters (131072 would give 1.29 B). It keeps the paper's name,
// layers and widths. The tiny and small models read bytes: 0 to 255, 256 ends a document, and 272
// is the next multiple of 16.
//
// Every dimension of a linear of the tiny and small models is a multiple of 128, so that the blocks
// of every format fit. For Mamba's in_proj this determines the number of heads: its rows are
// 2 · d_inner + 2 · groups · state + heads, here with 32 heads and a state of 48.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/near_name.h"
#include "model/model_spec.h"

namespace nibble {
namespace {

constexpr int64_t kNemotronVocab = 131072;
constexpr int64_t kGpt2Vocab = 50257;
constexpr int64_t kLlamaVocab = 32000;
constexpr int64_t kMeasuredVocab = 65536;
constexpr int64_t kByteVocab = 272;

std::string Repeat(std::string_view unit, int times) {
  std::string pattern;
  for (int i = 0; i < times; ++i) pattern += unit;
  return pattern;
}

// Hybrid blocks: RMSNorm, squared ReLU, no positions, no biases except the convolution's.
ModelSpec Hybrid(std::string name, std::string pattern) {
  return {.name = std::move(name),
          .pattern = std::move(pattern),
          .norm = NormKind::kRmsNorm,
          .positions = Positions::kNone,
          .activation = Activation::kSquaredRelu,
          .scale_output_init = true};
}

// The sizes that the released Nemotron-H models share.
ModelSpec NemotronH(std::string name, std::string pattern) {
  ModelSpec spec = Hybrid(std::move(name), std::move(pattern));
  spec.vocab = kNemotronVocab;
  spec.kv_heads = 8;  // as released; the 8B has 4 in the paper
  spec.head_dim = 128;
  spec.mamba_heads = 128;
  spec.mamba_groups = 8;
  spec.mamba_state = 128;
  return spec;
}

ModelSpec NemotronH12b() {
  ModelSpec spec = NemotronH("nemotron-h-12b", Repeat("M-M-M-M*-", 6) + "M-M-M-M-");
  spec.d_model = 5120;
  spec.d_ff = 20480;
  spec.heads = 40;
  spec.mamba_head_dim = 80;  // as released; 64 in the paper
  return spec;
}

ModelSpec NemotronH8b() {
  ModelSpec spec =
      NemotronH("nemotron-h-8b", "M-M-M-M*-" + Repeat("M-M-M-M-M*-", 3) + "M-M-M-M-M-");
  spec.d_model = 4096;
  spec.d_ff = 21504;
  spec.heads = 32;
  spec.mamba_head_dim = 64;
  return spec;
}

// Half of the 8B's layers and of its sizes.
ModelSpec Hybrid1b() {
  ModelSpec spec = NemotronH("hybrid-1b", "M-M-M-M*-M-M-M-M-M*-M-M-M-");
  spec.vocab = kMeasuredVocab;
  spec.d_model = 2048;
  spec.d_ff = 8192;
  spec.heads = 16;
  spec.kv_heads = 4;
  spec.mamba_heads = 64;
  spec.mamba_head_dim = 64;
  return spec;
}

// Attention and MLP layers with RoPE, RMSNorm and a key head per query head.
ModelSpec Llama(std::string name, int layers, int64_t vocab, int64_t d_model, int64_t d_ff,
                int64_t heads) {
  return {.name = std::move(name),
          .pattern = Repeat("*-", layers),
          .vocab = vocab,
          .d_model = d_model,
          .norm = NormKind::kRmsNorm,
          .positions = Positions::kRope,
          .d_ff = d_ff,
          .activation = Activation::kSwiglu,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = d_model / heads,
          .scale_output_init = true};
}

// With squared ReLU and two query heads per key head.
ModelSpec Transformer(std::string name, int layers, int64_t vocab, int64_t d_model, int64_t d_ff,
                      int64_t heads) {
  ModelSpec spec = Llama(std::move(name), layers, vocab, d_model, d_ff, heads);
  spec.activation = Activation::kSquaredRelu;
  spec.kv_heads = heads / 2;
  return spec;
}

ModelSpec Gpt2(std::string name, int layers, int64_t vocab, int64_t positions, int64_t d_model,
               int64_t heads) {
  ModelSpec spec = Llama(std::move(name), layers, vocab, d_model, 4 * d_model, heads);
  spec.norm = NormKind::kLayerNorm;
  spec.positions = Positions::kLearned;
  spec.max_positions = positions;
  spec.biases = true;
  spec.tied_head = true;
  spec.activation = Activation::kGelu;
  return spec;
}

// d_ff is 4 · d_model and d_inner 512; chunks are short, so that short sequences have several.
ModelSpec ByteHybrid(std::string name, std::string pattern, int64_t d_model, int64_t heads) {
  ModelSpec spec = Hybrid(std::move(name), std::move(pattern));
  spec.vocab = kByteVocab;
  spec.d_model = d_model;
  spec.d_ff = 4 * d_model;
  spec.heads = heads;
  spec.kv_heads = heads / 2;
  spec.head_dim = d_model / heads;
  spec.mamba_heads = 32;
  spec.mamba_head_dim = 16;
  spec.mamba_groups = 1;
  spec.mamba_state = 48;
  spec.chunk = 64;
  return spec;
}

std::vector<ModelSpec> MakePresets() {
  return {
      NemotronH12b(),
      NemotronH8b(),
      Hybrid1b(),
      Transformer("transformer-1.2b", 20, kMeasuredVocab, 2048, 6144, 16),
      Gpt2("gpt2-125m", 12, kGpt2Vocab, 1024, 768, 12),
      Gpt2("gpt2-335m", 24, kGpt2Vocab, 1024, 1024, 16),
      Gpt2("gpt2-774m", 36, kGpt2Vocab, 1024, 1280, 20),
      Llama("llama-125m", 12, kLlamaVocab, 768, 3072, 12),
      Llama("llama-1b", 48, kLlamaVocab, 1280, 3392, 20),
      // About 11 million parameters each, for experiments on two cores; the hybrid's pattern is
      // a shortened form of the 12B's.
      ByteHybrid("small-hybrid", Repeat("M-M-M-M*-", 2) + "M-M-M-", 256, 4),
      Transformer("small-transformer", 8, kByteVocab, 384, 1152, 6),
      // Up to about a million parameters, for tests and the quick start.
      ByteHybrid("tiny-hybrid", "M-M*-M-", 128, 4),
      Transformer("tiny-transformer", 3, kByteVocab, 128, 384, 4),
      Gpt2("tiny-gpt2", 2, kByteVocab, 512, 128, 4),
      Llama("tiny-llama", 2, kByteVocab, 128, 384, 4),
  };
}

const std::vector<ModelSpec>& Presets() {
  static const std::vector<ModelSpec> presets = MakePresets();
  return presets;
}

}  // namespace

absl::StatusOr<ModelSpec> ModelPreset(std::string_view name) {
  for (const ModelSpec& spec : Presets()) {
    if (spec.name == name) return spec;
  }
  const std::string nearest = NearestName(name, ModelPresetNames());
  return absl::NotFoundError(
      absl::StrCat("model: there is no preset '", std::string(name), "'",
                   nearest.empty() ? "" : absl::StrCat("; the nearest is '", nearest, "'")));
}

const std::vector<std::string>& ModelPresetNames() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const ModelSpec& spec : Presets()) result.push_back(spec.name);
    return result;
  }();
  return names;
}

}  // namespace nibble
