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
// Ownership: owns everything below it. Thread-safety: Run from one thread; `stop` may be set from
// any, also from a signal handler.
#ifndef NIBBLE_WORKER_AGENT_DAEMON_H_
#define NIBBLE_WORKER_AGENT_DAEMON_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/metrics/http_exposer.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/checkpoint_registry.h"
#include "worker/agent/checkpoint_tasks.h"
#include "worker/agent/coordinator_link.h"
#include "worker/agent/data_directory.h"
#include "worker/agent/gang.h"
#include "worker/agent/gang_preparation.h"
#include "worker/agent/peer_server.h"
#include "worker/agent/process_supervisor.h"
#include "worker/agent/shard_fetcher.h"
#include "worker/metrics/worker_metrics.h"

namespace nibble {

class Daemon {
 public:
  struct Options {
    // The daemon chooses the incarnation; port 0 of the address picks a free one.
    v1::WorkerIdentity identity;
    std::string coordinator;  // host:port
    LinkSecurity security;
    bool insecure = false;       // listen off loopback without authenticating callers
    std::string data_directory;  // absolute; made if absent
    std::string trainer;         // path of nibble-trainer
    std::string exporter;        // path of nibble-export
    std::chrono::milliseconds beat{1000};
    Backoff::Options backoff;
    WatchdogLimits watchdog;
    RankLog::Limits logs;
    WorkerHttpOptions http;
    FigureLimits figures;
    std::function<void(const std::string&)> log;  // a line for people; may be null
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
  void OpenStoredJobs();

  v1::ConnectRequest Report(int64_t number);
  void Take(const v1::ConnectResponse& response);
  void Lost(const absl::Status& status, std::chrono::milliseconds wait);
  void Wake();
  void Say(const std::string& line) const;

  // One round of reconciliation.
  void Tend();
  void CarryOut(const AgentAction& action);
  // Carries out the orders to delete orphans. With mutex_ held.
  void RemoveOrphans(const v1::ConnectResponse& response);
  // Whether the order applies to the gang here. Ranks of another store's attempt with the same name
  // and number are not the ones meant; they may only be stopped.
  bool IsMeant(const v1::DesiredGang& wanted, const Gang& gang) const;
  void NoteOrder(const v1::DesiredGang& desired, const Gang& gang);
  // A restored store knows the gang as running: the gang belongs to it from now on.
  void ReAttach(const v1::DesiredGang& desired, Gang& gang);
  const v1::DesiredGang* FindDesired(const std::string& job, int64_t attempt) const;
  Gang* FindGang(const std::string& job, int64_t attempt);
  PeerService MakeLogs();
  absl::Status OpenJobFor(const std::string& job, const StoreIdentity& identity);

  Options options_;
  int lock_ = -1;
  std::unique_ptr<RunDirectory> run_;
  GangHome home_;
  std::unique_ptr<WorkerMetrics> metrics_;
  std::unique_ptr<HttpExposer> http_;  // null: turned off
  std::unique_ptr<Provenance> provenance_;
  std::unique_ptr<ProcessSupervisor> supervisor_;
  std::unique_ptr<CheckpointRegistry> registry_;
  std::unique_ptr<DamageReports> damage_;
  std::unique_ptr<ShardFetcher> fetcher_;
  std::unique_ptr<MeetingPoints> meetings_;
  std::unique_ptr<PeerServer> peers_;
  std::unique_ptr<ReplicaKeeper> replicas_;
  std::unique_ptr<CheckpointTasks> tasks_;
  std::unique_ptr<CoordinatorLink> link_;

  std::atomic<bool> shards_changed_ = false;  // there are shards to report
  std::atomic<bool> tasks_changed_ = false;   // a task has ended

  std::mutex wake_mutex_;
  std::condition_variable woken_;
  bool dirty_ = false;       // guarded by wake_mutex_
  absl::Status superseded_;  // guarded by wake_mutex_

  std::mutex mutex_;
  // Guarded by mutex_.
  std::string cluster_;
  std::optional<v1::ConnectResponse> desired_;
  StopDeadlines stop_deadlines_;
  int64_t carried_out_ = 0;  // number of this stream's latest desired state; 0: none yet
  ShardNews shard_news_;
  int64_t described_ = 0;  // number of the latest report that names all shards
  std::vector<std::unique_ptr<Gang>> gangs_;
  std::set<std::string> removed_;  // jobs whose orphaned ranks are to be killed
  bool ignores_ = false;           // the latest answer came from an older store than known
  std::map<std::string, int64_t> last_running_;  // running attempts as last reported, by job
  std::string last_progress_;  // phases and recipes of all gangs in the latest round
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_DAEMON_H_
