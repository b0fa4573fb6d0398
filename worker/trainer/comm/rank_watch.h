// Watches the operations of ranks on devices from a thread of its own, while the rank's own thread
// may be waiting for the device: a device that waits for a peer which is gone does not return.
//
// Ten times a second the ranks' watches tell one another, over a group of the hosts that only they
// use, which operation each device has begun and completed. So each knows which rank is lost (its
// connection closes), hangs (it does not answer) or has not arrived at an operation (it answers,
// but has not begun it within the timeout), and ends the operation with RankGroup::Abort(). The
// error is UNAVAILABLE or DEADLINE_EXCEEDED as collective.h says, and names the operation, its
// number, this rank and the missing rank.
//
// Ownership: owns the hosts' group and the thread; borrows the device's group from Watch() to
// Leave(), and the observer. Thread-safety: all methods from any thread, except that Leave() is
// called once.
#ifndef NIBBLE_WORKER_TRAINER_COMM_RANK_WATCH_H_
#define NIBBLE_WORKER_TRAINER_COMM_RANK_WATCH_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/mutex.h"
#include "kernels/ops/rank_group.h"
#include "worker/trainer/comm/collective.h"

namespace nibble {

// What a rank's watch tells the others.
struct WatchWords {
  uint64_t begun = 0;      // the last operation that its device has begun
  uint64_t completed = 0;  // and completed
  uint64_t state = 0;      // WatchState
  uint64_t missing = 0;    // if it failed: the rank that it misses, plus 1; 0: none

  static constexpr size_t kWords = 4;
  std::array<uint64_t, kWords> ToWords() const { return {begun, completed, state, missing}; }
  // words: [world, kWords]
  static std::vector<WatchWords> FromWords(std::span<const uint64_t> words);
};
enum WatchState : uint64_t { kWatchRuns, kWatchLeaves, kWatchFailed };

// What the ranks' words say about operation `number`, which this rank's device has begun and, for
// `waited` milliseconds, not completed. OK: it may still complete. `timeout_ms`: how long ranks
// may be late. Pure.
absl::Status JudgeOperation(std::span<const WatchWords> ranks, int rank, uint64_t number,
                            int64_t waited_ms, int64_t timeout_ms);

class RankWatch {
 public:
  struct Options {
    // An operation fails if ranks are missing, or if it makes no progress, for this long. That of
    // `hosts` should be the same.
    std::chrono::milliseconds timeout = std::chrono::seconds(60);
    std::chrono::milliseconds beat = std::chrono::milliseconds(100);
  };

  // `hosts`: a group of all ranks that nobody else uses; all of them make their watch.
  RankWatch(std::unique_ptr<Collective> hosts, const Options& options);
  // Leaves, if that has not been done.
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // From now on a failure aborts `group`.
  void Watch(RankGroup* group);
  // Before an operation of the device is enqueued. `name` has static lifetime. The error of the
  // group if it has failed, or if a rank has left it.
  absl::Status Enqueued(const char* name, uint64_t number);
  // Around an operation of the hosts, for the observer.
  void HostEntered(const char* name, uint64_t number);
  void HostLeft();

  // The first failure.
  absl::Status status() const;
  // Tells the others that this rank is done, and ends the watch. Waits, for a bounded time, until
  // its operations are complete and the others are done too: a device may still read this one's
  // memory until then.
  void Leave();

  // Null: none. Called from the watch's thread while an operation takes longer than a beat.
  void set_observer(CollectiveObserver* observer);

 private:
  using Clock = std::chrono::steady_clock;
  struct Named {
    const char* name;
    uint64_t number;
  };

  void Run();
  // One look, and one exchange of words while the ranks are `together`. False: the watch is over.
  bool Beat(bool& together);
  // The oldest operation that has not been completed, if the device has begun it.
  std::optional<Named> InFlight(RankGroup::Progress progress) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Describe(const Named& operation) const;
  // Names the operation in which the device is now: the last look at it may be older than the
  // exchange that failed.
  void Fail(const absl::Status& why, int missing);
  void TellObserver(const std::optional<Named>& operation);

  const std::unique_ptr<Collective> hosts_;
  const Options options_;

  mutable Mutex mutex_;
  CondVar changed_;
  RankGroup* group_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::deque<Named> enqueued_ ABSL_GUARDED_BY(mutex_);  // that were not completed when last seen
  std::optional<Named> host_operation_ ABSL_GUARDED_BY(mutex_);
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  absl::Status departed_ ABSL_GUARDED_BY(mutex_);  // a rank has left: what comes next must fail
  int missing_ ABSL_GUARDED_BY(mutex_) = -1;       // with failed_
  std::optional<Clock::time_point> leaving_since_ ABSL_GUARDED_BY(mutex_);

  // Held while the observer is called, so that one that was taken back is not called.
  Mutex observer_mutex_;
  CollectiveObserver* observer_ ABSL_GUARDED_BY(observer_mutex_) = nullptr;
  uint64_t observed_ ABSL_GUARDED_BY(observer_mutex_) = 0;  // the operation that it was told

  // Of the watch's thread.
  uint64_t waits_in_ = 0;  // the operation in flight at the last look; 0: none
  Clock::time_point waits_since_;
  std::vector<WatchWords> seen_;                 // by rank, of the last exchange
  std::optional<Clock::time_point> sick_since_;  // when the transport's error was first seen
  std::thread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_RANK_WATCH_H_
