// Posts events of jobs to the URLs in their specs, from a few threads of its own: no change, report
// or plan waits for a receiver. PostPlan and the state decide what is posted; the Notifier adds
// threads, clock and network.
//
// Delivery is at least once. An event is settled in the store after its receiver answered 2xx, or
// after it was given up; a coordinator that ends in between posts it again after its restart, with
// the same id in the body.
//
// Ownership: borrows the controller, which outlives it; owns its threads. The destructor ends
// current posts. Thread-safety: all methods.
#ifndef NIBBLE_SERVER_NOTIFY_NOTIFIER_H_
#define NIBBLE_SERVER_NOTIFY_NOTIFIER_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "server/controller/controller.h"
#include "server/notify/allow_list.h"
#include "server/notify/http_post.h"
#include "server/notify/post_plan.h"

namespace nibble {

class Notifier {
 public:
  struct Options {
    AllowList allow;
    std::string secret;  // signs bodies; empty: no signature
    PostPlan::Options plan;
    std::chrono::milliseconds limit{10'000};  // of one post
    int threads = 4;                          // concurrent posts
  };

  Notifier(Controller& controller, Options options);
  ~Notifier();
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  // Starts the posts that have become due, by a change of the state or the end of a back-off.
  // Called with each tick of the coordinator; does not wait.
  void Tick();

 private:
  void Run();
  PostPlan::Turn NextTurn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  PostResult Send(const PlannedPost& post) const;
  void LogFailure(const PlannedPost& post, const PostResult& result, bool first_failure);
  void Store(const std::vector<v1::PostsSettled>& settled);

  Controller& controller_;
  const Options options_;
  Cancel cancel_;

  Mutex mutex_;
  CondVar changed_;
  PostPlan plan_ ABSL_GUARDED_BY(mutex_);
  bool due_ ABSL_GUARDED_BY(mutex_) = true;  // some thread must take a turn
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t planned_sequence_ ABSL_GUARDED_BY(mutex_) = -1;  // of the state of the last turn
  int64_t wait_until_ms_ ABSL_GUARDED_BY(mutex_) = 0;      // PostPlan::Turn of the last turn
  int64_t storing_ ABSL_GUARDED_BY(mutex_) = 0;            // unanswered calls of Store
  std::vector<std::thread> threads_;                       // last: they use the above
};

// The secret in a file, without trailing newlines. InvalidArgument, naming the file: it is empty or
// has more than 4096 bytes. The errors of ErrnoError if it cannot be read.
absl::StatusOr<std::string> ReadSecret(const std::string& path);

}  // namespace nibble

#endif  // NIBBLE_SERVER_NOTIFY_NOTIFIER_H_
