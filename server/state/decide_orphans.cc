#include "server/state/decide.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "job/job_spec.h"
#include "server/state/decide_tools.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/timeline_record.h"

namespace nibble {
namespace {

// One update adopts at most this many shards, or those of one checkpoint; the others follow with
// the next report.
constexpr int64_t kMaxShardsAtOnce = 16'384;

// A checkpoint assembled from the shards of all workers.
struct Gathered {
  v1::CheckpointRef ref;
  int32_t world = 0;
  bool contradictory = false;  // two workers have different shards of one rank
  std::map<int32_t, v1::CheckpointShard> shards;

  bool whole() const {
    return !contradictory && world > 0 && static_cast<int32_t>(shards.size()) == world;
  }
};

// The checkpoints by key: by step, then attempt.
std::map<std::string, Gathered> Gather(Evidence evidence) {
  std::map<std::string, Gathered> all;
  for (const OrphanEvidence& one : evidence) {
    for (const v1::ShardReport& report : one.orphan->shards()) {
      Gathered& gathered = all[CheckpointKey(report.ref())];
      gathered.ref = report.ref();
      gathered.contradictory |= gathered.world != 0 && gathered.world != report.world();
      gathered.world = report.world();
      if (report.rank() < 0 || report.rank() >= report.world()) gathered.contradictory = true;
      v1::CheckpointShard& shard = gathered.shards[report.rank()];
      if (shard.holders().empty()) {
        shard.set_rank(report.rank());
        shard.set_bytes(report.bytes());
        shard.set_manifest_crc32c(report.manifest_crc32c());
      } else if (shard.bytes() != report.bytes() ||
                 shard.manifest_crc32c() != report.manifest_crc32c()) {
        gathered.contradictory = true;
        continue;
      }
      const auto& holders = shard.holders();
      if (holders.size() < kMaxHolders &&
          std::find(holders.begin(), holders.end(), one.worker) == holders.end()) {
        shard.add_holders(one.worker);
      }
    }
  }
  return all;
}

// The orphan with the latest attempt, and among those the latest timeline; null if there is none.
const v1::Orphan* Newest(Evidence evidence) {
  const auto rank = [](const v1::Orphan& orphan) {
    const int64_t revision = orphan.revisions().empty() ? 0 : orphan.revisions().rbegin()->number();
    return std::pair(orphan.attempt(), revision);
  };
  const v1::Orphan* newest = nullptr;
  for (const OrphanEvidence& one : evidence) {
    if (newest == nullptr || rank(*one.orphan) > rank(*newest)) newest = one.orphan;
  }
  return newest;
}

int64_t LastAttempt(Evidence evidence) {
  int64_t last = 0;
  for (const OrphanEvidence& one : evidence) {
    last = std::max(last, one.orphan->attempt());
    for (const v1::ShardReport& shard : one.orphan->shards()) {
      last = std::max(last, shard.ref().attempt());
    }
  }
  return last;
}

void AddAdopted(const Gathered& gathered, const std::string& reason, v1::Update& update) {
  v1::CheckpointAdopted& adopted = *update.add_facts()->mutable_checkpoint_adopted();
  *adopted.mutable_checkpoint()->mutable_ref() = gathered.ref;
  adopted.mutable_checkpoint()->set_world(gathered.world);
  for (const auto& [rank, shard] : gathered.shards) *adopted.add_shards() = shard;
  adopted.set_reason(reason);
}

absl::Status NoOrphan(const std::string& job) {
  return absl::NotFoundError(absl::StrCat(
      "job: no present worker stores anything of '", job,
      "' that the coordinator does not know; `nibble checkpoint orphans` lists orphans"));
}

std::string EndOf(const v1::Orphan& orphan) {
  return absl::StrCat("as of attempt ", orphan.attempt());
}

// The number at the end of the id; 0 if it has none.
int64_t NumberIn(const std::string& id) {
  int64_t number = 0;
  const size_t dash = id.rfind('-');
  if (dash == std::string::npos || !absl::SimpleAtoi(id.substr(dash + 1), &number)) return 0;
  return number < kMaxCount - 1 ? number : 0;
}

absl::Status CheckOneStore(const std::string& job, Evidence evidence) {
  std::set<std::string> stores;
  for (const OrphanEvidence& one : evidence) {
    if (!one.orphan->store().id().empty()) stores.insert(one.orphan->store().id());
  }
  if (stores.size() <= 1) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("job: workers store '", job, "' of ", stores.size(), " stores, ",
                   *stores.begin(), " and ", *stores.rbegin(),
                   "; remove one with `nibble checkpoint remove-orphan ", job, " --worker W`"));
}

absl::Status Adopt(const State& state, const v1::AdoptJobRequest& request, const Caller& caller,
                   Evidence evidence, v1::Update& update, v1::AdoptJobResponse& response) {
  if (state.FindJob(request.job()) != nullptr) {
    return absl::AlreadyExistsError(
        absl::StrCat("job: '", request.job(), "' is known to the store"));
  }
  if (evidence.empty()) return NoOrphan(request.job());
  NIBBLE_RETURN_IF_ERROR(CheckOneStore(request.job(), evidence));
  std::vector<OrphanEvidence> with_spec(evidence.begin(), evidence.end());
  std::erase_if(with_spec, [](const auto& one) { return one.orphan->spec_yaml().empty(); });
  const v1::Orphan* const newest = Newest(with_spec);
  if (newest == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("job: no present worker has the spec of '", request.job(),
                     "', only copies of its checkpoints; start a worker that ran it"));
  }
  // A dry-run submission checks the spec and yields its scheduling, policy and shape.
  v1::SubmitJobRequest submission;
  submission.set_spec_yaml(newest->spec_yaml());
  submission.set_dry_run(true);
  // Adopt the job whatever its notification URLs are: each post is checked again.
  static const std::function<absl::Status(const std::string&)> anywhere = [](const std::string&) {
    return absl::OkStatus();
  };
  Caller planner = caller;
  planner.may_post = &anywhere;
  NIBBLE_ASSIGN_OR_RETURN(const auto planned, Decide(state, submission, planner));
  const v1::Job& plan = planned.response.job();

