// Small models for tests, written out by hand: linear layers only, no parameters.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_RECIPE_TESTING_H_
#define NIBBLE_RECIPE_TESTING_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "model/outline.h"

namespace nibble {

struct TestSizes {
  int64_t d_model = 256;
  int64_t d_ff = 512;
  int64_t mamba_rows = 640;  // rows of in_proj
  int64_t d_inner = 512;
  Activation activation = Activation::kSquaredRelu;
};

// M, * and - as in model/model_spec.h; heads of 64.
inline Outline TestOutline(std::string_view pattern, const TestSizes& sizes = {}) {
  Outline outline;
  outline.spec.name = "test-model";
  outline.spec.pattern = std::string(pattern);
  outline.spec.vocab = 1000;
  outline.spec.d_model = sizes.d_model;
  outline.spec.d_ff = sizes.d_ff;
  outline.spec.activation = sizes.activation;
  outline.spec.head_dim = 64;
  outline.spec.heads = outline.spec.kv_heads = sizes.d_model / 64;
  const auto add = [&outline](int64_t block, const char* kind, int64_t in, int64_t out) {
    outline.linears.push_back({.name = absl::StrCat("blocks.", block, ".", kind),
                               .kind = kind,
                               .block = block,
                               .in = in,
                               .out = out});
  };
  const int64_t up = sizes.activation == Activation::kSwiglu ? 2 * sizes.d_ff : sizes.d_ff;
  for (int64_t block = 0; block < outline.spec.blocks(); ++block) {
    switch (pattern[static_cast<size_t>(block)]) {
      case '*':
        add(block, "attention.qkv", sizes.d_model, 3 * sizes.d_model);
        add(block, "attention.out", sizes.d_model, sizes.d_model);
        break;
      case 'M':
        add(block, "mamba.in_proj", sizes.d_model, sizes.mamba_rows);
        add(block, "mamba.out_proj", sizes.d_inner, sizes.d_model);
        break;
      default:
        add(block, "mlp.up", sizes.d_model, up);
        add(block, "mlp.down", sizes.d_ff, sizes.d_model);
    }
  }
  return outline;
}

// `pattern`, repeated `times` times.
inline std::string Repeat(std::string_view pattern, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += pattern;
  return text;
}

// 12 layers of LLaMA-125M, or with GELU and two matrices per MLP instead of SwiGLU.
inline Outline Llama125m(Activation activation = Activation::kSwiglu) {
  return TestOutline(Repeat("*-", 12), {.d_model = 768, .d_ff = 3072, .activation = activation});
}

}  // namespace nibble

#endif  // NIBBLE_RECIPE_TESTING_H_
