// The only path by which the coordinator's state changes, and the only owner of State:
//
//   decide (pure) → Validate → Store::Append → Apply → acknowledge and notify
//
// Two states. A decision must see every earlier decision, even those whose write is under way; a
// reader must see none that a crash could take back. So there are two: `decided`, which has an
// update as soon as it is appended, and `shown`, which is `decided` as of the newest durable
// update. Both are immutable snapshots that share their common parts (PersistentMap).
//
// Locks. One lock is held from the decision to Append, which never waits for the disk. So
// `decided`, the journal and `shown` have one order, and update N is the store's batch N. No lock
// is held during disk writes; decisions made meanwhile share the next synced write. No lock is held
// while somebody reads a snapshot: slow readers delay no change.
//
// Answers. An answer waits until everything that it was decided on is durable, even if it changes
// nothing, refuses, or repeats an earlier answer. So no client learns what a crash takes back. By
// the time of an answer `shown` has the update.
//
// Failure. If the store stops, or a valid update cannot be applied, the ledger stops: all waiting
// answers and all later changes are Unavailable, and Hooks::stopped is called once, before those
// answers. `shown` stays readable. The process must end; the next one finds in
// the store which writes were done (server/store/store.h).
//
// Ownership: borrows the store, which outlives it; the destructor waits for the store's callbacks.
// Thread-safety: all methods. `decide` runs under the lock and must not call the ledger. The hooks
// and `then` run without a lock, in the caller's thread or the store's; they may call Change and
// Shown but must not wait for an answer. Hooks::applied runs once `shown` has the update, in the
// order of the journal, and delays the updates after it.
#ifndef NIBBLE_SERVER_CONTROLLER_LEDGER_H_
#define NIBBLE_SERVER_CONTROLLER_LEDGER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "proto/nibble/v1/update.pb.h"
#include "server/state/decide.h"
#include "server/state/state.h"
#include "server/store/store.h"

namespace nibble {

class Ledger {
 public:
  using Deciding = absl::FunctionRef<MaybeUpdate(const State& decided)>;
  using Then = absl::AnyInvocable<void(absl::Status)>;
  // An update, the entities it changed, and the state after it.
  struct Applied {
    const std::shared_ptr<const State>& state;
    const v1::Update& update;
    // (kind, key) of each entity written or erased.
    const std::vector<std::pair<v1::EntityKind, std::string>>& changed;
  };
  struct Hooks {
    std::function<void(const Applied&)> applied;
    std::function<void(const absl::Status&)> stopped;
  };

  // Loads the state from the store. DataLoss: it is not a state, or is older than its journal.
  static absl::StatusOr<std::unique_ptr<Ledger>> Open(Store& store);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // Called once, before the first change. Without it there are no hooks.
  void SetHooks(Hooks hooks) { hooks_ = std::move(hooks); }

  // `then` gets the decision's status once everything that it was decided on is durable.
  // Unavailable: the ledger has stopped, or too much waits for the disk.
  void Change(Deciding decide, Then then);
  // As Change, but waits. Must not be called from `then`, Hooks::applied or a callback of the
  // store.
  absl::Status ChangeAndWait(Deciding decide);
  // A change that nobody waits for; refusals are logged as `what`.
  void ChangeUnawaited(Deciding decide, const std::string& what);

  // A snapshot of the durable state.
  std::shared_ptr<const State> Shown() const {
    MutexLock lock(&shown_mutex_);
    return shown_;
  }
  // A snapshot of the decided state: for plans, whose steps are decided again.
  std::shared_ptr<const State> Decided() const {
    MutexLock lock(&mutex_);
    return decided_;
  }
  // f(snapshot). Its result must not refer to the snapshot.
  template <class F>
  auto Read(F f) const {
    return f(*Shown());
  }
  template <class F>
  auto ReadDecided(F f) const {
    return f(*Decided());
  }
  // f(decided) under the lock: later decisions see its effects.
  template <class F>
  auto BetweenDecisions(F f) const {
    MutexLock lock(&mutex_);
    return f(*decided_);
  }

  // OK, or why the ledger has stopped.
  absl::Status Health() const;
  // Waits until no change is under way.
  void Settle();
  // Accepts no more changes; waits for those under way.
  void Close();

 private:
  Ledger(Store& store, std::shared_ptr<const State> state);

  // An update on its way to the disk.
  struct UnderWay {
    v1::Update update;
    std::vector<std::pair<v1::EntityKind, std::string>> changed;
    std::shared_ptr<const State> after;
  };

  absl::Status Append(v1::Update update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void HandleStored(const UnderWay& under_way, const absl::Status& status);
  void Stop(const absl::Status& status);
  void WaitUntilIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Store& store_;
  Hooks hooks_;  // constant from the first change on

  mutable Mutex mutex_;
  CondVar idle_;
  std::shared_ptr<const State> decided_ ABSL_GUARDED_BY(mutex_);
  int64_t durable_ ABSL_GUARDED_BY(mutex_);        // sequence
  int64_t under_way_ ABSL_GUARDED_BY(mutex_) = 0;  // callbacks that the store still owes
  using Waiting = std::map<int64_t, std::vector<std::pair<absl::Status, Then>>>;
  Waiting waiting_ ABSL_GUARDED_BY(mutex_);  // by sequence
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;       // a thread is in or past Stop
  bool stop_reported_ ABSL_GUARDED_BY(mutex_) = false;  // Hooks::stopped has returned
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;

  mutable Mutex shown_mutex_;  // held only to copy or set the pointer
  std::shared_ptr<const State> shown_ ABSL_GUARDED_BY(shown_mutex_);
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_LEDGER_H_