  v1::JobAdopted& adopted = *update.add_facts()->mutable_job_adopted();
  v1::JobRecord& job = *adopted.mutable_job();
  job.set_id(request.job());
  // Never the number in the id: it identifies an adopted job (IsAdopted).
  job.set_number(std::max(FindIn(state.tables().cluster, kOnlyKey)->next_job_number(),
                          NumberIn(request.job()) + 1));
  job.set_name(plan.name());
  job.set_owner(newest->owner().empty() ? caller.author : newest->owner());
  *job.mutable_scheduling() = plan.scheduling();
  *job.mutable_restart_policy() = plan.restart_policy();
  *job.mutable_shape() = plan.shape();
  *job.mutable_notify() = plan.notify();
  job.set_last_attempt(LastAttempt(evidence));
  adopted.set_spec_yaml(newest->spec_yaml());
  *adopted.mutable_revisions() = newest->revisions();
  if (newest->revisions().empty()) {
    NIBBLE_ASSIGN_OR_RETURN(const JobSpec spec, ParseJobSpec(newest->spec_yaml()));
    *adopted.mutable_revisions() = ToMessages(MakeTimeline(spec));
  }
  adopted.set_reason(request.reason());

  int64_t shards = 0;
  int64_t newest_step = -1;
  const auto gathered = Gather(evidence);
  // Newest first, in case there is no room for all of them.
  for (auto one = gathered.rbegin(); one != gathered.rend(); ++one) {
    if (!one->second.whole()) {
      response.set_incomplete(response.incomplete() + 1);
      continue;
    }
    response.set_checkpoints(response.checkpoints() + 1);
    newest_step = std::max(newest_step, one->second.ref.step());
    const bool first = shards == 0;
    shards += one->second.world;
    if (first || shards <= kMaxShardsAtOnce) AddAdopted(one->second, EndOf(*newest), update);
  }
  v1::Job& shown = *response.mutable_job();
  shown = plan;
  shown.set_id(request.job());
  shown.set_owner(job.owner());
  shown.set_state(v1::JOB_STATE_PAUSED);
  shown.set_goal(v1::JOB_GOAL_PAUSE);
  shown.set_attempts(job.last_attempt());
  shown.set_checkpoint_step(newest_step);
  shown.set_latest_revision(adopted.revisions().rbegin()->number());
  shown.set_next_step(std::max<int64_t>(0, newest_step));
  return absl::OkStatus();
}

