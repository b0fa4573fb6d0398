// Workers: their streams, leases, reports and desired states; the watchdog of hanging ranks.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/controller/checkpoint_care.h"
#include "server/controller/controller.h"
#include "server/controller/log.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/workers.h"

namespace nibble {
namespace {

absl::Status CheckCluster(const std::string& cluster, const std::string& ours) {
  if (cluster.empty() || cluster == ours) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cluster: the worker belongs to '", cluster, "'; this is '", ours, "'"));
}

// The report with its phase unchanged, so that only its news of revisions counts.
v1::GangReport RevisionsOnly(const State& state, const std::string& worker,
                             const v1::GangReport& gang) {
  v1::GangReport revisions = gang;
  const v1::JobRecord* const job = state.FindJob(gang.job());
  if (job == nullptr) return revisions;
  for (const v1::Placement& placement : job->attempt().placements()) {
    if (placement.worker() == worker) revisions.set_phase(placement.phase());
  }
  return revisions;
}

// The longest time a rank may be without a step.
int64_t MostWithoutStepMs(const ControllerOptions& options, int64_t median_step_ms) {
  return std::max(options.hang_least_ms,
                  static_cast<int64_t>(options.hang_factor * static_cast<double>(median_step_ms)));
}

// Whether ranks of the living attempt have failed while others have yet to report the cause.
bool PeersLost(const State& state, const v1::GangReport& gang) {
  const v1::JobRecord* const job = state.FindJob(gang.job());
  if (job == nullptr || !job->has_attempt() || job->attempt().number() != gang.attempt()) {
    return false;
  }
  const auto& placements = job->attempt().placements();
  return std::any_of(placements.begin(), placements.end(), [](const v1::Placement& placement) {
    return placement.phase() == v1::RANK_PHASE_FAILED;
  });
}

}  // namespace

absl::StatusOr<std::shared_ptr<WorkerSession>> Controller::OpenSession(
    std::function<void()> notify, std::function<void(absl::Status)> end) {
  auto session = std::make_shared<WorkerSession>();
  session->notify_ = std::move(notify);
  session->end_ = std::move(end);
  session->heard_ms_ = clock_.SteadyMs();
  std::lock_guard lock(mutex_);
  if (sessions_.size() >= options_.max_sessions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("workers: ", sessions_.size(), " are connected, as many as are allowed"));
  }
  sessions_.insert(session);
  return session;
}

void Controller::CloseSession(const std::shared_ptr<WorkerSession>& session) {
  std::lock_guard lock(mutex_);
  if (sessions_.erase(session) > 0 && session_of_.count(session->worker_) == 1) {
    orphans_.Forget(session->worker_);
  }
  const auto [begin, end] = session_of_.equal_range(session->worker_);
  for (auto at = begin; at != end; ++at) {
    if (at->second != session) continue;
    session_of_.erase(at);
    break;
  }
}

bool Controller::IsStale(const absl::Status& status) {
  return status.ok() || absl::IsAborted(status) || absl::IsNotFound(status);
}

void Controller::AddNotify(const std::string& worker,
                           std::vector<std::function<void()>>& notify) const {
  const auto [begin, end] = session_of_.equal_range(worker);
  for (auto at = begin; at != end; ++at) {
    if (at->second->notify_) notify.push_back(at->second->notify_);
  }
}

void Controller::EndSilentSessions(int64_t now_ms) {
  std::vector<std::pair<std::shared_ptr<WorkerSession>, absl::Status>> silent;
  {
    std::lock_guard lock(mutex_);
    // Reports only postpone the expiry of sessions, and new sessions expire later: as with leases.
    if (now_ms < none_silent_before_ms_) return;
    none_silent_before_ms_ = now_ms + options_.lease_ms;
    for (const auto& session : sessions_) {
      const int64_t silent_ms = now_ms - session->heard_ms_;
      none_silent_before_ms_ =
          std::min(none_silent_before_ms_, session->heard_ms_ + options_.lease_ms + 1);
      if (silent_ms <= options_.lease_ms || !session->end_) continue;
      silent.emplace_back(
          session,
          absl::DeadlineExceededError(absl::StrCat(
              session->worker_.empty() ? "a stream that began with no report" : session->worker_,
              ": no report for ", silent_ms, " ms; the lease is ", options_.lease_ms, " ms")));
    }
  }
  for (const auto& [session, why] : silent) session->end_(why);
}

