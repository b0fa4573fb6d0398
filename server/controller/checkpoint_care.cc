#include "server/controller/checkpoint_care.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "job/job_spec.h"
#include "server/controller/checkpoint_care_holders.h"
#include "server/state/decide_tools.h"
#include "server/state/keys.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

using Shards = std::vector<const v1::CheckpointShard*>;

// Workers that are ranked among others cost less to look at than records.
constexpr int64_t kTakersPerLook = 16;

void AddReplicas(const State& state, const v1::Checkpoint& checkpoint, const Shards& shards,
                 int copies, const std::vector<std::string>& takers, JobCare& care) {
  for (const v1::CheckpointShard* shard : shards) {
    const std::vector<std::string> next =
        NextHolders(state, checkpoint.ref(), *shard, copies, takers);
    if (next.empty()) continue;
    care.looks += static_cast<int64_t>(takers.size()) / kTakersPerLook;
    v1::DesiredReplica replica;
    *replica.mutable_ref() = checkpoint.ref();
    replica.set_rank(shard->rank());
    replica.set_manifest_crc32c(shard->manifest_crc32c());
    for (const std::string& source : PresentHolders(state, *shard)) {
      replica.add_sources(state.FindWorker(source)->identity().address());
    }
    for (const std::string& taker : next) care.work[taker].replicas.push_back(replica);
  }
}

void AddTasks(const State& state, const v1::Checkpoint& checkpoint, const Shards& shards,
              JobCare& care) {
  std::map<std::string, int> held;
  for (const v1::CheckpointShard* shard : shards) {
    for (const std::string& holder : PresentHolders(state, *shard)) ++held[holder];
  }
  const auto most = std::max_element(
      held.begin(), held.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == held.end()) return;
  for (const v1::CheckpointTask& task : checkpoint.tasks()) {
    if (task.state() != v1::CHECKPOINT_TASK_STATE_REQUESTED) continue;
    v1::DesiredTask& desired = care.work[most->first].tasks.emplace_back();
    *desired.mutable_ref() = checkpoint.ref();
    desired.set_task(task.number());
    desired.set_kind(task.kind());
    desired.set_destination(task.destination());
  }
}

bool InUse(const State& state, const v1::JobRecord& job, const v1::Checkpoint& checkpoint) {
  if (checkpoint.pins_size() > 0 || HasOpenTask(checkpoint)) return true;
  const std::string key = CheckpointKey(checkpoint.ref());
  if (!state.index().ForksOf(key).empty()) return true;
  return job.has_attempt() && job.attempt().has_resume() &&
         CheckpointKey(job.attempt().resume()) == key;
}

bool HasCopies(const State& state, const v1::Checkpoint& checkpoint) {
  const auto shards = state.ShardsOf(checkpoint.ref());
  return std::all_of(shards.begin(), shards.end(),
                     [](const v1::CheckpointShard* shard) { return shard->holders_size() > 1; });
}

}  // namespace

JobCare CareFor(const State& state, const std::string& job, int copies,
                const std::vector<std::string>& takers) {
  JobCare care = {.work = {}, .looks = 1};
  const std::vector<const v1::Checkpoint*> all = state.CheckpointsOf(job);
  const v1::Checkpoint* const newest = all.empty() ? nullptr : state.NewestGood(job);
  for (const v1::Checkpoint* checkpoint : all) {
    const Shards shards = state.ShardsOf(checkpoint->ref());
    care.looks += 1 + static_cast<int64_t>(shards.size());
    const bool good = checkpoint->state() == v1::CHECKPOINT_STATE_COMMITTED;
    if (checkpoint == newest || (good && checkpoint->pins_size() > 0)) {
      AddReplicas(state, *checkpoint, shards, copies, takers, care);
    }
    if (HasOpenTask(*checkpoint)) AddTasks(state, *checkpoint, shards, care);
    care.surplus =
        care.surplus || std::any_of(shards.begin(), shards.end(), [&](const auto* shard) {
          return !SurplusHolders(state, *checkpoint, *shard, copies).empty();
        });
  }
  return care;
}

MaybeUpdate DecideSurplus(const State& state, const std::string& job, int copies,
                          const Caller& caller) {
  v1::Update update = decide::NextUpdate(state, caller);
  for (const v1::Checkpoint* checkpoint : state.CheckpointsOf(job)) {
    for (const v1::CheckpointShard* shard : state.ShardsOf(checkpoint->ref())) {
      for (std::string& worker : SurplusHolders(state, *checkpoint, *shard, copies)) {
        // The rest with the next update.
        if (update.facts_size() == kMaxFacts) break;
        v1::ShardHolderSet& fact = *update.add_facts()->mutable_shard_holder_set();
        *fact.mutable_ref() = checkpoint->ref();
        fact.set_rank(shard->rank());
        fact.set_worker(std::move(worker));
        fact.set_held(false);
      }
    }
  }
  return decide::Checked(state, std::move(update));
}

std::vector<v1::CheckpointRef> BeyondRetention(const State& state, const std::string& id) {
  std::vector<v1::CheckpointRef> beyond;
  const v1::JobRecord* const job = state.FindJob(id);
  std::vector<const v1::Checkpoint*> all = state.CheckpointsOf(id);
  if (job == nullptr || all.empty()) return beyond;
  const absl::StatusOr<JobSpec> spec = ParseJobSpec(state.FindSpec(id)->spec_yaml());
  if (!spec.ok()) return beyond;
  std::reverse(all.begin(), all.end());
  int64_t kept = 0;
  bool copied = false;  // the newest that no single worker takes with it, however many are newer
  for (const v1::Checkpoint* checkpoint : all) {
    const int64_t step = checkpoint->ref().step();
    // Damaged ones are there for people to look at; unfinished ones go with their attempt.
    if (checkpoint->state() != v1::CHECKPOINT_STATE_COMMITTED) continue;
    const bool safe = !copied && !checkpoint->left() && HasCopies(state, *checkpoint);
    copied |= safe;
    const bool keep =
        !checkpoint->left() &&
        (kept < spec->checkpoints.keep_last || safe ||
         (spec->checkpoints.keep_every > 0 && step % spec->checkpoints.keep_every == 0));
    kept += checkpoint->left() ? 0 : 1;
    if (!keep && !InUse(state, *job, *checkpoint)) beyond.push_back(checkpoint->ref());
  }
  return beyond;
}

MaybeUpdate DecideRetention(const State& state, const v1::CheckpointRef& ref,
                            const Caller& caller) {
  const v1::Checkpoint* const checkpoint = state.FindCheckpoint(ref);
  if (checkpoint == nullptr) return std::nullopt;
  v1::Update update = decide::NextUpdate(state, caller);
  v1::CheckpointDeleted& deleted = *update.add_facts()->mutable_checkpoint_deleted();
  *deleted.mutable_ref() = ref;
  deleted.set_reason("beyond what the job's spec keeps");
  absl::Status status = state.Validate(update);
  if (absl::IsFailedPrecondition(status)) return std::nullopt;
  if (!status.ok()) return status;
  return update;
}

bool IsOutlived(const State& state, const v1::ShardReport& shard) {
  if (state.FindCheckpoint(shard.ref()) != nullptr) return false;
  const v1::Checkpoint* const newest = state.NewestGood(shard.ref().job());
  return newest != nullptr && newest->ref().step() > shard.ref().step();
}

}  // namespace nibble
