// The ranks of one attempt on this worker, from their start to their end: their processes, their
// link, their checkpoint host, and what is to be reported of them.
//
// Before its ranks start, the checkpoint that they begin from is brought here, and of a gang on
// several workers all have to be ready (gang_preparation.h).
//
// A gang that cannot be started is there all the same, failed and with the reason, until the
// coordinator no longer wants it: that is how the coordinator learns of it.
//
// On disk, below the job's directory, attempt-N/: spec.yaml as the ranks read it, rank-I.log,
// rendezvous/. Ranks find the link's address in the environment (kDaemonLinkVariable); a trainer
// that does not look for it runs, and stops by SIGTERM, but cannot be paused.
//
// Ownership: borrows what GangHome names; its processes are the supervisor's. Destroy it only when
// every rank has ended. Thread-safety: one thread at a time.
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
#include "job/job_spec.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/checkpoint_desk.h"
#include "worker/agent/gang_preparation.h"
#include "worker/agent/link_security.h"
#include "worker/agent/meeting_points.h"
#include "worker/agent/process_supervisor.h"
#include "worker/agent/reconcile.h"
#include "worker/agent/shard_fetcher.h"
#include "worker/agent/watchdog.h"
#include "worker/metrics/gang_figures.h"
#include "worker/trainer/link/link_host.h"

namespace nibble {

// What all gangs of a daemon share.
struct GangHome {
  ProcessSupervisor* supervisor = nullptr;
  CheckpointDesk* desk = nullptr;
  ShardFetcher* fetcher = nullptr;
  DamageReports* damage = nullptr;
  MeetingPoints* meetings = nullptr;
  LinkSecurity security;
  std::string worker;             // this one's name
  std::string host;               // where ranks of other workers reach those of this one
  LinkHost::Clock clock;          // milliseconds, monotonic
  std::function<void()> changed;  // a rank said something
  std::function<void(const std::string&)> log;  // a line for people; may be null
  std::string jobs_directory;                   // absolute
  std::string run_directory;                    // absolute and short: sockets are in it
  std::string trainer;                          // path of nibble-trainer
  bool cuda = false;                            // slots are GPUs
  WatchdogLimits watchdog;
  RankLog::Limits logs;
};

// A directory's name of its own for every job id. InvalidArgument for an id that is none.
absl::Status CheckJobId(const std::string& job);

// When gangs that are to stop are killed, on this daemon's monotonic clock; by job and attempt.
using StopDeadlines = std::map<std::pair<std::string, int64_t>, int64_t>;
// Of the gangs of a response that has come in now. A repeated order does not put the time off.
StopDeadlines DeadlinesOf(const v1::ConnectResponse& response, const StopDeadlines& before,
                          int64_t now_ms);

// What a wish comes to.
WantedGang WantedOf(const v1::DesiredGang& desired, const StopDeadlines& deadlines);

class Gang {
 public:
  // Never fails: see above.
  static std::unique_ptr<Gang> Launch(const v1::DesiredGang& desired, const GangHome& home);
  // One that is not to be started, for this reason: it has failed for nobody's fault.
  static std::unique_ptr<Gang> Refuse(const v1::DesiredGang& desired, const GangHome& home,
                                      const absl::Status& why);
  ~Gang();
  Gang(const Gang&) = delete;
  Gang& operator=(const Gang&) = delete;

  const std::string& job() const { return job_; }
  int64_t attempt() const { return attempt_; }
  // Whose order its ranks run by.
  const v1::StoreIdentity& store() const { return store_; }
  void Follow(const v1::StoreIdentity& store) { store_ = store; }

  // Of a rank's process with the supervisor, and where its log is.
  static std::string ProcessName(const std::string& job, int64_t attempt, int32_t rank);
  static std::string LogPath(const std::string& jobs_directory, const std::string& job,
                             int64_t attempt, int32_t rank);

  // The daemon ends: supervisor and desk are gone, and every rank with them.
  void Abandon() { abandoned_ = true; }

