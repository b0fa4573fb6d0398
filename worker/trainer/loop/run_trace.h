// Traces of a run's steps: records a few of them and passes the trace on, to a file or to whoever
// requested it.
//
// A traced step is enqueued operation by operation, with events around each, so it is slower than
// others by the gaps that a recorded pass does not have; its results are the same.
//
// Ownership: borrows device and collective, whose tracer it is. Thread-safety: one thread, that of
// the run.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_RUN_TRACE_H_
#define NIBBLE_WORKER_TRAINER_LOOP_RUN_TRACE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/link/rank_link.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/loop/rank_status.h"
#include "worker/trainer/loop/trainer.h"
#include "worker/trainer/model/device.h"
#include "worker/trainer/trace/chrome_trace.h"
#include "worker/trainer/trace/trace_recorder.h"

namespace nibble {

class RunTrace {
 public:
  // Receives the events of a trace (ChromeEvents()), or why there are none. Its error becomes a
  // notice of the run.
  using Receiver = std::function<absl::Status(const absl::StatusOr<std::string>& events)>;

  RunTrace(const Device& device, Collective& collective);
  ~RunTrace();
  RunTrace(const RunTrace&) = delete;
  RunTrace& operator=(const RunTrace&) = delete;

  // The device that the run computes on.
  Device device() { return traced_.device(); }

  // Traces `steps` steps, after `after` further ones, in place of any trace requested before.
  void Request(int64_t after, int64_t steps, Receiver receiver);
  // The trace goes to a file that the ranks of a machine share.
  void TraceToFile(const std::string& path, int64_t after, int64_t steps);

  // What the link's process requests; its outcome goes into the status. Nulls: no link.
  void TakeRequest(RankLink* link, RankStatus* status);

  // Before and after each step, its boundary included. An error of AfterStep() is the trace's, not
  // the run's.
  absl::Status BeforeStep(Trainer& trainer);
  absl::Status AfterStep(Trainer& trainer);
  // After the last step: FailedPrecondition if it came before those to trace, of which the receiver
  // then gets none.
  absl::Status End();

  // Runs something of the host, which becomes a span.
  template <class Run>
  auto Host(const char* name, Run&& run) {
    if (!recorder_.active()) return run();
    const double begin = recorder_.now();
    auto result = run();
    recorder_.AddHost(name, begin, recorder_.now());
    return result;
  }

 private:
  absl::Status AddParts(Trainer& trainer);
  absl::StatusOr<std::string> Finish();

  Collective& collective_;
  TraceRecorder recorder_;
  TracedDevice traced_;
  int64_t after_ = 0;  // steps before the first traced one
  int64_t left_ = 0;   // steps to trace; 0: none
  int64_t first_step_ = 0;
  std::vector<TraceSpan> parts_;
  Receiver receiver_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_RUN_TRACE_H_
