// Posts events of jobs to the URLs in their specs, from a few threads of its own: no change, report
// or plan waits for a receiver. PostPlan and the state decide; the Notifier adds threads, clock and
// network.
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
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
  // With mutex_ held.
  PostPlan::Turn NextTurn();
  PostResult Send(const PlannedPost& post) const;
  void Store(std::vector<v1::PostsSettled> settled);

  Controller& controller_;
  const Options options_;
  Cancel cancel_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  PostPlan plan_;
  bool due_ = true;  // some thread must take a turn
  bool ending_ = false;
  int64_t looked_at_ = -1;            // sequence of the state of the last turn
  int64_t wait_until_ms_ = 0;         // as that turn reported
  int64_t storing_ = 0;               // unanswered calls of Store
  std::vector<std::thread> threads_;  // last
};

// The secret in a file, without trailing newlines. InvalidArgument, naming the file: empty or over
// 4096 bytes. NotFound: cannot read it.
absl::StatusOr<std::string> ReadSecret(const std::string& path);

}  // namespace nibble

#endif  // NIBBLE_SERVER_NOTIFY_NOTIFIER_H_
