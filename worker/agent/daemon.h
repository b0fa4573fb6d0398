// A worker daemon: owns the slots of one node, runs what the coordinator says should run on them,
// and keeps the checkpoints that are made.
//
// Each life has an incarnation number greater than the one before. What an earlier life left
// running is killed before this one says anything: the coordinator gives a new incarnation none of
// the old one's ranks. What it left on disk, checkpoints that are held or wait for an answer, is
// opened and reported.
//
// While the coordinator is away everything goes on as it was last told.
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
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/checkpoint_desk.h"
#include "worker/agent/checkpoint_tasks.h"
#include "worker/agent/coordinator_link.h"
#include "worker/agent/damage_reports.h"
#include "worker/agent/gang.h"
#include "worker/agent/meeting_points.h"
#include "worker/agent/peer_server.h"
#include "worker/agent/process_supervisor.h"
#include "worker/agent/provenance.h"
#include "worker/agent/replica_keeper.h"
#include "worker/agent/run_directory.h"
#include "worker/agent/shard_fetcher.h"
#include "worker/agent/shard_news.h"
#include "worker/metrics/worker_http.h"
#include "worker/metrics/worker_metrics.h"

namespace nibble {

class Daemon {
 public:
  struct Options {
    // The incarnation is the daemon's own to choose, and port 0 of the address a free one.
    v1::WorkerIdentity identity;
    std::string coordinator;  // host:port
    LinkSecurity security;
    bool insecure = false;       // listen off loopback although callers are not authenticated
    std::string data_directory;  // absolute; made where it is not
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

  // Kills what an earlier life left, opens what it has stored, and connects. Unavailable where
  // another daemon uses the directory; FailedPrecondition where the address is off loopback, no
  // certificates are required of callers, and that is not said to be meant.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(Options options);
  // Kills the ranks that run.
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Until `stop` is set or this life is over: Aborted, with the coordinator's words, once a newer
  // incarnation of the same name is known to it.
  absl::Status Run(const std::atomic<bool>& stop);

  // host:port of its plain HTTP; empty: it has none.
  std::string http_address() const { return http_ == nullptr ? "" : http_->address(); }
  int64_t incarnation() const { return options_.identity.incarnation(); }

 private:
  explicit Daemon(Options options) : options_(std::move(options)) {}
  absl::Status CheckAddress() const;
  absl::Status Prepare();
  absl::Status Lock();
  absl::Status ChooseIncarnation();
  void OpenStoredJobs();

  v1::ConnectRequest Report(int64_t number);
  void Take(const v1::ConnectResponse& response);
  void Lost(const absl::Status& status, std::chrono::milliseconds wait);
  void Wake();
  void Say(const std::string& line) const;

  // One round: what is against what should be.
  void Tend();
  void CarryOut(const AgentAction& action);
  // With mutex_ held. Orders to delete what no store knows that is followed.
  void RemoveOrphans(const v1::ConnectResponse& response);
  // Whether what is wanted may be carried out on what is here: the ranks of another store's attempt
  // of the same name are not the ones that are meant, but to be stopped.
  bool IsMeant(const v1::DesiredGang& wanted, const Gang& gang) const;
  void NoteOrder(const v1::DesiredGang& desired, const Gang& gang);
  // A restored store knows the gang as one that lives.
  void ReAttach(const v1::DesiredGang& desired, Gang& gang);
  const v1::DesiredGang* FindDesired(const std::string& job, int64_t attempt) const;
  Gang* FindGang(const std::string& job, int64_t attempt);
  std::unique_ptr<grpc::Service> MakeLogs();
  absl::Status OpenJobFor(const std::string& job, const StoreIdentity& identity);

  Options options_;
  int lock_ = -1;
  std::unique_ptr<RunDirectory> run_;
  GangHome home_;
  std::unique_ptr<WorkerMetrics> metrics_;
  std::unique_ptr<HttpExposer> http_;  // null: turned off
  std::unique_ptr<Provenance> provenance_;
  std::unique_ptr<ProcessSupervisor> supervisor_;
  std::unique_ptr<CheckpointDesk> desk_;
  std::unique_ptr<DamageReports> damage_;
  std::unique_ptr<ShardFetcher> fetcher_;
  std::unique_ptr<MeetingPoints> meetings_;
  std::unique_ptr<PeerServer> peers_;
  std::unique_ptr<ReplicaKeeper> replicas_;
  std::unique_ptr<CheckpointTasks> tasks_;
  std::unique_ptr<CoordinatorLink> link_;

  std::atomic<bool> shards_changed_ = false;  // there are some to report
  std::atomic<bool> tasks_changed_ = false;   // one has ended

  std::mutex wake_mutex_;
  std::condition_variable woken_;
  bool dirty_ = false;       // guarded by wake_mutex_
  absl::Status superseded_;  // guarded by wake_mutex_

  std::mutex mutex_;
  // Guarded by mutex_.
  std::string cluster_;
  std::optional<v1::ConnectResponse> desired_;
  StopDeadlines stop_deadlines_;
  int64_t carried_out_ = 0;  // number of the latest desired state of this stream; 0: none yet
  ShardNews shard_news_;
  int64_t described_ = 0;  // number of the latest report that names all shards
  std::vector<std::unique_ptr<Gang>> gangs_;
  std::set<std::string> removed_;  // jobs whose orphaned ranks are to be killed
  bool ignores_ = false;           // the latest answer was of an older store than is known
  std::map<std::string, int64_t> last_running_;  // attempts with ranks, as named last, by job
  std::string last_progress_;  // phases and recipes of all gangs in the latest round
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_DAEMON_H_
