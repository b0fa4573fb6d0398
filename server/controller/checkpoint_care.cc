#include "server/controller/checkpoint_care.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <tuple>
#include <utility>

#include "common/crc32c.h"
#include "job/job_spec.h"
#include "server/state/decide.h"
#include "server/state/decide_tools.h"
#include "server/state/entities.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

const v1::WorkerRecord* FindPresent(const State& state, const std::string& name) {
  const v1::WorkerRecord* const worker = state.FindWorker(name);
  return worker != nullptr && worker->present() ? worker : nullptr;
}

bool IsHolder(const v1::CheckpointShard& shard, const std::string& worker) {
  return std::find(shard.holders().begin(), shard.holders().end(), worker) != shard.holders().end();
}

// Present holders that are not draining.
int64_t StayingHolders(const State& state, const v1::CheckpointShard& shard) {
  return std::count_if(shard.holders().begin(), shard.holders().end(), [&](const auto& holder) {
    const v1::WorkerRecord* const worker = FindPresent(state, holder);
    return worker != nullptr && worker->mode() != v1::WORKER_MODE_DRAINING;
  });
}

// Whether copies of it are made: it is the newest good one of its job, or pinned.
bool GetsCopies(const v1::Checkpoint& checkpoint, const v1::Checkpoint* newest) {
  return &checkpoint == newest ||
         (checkpoint.state() == v1::CHECKPOINT_STATE_COMMITTED && checkpoint.pins_size() > 0);
}

// The rank of each worker in one shard's order.
class Order {
 public:
  Order(const v1::CheckpointRef& ref, int32_t rank) : crc_(Crc32c(ShardKey(ref, rank) + "@")) {}
  std::pair<uint32_t, std::string> of(const std::string& worker) const {
    return {ExtendCrc32c(crc_, worker), worker};
  }

 private:
  const uint32_t crc_;
};

// The workers whose living attempts rely on a checkpoint.
class Reliance {
 public:
  Reliance(const State& state, const v1::CheckpointRef& ref) {
    const std::string key = CheckpointKey(ref);
    const v1::JobRecord* const job = state.FindJob(ref.job());
    if (job != nullptr) Add(*job, key);
    for (const std::string& fork : state.index().ForksOf(key)) Add(*state.FindJob(fork), key);
    if (job != nullptr && job->has_attempt() && job->attempt().number() == ref.attempt()) {
      writer_ = &job->attempt();
    }
  }
  bool IsOn(const std::string& worker, int32_t rank) const {
    if (began_.contains(worker)) return true;
    return writer_ != nullptr &&
           std::any_of(writer_->placements().begin(), writer_->placements().end(),
                       [&](const v1::Placement& placement) {
                         return placement.worker() == worker && placement.first_rank() <= rank &&
                                rank < placement.first_rank() + placement.slots_size();
                       });
  }

 private:
  void Add(const v1::JobRecord& job, const std::string& key) {
    if (!job.has_attempt() || !job.attempt().has_resume()) return;
    if (CheckpointKey(job.attempt().resume()) != key) return;
    for (const v1::Placement& placement : job.attempt().placements()) {
      began_.insert(placement.worker());
    }
  }

  std::set<std::string> began_;          // workers with ranks that began from it
  const v1::Attempt* writer_ = nullptr;  // whose ranks wrote it
};

bool MayBeThinned(const v1::Checkpoint& checkpoint) {
  return checkpoint.state() == v1::CHECKPOINT_STATE_COMMITTED && !HasOpenTask(checkpoint);
}

using Shards = std::vector<const v1::CheckpointShard*>;

