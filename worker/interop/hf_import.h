// A directory as Hugging Face's transformers writes it, as a source of weights: config.json,
// model.safetensors (or shards and their index) in F32, BF16 or F16, and a tokenizer.
//
// Everything is checked when it is opened: what config.json says (hf_config.h), that each tensor of
// the model is there once, in its shape and a type of weights, and that there is no other. Read()
// then only copies. What is let pass besides, because it follows from the rest: a tied head's
// tensor where it equals the embedding's, causal masks of old GPT-2 files, tables of RoPE's
// frequencies. Files of a bare model, whose names lack the class's prefix, are read too.
//
// Ownership: owns the mappings of its files, which nobody may write to meanwhile.
// Thread-safety: one thread at a time.
#ifndef NIBBLE_WORKER_INTEROP_HF_IMPORT_H_
#define NIBBLE_WORKER_INTEROP_HF_IMPORT_H_

#include <memory>
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
  // See ReadHfTokenizer(); one that is not read here is a notice. Off: whatever lies there is left
  // alone.
  bool tokenizer = true;
};

class HfWeights final : public WeightSource {
 public:
  //   InvalidArgument      a file's content breaks a rule; names file, field or tensor, value,
  //   bound FailedPrecondition   a file is too long or no regular file NotFound, ...        what
  //   the system said: there is no config.json, no weights
  static absl::StatusOr<std::unique_ptr<HfWeights>> Open(const std::string& directory,
                                                         const HfImportOptions& options = {});

  std::string description() const override;
  // The spec's name is the directory's.
  const Outline& outline() const override { return outline_; }
  std::shared_ptr<const Tokenizer> tokenizer() const override { return tokenizer_; }
  // InvalidArgument for a parameter that is not one of outline().params, or a span of another size.
  absl::Status Read(const ParamInfo& param, absl::Span<float> out) override;

  HfClass model_class() const { return layout_.model_class; }
  // HfModelConfig::remarks, and a tokenizer that is not read.
  std::vector<std::string> notices() const override { return remarks_; }

 private:
  HfWeights() = default;

  absl::Status OpenFiles();
  absl::Status MatchTensors();
  absl::Status OpenTokenizer();

  std::string directory_;
  Outline outline_;
  HfModelLayout layout_;
  std::vector<std::string> remarks_;
  std::vector<SafetensorsFile> files_;
  std::vector<const TensorInfo*> tensors_;  // of layout_.tensors
  std::shared_ptr<const Tokenizer> tokenizer_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_INTEROP_HF_IMPORT_H_
