// A worker daemon: owns the slots of one node, runs the gangs that the coordinator places on them,
// and stores their checkpoints.
//
// Each life has an incarnation number greater than the one before. Processes that an earlier life
// left running are killed before the first report, because the coordinator gives a new incarnation
// none of the old one's ranks. Checkpoints that it left on disk, accepted or not, are opened and
// reported.
//
// While the coordinator is away, the last desired state stays in effect.
//
// Heartbeats never wait for the disk. Threads:
//   the link's two       make a report from memory and from the gangs' snapshots, and take answers:
//                        neither does I/O, nor takes a lock that is held during I/O
//   one per gang         whatever a gang needs from the disk (gang_runner.h)
//   the registry's       answers about shards (checkpoint_registry.h)
//   the recorder         other records in the data directory
//   the tidier           removal of trash, and its restoration
//   the card watch       figures of the cards (card_watch.h)
//   Run's                compares the desired state with the present one (gang_rules.h), and gives
//                        the gangs their orders
//
// Ownership: owns everything below it. Thread-safety: Run from one thread; `stop` may be set from
// any, also from a signal handler.
#ifndef NIBBLE_WORKER_AGENT_DAEMON_H_
#define NIBBLE_WORKER_AGENT_DAEMON_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files/file_lock.h"
#include "common/files/files.h"
#include "common/identity/expiry.h"
#include "common/metrics/http_exposer.h"
#include "common/mutex.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/card_watch.h"
#include "worker/agent/checkpoint_registry.h"
#include "worker/agent/checkpoint_tasks.h"
#include "worker/agent/collective_address.h"
#include "worker/agent/coordinator_link.h"
#include "worker/agent/data_directory.h"
#include "worker/agent/desired_state.h"
#include "worker/agent/gang.h"
#include "worker/agent/gang_preparation.h"
#include "worker/agent/gang_runner.h"
#include "worker/agent/own_paths.h"
#include "worker/agent/peer_server.h"
#include "worker/agent/process_supervisor.h"
#include "worker/agent/shard_fetcher.h"
#include "worker/agent/slot_plan.h"
#include "worker/agent/standby_ranks.h"
#include "worker/agent/task_thread.h"
#include "worker/agent/trash.h"
#include "worker/metrics/worker_metrics.h"

namespace nibble {

class Daemon {
 public:
  struct Options {
    // The daemon chooses the incarnation; port 0 of the address picks a free one.
    v1::WorkerIdentity identity;
    std::vector<std::string> cards;   // by slot, for CUDA_VISIBLE_DEVICES; empty: CPU slots
    std::vector<SlotPin> pins;        // by slot; empty: ranks are not pinned
    std::string nvml = kNvmlLibrary;  // the library that reports on the cards
    std::string coordinator;          // host:port
    LinkSecurity security;
    bool insecure = false;          // listen off loopback without authenticating callers
    AllowedRoots roots;             // of the paths that jobs and exports name
    CollectiveAddress collectives;  // of ranks; by default the host of the daemon's address
    std::string data_directory;     // absolute; made if absent
    std::string trainer;            // path of nibble-trainer
    std::string exporter;           // path of nibble-export
    std::chrono::milliseconds beat{1000};
    Backoff::Options backoff;
    WatchdogLimits watchdog;
    std::chrono::seconds keep_ranks{0};  // as GangHome
    int64_t trash_hours = Trash::kDefaultHours;
    std::optional<int64_t> trash_bytes;  // unset: a tenth of the file system
    RankLog::Limits logs;
    WorkerHttpOptions http;
    FigureLimits figures;
    std::function<void(const std::string&)> log;  // a line for people; may be null
    std::function<void()> alive;                  // called in every round of Run; may be null
    DiskFaults* faults = nullptr;                 // for tests
  };

  // Kills processes of an earlier life, opens its checkpoints, and connects. Unavailable if another
  // daemon uses the directory; FailedPrecondition if the address is off loopback, callers need no
  // certificate, and `insecure` is not set.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(Options options);
  // Kills the ranks that run.
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Runs until `stop` is set. Aborted, with the coordinator's message, once a newer incarnation of
  // the same name has replaced this one.
  absl::Status Run(const std::atomic<bool>& stop);

  // host:port of its plain HTTP; empty: turned off.
  std::string http_address() const { return http_ == nullptr ? "" : http_->address(); }
  int64_t incarnation() const { return options_.identity.incarnation(); }

 private:
  explicit Daemon(Options options) : options_(std::move(options)) {}
  absl::Status CheckAddress() const;
  absl::Status Prepare();
  absl::Status OpenTrash(std::function<int64_t()> clock);
  void OpenStoredJobs();

  // --- The link's threads

