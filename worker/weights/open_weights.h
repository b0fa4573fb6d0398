// Opens what a user names as a model's weights.
//
//   DIRECTORY          a run's output directory or its checkpoint store: the newest good checkpoint;
//                      a directory with a config.json: an exported model
//   DIRECTORY@STEP     the checkpoint of that step
//
// Ownership: the caller's. Thread-safety: pure function of the file system.
#ifndef NIBBLE_WORKER_WEIGHTS_OPEN_WEIGHTS_H_
#define NIBBLE_WORKER_WEIGHTS_OPEN_WEIGHTS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/weights/weight_source.h"

namespace nibble {

// NotFound where there is neither; otherwise as CheckpointWeights::Open and HfWeights::Open.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenWeights(const std::string& source);

}  // namespace nibble

#endif  // NIBBLE_WORKER_WEIGHTS_OPEN_WEIGHTS_H_
