// Exports a model as a directory that Hugging Face's transformers and compatible engines load:
// config.json, generation_config.json, model.safetensors (or shards and their index), tokenizer.
// docs/formats/hugging-face.md describes each file.
//
// Weights are streamed: memory holds a parameter or two at a time. The export is atomic. Equal
// weights and options give equal bytes.
//
// Ownership: borrows the source for the length of the call. Thread-safety: as the source's.
#ifndef NIBBLE_WORKER_INTEROP_HF_EXPORT_H_
#define NIBBLE_WORKER_INTEROP_HF_EXPORT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/safetensors/dtype.h"
#include "recipe/recipe.h"
#include "worker/interop/hf_layout.h"
#include "worker/weights/weight_source.h"

namespace nibble {

struct HfExportOptions {
  // kF32 or kBF16, rounded to nearest even. A_log, D and dt_bias are F32 in either: they go through
  // exponents.
  FileDType dtype = FileDType::kBF16;
  // A shard ends before the tensor that would make it larger than this; tensors are never split.
  int64_t max_shard_bytes = int64_t{5} << 30;
  // max_position_embeddings of models without learned positions.
  int64_t context = 4096;
  // Off: writes no tokenizer, even if the source has one.
  bool tokenizer = true;
  // Replace a directory that is empty or contains a model.
  bool overwrite = false;
  // Linears whose fprop.weight is NVFP4 are written packed (compressed-tensors,
  // nvfp4-pack-quantized), the other weights in BF16, which `dtype` must be. Null: nothing is
  // quantised.
  const ResolvedRecipe* quantise = nullptr;
  int threads = 0;  // of the quantiser; 0: every processor
};

struct HfExportReport {
  HfClass model_class = HfClass::kLlama;
  int64_t shards = 0;
  int64_t tensors = 0;
  int64_t bytes = 0;              // of all tensors
  int64_t quantised_linears = 0;  // of the outline
  bool tokenizer = false;         // was written
};

//   InvalidArgument     an option is out of bounds, or the recipe is of another model
//   FailedPrecondition  the model fits no class; its tokenizer's model is not available or its
//                       vocabulary exceeds the model's; the recipe or the class cannot be exported
//                       quantised; weights to quantise are not finite; as StagedDirectory's
//   AlreadyExists       the directory exists, and `overwrite` is off
//   any other           of the source and the file system
absl::StatusOr<HfExportReport> ExportHf(WeightSource& source, const std::string& directory,
                                        const HfExportOptions& options);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INTEROP_HF_EXPORT_H_
