// Preparations for the start of a gang's ranks. GangPreparation, in its own thread, fetches and
// checks every shard of the checkpoint that the ranks resume from, and then waits until all workers
// of the gang are ready. MeetingPoints serves a rendezvous for each gang whose rank 0 is here, and
// gives its address to the other workers of the gang (nibble.v1.GangMeeting). The daemons meet
// there first, so that no rank waits for one whose worker is still fetching.
//
// A source that does not answer is tried again until the preparation is cancelled; damage without
// an intact copy elsewhere ends it with DataLoss.
//
// Ownership: MeetingPoints owns the rendezvous servers. GangPreparation borrows GangHome and owns
// a thread; its lease keeps the checkpoint until it is destroyed, so it must live as long as the
// ranks. Thread-safety: all methods from any thread.
#ifndef NIBBLE_WORKER_AGENT_GANG_PREPARATION_H_
#define NIBBLE_WORKER_AGENT_GANG_PREPARATION_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files/files.h"
#include "common/mutex.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/allowed_roots.h"
#include "worker/agent/checkpoint_registry.h"
#include "worker/agent/coordinator_link.h"
#include "worker/agent/data_directory.h"
#include "worker/agent/gang_rules.h"
#include "worker/agent/peer_server.h"
#include "worker/agent/process_supervisor.h"
#include "worker/agent/rank_log.h"
#include "worker/agent/shard_fetcher.h"
#include "worker/agent/slot_plan.h"
#include "worker/agent/standby_ranks.h"
#include "worker/link/link_host.h"
#include "worker/trainer/comm/tcp_store_server.h"

namespace nibble {

class MeetingPoints {
 public:
  // Ranks reach this worker at `host`.
  explicit MeetingPoints(std::string host) : host_(std::move(host)) {}

  // The address for nibble-trainer --rendezvous. Idempotent. Aborted if a newer attempt of the job
  // is known.
  absl::StatusOr<std::string> Open(const std::string& job, int64_t attempt);
  // Call it when the ranks have ended.
  void Close(const std::string& job, int64_t attempt);
  // As GangMeeting.GetMeeting.
  absl::StatusOr<std::string> Find(const std::string& job, int64_t attempt) const;

 private:
  struct Meeting {
    int64_t attempt = 0;
    std::unique_ptr<TcpStoreServer> server;
  };
  std::string AddressOf(const Meeting& meeting) const;

  const std::string host_;
  mutable Mutex mutex_;
  // The newest of each job that runs.
  std::map<std::string, Meeting> meetings_ ABSL_GUARDED_BY(mutex_);
};

PeerService MakeMeetingService(const MeetingPoints& points);

// Asks the worker of rank 0 until it has opened the rendezvous. Aborted, Cancelled.
absl::StatusOr<std::string> AskForMeeting(const v1::DesiredGang& gang, const LinkSecurity& security,
                                          Cancellation& cancellation);

// Registers this worker as ready at the rendezvous, and waits until all members are. Cancelled,
// Unavailable if the rendezvous server has ended, or InvalidArgument for an address of another
// kind, which a worker of another build may give.
absl::Status AwaitMembers(const std::string& rendezvous, const v1::DesiredGang& gang,
                          Cancellation& cancellation);

// Shared by all gangs of a daemon.
struct GangHome {
  ProcessSupervisor* supervisor = nullptr;
  CheckpointRegistry* registry = nullptr;
  ShardFetcher* fetcher = nullptr;
  DamageReports* damage = nullptr;
  MeetingPoints* meetings = nullptr;
  Provenance* provenance = nullptr;
  LinkSecurity security;
  AllowedRoots roots;                           // of the paths in specs
  std::string worker;                           // this one's name
  std::string host;                             // at which other workers' ranks reach this one's
  std::string nccl_interface;                   // of ranks on cards; empty: NCCL chooses
  LinkHost::Clock clock;                        // milliseconds, monotonic
  std::function<void()> changed;                // a rank or a gang's thread has something to report
  std::function<void(const std::string&)> log;  // a line for people; may be null
  std::string jobs_directory;                   // absolute
  std::string run_directory;                    // absolute and short: sockets are in it
  std::string trainer;                          // path of nibble-trainer
  std::vector<std::string> cards;               // by slot, as CUDA names them; empty: CPU slots
  std::vector<SlotPin> pins;                    // by slot; empty: ranks are not pinned
  WatchdogLimits watchdog;
  RankLog::Limits logs;
  StandbyRanks* standby = nullptr;
  // How long the process of a rank that has lost another one waits for the job's next attempt; 0:
  // it ends.
  std::chrono::seconds keep_ranks{0};
  DiskFaults* faults = nullptr;  // for tests
};

class GangPreparation {
 public:
  // Borrows `home`.
  GangPreparation(v1::DesiredGang gang, const GangHome& home);
  // Cancels it.
  ~GangPreparation();
  GangPreparation(const GangPreparation&) = delete;
  GangPreparation& operator=(const GangPreparation&) = delete;

  // The address of the ranks' rendezvous, or the error; nullopt: not finished.
  std::optional<absl::StatusOr<std::string>> result() const;
  // For people.
  std::string progress() const;
  void Cancel() { cancellation_.Cancel(); }
  // Takes the present sources of the shards.
  void Update(const v1::DesiredGang& gang);

 private:
  void Run();
  absl::StatusOr<std::string> PrepareAll();
  absl::Status FetchCheckpoint();
  // Discards the shards here that fail their checksums.
  absl::Status CheckLocalShards();
  absl::Status FetchShard(int32_t rank);
  void SetProgress(const std::string& progress);

  const v1::DesiredGang gang_;
  const GangHome& home_;
  CheckpointRegistry::Lease lease_;
  Cancellation cancellation_;
  std::set<int32_t> discarded_;  // ranks whose shards here were damaged; used by the thread alone

  mutable Mutex mutex_;
  std::map<int32_t, v1::DesiredReplica> shards_ ABSL_GUARDED_BY(mutex_);  // to resume from, by rank
  std::string progress_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::StatusOr<std::string>> result_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_GANG_PREPARATION_H_
