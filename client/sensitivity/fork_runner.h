// Runs the forks of an experiment on a cluster: finds those that exist already, submits the others
// a few at a time, waits for their ends, and reads their losses.
//
// The scheduler decides where and when they run; their priority is low, so that they use slots that
// nothing else wants. Until the experiment is complete its checkpoint is pinned, by an author of
// its own, so that retention does not delete it between two forks.
//
// Ownership: borrows the session. Thread-safety: none.
#ifndef NIBBLE_CLIENT_SENSITIVITY_FORK_RUNNER_H_
#define NIBBLE_CLIENT_SENSITIVITY_FORK_RUNNER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/remote/verb.h"
#include "client/sensitivity/fork_plan.h"
#include "client/sensitivity/ranking.h"
#include "proto/nibble/v1/job.pb.h"

namespace nibble {

// The forks of a job by name; of several with one name the oldest that was not cancelled.
using ForksByName = std::map<std::string, v1::Job>;
absl::StatusOr<ForksByName> FindForks(Session& session, const std::string& parent);

struct ForkRunOptions {
  int at_once = 4;       // most unfinished forks
  int32_t priority = 0;  // of the forks
};

struct ForkRun {
  bool complete = false;            // false: the wait ended before
  std::vector<ForkResult> results;  // of the finished forks
};

// Returns when every fork has ended, when --timeout has passed, or when Ctrl-C detaches; running
// the same experiment again continues it. `parent` is the job as it is now.
absl::StatusOr<ForkRun> RunForks(Session& session, const v1::Job& parent,
                                 const Experiment& experiment, const ForkRunOptions& options);

// Kills the unfinished forks of every experiment of the job and unpins their checkpoints. Returns
// the number of killed forks.
absl::StatusOr<int64_t> StopForks(Session& session, const std::string& parent);

// The lines of the job's event log, the last `tail` of them.
absl::StatusOr<std::vector<std::string>> ReadEventLines(Session& session, const std::string& job,
                                                        int32_t tail);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_SENSITIVITY_FORK_RUNNER_H_
