// How a rank's process has ended, and whose fault that is: from its exit code or the signal that
// ended it to what the coordinator acts on.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_AGENT_RANK_END_H_
#define NIBBLE_WORKER_AGENT_RANK_END_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "proto/nibble/v1/job.pb.h"
#include "worker/agent/process_supervisor.h"
#include "worker/agent/reconcile.h"
#include "worker/trainer/link/trainer_exit.h"

namespace nibble {

struct RankEnd {
  RankState state = RankState::kFailed;                    // kSucceeded, kStopped or kFailed
  v1::FailureCause cause = v1::FAILURE_CAUSE_UNSPECIFIED;  // of kFailed
  std::string detail;                                      // of kFailed, for people
};

// `told_to_stop`: a rank that is told so before it can listen is ended by the signal, and nothing
// is lost.
RankEnd EndOf(int32_t rank, const ProcessExit& end, bool told_to_stop);

v1::FailureCause CauseOf(TrainerExit exit);

// Of an error of the daemon's own before the ranks could start: what WithExit says; without it,
// DataLoss is of the checkpoint's bytes and ResourceExhausted of the disk.
v1::FailureCause CauseOf(const absl::Status& status);

// What a program has written may be anything; a message is UTF-8. The last `most` bytes.
std::string Printable(std::string text, size_t most);

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_RANK_END_H_