void Controller::EndLeases(int64_t now_ms) {
  for (const Leases::Lease& lease : live_.TakeExpired(now_ms)) {
    metrics_.LeaseExpired();
    const std::string reason = absl::StrCat("not heard from for ", now_ms - lease.heard_ms,
                                            " ms; its lease is ", options_.lease_ms, " ms");
    Log(LogLevel::kWarning, absl::StrCat("worker ", lease.worker, " is lost: ", reason));
    ChangeAlone(
        [&](const State& state) -> MaybeUpdate {
          const v1::WorkerRecord* const worker = state.FindWorker(lease.worker);
          if (worker == nullptr || !worker->present() ||
              worker->identity().incarnation() != lease.incarnation) {
            return std::nullopt;
          }
          return DecideWorkerLost(state, lease.worker, lease.incarnation, reason, CoordinatorNow());
        },
        absl::StrCat("loss of ", lease.worker));
  }
}

void Controller::Report(const std::shared_ptr<WorkerSession>& session,
                        const v1::ConnectRequest& report, std::function<void(absl::Status)> done) {
  const std::string& worker = report.identity().name();
  const int64_t incarnation = report.identity().incarnation();
  done = [this, handling = Stopwatch(), done = std::move(done)](const absl::Status& taken) {
    metrics_.Reported(handling.seconds(), taken);
    done(taken);
  };
  absl::Status status = CheckBounds(report);
  if (status.ok()) status = CheckCluster(report.cluster(), options_.cluster);
  if (status.ok()) {
    std::lock_guard lock(mutex_);
    session->heard_ms_ = clock_.SteadyMs();
    if (!session->worker_.empty() &&
        (session->worker_ != worker || session->incarnation_ != incarnation)) {
      status = absl::InvalidArgumentError(absl::StrCat(
          "identity: the stream is of ", session->worker_, " (incarnation ", session->incarnation_,
          "), the report of ", worker, " (incarnation ", incarnation, ")"));
    }
  }
  if (!status.ok()) {
    done(status);
    return;
  }
  CheckStoreIsNewest(report);
  const auto refused = std::make_shared<bool>(false);
  ledger_->Change(
      [&, refused](const State& state) {
        MaybeUpdate update = DecideRegister(state, report.identity(), CoordinatorNow());
        *refused = !update.ok();
        return update;
      },
      [refused, done](const absl::Status& stored) {
        if (*refused) done(stored);
      });
  if (*refused) return;
  live_.Hear(worker, incarnation, clock_.SteadyMs());
  {
    std::lock_guard lock(mutex_);
    if (session->worker_.empty() && sessions_.contains(session)) {
      session_of_.emplace(worker, session);
    }
    session->worker_ = worker;
    session->incarnation_ = incarnation;
  }
  for (const v1::GangReport& gang : report.gangs()) {
    if (gang.revisions().empty() && gang.refused().empty()) continue;
    ledger_->Change(
        [&](const State& state) {
          return DecideGangReport(state, worker, incarnation, RevisionsOnly(state, worker, gang),
                                  CoordinatorNow());
        },
        [worker](const absl::Status& taken) {
          if (IsStale(taken)) return;
          Log(LogLevel::kWarning, absl::StrCat("revision of ", worker, ": ", taken.ToString()));
        });
  }
  TakeOrphans(report);
  TakeDamage(report);
  TakeShards(session, report);
  for (const v1::GangReport& gang : report.gangs()) TakeGang(worker, incarnation, gang);
  for (const v1::TaskReport& task : report.tasks()) {
    ledger_->Change(
        [&](const State& state) { return DecideTaskReport(state, worker, task, CoordinatorNow()); },
        [worker](const absl::Status& ended) {
          if (IsStale(ended)) return;
          Log(LogLevel::kWarning, absl::StrCat("task of ", worker, ": ", ended.ToString()));
        });
  }
  // An empty change: it is answered when everything before it is durable.
  ledger_->Change([](const State&) -> MaybeUpdate { return std::nullopt; },
                  [this, session, number = report.number(),
                   done = std::move(done)](const absl::Status& stored) {
                    if (stored.ok()) {
                      std::lock_guard lock(mutex_);
                      session->answered_ = std::max(session->answered_, number);
                    }
                    done(stored);
                  });
}

