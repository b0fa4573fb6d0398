// The ranks of one attempt on this worker, from their start to their end: their processes, their
// link, their checkpoint host, and their report.
//
// Before the ranks start, the checkpoint that they resume from is fetched, and all workers of the
// gang must be ready (gang_preparation.h).
//
// A gang that cannot be started still exists, failed and with the reason, until the coordinator no
// longer wants it, so that the coordinator learns the reason.
//
// Where the worker keeps ranks (GangHome::keep_ranks), the processes of ranks that have lost
// another one outlive their gang: StandbyRanks has them until the job's next attempt.
//
// On disk, below the job's directory, attempt-N/: spec.yaml as the ranks read it, rank-I.log. Ranks
// receive the link's address as --link; a trainer that ignores it runs, and stops on SIGTERM, but
// cannot be paused.
//
// Ownership: borrows what GangHome names; the supervisor owns the processes. Destroy a gang only
// when every rank has ended. Thread-safety: one thread at a time, which every method except the
// constructor may keep waiting for the disk; GangRunner (gang_runner.h) is that thread.
#ifndef NIBBLE_WORKER_AGENT_GANG_H_
#define NIBBLE_WORKER_AGENT_GANG_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/files/files.h"
#include "job/job_spec.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/checkpoint_registry.h"
#include "worker/agent/data_directory.h"
#include "worker/agent/gang_preparation.h"
#include "worker/agent/gang_rules.h"
#include "worker/agent/peer_server.h"
#include "worker/agent/process_supervisor.h"
#include "worker/agent/shard_fetcher.h"
#include "worker/link/link_host.h"
#include "worker/metrics/worker_metrics.h"

namespace nibble {

inline constexpr size_t kMaxJobIdBytes = 80;

// Checks that the id can name a directory. InvalidArgument if not.
absl::Status CheckJobId(const std::string& job);

// A gang at one moment.
struct GangSnapshot {
  PresentGang present;
  v1::GangReport report;
  GangFigures figures;
  size_t refusals = 0;  // revisions of the recipe that the ranks have refused
};

class Gang {
 public:
  // As `store` ordered it.
  Gang(const v1::DesiredGang& desired, const v1::StoreIdentity& store, const GangHome& home);
  // Ends it: finishes or drops the checkpoints that its ranks have handed over.
  ~Gang();
  Gang(const Gang&) = delete;
  Gang& operator=(const Gang&) = delete;

  const std::string& job() const { return job_; }
  int64_t attempt() const { return attempt_; }

  // The supervisor's name of a rank's process, and the path of its log.
  static std::string ProcessName(const std::string& job, int64_t attempt, int32_t rank);
  static std::string LogPath(const std::string& jobs_directory, const std::string& job,
                             int64_t attempt, int32_t rank);

  // The daemon is shutting down: the supervisor has ended every rank, and the destructor must not
  // use it.
  void Abandon() { abandoned_ = true; }

  // Records the order, makes the files and the sockets, and begins the preparation. Call it once,
  // or Refuse.
  void Prepare();
  // The gang must not be started, for the reason `why`; reported with FAILURE_CAUSE_PEER.
  void Refuse(const absl::Status& why);
  // Starts the ranks once the preparation is done; call it in every round. `desired`: the present
  // order, null if the gang is no longer wanted.
  void Advance(const v1::DesiredGang* desired);

  void Send(const v1::DesiredGang& desired);
  void DumpStacks(int32_t rank, const std::string& reason);
  void Kill(int32_t rank, const std::string& reason);
  // Sends the request to the ranks that are connected.
  void Trace(const link::v1::TraceCommand& trace);
  // With the samples since the last call.
  GangSnapshot TakeSnapshot();

 private:
  struct Rank {
    int32_t rank = 0;
    std::string process;  // the supervisor's name of it; empty: never started
    bool killed = false;
    bool dumping = false;
    bool dumped = false;
    std::optional<int64_t> ended_at_ms;  // when its end was first seen
    std::optional<int64_t> asked_at_ms;  // when it was asked to give up
  };

