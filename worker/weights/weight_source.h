// Where a trained model's weights come from: a checkpoint, an exported directory. Whoever
// generates, evaluates or exports sees named FP32 tensors and the model they belong to.
//
// Ownership: a source owns what it reads from. Thread-safety: one thread at a time.
#ifndef NIBBLE_WORKER_WEIGHTS_WEIGHT_SOURCE_H_
#define NIBBLE_WORKER_WEIGHTS_WEIGHT_SOURCE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
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
  // The tokenizer that the model was trained with; null where the source does not know it.
  virtual std::shared_ptr<const Tokenizer> tokenizer() const = 0;

  // What a person should know of them, a sentence each: newer checkpoints that were damaged and
  // passed over, settings of an exported model that are read another way.
  virtual std::vector<std::string> notices() const { return {}; }

  // The values of one parameter of the outline. out: [param.elements()] FP32, in the order of
  // param.shape. DataLoss where the stored bytes are damaged; `out` then holds nothing of use.
  virtual absl::Status Read(const ParamInfo& param, absl::Span<float> out) = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_WEIGHTS_WEIGHT_SOURCE_H_
