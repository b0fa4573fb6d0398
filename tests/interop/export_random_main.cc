// Writes a small random model of a Hugging Face class as a Hugging Face directory, with the byte
// tokenizer:
//
//   export-random MODEL_TYPE SEED DIRECTORY f32|bf16|nvfp4|nvfp4-base
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "recipe/recipe.h"
#include "worker/interop/hf_export.h"
#include "worker/interop/hf_layout.h"
#include "worker/interop/interop_testing.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {
namespace {

absl::Status Run(const std::string& model_type, const std::string& seed_text,
                 const std::string& directory, const std::string& type) {
  uint64_t seed = 0;
  if (!absl::SimpleAtoi(seed_text, &seed)) {
    return absl::InvalidArgumentError(absl::StrCat("seed: '", seed_text, "' is not a number"));
  }
  if (FindHfClass(model_type) == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("'", model_type, "' is not a known model type"));
  }
  const bool quantised = type == "nvfp4" || type == "nvfp4-base";
  if (type != "f32" && type != "bf16" && !quantised) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", type, "' is not f32, bf16, nvfp4 or nvfp4-base"));
  }
  ModelSpec spec = ClassSpec(model_type);
  spec.vocab = 272;
  RandomWeights source(spec, seed, std::make_shared<ByteTokenizer>());
  HfExportOptions options = {.dtype = type == "f32" ? FileDType::kF32 : FileDType::kBF16,
                             .max_shard_bytes = 60'000,
                             .threads = 1};
  std::optional<ResolvedRecipe> recipe;
  if (quantised) {
    absl::StatusOr<ResolvedRecipe> resolved = Resolve({.preset = type}, source.outline(), 0);
    if (!resolved.ok()) return resolved.status();
    recipe = *std::move(resolved);
    options.quantise = &*recipe;
  }
  return ExportHf(source, directory, options).status();
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s MODEL_TYPE SEED DIRECTORY f32|bf16|nvfp4|nvfp4-base\n",
                 argv[0]);
    return 2;
  }
  const absl::Status status = nibble::Run(argv[1], argv[2], argv[3], argv[4]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
