#include "server/controller/checkpoint_care_holders.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/crc32c.h"
#include "server/state/keys.h"

namespace nibble {
namespace {

const v1::WorkerRecord* FindPresent(const State& state, const std::string& name) {
  const v1::WorkerRecord* const worker = state.FindWorker(name);
  return worker != nullptr && worker->present() ? worker : nullptr;
}

bool IsHolder(const v1::CheckpointShard& shard, const std::string& worker) {
  return std::find(shard.holders().begin(), shard.holders().end(), worker) != shard.holders().end();
}

uint32_t Extend(uint32_t crc, absl::string_view text) {
  return ExtendCrc32c(
      crc, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

// Where each worker stands among those of one shard.
class Order {
 public:
  Order(const v1::CheckpointRef& ref, int32_t rank) : crc_(Extend(0, ShardKey(ref, rank) + "@")) {}
  std::pair<uint32_t, std::string> of(const std::string& worker) const {
    return {Extend(crc_, worker), worker};
  }

 private:
  const uint32_t crc_;
};

// Attempts that live and need a checkpoint where it is.
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

std::vector<std::string> NextHolders(const State& state, const v1::CheckpointRef& ref,
                                     const v1::CheckpointShard& shard, int copies,
                                     const std::vector<std::string>& takers) {
  const std::vector<std::string> present = PresentHolders(state, shard);
  // What drains is about to go: others have its copies before it does.
  const auto staying = std::count_if(present.begin(), present.end(), [&](const auto& holder) {
    return state.FindWorker(holder)->mode() != v1::WORKER_MODE_DRAINING;
  });
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
  // The first ones stay: false sorts before true.
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
  const auto others =
      std::count_if(shard->holders().begin(), shard->holders().end(), [&](const auto& holder) {
        const v1::WorkerRecord* const other = FindPresent(state, holder);
        return other != nullptr && other->mode() != v1::WORKER_MODE_DRAINING;
      });
  return others >= copies && !Reliance(state, report.ref()).IsOn(worker, report.rank());
}

}  // namespace nibble
