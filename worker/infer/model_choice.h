// Settings that commands resolve before they run a trained model: its tokenizer, the precision, the
// longest sequence.
//
// Ownership: results own themselves. Thread-safety: pure functions of the file system.
#ifndef NIBBLE_WORKER_INFER_MODEL_CHOICE_H_
#define NIBBLE_WORKER_INFER_MODEL_CHOICE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/tensor/matrix.h"
#include "model/outline.h"
#include "worker/trainer/data/tokenizer.h"
#include "worker/weights/weight_source.h"

namespace nibble {

// The tokenizer of a source, or, if the source has none, the one that `named` names (see
// LoadTokenizer()).
//
//   FailedPrecondition  neither is there
//   InvalidArgument     both are there and differ; a vocabulary over the model's
//   any other           as LoadTokenizer()
absl::StatusOr<std::shared_ptr<const Tokenizer>> ChooseTokenizer(const WeightSource& source,
                                                                 const std::string& named);

// "fp32", "bf16". InvalidArgument for anything else.
absl::StatusOr<DType> ParsePrecision(const std::string& name);

// The maximum length of a sequence of the model, if nothing else bounds it.
int64_t LongestSequence(const Outline& outline);

// A notice, a sentence, if sequences of `tokens` tokens are longer than those of the model's
// training; else nothing.
std::optional<std::string> BeyondTraining(const WeightSource& source, int64_t tokens);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_MODEL_CHOICE_H_
