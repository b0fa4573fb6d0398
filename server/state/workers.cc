#include "server/state/workers.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/state/decide.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/timeline_record.h"

namespace nibble {
namespace {

v1::GangCommand CommandFor(const v1::JobRecord& job) {
  if (job.attempt().stopping()) return v1::GANG_COMMAND_STOP;
  return job.goal() == v1::JOB_GOAL_PAUSE ? v1::GANG_COMMAND_PAUSE : v1::GANG_COMMAND_RUN;
}

v1::DesiredGang DesiredOf(const State& state, const v1::JobRecord& job,
                          const v1::Placement& placement) {
  const v1::Attempt& attempt = job.attempt();
  v1::DesiredGang gang;
  gang.set_job(job.id());
  gang.set_attempt(attempt.number());
  gang.set_world(attempt.world());
  gang.set_first_rank(placement.first_rank());
  *gang.mutable_slots() = placement.slots();
  for (const v1::Placement& other : attempt.placements()) {
    v1::GangMember& member = *gang.add_members();
    member.set_worker(other.worker());
    member.set_address(state.FindWorker(other.worker())->identity().address());
    member.set_first_rank(other.first_rank());
    member.set_ranks(other.slots_size());
  }
  gang.set_spec_yaml(state.FindSpec(job.id())->spec_yaml());
  if (attempt.has_resume()) {
    *gang.mutable_resume() = attempt.resume();
    for (v1::DesiredReplica& shard : ShardSources(state, attempt.resume())) {
      *gang.add_resume_shards() = std::move(shard);
    }
    gang.set_weights_only(TakesOnlyWeights(job, attempt.resume()));
  }
  *gang.mutable_revisions() = ForRanks(*state.FindTimeline(job.id()));
  gang.set_command(CommandFor(job));
  gang.set_checkpoint_request(job.checkpoint_request());
  return gang;
}

}  // namespace

absl::Status CheckIdentity(const v1::WorkerIdentity& identity) {
  NIBBLE_RETURN_IF_ERROR(CheckName("identity.name", identity.name()));
  NIBBLE_RETURN_IF_ERROR(CheckRange("identity.incarnation", identity.incarnation(), 1, kMaxCount));
  NIBBLE_RETURN_IF_ERROR(CheckRange("identity.slots", identity.slots(), 1, kMaxSlots));
  NIBBLE_RETURN_IF_ERROR(CheckRange("identity.hardware.device", identity.hardware().device(),
                                    v1::DEVICE_CPU, v1::DEVICE_CUDA));
  NIBBLE_RETURN_IF_ERROR(CheckRange("identity.hardware.memory_bytes",
                                    identity.hardware().memory_bytes(), 0, kMaxCount));
  std::set<std::string> keys;
  for (const v1::Label& label : identity.labels()) {
    if (label.key().empty() || !keys.insert(label.key()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("identity.labels: the key '", label.key(), "' is empty or a duplicate"));
    }
  }
  return absl::OkStatus();
}

std::vector<v1::DesiredGang> DesiredGangs(const State& state, const std::string& worker,
                                          int64_t incarnation) {
  std::vector<v1::DesiredGang> gangs;
  for (const std::string& id : state.index().GangsOn(worker)) {
    const v1::JobRecord& job = *state.FindJob(id);
    for (const v1::Placement& placement : job.attempt().placements()) {
      if (placement.worker() == worker && placement.incarnation() == incarnation) {
        gangs.push_back(DesiredOf(state, job, placement));
      }
    }
  }
  return gangs;
}

std::vector<v1::DesiredReplica> ShardSources(const State& state, const v1::CheckpointRef& ref) {
  std::vector<v1::DesiredReplica> shards;
  for (const v1::CheckpointShard* shard : state.ShardsOf(ref)) {
    v1::DesiredReplica& one = shards.emplace_back();
    *one.mutable_ref() = ref;
    one.set_rank(shard->rank());
    one.set_manifest_crc32c(shard->manifest_crc32c());
    for (const std::string& holder : shard->holders()) {
      const v1::WorkerRecord* const worker = state.FindWorker(holder);
      if (worker != nullptr && worker->present()) one.add_sources(worker->identity().address());
    }
  }
  return shards;
}

std::vector<v1::DroppedShard> DroppedShards(const State& state,
                                            absl::Span<const v1::ShardReport> held) {
  const v1::StoreIdentity epoch = EpochOf(state.store());
  std::vector<v1::DroppedShard> dropped;
  for (const v1::ShardReport& shard : held) {
    const v1::CheckpointRef& ref = shard.ref();
    if (state.FindShard(ref, shard.rank()) != nullptr || !SameEpoch(shard.store(), epoch)) continue;
    const v1::CheckpointDeletion* const deletion = state.FindDeletion(ref);
    if (deletion != nullptr && deletion->restore_ordered()) continue;
    const v1::JobRecord* const job = state.FindJob(ref.job());
    const bool lives =
        job != nullptr && job->has_attempt() && job->attempt().number() == ref.attempt();
    if (lives && !IsOutlived(state, shard)) continue;
    v1::DroppedShard& order = dropped.emplace_back();
    *order.mutable_ref() = ref;
    order.set_rank(shard.rank());
    *order.mutable_order() = epoch;
    if (deletion != nullptr && SameEpoch(deletion->order(), epoch)) {
      order.set_kind(deletion->kind());
      order.set_reason(deletion->reason());
      order.mutable_order()->set_sequence(deletion->order().sequence());
    } else if (lives) {
      order.set_kind(v1::DELETION_KIND_LATE);
      order.set_reason("it was stored after a newer one was committed");
    } else {
      order.set_kind(v1::DELETION_KIND_NOT_COMMITTED);
      order.set_reason(job == nullptr ? "the coordinator has forgotten the job"
                                      : NotCommittedText(ref.attempt()));
    }
  }
  return dropped;
}

bool IsOutlived(const State& state, const v1::ShardReport& shard) {
  if (state.FindCheckpoint(shard.ref()) != nullptr) return false;
  const v1::CheckpointDeletion* const deletion = state.FindDeletion(shard.ref());
  if (deletion != nullptr &&
      (deletion->restore_ordered() || SameEpoch(deletion->order(), state.store()))) {
    return true;
  }
  const v1::Checkpoint* const newest = state.NewestGood(shard.ref().job());
  return newest != nullptr && newest->ref().step() > shard.ref().step();
}

void Leases::Restart(const State& state, int64_t now_ms) {
  leases_.clear();
  for (const auto& [name, worker] : state.tables().workers) {
    if (worker->present()) Hear(name, worker->identity().incarnation(), now_ms);
  }
}

void Leases::Hear(const std::string& worker, int64_t incarnation, int64_t now_ms) {
  Lease& lease = leases_[worker];
  if (incarnation < lease.incarnation) return;
  lease = {worker, incarnation, now_ms};
}

void Leases::Drop(const std::string& worker) { leases_.erase(worker); }

std::vector<Leases::Lease> Leases::Expired(int64_t now_ms) const {
  std::vector<Lease> expired;
  for (const auto& [name, lease] : leases_) {
    if (now_ms - lease.heard_ms > lease_ms_) expired.push_back(lease);
  }
  std::stable_sort(expired.begin(), expired.end(),
                   [](const Lease& a, const Lease& b) { return a.heard_ms < b.heard_ms; });
  return expired;
}

std::optional<int64_t> Leases::NextExpiry() const {
  std::optional<int64_t> next;
  for (const auto& [name, lease] : leases_) {
    const int64_t expiry = lease.heard_ms + lease_ms_ + 1;
    if (!next || expiry < *next) next = expiry;
  }
  return next;
}

std::optional<int64_t> Leases::LastHeard(const std::string& worker) const {
  const auto found = leases_.find(worker);
  if (found == leases_.end()) return std::nullopt;
  return found->second.heard_ms;
}

}  // namespace nibble
