// Checkpoints out to Hugging Face's layout, and weights in that layout in as the beginning of a
// run.
//
// Ownership: none kept. Thread-safety: functions of the file system.
#ifndef NIBBLE_CLIENT_LOCAL_CHECKPOINT_TRANSFER_H_
#define NIBBLE_CLIENT_LOCAL_CHECKPOINT_TRANSFER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble {

struct ExportRequest {
  std::string source;     // DIRECTORY or DIRECTORY@STEP
  std::string directory;  // to be made
  std::string format = "safetensors";
  std::string dtype = "bf16";  // or fp32
  bool quantised = false;      // by the recipe in force at the checkpoint
  std::string recipe;          // by this preset instead
  bool overwrite = false;
  bool json = false;
};
// What was done, in words or as JSON; `notices` says what was passed over.
absl::StatusOr<std::string> ExportCheckpoint(const ExportRequest& request,
                                             std::vector<std::string>& notices);

struct ImportRequest {
  std::string source;  // an exported model, or another run's checkpoint
  std::string spec;    // the job that begins from it
  bool json = false;
};
// As ExportCheckpoint.
absl::StatusOr<std::string> ImportWeights(const ImportRequest& request,
                                          std::vector<std::string>& notices);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_CHECKPOINT_TRANSFER_H_