absl::Status Remove(const State& state, const v1::RemoveOrphanRequest& request, Evidence evidence,
                    int64_t grace_ms, v1::Update& update, v1::RemoveOrphanResponse& response) {
  if (state.FindJob(request.job()) != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job: '", request.job(),
        "' is known to the store; `nibble checkpoint delete` removes its checkpoints"));
  }
  for (const OrphanEvidence& one : evidence) {
    if (!request.worker().empty() && one.worker != request.worker()) continue;
    if (one.orphan->since_ms() < grace_ms) {
      return absl::FailedPreconditionError(
          absl::StrCat("job: '", request.job(), "' is an orphan on ", one.worker, " for ",
                       one.orphan->since_ms() / 1000, " s; it can be removed after ",
                       grace_ms / 1000, " s (--orphan-grace of the coordinator)"));
    }
    v1::OrphanRemoval& removal =
        *update.add_facts()->mutable_orphan_removal_set()->mutable_removal();
    removal.set_worker(one.worker);
    removal.set_job(request.job());
    *removal.mutable_store() = EpochOf(one.orphan->store());
    removal.set_reason(request.reason());
    response.set_workers(response.workers() + 1);
  }
  if (response.workers() > 0) return absl::OkStatus();
  if (evidence.empty() || request.worker().empty()) return NoOrphan(request.job());
  return absl::NotFoundError(absl::StrCat("worker: '", request.worker(), "' stores nothing of '",
                                          request.job(), "'; ", evidence.front().worker, " has"));
}

}  // namespace

bool IsAdopted(const v1::JobRecord& job) {
  return job.id() != absl::StrCat(job.name(), "-", job.number());
}

bool IsOwn(const State& state, const v1::JobRecord& job, const v1::StoreIdentity& store) {
  return store.id().empty() || store.id() == state.store().id() || IsAdopted(job);
}

MaybeUpdate DecideRecover(const State& state, const std::string& id, Evidence evidence,
                          const Caller& caller) {
  const v1::JobRecord* const job = state.FindJob(id);
  if (job == nullptr) return std::nullopt;
  std::vector<OrphanEvidence> own(evidence.begin(), evidence.end());
  std::erase_if(own, [&](const auto& one) { return !IsOwn(state, *job, one.orphan->store()); });
  const v1::Orphan* const newest = Newest(own);
  if (newest == nullptr) return std::nullopt;

  v1::Update update = decide::NextUpdate(state, caller);
  const int64_t last = LastAttempt(own);
  int64_t living = job->has_attempt() ? job->attempt().number() : 0;
  if (last > job->last_attempt()) {
    if (living > 0) {
      decide::AddStop(*job,
                      absl::StrCat("attempt ", last,
                                   " was launched since: the store was restored "
                                   "from a backup"),
                      update);
      living = 0;
    }
    v1::AttemptAdopted& adopted = *update.add_facts()->mutable_attempt_adopted();
    adopted.set_job(id);
    adopted.mutable_attempt()->set_number(last);
    if (newest->attempt() == last) *adopted.mutable_revisions() = newest->revisions();
    adopted.set_reason("reported by its workers");
  } else if (last > 0 && last == job->last_attempt() && newest->attempt() == last &&
             !IsFinished(job->state()) && !newest->revisions().empty() &&
             newest->revisions().rbegin()->number() >
                 state.FindTimeline(id)->revisions().rbegin()->number()) {
    // Its ranks run, or have run, under revisions that the restored store does not have.
    v1::AttemptAdopted& adopted = *update.add_facts()->mutable_attempt_adopted();
    adopted.set_job(id);
    adopted.mutable_attempt()->set_number(last);
    adopted.set_living(true);
    *adopted.mutable_revisions() = newest->revisions();
    adopted.set_reason("reported by its workers");
  }
  int64_t shards = 0;
  for (const auto& [key, gathered] : Gather(own)) {
    const v1::Checkpoint* const known = state.FindCheckpoint(gathered.ref);
    if (known == nullptr) {
      // Evidence is of earlier epochs. What the live attempt writes now is committed in the usual way.
      if (!gathered.whole()) continue;
      if (shards > 0 && shards + gathered.world > kMaxShardsAtOnce) break;
      shards += gathered.world;
      AddAdopted(gathered, "every shard is present", update);
      continue;
    }
    if (known->state() == v1::CHECKPOINT_STATE_WRITING) continue;
    for (const auto& [rank, shard] : gathered.shards) {
      const v1::CheckpointShard* const stored = state.FindShard(gathered.ref, rank);
      if (stored == nullptr || stored->manifest_crc32c() != shard.manifest_crc32c()) continue;
      for (const std::string& holder : shard.holders()) {
        const auto& holders = stored->holders();
        if (std::find(holders.begin(), holders.end(), holder) != holders.end() ||
            holders.size() >= kMaxHolders || ++shards > kMaxShardsAtOnce) {
          continue;
        }
        v1::ShardHolderSet& set = *update.add_facts()->mutable_shard_holder_set();
        *set.mutable_ref() = gathered.ref;
        set.set_rank(rank);
        set.set_worker(holder);
        set.set_held(true);
      }
    }
  }
  return decide::Checked(state, std::move(update));
}

