// The weights of a trained model as named FP32 tensors with their model, whether they come from a
// checkpoint or an exported directory. Generation, evaluation and export read them through this.
//
// Ownership: a source owns what it reads from. Thread-safety: one thread at a time.
#ifndef NIBBLE_WORKER_WEIGHTS_WEIGHT_SOURCE_H_
#define NIBBLE_WORKER_WEIGHTS_WEIGHT_SOURCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/outline.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // For messages: "the checkpoint of step 1200 in runs/a/checkpoints".
  virtual std::string description() const = 0;
  // The model whose parameters these are; valid.
  virtual const Outline& outline() const = 0;
  // The tokenizer that the model was trained with; null if the source does not know it.
  virtual std::shared_ptr<const Tokenizer> tokenizer() const = 0;

  // Tokens of the sequences that the model was trained on; unset if the source does not record it.
  virtual std::optional<int64_t> trained_sequence() const { return std::nullopt; }

  // Notices for the user, a sentence each: newer checkpoints that were damaged and skipped,
  // settings of an exported model that are interpreted differently.
  virtual std::vector<std::string> notices() const { return {}; }

  // The values of one parameter of the outline. out: [param.elements()] FP32, in the order of
  // param.shape. DataLoss if the stored bytes are damaged; the content of `out` is then undefined.
  virtual absl::Status Read(const ParamInfo& param, absl::Span<float> out) = 0;
};

// Opens the weights that a user names: a checkpoint, an exported directory. Injected, so that
// generation and evaluation do not depend on storage.
using WeightOpener =
    std::function<absl::StatusOr<std::unique_ptr<WeightSource>>(const std::string& source)>;

}  // namespace nibble

#endif  // NIBBLE_WORKER_WEIGHTS_WEIGHT_SOURCE_H_
