// What is told of a run's checkpoints: a line each, one at length, or what is wrong with their
// bytes. As text for people or JSON for programs.
//
// Ownership: none kept. Thread-safety: functions of the file system.
#ifndef NIBBLE_CLIENT_LOCAL_CHECKPOINT_REPORT_H_
#define NIBBLE_CLIENT_LOCAL_CHECKPOINT_REPORT_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/weights/checkpoint_name.h"

namespace nibble {

// The store that a name means (a run's directory, or the store itself), whosever it is.
absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenStore(const std::string& directory,
                                                           bool read_only);

absl::StatusOr<std::string> ListCheckpoints(const std::string& directory, bool json);
// Without a step, the newest.
absl::StatusOr<std::string> DescribeCheckpoint(const CheckpointName& name, bool json);
struct VerifyReport {
  std::string text;
  absl::Status status;  // DataLoss where a byte is wrong
};
// Without a step, all of them.
absl::StatusOr<VerifyReport> VerifyCheckpoints(const CheckpointName& name, bool json);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_CHECKPOINT_REPORT_H_
