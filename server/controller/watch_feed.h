// Clients' watches of jobs and their waits (WatchJobs and WaitJob in
// proto/nibble/v1/coordinator.proto): checks requests, makes the beginnings of watches from
// snapshots, and publishes each durable update to the WatchHub.
//
// Publishing costs the same for any number of watches and waits for no reader; readers are notified
// in the hub's thread, update by update in the journal's order.
//
// Thread-safety: all methods, except that updates are published in order, one at a time.
#ifndef NIBBLE_SERVER_CONTROLLER_WATCH_FEED_H_
#define NIBBLE_SERVER_CONTROLLER_WATCH_FEED_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "proto/nibble/v1/metrics.pb.h"
#include "server/controller/controller_context.h"
#include "server/controller/watch_hub.h"
#include "server/state/state.h"

namespace nibble {

class WatchFeed {
 public:
  explicit WatchFeed(const ControllerContext& context)
      : context_(context), hub_(context.options.watches) {}

  // The reader closes its watch. `notify`: see WatchHub::RequestTurn.
  absl::StatusOr<std::shared_ptr<Watch>> Open(const v1::WatchJobsRequest& request,
                                              std::function<void()> notify);
  void Close(const std::shared_ptr<Watch>& watch) { hub_.Close(watch); }
  // Requests one call of the watch's `notify`, once it has something to read or is over.
  void RequestTurn(const std::shared_ptr<Watch>& watch) { hub_.RequestTurn(watch); }

  // Calls `done` once, perhaps before this returns. A result above 0 is for EndWait, after which
  // `done` may still be running.
  int64_t Wait(const v1::WaitJobRequest& request, std::function<void(absl::Status)> done);
  void EndWait(int64_t number) { hub_.EndWait(number); }

  // The state from which updates are published from here on.
  void Begin(const State& state);
  void SetStore(const v1::StoreIdentity& store) { hub_.SetStore(store); }
  // Publishes a durable update: new events, by their keys, and changed jobs.
  // Ends the waits that it decides.
  void Publish(const State& after, std::vector<std::string> events,
               const std::set<std::string>& jobs);
  void PublishSamples(const std::string& job, const std::vector<v1::StepSample>& samples);

  void CutStalled(int64_t now_ms) { hub_.CutStalled(now_ms); }
  WatchHub::Counts Count() const { return hub_.Count(); }
  void Settle() { hub_.Settle(); }

 private:
  const ControllerContext& context_;
  WatchHub hub_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_WATCH_FEED_H_
