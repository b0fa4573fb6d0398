// Posts events of jobs to the URLs that their specs name, from a few threads of its own: no change,
// report or plan waits for a receiver. Everything that decides is in PostPlan and in the state;
// here are the threads, the clock and the network.
//
// At least once. An event is settled in the store after its receiver has answered 2xx, or after it
// was given up; a coordinator that ends in between posts it again after its restart, with the same
// id in the body.
//
// Ownership: borrows the controller, which outlives it; owns its threads. The destructor ends posts
// under way. Thread-safety: all methods.
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
    std::string secret;  // signs bodies; empty: they are not signed
    PostPlan::Options plan;
    std::chrono::milliseconds limit{10'000};  // of one post
    int threads = 4;                          // posts under way
  };

  Notifier(Controller& controller, Options options);
  ~Notifier();
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  // Posts what has become due: where the state has changed since the last look, or a back-off is
  // over. Waits for nothing; called with each tick of the coordinator.
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
  bool due_ = true;  // some thread is to take a turn
  bool ending_ = false;
  int64_t looked_at_ = -1;            // sequence of the state of the last turn
  int64_t wait_until_ms_ = 0;         // as it said
  int64_t storing_ = 0;               // calls of Store that were not answered
  std::vector<std::thread> threads_;  // last
};

// The secret in a file: all of it but ends of line at its end. InvalidArgument naming the file
// where it is empty or over 4096 bytes; NotFound.
absl::StatusOr<std::string> ReadSecret(const std::string& path);

}  // namespace nibble

#endif  // NIBBLE_SERVER_NOTIFY_NOTIFIER_H_
