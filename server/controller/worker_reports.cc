#include "server/controller/worker_reports.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/protocol/protocol_version.h"
#include "common/status_macros.h"
#include "server/controller/log.h"
#include "server/controller/store_seal.h"
#include "server/controller/worker_claims.h"
#include "server/state/decide.h"
#include "server/state/limits.h"
#include "server/state/report_numbers.h"
#include "server/state/timeline_record.h"
#include "server/state/workers.h"

namespace nibble {
namespace {

// The report with the phase that the state has already, so that it changes revisions alone.
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

// Adds what a worker needs to know of the jobs whose checkpoints it stores.
void AddJobs(const State& state, v1::ConnectResponse& desired) {
  std::set<std::string> jobs;
  for (const v1::DesiredReplica& replica : desired.replicas()) jobs.insert(replica.ref().job());
  for (const v1::DesiredTask& task : desired.tasks()) jobs.insert(task.ref().job());
  for (const std::string& id : jobs) {
    const v1::JobRecord* const job = state.FindJob(id);
    if (job == nullptr) continue;
    v1::JobOrder& order = *desired.add_jobs();
    order.set_job(id);
    order.set_spec_yaml(state.FindSpec(id)->spec_yaml());
    *order.mutable_revisions() = ForRanks(*state.FindTimeline(id));
    order.set_attempt(job->last_attempt());
    order.set_owner(job->owner());
  }
}

// A daemon from before epochs had ids shows those of the store that it follows without them.
constexpr int32_t kProtocolOfEpochIds = 2;
void AddEpochIds(const v1::StoreIdentity& ours, v1::ConnectRequest& report) {
  const auto add = [&ours](v1::StoreIdentity& store) {
    if (store.id() == ours.id() && store.epoch() == ours.epoch()) {
      store.set_epoch_id(ours.epoch_id());
    }
  };
  for (v1::ShardReport& shard : *report.mutable_shards()) add(*shard.mutable_store());
  for (v1::Orphan& orphan : *report.mutable_orphans()) {
    add(*orphan.mutable_store());
    for (v1::ShardReport& shard : *orphan.mutable_shards()) add(*shard.mutable_store());
  }
}

}  // namespace

absl::Status WorkerReports::Check(const v1::ConnectRequest& report) const {
  NIBBLE_RETURN_IF_ERROR(CheckBounds(report));
  NIBBLE_RETURN_IF_ERROR(CheckNumbers(report));
  const v1::WorkerIdentity& identity = report.identity();
  NIBBLE_RETURN_IF_ERROR(CheckIdentity(identity));
  NIBBLE_RETURN_IF_ERROR(CheckProtocol(identity.name(), identity.version(), identity.protocol()));
  const std::string& ours = context_.options.cluster;
  if (report.cluster().empty() || report.cluster() == ours) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("cluster: the worker belongs to '",
                                                    report.cluster(), "'; this is '", ours, "'"));
}

void WorkerReports::Take(const std::shared_ptr<WorkerSession>& session,
                         const v1::ConnectRequest& received,
                         std::function<void(absl::Status)> done) {
  v1::ConnectRequest completed;
  const bool older = received.identity().protocol() < kProtocolOfEpochIds;
  if (older) {
    completed = received;
    AddEpochIds(context_.ledger.Decided()->store(), completed);
  }
  const v1::ConnectRequest& report = older ? completed : received;
  const v1::WorkerIdentity& identity = report.identity();
  done = [this, handling = Stopwatch(), done = std::move(done)](const absl::Status& taken) {
    context_.metrics.Reported(handling.seconds(), taken);
    done(taken);
  };
  absl::Status status = Check(report);
  if (status.ok()) status = session->NoteReport(identity, context_.clock.SteadyMs());
  if (!status.ok()) {
    done(status);
    return;
  }
  if (status = recovery_.CheckStore(*session, report); !status.ok()) {
    done(status);
    return;
  }
  if (!Register(identity, done)) return;
  context_.live.NoteHeartbeat(identity.name(), identity.incarnation(), context_.clock.SteadyMs());
  sessions_.SetWorker(session, identity);
  const std::vector<const v1::GangReport*> gangs = Claimed(*session, report);
  // Revisions first: an attempt that ends by this report has run under them.
  for (const v1::GangReport* gang : gangs) TakeRevisions(identity, *gang);
  recovery_.TakeOrphans(*session, report);
  shards_.TakeDamage(*session, report);
  shards_.TakeShards(*session, report);
  for (const v1::GangReport* gang : gangs) TakeGang(identity, *gang);
  for (const v1::TaskReport& task : report.tasks()) TakeTask(*session, task);
  // An empty change: it is answered when everything before it is durable.
  context_.ledger.Change(
      [](const State&) -> MaybeUpdate { return std::nullopt; },
      [session, number = report.number(), done = std::move(done)](const absl::Status& stored) {
        if (stored.ok()) session->NoteDurable(number);
        done(stored);
      });
}

bool WorkerReports::Register(const v1::WorkerIdentity& identity,
                             const std::function<void(absl::Status)>& done) {
  const auto refused = std::make_shared<bool>(false);
  context_.ledger.Change(
      [&, refused](const State& state) {
        MaybeUpdate update = DecideRegister(state, identity, context_.coordinator());
        *refused = !update.ok();
        return update;
      },
      [refused, done](const absl::Status& stored) {
        if (*refused) done(stored);
      });
  return !*refused;
}