  // Starts the ranks once all is prepared. Again and again; `desired` is what is wanted now, null
  // where it is no longer.
  void Advance(const v1::DesiredGang* desired);
  PresentGang Look();
  // Of the recipe that ranks run under, as the last Look() found; 0: none yet.
  int64_t revision() const { return revisions_.empty() ? 0 : revisions_.rbegin()->first; }
  // Revisions that they have refused, count.
  size_t refusals() const { return refused_.size(); }
  void Tell(const v1::DesiredGang& desired);
  void DumpStacks(int32_t rank, const std::string& reason);
  void Kill(int32_t rank, const std::string& reason);
  v1::GangReport Report();
  // gang_metrics.cc. Of a look that was just taken.
  GangFigures Figures(const PresentGang& present) const;

 private:
  struct Rank {
    int32_t rank = 0;
    std::string process;  // its name with the supervisor; empty: never started
    bool killed = false;
    bool dumping = false;
    bool dumped = false;
    std::optional<int64_t> ended_at_ms;  // its process was first seen to be gone
  };

  Gang(const v1::DesiredGang& desired, const GangHome& home);
  absl::Status Start(const v1::DesiredGang& desired);
  absl::Status StartRanks(const std::string& rendezvous);
  absl::Status StartRank(Rank& rank, const std::string& rendezvous);
  void FailToStart(const absl::Status& why);
  // Revisions that the coordinator has confirmed durably are not reported again.
  void ForgetConfirmed(const v1::DesiredGang& desired);
  bool prepares() const { return !started_ && !failed_to_start_ && !ended_before_start_; }
  void Fail(const std::string& detail, v1::FailureCause cause);
  v1::FailureCause CauseOfHang(bool waits) const;
  // What its ranks, or the checkpoints that they handed over, wait for; empty: nothing.
  std::string Trouble(const std::map<int32_t, LinkHost::Rank>& linked) const;
  // Ranks have ended as they lost others, and of those some have yet to end.
  bool AwaitsPeers();
  PresentRank LookAt(Rank& rank, const std::map<int32_t, LinkHost::Rank>& linked,
                     const std::vector<HungRank>& hung, bool awaits_peers);
  void LookAtDump(Rank& rank);
  // Ranks do not take this revision of the recipe.
  void Refuse(int64_t revision, const std::string& reason);
  void NoteModel(const JobSpec& spec);  // gang_metrics.cc

  const GangHome& home_;
  const v1::DesiredGang desired_;  // as it was launched
  const std::string job_;
  const int64_t attempt_;
  v1::StoreIdentity store_;
  bool not_started_ = false;                        // Refuse
  std::map<std::string, std::string> environment_;  // of the ranks, as the spec sets it
  std::string directory_;                           // of the attempt
  std::string checkpoint_host_;                     // where ranks hand over checkpoints
  std::unique_ptr<GangPreparation> preparation_;
  bool started_ = false;
  std::optional<RankState> ended_before_start_;  // killed, or told to stop
  std::vector<int32_t> slots_;
  std::vector<Rank> ranks_;
  std::unique_ptr<LinkHost> link_;  // null where it could not be made
  std::optional<GangOrder> told_;
  int64_t first_step_ = 0;      // that it began with
  int64_t planned_steps_ = 0;   // 0: not known
  double flops_per_token_ = 0;  // of training; 0: not known
  bool failed_to_start_ = false;
  bool abandoned_ = false;
  std::string detail_;  // of the failure
  v1::FailureCause cause_ = v1::FAILURE_CAUSE_UNSPECIFIED;
  std::optional<int64_t> peer_lost_at_ms_;  // when a rank first ended as it had lost another
  // First step of the job under each that the coordinator has not confirmed, and the newest.
  std::map<int64_t, int64_t> revisions_;
  std::map<int64_t, std::string> refused_;  // why ranks did not take these revisions
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_GANG_H_
