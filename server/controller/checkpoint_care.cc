#include "server/controller/checkpoint_care.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/crc32c.h"
#include "job/job_spec.h"
#include "server/state/keys.h"

namespace nibble {
namespace {

bool Present(const State& state, const std::string& name) {
  const v1::WorkerRecord* const worker = state.FindWorker(name);
  return worker != nullptr && worker->present();
}

// Where a worker stands among those that could take a copy: each shard orders the workers in its
// own way, and one that comes or goes moves no shard between others.
uint32_t RankFor(const std::string& shard_key, const std::string& worker) {
  const std::string text = absl::StrCat(shard_key, "@", worker);
  return Crc32c(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

void AddReplicas(const State& state, const v1::Checkpoint& checkpoint, int copies,
                 const std::vector<std::string>& takers,
                 std::map<std::string, CheckpointWork>& work) {
  for (const v1::CheckpointShard* shard : state.ShardsOf(checkpoint.ref())) {
    std::vector<std::string> sources;
    for (const std::string& holder : shard->holders()) {
      if (Present(state, holder)) {
        sources.push_back(state.FindWorker(holder)->identity().address());
      }
    }
    const int missing = copies - static_cast<int>(sources.size());
    if (sources.empty() || missing <= 0) continue;
    const std::string key = ShardKey(checkpoint.ref(), shard->rank());
    std::vector<std::pair<uint32_t, std::string>> ranked;
    for (const std::string& taker : takers) {
      if (std::find(shard->holders().begin(), shard->holders().end(), taker) ==
          shard->holders().end()) {
        ranked.emplace_back(RankFor(key, taker), taker);
      }
    }
    std::sort(ranked.begin(), ranked.end());
    for (int i = 0; i < missing && i < static_cast<int>(ranked.size()); ++i) {
      v1::DesiredReplica& replica =
          work[ranked[static_cast<size_t>(i)].second].replicas.emplace_back();
      *replica.mutable_ref() = checkpoint.ref();
      replica.set_rank(shard->rank());
      replica.set_manifest_crc32c(shard->manifest_crc32c());
      for (const std::string& source : sources) replica.add_sources(source);
    }
  }
}

void AddTasks(const State& state, const v1::Checkpoint& checkpoint,
              std::map<std::string, CheckpointWork>& work) {
  std::map<std::string, int> shards;
  for (const v1::CheckpointShard* shard : state.ShardsOf(checkpoint.ref())) {
    for (const std::string& holder : shard->holders()) {
      if (Present(state, holder)) ++shards[holder];
    }
  }
  const auto most =
      std::max_element(shards.begin(), shards.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == shards.end()) return;
  for (const v1::CheckpointTask& task : checkpoint.tasks()) {
    if (task.state() != v1::CHECKPOINT_TASK_STATE_REQUESTED) continue;
    v1::DesiredTask& desired = work[most->first].tasks.emplace_back();
    *desired.mutable_ref() = checkpoint.ref();
    desired.set_task(task.number());
    desired.set_kind(task.kind());
    desired.set_destination(task.destination());
  }
}

bool HasOpenTask(const v1::Checkpoint& checkpoint) {
  return std::any_of(checkpoint.tasks().begin(), checkpoint.tasks().end(), [](const auto& task) {
    return task.state() == v1::CHECKPOINT_TASK_STATE_REQUESTED;
  });
}

bool InUse(const State& state, const v1::JobRecord& job, const v1::Checkpoint& checkpoint) {
  if (checkpoint.pins_size() > 0 || HasOpenTask(checkpoint)) return true;
  const std::string key = CheckpointKey(checkpoint.ref());
  if (!state.index().ForksOf(key).empty()) return true;
  return job.has_attempt() && job.attempt().has_resume() &&
         CheckpointKey(job.attempt().resume()) == key;
}

}  // namespace

std::map<std::string, CheckpointWork> PlanCheckpointWork(const State& state, int copies) {
  std::map<std::string, CheckpointWork> work;
  std::vector<std::string> takers;
  for (const auto& [name, worker] : state.tables().workers) {
    if (worker->present() && worker->mode() == v1::WORKER_MODE_OPEN) takers.push_back(name);
  }
  for (const auto& [number, id] : state.index().unfinished()) {
    const v1::Checkpoint* const newest = state.NewestGood(id);
    if (newest != nullptr) AddReplicas(state, *newest, copies, takers, work);
  }
  for (const auto& [key, checkpoint] : state.tables().checkpoints) {
    if (HasOpenTask(*checkpoint)) AddTasks(state, *checkpoint, work);
  }
  return work;
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
  for (const v1::Checkpoint* checkpoint : all) {
    const int64_t step = checkpoint->ref().step();
    // Damaged ones are there for people to look at; unfinished ones go with their attempt.
    if (checkpoint->state() != v1::CHECKPOINT_STATE_COMMITTED) continue;
    const bool keep =
        !checkpoint->left() &&
        (kept < spec->checkpoints.keep_last ||
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
  v1::Update update;
  update.set_sequence(state.sequence() + 1);
  update.set_time_unix_ms(std::max(caller.now_unix_ms, state.time_unix_ms()));
  update.set_author(caller.author);
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