void WorkerReports::TakeRevisions(const v1::WorkerIdentity& identity, const v1::GangReport& gang) {
  if (gang.revisions().empty() && gang.refused().empty()) return;
  const std::string& worker = identity.name();
  context_.ledger.Change(
      [&](const State& state) {
        return DecideGangReport(state, worker, identity.incarnation(),
                                RevisionsOnly(state, worker, gang), context_.coordinator());
      },
      [worker](const absl::Status& taken) {
        LogUnlessStale(absl::StrCat("revision reported by ", worker), taken);
      });
}

void WorkerReports::TakeGang(const v1::WorkerIdentity& identity, const v1::GangReport& gang) {
  const std::string& worker = identity.name();
  absl::Status taken;
  bool peers_lost = false;
  context_.ledger.Change(
      [&](const State& state) -> MaybeUpdate {
        peers_lost = PeersLost(state, gang);
        MaybeUpdate update =
            DecideGangReport(state, worker, identity.incarnation(), gang, context_.coordinator());
        taken = update.status();
        return update;
      },
      [worker, job = gang.job()](const absl::Status& status) {
        LogUnlessStale(absl::StrCat("report of ", worker, " on ", job), status);
      });
  if (!taken.ok()) return;
  const std::vector<v1::StepSample> samples(gang.samples().begin(), gang.samples().end());
  watches_.PublishSamples(
      gang.job(), context_.live.Report(gang.job(), gang.attempt(), gang.next_step(), samples));
  context_.live.ReportRanks(worker, gang);
  for (const v1::RankHealth& rank : gang.ranks()) {
    if (rank.rank() == 0) context_.live.NoteRank0(gang.job(), gang.attempt());
  }
  watchdog_.Check(worker, gang, peers_lost);
}

std::vector<const v1::GangReport*> WorkerReports::Claimed(WorkerSession& session,
                                                          const v1::ConnectRequest& report) const {
  std::vector<const v1::GangReport*> claimed;
  if (report.gangs().empty()) return claimed;
  // The attempt of a claim that is refused later by the state is over: it changes nothing.
  const std::shared_ptr<const State> decided = context_.ledger.Decided();
  for (const v1::GangReport& gang : report.gangs()) {
    const absl::Status claim = CheckGangClaim(*decided, report.identity().name(), gang);
    if (claim.ok()) {
      claimed.push_back(&gang);
    } else {
      session.Refuse(absl::StrCat("job ", gang.job()), claim);
    }
  }
  return claimed;
}

void WorkerReports::TakeTask(WorkerSession& session, const v1::TaskReport& task) {
  const std::string worker = session.worker();
  const absl::Status claim =
      CheckTaskClaim(worker, task, session.WasOrderedTask(task.ref(), task.task()));
  if (!claim.ok()) {
    if (session.BeforeOrders()) return;
    session.Refuse(absl::StrCat("job ", task.ref().job(), " step ", task.ref().step()), claim);
    return;
  }
  context_.ledger.Change(
      [&](const State& state) {
        return DecideTaskReport(state, worker, task, context_.coordinator());
      },
      [worker](const absl::Status& ended) {
        LogUnlessStale(absl::StrCat("task of ", worker), ended);
      });
}

v1::ConnectResponse WorkerReports::Desired(const std::shared_ptr<WorkerSession>& session) {
  // Before the state, which therefore includes the consequences of report `answered`.
  const WorkerSession::Snapshot snapshot = session->BeginDesired();
  const std::string& worker = snapshot.worker;
  v1::ConnectResponse desired;
  desired.set_cluster(context_.options.cluster);
  desired.set_lease_ms(context_.options.lease_ms);
  desired.set_number(snapshot.number);
  desired.set_answered(snapshot.answered);
  keeper_.AddWork(worker, desired);
  // One snapshot for everything: a worker takes a lower sequence as a sign of a restored store.
  const std::shared_ptr<const State> shown = context_.ledger.Shown();
  *desired.mutable_store() = SealedStore(*shown);
  recovery_.AddOrders(*shown, worker, desired);
  for (v1::DesiredGang& gang : DesiredGangs(*shown, worker, snapshot.incarnation)) {
    if (gang.command() == v1::GANG_COMMAND_STOP) {
      const int64_t now_ms = context_.clock.SteadyMs();
      const Moments::OfJob moments =
          context_.moments.Note(*shown, *shown->FindJob(gang.job()), now_ms);
      gang.set_stop_within_ms(std::max<int64_t>(1, moments.stop_by_ms - now_ms));
    }
    *desired.add_gangs() = std::move(gang);
  }
  for (v1::DesiredTask& task : *desired.mutable_tasks()) {
    for (v1::DesiredReplica& shard : ShardSources(*shown, task.ref())) {
      *task.add_shards() = std::move(shard);
    }
  }
  AddJobs(*shown, desired);
  shards_.AddDropOrders(*shown, *session, snapshot, desired);
  session->NoteOrders(desired);
  return desired;
}

void WorkerReports::EndLeases(int64_t now_ms) {
  for (const Leases::Lease& lease : context_.live.TakeExpired(now_ms)) {
    context_.metrics.LeaseExpired();
    const std::string reason = absl::StrCat("no report for ", now_ms - lease.heard_ms,
                                            " ms; its lease is ", context_.options.lease_ms, " ms");
    Log(LogLevel::kWarning, absl::StrCat("worker ", lease.worker, " is lost: ", reason));
    context_.ledger.ChangeUnawaited(
        [&](const State& state) -> MaybeUpdate {
          const v1::WorkerRecord* const worker = state.FindWorker(lease.worker);
          if (worker == nullptr || !worker->present() ||
              worker->identity().incarnation() != lease.incarnation) {
            return std::nullopt;
          }
          return DecideWorkerLost(state, lease.worker, lease.incarnation, reason,
                                  context_.coordinator());
        },
        absl::StrCat("loss of ", lease.worker));
  }
}

}  // namespace nibble