// Ranking a worker costs less than a look at a record.
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
  // Copies that are made meanwhile move no task: holders are in the order in which they came.
  std::string worker;
  for (const v1::CheckpointShard* shard : shards) {
    const std::vector<std::string> present = PresentHolders(state, *shard);
    if (present.empty()) continue;
    worker = present.front();
    break;
  }
  if (worker.empty()) return;
  for (const v1::CheckpointTask& task : checkpoint.tasks()) {
    if (task.state() != v1::CHECKPOINT_TASK_STATE_REQUESTED) continue;
    const bool stays = FindPresent(state, task.worker()) != nullptr;
    v1::DesiredTask& desired = care.work[stays ? task.worker() : worker].tasks.emplace_back();
    *desired.mutable_ref() = checkpoint.ref();
    desired.set_task(task.number());
    desired.set_kind(task.kind());
    desired.set_destination(task.destination());
    desired.set_keep(task.keep());
    if (task.kind() != v1::CHECKPOINT_TASK_KIND_UPLOAD) continue;
    const v1::JobRecord* const job = state.FindJob(checkpoint.ref().job());
    if (job == nullptr) continue;
    // Only the first upload of an adopted job takes copies over: a store that lost them to another
    // one does not take them back.
    const v1::JobUploads& uploads = job->uploads();
    desired.set_store(state.store().id());
    desired.set_continues(uploads.place() == task.destination() && !uploads.copies().empty());
    desired.set_takes_over(IsAdopted(*job) && !desired.continues());
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

bool HasOpenTask(const v1::Checkpoint& checkpoint) {
  return std::any_of(checkpoint.tasks().begin(), checkpoint.tasks().end(), [](const auto& task) {
    return task.state() == v1::CHECKPOINT_TASK_STATE_REQUESTED;
  });
}

std::vector<std::string> TakersOf(const State& state) {
  std::vector<std::string> takers;
  for (const auto& [name, worker] : state.tables().workers) {
    if (worker->present() && worker->mode() == v1::WORKER_MODE_OPEN) takers.push_back(name);
  }
  return takers;
}

std::vector<std::string> PresentHolders(const State& state, const v1::CheckpointShard& shard) {
  std::vector<std::string> present;
  for (const std::string& holder : shard.holders()) {
    if (FindPresent(state, holder) != nullptr) present.push_back(holder);
  }
  return present;
}

std::string FindMostHolder(const State& state, const v1::CheckpointRef& ref) {
  std::map<std::string, int> held;
  for (const v1::CheckpointShard* shard : state.ShardsOf(ref)) {
    for (const std::string& holder : PresentHolders(state, *shard)) ++held[holder];
  }
  const auto most = std::max_element(
      held.begin(), held.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == held.end() ? "" : most->first;
}

std::optional<int32_t> FindAbsentShard(const State& state, const v1::CheckpointRef& ref) {
  for (const v1::CheckpointShard* shard : state.ShardsOf(ref)) {
    if (PresentHolders(state, *shard).empty()) return shard->rank();
  }
  return std::nullopt;
}

std::vector<std::string> NextHolders(const State& state, const v1::CheckpointRef& ref,
                                     const v1::CheckpointShard& shard, int copies,
                                     const std::vector<std::string>& takers) {
  const std::vector<std::string> present = PresentHolders(state, shard);
  // A draining worker is about to go: other workers get its copies before.
  const int64_t staying = StayingHolders(state, shard);
  std::vector<std::string> next;
  if (present.empty() || staying >= copies) return next;
  const Order order(ref, shard.rank());
  std::vector<std::pair<uint32_t, std::string>> ranked;
  for (const std::string& taker : takers) {
    if (!IsHolder(shard, taker)) ranked.push_back(order.of(taker));
  }
  const auto missing = std::min(ranked.size(), static_cast<size_t>(copies - staying));
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<ptrdiff_t>(missing), ranked.end());
  for (size_t i = 0; i < missing; ++i) next.push_back(std::move(ranked[i].second));
  return next;
}

std::vector<std::string> SurplusHolders(const State& state, const v1::Checkpoint& checkpoint,
                                        const v1::CheckpointShard& shard, int copies) {
  std::vector<std::string> surplus;
  if (shard.holders_size() <= copies || !MayBeThinned(checkpoint)) return surplus;
  const Reliance reliance(state, checkpoint.ref());
  const Order order(checkpoint.ref(), shard.rank());
  // The first workers keep theirs: false sorts before true.
  struct Standing {
    bool not_relied_on;
    bool draining;
    bool not_open;
    std::pair<uint32_t, std::string> place;
    bool operator<(const Standing& other) const {
      return std::tie(not_relied_on, draining, not_open, place) <
             std::tie(other.not_relied_on, other.draining, other.not_open, other.place);
    }
  };
  std::vector<Standing> present;
  for (const std::string& holder : shard.holders()) {
    const v1::WorkerRecord* const worker = FindPresent(state, holder);
    if (worker == nullptr) continue;
    present.push_back({.not_relied_on = !reliance.IsOn(holder, shard.rank()),
                       .draining = worker->mode() == v1::WORKER_MODE_DRAINING,
                       .not_open = worker->mode() != v1::WORKER_MODE_OPEN,
                       .place = order.of(holder)});
  }
  std::sort(present.begin(), present.end());
  int staying = 0;
  for (Standing& holder : present) {
    if (staying >= copies && holder.not_relied_on) {
      surplus.push_back(std::move(holder.place.second));
    } else if (!holder.draining) {
      ++staying;
    }
  }
  return surplus;
}

bool IsUnwanted(const State& state, const std::string& worker, const v1::ShardReport& report,
                int copies) {
  const v1::CheckpointShard* const shard = state.FindShard(report.ref(), report.rank());
  if (shard == nullptr || IsHolder(*shard, worker) ||
      shard->manifest_crc32c() != report.manifest_crc32c()) {
    return false;
  }
  const v1::Checkpoint* const checkpoint = state.FindCheckpoint(report.ref());
  if (checkpoint == nullptr || !MayBeThinned(*checkpoint)) return false;
  return StayingHolders(state, *shard) >= copies &&
         !Reliance(state, report.ref()).IsOn(worker, report.rank());
}

int64_t CountSoleShards(const State& state, const std::string& worker) {
  const v1::WorkerRecord* const leaving = FindPresent(state, worker);
  if (leaving == nullptr || leaving->mode() != v1::WORKER_MODE_DRAINING ||
      TakersOf(state).empty()) {
    return 0;
  }
  int64_t sole = 0;
  for (const auto& [job, record] : state.tables().jobs) {
    const v1::Checkpoint* const newest = state.NewestGood(job);
    for (const v1::Checkpoint* checkpoint : state.CheckpointsOf(job)) {
      if (!GetsCopies(*checkpoint, newest)) continue;
      for (const v1::CheckpointShard* shard : state.ShardsOf(checkpoint->ref())) {
        if (IsHolder(*shard, worker) && StayingHolders(state, *shard) == 0) ++sole;
      }
    }
  }
  return sole;
}

JobCare CareFor(const State& state, const std::string& job, int copies,
                const std::vector<std::string>& takers) {
  JobCare care = {.work = {}, .looks = 1};
  const std::vector<const v1::Checkpoint*> all = state.CheckpointsOf(job);
  const v1::Checkpoint* const newest = all.empty() ? nullptr : state.NewestGood(job);
  for (const v1::Checkpoint* checkpoint : all) {
    const Shards shards = state.ShardsOf(checkpoint->ref());
    care.looks += 1 + static_cast<int64_t>(shards.size());
    if (GetsCopies(*checkpoint, newest)) {
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
        // The next update has the rest.
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

std::vector<v1::CheckpointRef> BeyondRetention(const State& state, const std::string& id,
                                               bool* waits) {
  std::vector<v1::CheckpointRef> beyond;
  const v1::JobRecord* const job = state.FindJob(id);
  std::vector<const v1::Checkpoint*> all = state.CheckpointsOf(id);
  if (job == nullptr || all.empty()) return beyond;
  const absl::StatusOr<JobSpec> spec = ParseJobSpec(state.FindSpec(id)->spec_yaml());
  if (!spec.ok()) return beyond;
  std::reverse(all.begin(), all.end());
  int64_t kept = 0;
  int64_t harmed = 0;
  // A guard that finds something in the step after the newest checkpoint rolls back to one of this
  // step or before, the newest of which is kept.
  const v1::Checkpoint* const newest = state.NewestGood(id);
  const int64_t rollback_step = newest != nullptr && RollsBack(spec->guards)
                                    ? newest->ref().step() - 1 - spec->guards.rollback_margin
                                    : -1;
  bool rolls_back = false;  // whether it was seen
  // Whether the newest checkpoint that survives the loss of any one worker was seen.
  bool copied = false;
  const v1::Checkpoint* const whole = state.NewestWhole(id);
  for (const v1::Checkpoint* checkpoint : all) {
    const int64_t step = checkpoint->ref().step();
    // Damaged ones are kept for people to inspect; unfinished ones end with their attempt.
    if (checkpoint->state() != v1::CHECKPOINT_STATE_COMMITTED) continue;
    const bool safe = !copied && !checkpoint->left() && HasCopies(state, *checkpoint);
    copied |= safe;
    const bool fallback = !rolls_back && !checkpoint->left() && step <= rollback_step;
    rolls_back |= fallback;
    bool keep = !checkpoint->left() &&
                (kept < spec->checkpoints.keep_last || safe || fallback ||
                 (spec->checkpoints.keep_every > 0 && step % spec->checkpoints.keep_every == 0));
    kept += checkpoint->left() ? 0 : 1;
    // Those that a rollback abandoned are kept for people to inspect, as many as good ones.
    if (checkpoint->harmed()) keep = harmed++ < spec->checkpoints.keep_last;
    if (keep || InUse(state, *job, *checkpoint)) continue;
    if (whole != nullptr && step < whole->ref().step()) {
      beyond.push_back(checkpoint->ref());
    } else if (waits != nullptr) {
      *waits = true;
    }
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
  deleted.set_kind(v1::DELETION_KIND_RETENTION);
  absl::Status status = state.Validate(update);
  if (absl::IsFailedPrecondition(status)) return std::nullopt;
  if (!status.ok()) return status;
  return update;
}

}  // namespace nibble
