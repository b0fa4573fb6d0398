// What the cluster has recorded of a job's training, from every place that has a part of it: the
// event logs of the workers that ran rank 0, each with the steps of its attempts, and the samples
// that the coordinator keeps until it restarts. Says which steps no place has.
//
// Ownership: values; calls borrow the session. Thread-safety: none.
#ifndef NIBBLE_CLIENT_REMOTE_JOB_RECORDING_H_
#define NIBBLE_CLIENT_REMOTE_JOB_RECORDING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/remote/verb.h"
#include "client/report/run_events.h"
#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/metrics.pb.h"

namespace nibble {

struct RecordingOptions {
  // Without the logs if the coordinator has a sample of every logged step.
  bool only_losses = false;
  bool with_precision = false;
  // How long an absent worker is waited for; unset: --timeout.
  std::optional<absl::Duration> patience = std::nullopt;
};

struct JobRecording {
  RunRecord record;
  std::vector<std::string> notes;  // what is missing, and why
  int64_t missing = 0;             // logged steps that no place has
  bool worker_away = false;        // a worker with a log does not answer
};

// The job as it is now. Errors are the coordinator's; what a worker does not give is a note.
absl::StatusOr<JobRecording> ReadRecording(Session& session, const v1::Job& job,
                                           const RecordingOptions& options);

// The losses by step, with their tokens.
std::vector<v1::StepSample> LossSamples(const RunRecord& record);

struct StepGap {
  int64_t first = 0, last = 0;  // steps
  int64_t count = 0;            // logged steps from first to last
  friend bool operator==(const StepGap&, const StepGap&) = default;
};
// The steps in [first, end) that a log has, every `log_every`-th and `last`, and the record lacks.
std::vector<StepGap> MissingSteps(const RunRecord& record, int64_t first, int64_t end,
                                  int64_t log_every, int64_t last);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_JOB_RECORDING_H_
