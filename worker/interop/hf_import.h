// Opens weights. HfWeights: a directory that Hugging Face's transformers wrote, as a WeightSource:
// config.json, model.safetensors (or shards and their index) in F32, BF16 or F16, and a tokenizer.
// OpenWeights: the checkpoint or exported model that a user names.
//
// HfWeights checks everything when it opens: config.json (hf_config.h), that each tensor of the
// model is there once, in its shape and a weight type, and that there are no others. Read() then
// only copies. Redundant tensors are ignored: a tied head's tensor that equals the embedding,
// causal masks of old GPT-2 files, RoPE frequency tables. Files of a bare model, whose names lack
// the class's prefix, are read too.
//
// Ownership: owns the mappings of its files, which must not be written to meanwhile.
// Thread-safety: one thread at a time; OpenWeights is a function of the file system.
#ifndef NIBBLE_WORKER_INTEROP_HF_IMPORT_H_
#define NIBBLE_WORKER_INTEROP_HF_IMPORT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/safetensors/reader.h"
#include "model/outline.h"
#include "worker/interop/hf_layout.h"
#include "worker/trainer/data/tokenizer.h"
#include "worker/weights/weight_source.h"

namespace nibble {

struct HfImportOptions {
  // As ReadHfTokenizer(); an unsupported tokenizer becomes a notice. Off: reads no tokenizer.
  bool tokenizer = true;
};

class HfWeights final : public WeightSource {
 public:
  //   InvalidArgument      a file's content breaks a rule; names file, field or tensor, value,
  //   bound FailedPrecondition   a file is too long or not a regular file NotFound, ...        the
  //   system's error: no config.json, no weights
  static absl::StatusOr<std::unique_ptr<HfWeights>> Open(const std::string& directory,
                                                         const HfImportOptions& options = {});

  std::string description() const override;
  // The spec's name is the directory's name.
  const Outline& outline() const override { return outline_; }
  std::shared_ptr<const Tokenizer> tokenizer() const override { return tokenizer_; }
  // InvalidArgument for a parameter that is not one of outline().params, or a span of another size.
  absl::Status Read(const ParamInfo& param, absl::Span<float> out) override;

  // The context length of config.json, which an export of ours takes from data.sequence.
  std::optional<int64_t> trained_sequence() const override { return context_; }

  HfClass model_class() const { return layout_.model_class; }
  // HfModelConfig::remarks, and an unsupported tokenizer.
  std::vector<std::string> notices() const override { return remarks_; }

 private:
  HfWeights() = default;

  absl::Status OpenFiles();
  absl::Status MatchTensors();
  absl::Status OpenTokenizer();

  std::string directory_;
  Outline outline_;
  HfModelLayout layout_;
  std::optional<int64_t> context_;
  std::vector<std::string> remarks_;
  std::vector<SafetensorsFile> files_;
  std::vector<const TensorInfo*> tensors_;  // of layout_.tensors
  std::shared_ptr<const Tokenizer> tokenizer_;
};

// Opens the weights that a user names:
//
//   DIRECTORY          a run's output directory or its checkpoint store: the newest good
//                      checkpoint; a directory with a config.json: an exported model
//   DIRECTORY@STEP     the checkpoint of that step
//
// NotFound if there is neither; otherwise as CheckpointWeights::Open and HfWeights::Open.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenWeights(const std::string& source);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INTEROP_HF_IMPORT_H_
