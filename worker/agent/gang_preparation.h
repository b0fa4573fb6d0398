// What comes before the ranks of a gang can start, in a thread of its own: every shard of the
// checkpoint that they begin from is brought here and checked, and workers of one gang agree that
// all are ready.
//
// A source that does not answer is tried again until the preparation is called off; damage that no
// source can heal ends it with DataLoss.
//
// Ownership: borrows what Means names; owns a thread. Its lease keeps the checkpoint until it is
// destroyed, so let it live as long as the ranks. Thread-safety: all methods from any thread.
#ifndef NIBBLE_WORKER_AGENT_GANG_PREPARATION_H_
#define NIBBLE_WORKER_AGENT_GANG_PREPARATION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/checkpoint_desk.h"
#include "worker/agent/damage_reports.h"
#include "worker/agent/link_security.h"
#include "worker/agent/meeting_points.h"
#include "worker/agent/shard_fetcher.h"

namespace nibble {

class GangPreparation {
 public:
  struct Means {
    CheckpointDesk* desk = nullptr;
    ShardFetcher* fetcher = nullptr;
    DamageReports* damage = nullptr;
    std::string worker;  // this one's name
    MeetingPoints* meetings = nullptr;
    LinkSecurity security;
    std::function<void()> changed;
    std::function<void(const std::string&)> log;
  };
  // `rendezvous`: of a gang that is all here; empty where it is not.
  GangPreparation(v1::DesiredGang gang, std::string rendezvous, Means means);
  // Calls it off.
  ~GangPreparation();
  GangPreparation(const GangPreparation&) = delete;
  GangPreparation& operator=(const GangPreparation&) = delete;

  // The rendezvous of the ranks, or why there is none; nullopt: not yet.
  std::optional<absl::StatusOr<std::string>> result() const;
  // How far it is, for people.
  std::string progress() const;
  void Cancel() { cancellation_.Cancel(); }
  // Who has the shards, as the coordinator knows it now.
  void Update(const v1::DesiredGang& gang);

 private:
  void Run();
  absl::Status BringCheckpoint();
  // Shards whose bytes here are not right are no longer held.
  absl::Status CheckHeld();
  absl::Status BringShard(int32_t rank);
  void Tell(const std::string& progress);

  const v1::DesiredGang gang_;
  const std::string rendezvous_;
  const Means means_;
  CheckpointDesk::Lease lease_;
  Cancellation cancellation_;
  std::set<int32_t> given_up_;  // ranks whose shards here were damaged; the thread's

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::map<int32_t, v1::DesiredReplica> shards_;  // to resume from, by rank
  std::string progress_;
  std::optional<absl::StatusOr<std::string>> result_;
  std::thread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_GANG_PREPARATION_H_