  v1::ConnectRequest Report(int64_t number);
  void Receive(const v1::ConnectResponse& response);
  // Whether the response's store is to be obeyed.
  bool MayObey(const v1::StoreIdentity& store);
  // Carries out the response's orders to remove orphans.
  void RemoveOrphans(const v1::ConnectResponse& response);
  // Carries out the response's orders to restore checkpoints.
  void RestoreFromTrash(const v1::ConnectResponse& response);
  void StreamEnded(const absl::Status& status, std::chrono::milliseconds wait);

  // --- Run's thread

  // One round: observes the gangs and gives them their orders.
  void ActOnGangs();
  void CarryOut(const AgentAction& action, const DesiredState& desired);
  void Launch(const v1::DesiredGang& desired, const v1::StoreIdentity& store);
  // A restored store knows the gang as running: the gang belongs to it from now on.
  void ReAttach(const v1::DesiredGang& desired, const v1::StoreIdentity& store, GangRunner& gang);
  void PublishFigures();
  // Has the tidier remove what is too old or too much, now and then and after changes.
  void TendTrash(int64_t now_ms);
  std::vector<std::shared_ptr<GangRunner>> gangs() const;
  GangRunner* FindGang(const std::string& job, int64_t attempt) const;

  // --- Any thread

  void Wake();
  void Log(const std::string& line) const;
  // Writes changed records in the recorder's thread.
  void SaveRecords();
  PeerService MakeLogs();
  // As TraceRanks (peer_server.h) describes.
  absl::StatusOr<std::string> TakeTrace(const std::string& job, int64_t attempt, int64_t steps,
                                        const std::function<bool()>& cancelled);
  // Null: there is none.
  std::shared_ptr<GangRunner> RunnerOf(const std::string& job, int64_t attempt) const;
  absl::Status OpenJobFor(const std::string& job, const StoreIdentity& identity);

  Options options_;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<RunDirectory> run_;
  GangHome home_;
  std::unique_ptr<WorkerMetrics> metrics_;
  std::unique_ptr<CardWatch> cards_;   // null: no cards
  std::unique_ptr<HttpExposer> http_;  // null: turned off
  std::unique_ptr<Provenance> provenance_;
  std::unique_ptr<ProcessSupervisor> supervisor_;
  std::unique_ptr<Trash> trash_;
  std::unique_ptr<CheckpointRegistry> registry_;
  std::unique_ptr<DamageReports> damage_;
  std::unique_ptr<ExpiryWarnings> expiry_warnings_;  // of Run's thread
  std::unique_ptr<ShardFetcher> fetcher_;
  std::unique_ptr<MeetingPoints> meetings_;
  std::unique_ptr<StandbyRanks> standby_;
  std::shared_ptr<OwnPaths> paths_;
  std::unique_ptr<PeerServer> peers_;
  std::unique_ptr<ReplicaKeeper> replicas_;
  std::unique_ptr<CheckpointTasks> tasks_;
  std::unique_ptr<TaskThread> recorder_;
  std::unique_ptr<TaskThread> tidier_;
  std::unique_ptr<CoordinatorLink> link_;

  std::atomic<bool> tidying_ = false;    // the tidier has to remove trash
  std::atomic<bool> restoring_ = false;  // the tidier has to restore checkpoints
  int64_t tidied_version_ = 0;           // of the trash; this and the time are of Run's thread
  int64_t tidied_ms_ = 0;
  std::atomic<bool> tracing_ = false;     // a trace is being taken
  std::atomic<int64_t> last_trace_ = 0;   // number of its command
  std::atomic<bool> report_due_ = false;  // shards, a task or a followed store
  std::string last_progress_;  // phases and recipes of all gangs in the latest round; Run's thread

  Mutex wake_mutex_;
  CondVar woken_;
  bool awake_ ABSL_GUARDED_BY(wake_mutex_) = false;
  absl::Status superseded_ ABSL_GUARDED_BY(wake_mutex_);

  // Never held during I/O, nor while code of others runs.
  mutable Mutex mutex_;
  std::string cluster_ ABSL_GUARDED_BY(mutex_);
  v1::StoreIdentity obeyed_ ABSL_GUARDED_BY(mutex_);                     // the store obeyed last
  std::shared_ptr<const DesiredState> desired_ ABSL_GUARDED_BY(mutex_);  // null: none yet
  // Number of this stream's latest desired state; 0: none yet.
  int64_t desired_number_ ABSL_GUARDED_BY(mutex_) = 0;
  ShardListSchedule shard_list_ ABSL_GUARDED_BY(mutex_);
  int64_t listed_in_ ABSL_GUARDED_BY(mutex_) = 0;     // number of the latest report with all shards
  int64_t trash_listed_ ABSL_GUARDED_BY(mutex_) = 0;  // version of the trash in it
  bool following_ ABSL_GUARDED_BY(mutex_) = false;    // the recorder is about to follow a store
  bool ignoring_ ABSL_GUARDED_BY(mutex_) = false;     // the latest answer came from an older store
  // Running attempts as last reported, by job.
  std::map<std::string, int64_t> last_running_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<GangRunner>> gangs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_DAEMON_H_
