// `nibble job watch` of a run without a cluster: what its event log records, as the watch shows
// jobs. The log has no word of the process: a run that was killed looks like one whose step takes
// long.
//
// Ownership: a RunState borrows the watch's state. Thread-safety: none.
#ifndef NIBBLE_CLIENT_REMOTE_RUN_WATCH_H_
#define NIBBLE_CLIENT_REMOTE_RUN_WATCH_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/remote/verb.h"
#include "client/remote/watch_state.h"
#include "model/outline.h"
#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/metrics.pb.h"
#include "worker/trainer/report/run_event.h"

namespace nibble {

// Turns the events of a log, one by one, into the state of a watch.
class RunState {
 public:
  // `name`: of the run, which has no id.
  RunState(const std::string& name, WatchState& state);

  // What the event adds to the display: an event of the job's life, or a sample.
  struct Shown {
    std::optional<v1::JobEvent> event;
    bool sample = false;
  };
  Shown Add(const RunEvent& event);

 private:
  std::optional<v1::JobEvent> Start(const RunEvent& event);
  std::optional<v1::JobEvent> Revise(const RunEvent& event);
  v1::JobEvent EventOf(const RunEvent& event, v1::JobEventKind kind, const std::string& text);
  // Adds an operand's statistics to the summary of its step.
  void Summarise(const RunEvent& event);
  void End(const RunEvent& event, v1::JobState state, const std::string& reason);

  WatchState& state_;
  v1::Job job_;
  int64_t events_ = 0;
  std::optional<Outline> outline_;
  v1::PrecisionSummary precision_;  // of the newest sampled step
  std::vector<v1::RecipeRevision> revisions_;
  std::map<int64_t, GemmBits> bits_;
};

// Follows the log in `directory` until the run ends. The exit code is that of a job in that state.
absl::StatusOr<Reply> WatchRun(Session& session, const std::string& directory,
                               const std::string& name);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_RUN_WATCH_H_
