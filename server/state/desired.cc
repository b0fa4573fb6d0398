#include "server/state/desired.h"

#include <utility>

#include "server/state/decide_orphans.h"
#include "server/state/job_machine.h"
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
  std::vector<v1::DroppedShard> dropped;
  for (const v1::ShardReport& shard : held) {
    if (state.FindShard(shard.ref(), shard.rank()) != nullptr) continue;
    // Only of what this very store has ordered does it know all.
    if (!SameEpoch(shard.store(), state.store())) continue;
    const v1::JobRecord* const job = state.FindJob(shard.ref().job());
    if (job != nullptr && job->has_attempt() && job->attempt().number() == shard.ref().attempt()) {
      continue;
    }
    dropped.emplace_back();
    *dropped.back().mutable_ref() = shard.ref();
    dropped.back().set_rank(shard.rank());
  }
  return dropped;
}

}  // namespace nibble