absl::StatusOr<Decision<v1::AdoptJobResponse>> Decide(const State& state,
                                                      const v1::AdoptJobRequest& request,
                                                      const Caller& caller, Evidence evidence) {
  return decide::Once<v1::AdoptJobResponse>(
      state, request, caller, [&](v1::Update& update, v1::AdoptJobResponse& response) {
        return Adopt(state, request, caller, evidence, update, response);
      });
}

absl::StatusOr<Decision<v1::RemoveOrphanResponse>> Decide(const State& state,
                                                          const v1::RemoveOrphanRequest& request,
                                                          const Caller& caller, Evidence evidence,
                                                          int64_t grace_ms) {
  return decide::Once<v1::RemoveOrphanResponse>(
      state, request, caller, [&](v1::Update& update, v1::RemoveOrphanResponse& response) {
        return Remove(state, request, evidence, grace_ms, update, response);
      });
}

MaybeUpdate DecideRemovalsDone(const State& state, const std::string& worker,
                               const std::set<std::string>& orphans, const Caller& caller) {
  v1::Update update = decide::NextUpdate(state, caller);
  for (const v1::OrphanRemoval* removal : state.RemovalsOn(worker)) {
    if (orphans.contains(removal->job())) continue;
    v1::OrphanRemovalSet& set = *update.add_facts()->mutable_orphan_removal_set();
    *set.mutable_removal() = *removal;
    set.set_done(true);
  }
  return decide::Checked(state, std::move(update));
}

v1::OrphanJob DescribeOrphan(const State& state, const std::string& job, Evidence evidence) {
  v1::OrphanJob described;
  described.set_job(job);
  described.set_newest_whole_step(-1);
  for (const auto& [key, gathered] : Gather(evidence)) {
    if (gathered.whole()) described.set_newest_whole_step(gathered.ref.step());
  }
  for (const OrphanEvidence& one : evidence) {
    const v1::Orphan& orphan = *one.orphan;
    v1::OrphanHolding& holding = *described.add_holdings();
    holding.set_worker(one.worker);
    *holding.mutable_store() = orphan.store();
    holding.set_attempt(orphan.attempt());
    holding.set_running(orphan.running());
    holding.set_spec_known(!orphan.spec_yaml().empty());
    holding.set_shards(orphan.shards_size());
    holding.set_newest_step(-1);
    for (const v1::ShardReport& shard : orphan.shards()) {
      holding.set_bytes(holding.bytes() + shard.bytes());
      holding.set_newest_step(std::max(holding.newest_step(), shard.ref().step()));
    }
    holding.set_since_ms(orphan.since_ms());
    holding.set_removal_ordered(FindIn(state.tables().removals, RemovalKey(one.worker, job)) !=
                                nullptr);
  }
  return described;
}

}  // namespace nibble
