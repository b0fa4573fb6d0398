// The one way by which the coordinator's state changes, and the only owner of State:
//
//   decide (pure) → Validate → Store::Append → Apply → acknowledge and tell others
//
// Two states. A decision must see every decision before it, also those whose write is still on its
// way; a reader must see none that a crash could take back. So there are two: `decided`, which has
// an update as soon as it is appended, and `shown`, which is what `decided` was after the newest
// update that is durable. Both are snapshots that nothing changes and that share what they have in
// common (server/state/persistent.h).
//
// Two orders of waiting. One lock is held from the decision to Append, which never waits for the
// disk: so the order of `decided`, of the journal and of `shown` is one order, and update N is the
// store's batch N. No lock is held while the disk works; callers that decide meanwhile share the
// next synced write. And none is held while somebody reads: whatever is asked of a snapshot, for
// however long, delays no change.
//
// An answer waits until all that it was decided on is durable: also one that changes nothing, is a
// refusal, or repeats an earlier answer. So nobody is told of what a crash takes back. By the time
// of an answer `shown` has the update.
//
// Failure. Where the store stops, or an update cannot be applied that was found valid, the ledger
// stops: every answer that waits is Unavailable, every later change is, and Hooks::stopped is
// called once, before those answers. What is shown stays readable. The process is to end; the next
// one finds in the store what became of the writes (server/store/store.h).
//
// Ownership: borrows the store, which outlives it and whose callbacks are over when it is destroyed
// (the destructor waits for them). Thread-safety: all methods. `decide` runs under the lock and
// calls nothing of the ledger; `then` and Hooks::stopped run without a lock, in the caller's thread
// or the store's, and may call Change and Shown but must not wait for an answer; Hooks::applied
// runs when `shown` has the update, in the order of the journal, and delays the updates after it.
#ifndef NIBBLE_SERVER_CONTROLLER_LEDGER_H_
#define NIBBLE_SERVER_CONTROLLER_LEDGER_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/nibble/v1/update.pb.h"
#include "server/state/decide_gang.h"
#include "server/state/state.h"
#include "server/store/store.h"

namespace nibble {

class Ledger {
 public:
  using Deciding = absl::FunctionRef<MaybeUpdate(const State& decided)>;
  using Then = absl::AnyInvocable<void(absl::Status)>;
  // What one update changed, by kind and key, and the state after it.
  struct Applied {
    const std::shared_ptr<const State>& state;
    const v1::Update& update;
    // (kind, key) of each entity that it wrote or erased.
    const std::vector<std::pair<v1::EntityKind, std::string>>& changed;
  };
  struct Hooks {
    // What it returns runs afterwards, without a lock; it may be empty.
    std::function<std::function<void()>(const Applied&)> applied;
    std::function<void(const absl::Status&)> stopped;
  };

  // Loads what the store holds. DataLoss where it is no state, or ends before its journal.
  static absl::StatusOr<std::unique_ptr<Ledger>> Open(Store& store, Hooks hooks);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // `then` gets the decision's status once what it was decided on is durable. Unavailable: the
  // ledger has stopped, or as much as may wait for the disk does.
  void Change(Deciding decide, Then then);
  // Change, and waits. Not from `then`, Hooks::applied or a callback of the store.
  absl::Status ChangeAndWait(Deciding decide);

  // A snapshot of what is durable.
  std::shared_ptr<const State> Shown() const {
    std::lock_guard lock(shown_mutex_);
    return shown_;
  }
  // A snapshot of what is decided: for plans, whose every step is decided again.
  std::shared_ptr<const State> Decided() const {
    std::lock_guard lock(mutex_);
    return decided_;
  }
  // f(snapshot), which may return nothing that the snapshot owns.
  template <class F>
  auto Read(F f) const {
    return f(*Shown());
  }
  template <class F>
  auto ReadDecided(F f) const {
    return f(*Decided());
  }
  // f(decided) while nothing is decided: for what decisions are to find said.
  template <class F>
  auto BetweenDecisions(F f) const {
    std::lock_guard lock(mutex_);
    return f(*decided_);
  }

  // OK, or why it has stopped.
  absl::Status Health() const;
  // Waits until no change is under way.
  void Settle();
  // No change is accepted from here on; waits for those under way.
  void Close();

 private:
  Ledger(Store& store, Hooks hooks, State state);

  // An update on its way to the disk.
  struct UnderWay {
    v1::Update update;
    std::vector<std::pair<v1::EntityKind, std::string>> changed;
    std::shared_ptr<const State> after;
  };

  absl::Status Append(v1::Update update);  // with mutex_ held
  void Durable(const UnderWay& under_way, const absl::Status& status);
  void Stop(const absl::Status& status);

  Store& store_;
  const Hooks hooks_;

  mutable std::mutex mutex_;
  std::condition_variable idle_;
  // Guarded by mutex_.
  std::shared_ptr<const State> decided_;
  int64_t durable_;        // sequence
  int64_t under_way_ = 0;  // callbacks of the store that are still to come
  std::map<int64_t, std::vector<std::pair<absl::Status, Then>>> waiting_;  // by sequence
  absl::Status health_;
  bool closed_ = false;

  mutable std::mutex shown_mutex_;      // held to copy or to set the pointer, and for nothing else
  std::shared_ptr<const State> shown_;  // guarded by shown_mutex_

  std::once_flag
      stopped_;  // Hooks::stopped was called, before anybody is told that the store failed
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_LEDGER_H_
