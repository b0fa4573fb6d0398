// What the verbs of `nibble checkpoint` do on this machine: list, describe and verify the
// checkpoints of a run, export them to Hugging Face's layout, import weights in that layout.
//
// Ownership: none kept. Thread-safety: functions of the file system.
#ifndef NIBBLE_CLIENT_LOCAL_CHECKPOINT_FILES_H_
#define NIBBLE_CLIENT_LOCAL_CHECKPOINT_FILES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/weights/checkpoint_weights.h"

namespace nibble {

// Opens the store of a run's directory, or the store itself, of any job.
absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenStore(const std::string& directory,
                                                           bool read_only);

absl::StatusOr<std::string> ListCheckpoints(const std::string& directory, bool json);
// Describes the newest checkpoint if the name has no step.
absl::StatusOr<std::string> DescribeCheckpoint(const CheckpointName& name, bool json);
struct VerifyReport {
  std::string text;
  absl::Status status;  // DataLoss if a checksum differs
};
// Verifies all checkpoints if the name has no step.
absl::StatusOr<VerifyReport> VerifyCheckpoints(const CheckpointName& name, bool json);

struct ExportRequest {
  std::string source;     // DIRECTORY or DIRECTORY@STEP
  std::string directory;  // created
  std::string format = "safetensors";
  std::string dtype = "bf16";  // or fp32
  bool quantised = false;      // by the recipe in effect at the checkpoint
  std::string recipe;          // by this preset instead
  bool overwrite = false;
  bool json = false;
};
// Returns a summary as text or JSON; `notices` receives warnings.
absl::StatusOr<std::string> ExportCheckpoint(const ExportRequest& request,
                                             std::vector<std::string>& notices);

struct ImportRequest {
  std::string source;  // an exported model, or another run's checkpoint
  std::string spec;    // the job that starts from it
  bool json = false;
};
// As ExportCheckpoint.
absl::StatusOr<std::string> ImportWeights(const ImportRequest& request,
                                          std::vector<std::string>& notices);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_CHECKPOINT_FILES_H_
