// Runs one gang in a thread of its own, so that slow files, its launch and its end delay no other
// gang, and publishes snapshots of it.
//
// Orders return at once; the thread carries them out one after the other. Repeating DumpStacks or
// Kill has no effect. After each order and each Refresh the thread publishes a snapshot, and calls
// GangHome::changed if a state, a revision or a refusal is new.
//
// Ownership: owns the gang and its thread; borrows GangHome. Thread-safety: snapshot(),
// TakeReport(), closing() and closed() from any thread; the other methods from one thread. None
// waits, except Abandon() and the destructor.
#ifndef NIBBLE_WORKER_AGENT_GANG_RUNNER_H_
#define NIBBLE_WORKER_AGENT_GANG_RUNNER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "common/mutex.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/desired_state.h"
#include "worker/agent/gang.h"
#include "worker/agent/task_thread.h"

namespace nibble {

class GangRunner {
 public:
  // Samples kept for TakeReport; beyond them the oldest are dropped.
  static constexpr int kMaxSamples = 256;

  // Begins to prepare the gang as `store` orders it. If `refusal` is not OK the gang is not started
  // and reported as failed for that reason.
  GangRunner(const v1::DesiredGang& desired, const v1::StoreIdentity& store, const GangHome& home,
             const absl::Status& refusal);
  // Every rank has ended, or Abandon was called.
  ~GangRunner();
  GangRunner(const GangRunner&) = delete;
  GangRunner& operator=(const GangRunner&) = delete;

  // The gang, and the store that it belongs to now.
  const GangOrigin& origin() const { return origin_; }
  std::string Name() const;  // for people

  // Never null.
  std::shared_ptr<const GangSnapshot> snapshot() const;
  // For Reconcile: the snapshot's, with the orders that the thread has yet to carry out. Where
  // ranks are kept, those of a gang with ranks on other workers are spared from the first Refresh
  // without an order on: a rank there may be lost.
  PresentGang present() const;
  // The snapshot's report, with the samples of the steps since the last call.
  v1::GangReport TakeReport();

  // A restored store knows the gang: it belongs to that store from now on.
  void Follow(const v1::StoreIdentity& store) { origin_.store = store; }
  // Observes the gang and lets it advance. `desired`: the present order, null if there is none.
  void Refresh(const v1::DesiredGang* desired);
  // Records the order durably as one of the gang's store.
  void Record(const v1::DesiredGang& desired);
  void Send(const v1::DesiredGang& desired);
  void DumpStacks(int32_t rank, const std::string& reason);
  void Kill(int32_t rank, const std::string& reason);
  // From any thread: the ranks trace their next steps; their reports in the snapshot tell when.
  void Trace(const link::v1::TraceCommand& trace);

  // Ends the gang, whose ranks have ended: its checkpoints are finished or dropped.
  void Close();
  bool closing() const;
  bool closed() const;

  // The daemon is shutting down: waits for the order that the thread carries out and drops the
  // others. The supervisor ends the ranks.
  void Abandon();

 private:
  void Publish();

  const GangHome& home_;
  GangOrigin origin_;
  std::unique_ptr<Gang> gang_;  // used by the thread alone
  // Orders given, whether carried out or not.
  std::optional<GangOrder> sent_;
  std::set<int32_t> killed_;
  std::set<int32_t> dumped_;
  const bool spares_;                         // its ranks are kept, and others are elsewhere
  std::optional<int64_t> unwanted_since_ms_;  // there has been no order for it

  mutable Mutex mutex_;
  std::shared_ptr<const GangSnapshot> snapshot_ ABSL_GUARDED_BY(mutex_);
  google::protobuf::RepeatedPtrField<v1::StepSample> samples_ ABSL_GUARDED_BY(mutex_);  // not taken
  // State of the Refresh that the thread has not begun.
  bool refreshing_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const v1::DesiredGang> desired_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  TaskThread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_GANG_RUNNER_H_
