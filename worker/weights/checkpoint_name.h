// "DIRECTORY" or "DIRECTORY@STEP": how a checkpoint is named on a command line.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_WORKER_WEIGHTS_CHECKPOINT_NAME_H_
#define NIBBLE_WORKER_WEIGHTS_CHECKPOINT_NAME_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace nibble {

struct CheckpointName {
  std::string directory;
  std::optional<int64_t> step;  // none: the newest
};

// What follows the last '@' is the step where it is digits; a directory may have an '@' in its name
// otherwise. InvalidArgument for no directory or a step beyond 64 bits.
absl::StatusOr<CheckpointName> ParseCheckpointName(std::string_view text);

}  // namespace nibble

#endif  // NIBBLE_WORKER_WEIGHTS_CHECKPOINT_NAME_H_