void Controller::TakeGang(const std::string& worker, int64_t incarnation,
                          const v1::GangReport& gang) {
  absl::Status taken;
  bool peers_lost = false;
  ledger_->Change(
      [&](const State& state) -> MaybeUpdate {
        peers_lost = PeersLost(state, gang);
        MaybeUpdate update = DecideGangReport(state, worker, incarnation, gang, CoordinatorNow());
        taken = update.status();
        return update;
      },
      [worker, job = gang.job()](const absl::Status& status) {
        if (IsStale(status)) return;
        Log(LogLevel::kWarning,
            absl::StrCat("report of ", worker, " on ", job, ": ", status.ToString()));
      });
  if (!taken.ok()) return;
  std::vector<v1::StepSample> samples(gang.samples().begin(), gang.samples().end());
  std::vector<WatchLog::Entry> news;
  for (v1::StepSample& sample :
       live_.Report(gang.job(), gang.attempt(), gang.next_step(), samples)) {
    news.emplace_back().job = gang.job();
    v1::JobSample& told = *news.back().message.mutable_sample();
    told.set_job(gang.job());
    *told.mutable_sample() = std::move(sample);
  }
  if (!news.empty() && hub_.IsWatched(gang.job())) hub_.PublishSamples(std::move(news));
  for (const v1::RankHealth& rank : gang.ranks()) {
    if (rank.rank() == 0) live_.HearRank0(gang.job(), gang.attempt());
  }
  CheckHang(worker, gang);
  CheckSurvivors(worker, gang, peers_lost);
}

void Controller::CheckHang(const std::string& worker, const v1::GangReport& gang) {
  // A rank that waits, such as for disk space, reports it and does not hang.
  if (gang.phase() != v1::RANK_PHASE_RUNNING || !gang.trouble().empty()) return;
  for (const v1::RankHealth& rank : gang.ranks()) {
    const int64_t most = MostWithoutStepMs(options_, rank.median_step_ms());
    if (rank.median_step_ms() <= 0 || rank.since_step_ms() <= most) continue;
    const std::string reason =
        absl::StrCat("rank ", rank.rank(), " on ", worker, " has made no step for ",
                     rank.since_step_ms(), " ms, its median is ", rank.median_step_ms(), " ms",
                     rank.waiting_in().empty() ? "" : "; it stands in ", rank.waiting_in());
    // A rank that waits for others in a collective is not to blame.
    const std::string blamed = rank.waiting_in().empty() ? worker : "";
    ChangeAlone(
        [&](const State& state) {
          return DecideAttemptFailed(state, gang.job(), gang.attempt(), v1::ATTEMPT_OUTCOME_HUNG,
                                     blamed, reason, CoordinatorNow());
        },
        absl::StrCat("watchdog of ", gang.job()));
    return;
  }
}