  absl::Status Start();
  absl::Status StartRanks(const std::string& rendezvous);
  absl::Status StartRank(Rank& rank, const std::string& rendezvous);
  // Sends the process that stands by to this attempt as `rank`. After an error the process has
  // ended.
  absl::Status RejoinRank(Rank& rank, const StandbyRanks::Rank& kept,
                          const std::string& rendezvous);
  void FailToStart(const absl::Status& why);
  // Revisions that the coordinator has confirmed durably are not reported again.
  void ForgetConfirmed(const v1::DesiredGang& desired);
  bool preparing() const { return !started_ && !failed_to_start_ && !ended_before_start_; }
  void Fail(const std::string& detail, v1::FailureCause cause);
  v1::FailureCause CauseOfHang(bool waits) const;
  void Log(const std::string& line) const;
  // What blocks its ranks or their checkpoints; empty: nothing.
  std::string Trouble(const std::map<int32_t, LinkHost::Rank>& linked) const;
  // Whether its run is over, and its process waits for another attempt.
  bool StandsBy(int32_t number) const;
  // How the rank's run ended; nullopt while it runs.
  std::optional<RankEnd> EndOfRank(const Rank& rank,
                                   const std::map<int32_t, LinkHost::Rank>& linked) const;
  // Whether ranks have ended because they lost a peer while other ranks have yet to end.
  bool AwaitsPeers(const std::map<int32_t, LinkHost::Rank>& linked);
  // Where ranks are kept, asks those that make no step to give up: all can but the one that blocks
  // the others. Leaves in `hung` those that have not done so in time.
  void AwaitGivingUp(const std::map<int32_t, LinkHost::Rank>& linked, std::vector<HungRank>& hung);
  // Whether the rank was asked to give up and has time left to do so.
  bool MayGiveUp(const Rank& rank, bool answered) const;
  // Whether ranks that run shall not be killed yet: one here has failed or hangs, and the others
  // are about to notice that and to stand by.
  bool Spares(const PresentGang& present, const std::map<int32_t, LinkHost::Rank>& linked);
  PresentGang Observe(const std::map<int32_t, LinkHost::Rank>& linked);
  PresentRank ObserveRank(Rank& rank, const std::map<int32_t, LinkHost::Rank>& linked,
                          const std::vector<HungRank>& hung, bool awaits_peers);
  void ObserveDump(Rank& rank);
  v1::GangReport Report(const PresentGang& present,
                        const std::map<int32_t, LinkHost::Rank>& linked) const;
  GangFigures Figures(const PresentGang& present,
                      const std::map<int32_t, LinkHost::Rank>& linked) const;
  // Records that the ranks refuse this revision of the recipe.
  void AddRefusal(int64_t revision, const std::string& reason);
  void NoteModel(const JobSpec& spec);

  const GangHome& home_;
  const v1::DesiredGang desired_;  // as it was launched
  const std::string job_;
  const int64_t attempt_;
  const v1::StoreIdentity store_;                   // that launched it
  bool refused_to_start_ = false;                   // Refuse
  std::map<std::string, std::string> environment_;  // of the ranks, as the spec sets it
  std::string directory_;                           // of the attempt
  std::unique_ptr<GangPreparation> preparation_;
  bool started_ = false;
  std::optional<RankState> ended_before_start_;  // killed or stopped before the start
  std::vector<int32_t> slots_;
  std::vector<Rank> ranks_;
  std::unique_ptr<LinkHost> link_;  // null if it could not be made
  std::optional<GangOrder> sent_;
  int64_t first_step_ = 0;      // of the attempt
  int64_t planned_steps_ = 0;   // 0: unknown
  double flops_per_token_ = 0;  // of training; 0: unknown
  bool failed_to_start_ = false;
  bool abandoned_ = false;
  std::string detail_;  // of the failure
  v1::FailureCause cause_ = v1::FAILURE_CAUSE_UNSPECIFIED;
  std::optional<int64_t> spared_since_ms_;  // Spares
  std::optional<int64_t> peer_lost_at_ms_;  // when a rank first ended because it lost another
  // The job's first step under each revision that the coordinator has not confirmed, and under the
  // newest.
  std::map<int64_t, int64_t> revisions_;
  std::map<int64_t, std::string> refused_;  // reasons, by revision
  std::vector<v1::GuardDecision> decided_;  // newest decisions of guards
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_GANG_H_
