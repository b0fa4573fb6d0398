// How a command opens what the user names as a model: a checkpoint, an exported directory. Handed
// in from outside, so that who generates and evaluates knows no storage.
//
// Thread-safety: a value.
#ifndef NIBBLE_WORKER_INFER_WEIGHT_OPENER_H_
#define NIBBLE_WORKER_INFER_WEIGHT_OPENER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/weights/weight_source.h"

namespace nibble {

using WeightOpener =
    std::function<absl::StatusOr<std::unique_ptr<WeightSource>>(const std::string& source)>;

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_WEIGHT_OPENER_H_