void Controller::CheckSurvivors(const std::string& worker, const v1::GangReport& gang,
                                bool peers_lost) {
  int64_t silent_ms = 0;
  {
    std::lock_guard lock(mutex_);
    if (!peers_lost) {
      peer_losses_.erase(gang.job());
      return;
    }
    PeerLoss& loss = peer_losses_[gang.job()];
    if (loss.attempt != gang.attempt()) {
      loss = {.attempt = gang.attempt(), .since_ms = clock_.SteadyMs()};
    }
    silent_ms = clock_.SteadyMs() - loss.since_ms;
  }
  int64_t median_step_ms = 0;
  for (const v1::RankHealth& rank : gang.ranks()) {
    median_step_ms = std::max(median_step_ms, rank.median_step_ms());
  }
  if (gang.phase() == v1::RANK_PHASE_FAILED || !gang.trouble().empty() ||
      silent_ms <= MostWithoutStepMs(options_, median_step_ms)) {
    return;
  }
  ChangeAlone(
      [&](const State& state) {
        return DecideAttemptFailed(
            state, gang.job(), gang.attempt(), v1::ATTEMPT_OUTCOME_HUNG, worker,
            absl::StrCat("ranks on ", worker, " have not ended within ", silent_ms,
                         " ms after others of their attempt had lost them"),
            CoordinatorNow());
      },
      absl::StrCat("watchdog of ", gang.job()));
}

v1::ConnectResponse Controller::Desired(const std::shared_ptr<WorkerSession>& session) {
  v1::ConnectResponse desired;
  desired.set_cluster(options_.cluster);
  desired.set_lease_ms(options_.lease_ms);
  std::string worker;
  int64_t incarnation = 0;
  std::vector<v1::ShardReport> held;
  {
    std::lock_guard lock(mutex_);
    worker = session->worker_;
    incarnation = session->incarnation_;
    desired.set_number(++session->number_);
    // Read before the state, which therefore includes the consequences of that report.
    desired.set_answered(session->answered_);
    for (const auto& [key, shard] : session->held_) held.push_back(shard);
    const auto work = work_.find(worker);
    if (work != work_.end()) {
      for (const v1::DesiredReplica& replica : work->second.replicas) {
        *desired.add_replicas() = replica;
      }
      for (const v1::DesiredTask& task : work->second.tasks) *desired.add_tasks() = task;
    }
  }
  ledger_->Read([&](const State& state) {
    // The sequence of this very snapshot: a worker takes a lower one as a sign of a restored store.
    *desired.mutable_store() = state.store();
    AddOrphanOrders(state, worker, desired);
    for (v1::DesiredGang& gang : DesiredGangs(state, worker, incarnation)) {
      if (gang.command() == v1::GANG_COMMAND_STOP) {
        const int64_t now_ms = clock_.SteadyMs();
        const Moments::OfJob moments = moments_.Note(state, *state.FindJob(gang.job()), now_ms);
        gang.set_stop_within_ms(std::max<int64_t>(1, moments.stop_by_ms - now_ms));
      }
      *desired.add_gangs() = std::move(gang);
    }
    for (v1::DroppedShard& shard : DroppedShards(state, held)) {
      *desired.add_dropped() = std::move(shard);
    }
    for (v1::DesiredTask& task : *desired.mutable_tasks()) {
      for (v1::DesiredReplica& shard : ShardSources(state, task.ref())) {
        *task.add_shards() = std::move(shard);
      }
    }
    for (const v1::ShardReport& shard : held) {
      const v1::JobRecord* const job = state.FindJob(shard.ref().job());
      const bool lives =
          job != nullptr && job->has_attempt() && job->attempt().number() == shard.ref().attempt();
      if (lives && IsOutlived(state, shard)) AddDropped(shard, desired);
    }
  });
  AddSurplus(session, worker, held, desired);
  AddDamaged(session, worker, held, desired);
  std::lock_guard lock(mutex_);
  int64_t& told = told_sequence_[worker];
  told = std::max(told, desired.store().sequence());
  return desired;
}

}  // namespace nibble
