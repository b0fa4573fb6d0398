#include "server/scheduler/snapshot.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace nibble::scheduler {
namespace {

// A sum of a million such values is far from overflow.
constexpr int64_t kMaxQuota = int64_t{1} << 40;
constexpr int kMaxWorldSize = 1 << 24;

template <class Entity>
absl::Status CheckNames(const char* list, const std::vector<Entity>& entities) {
  absl::flat_hash_set<std::string_view> seen;
  seen.reserve(entities.size());
  for (const Entity& entity : entities) {
    if (entity.name.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(list, ".name: empty; each needs a name"));
    }
    if (!seen.insert(entity.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(list, ".name: \"", entity.name, "\" is a duplicate; names must be unique"));
    }
  }
  return absl::OkStatus();
}

absl::Status OutOfBounds(const char* entity, const std::string& name, const std::string& field,
                         int64_t value, int64_t least, int64_t most) {
  return absl::InvalidArgumentError(absl::StrCat(entity, " ", name, ": ", field, ": ", value,
                                                 "; allowed: ", least, " to ", most));
}

absl::Status CheckQueue(const Queue& queue) {
  if (queue.quota < kUnlimited || queue.quota > kMaxQuota) {
    return OutOfBounds("queue", queue.name, "quota", queue.quota, kUnlimited, kMaxQuota);
  }
  if (queue.borrow_limit < kUnlimited || queue.borrow_limit > kMaxQuota) {
    return OutOfBounds("queue", queue.name, "borrow_limit", queue.borrow_limit, kUnlimited,
                       kMaxQuota);
  }
  if (queue.quota == kUnlimited && !queue.cohort.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("queue ", queue.name, ": cohort: \"",
                                                   queue.cohort, "\"; allowed only with a quota"));
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const Job& job) {
  if (job.min_slots < 1 || job.min_slots > kMaxWorldSize) {
    return OutOfBounds("job", job.name, "min_slots", job.min_slots, 1, kMaxWorldSize);
  }
  if (job.max_slots < job.min_slots || job.max_slots > kMaxWorldSize) {
    return OutOfBounds("job", job.name, "max_slots", job.max_slots, job.min_slots, kMaxWorldSize);
  }
  int least = job.min_slots;
  for (int size : job.sizes) {
    if (size < least || size > job.max_slots) {
      return OutOfBounds("job", job.name, "sizes", size, least, job.max_slots);
    }
    least = size + 1;
  }
  if (job.spare_slots < 0 || job.spare_slots > kMaxWorldSize) {
    return OutOfBounds("job", job.name, "spare_slots", job.spare_slots, 0, kMaxWorldSize);
  }
  return absl::OkStatus();
}

absl::Status CheckPlacement(const Job& job, const char* field, const Placement& placement,
                            bool wanted) {
  if (placement.empty() == wanted) {
    return absl::InvalidArgumentError(absl::StrCat("job ", job.name, ": ", field, ": ",
                                                   placement.size(), " workers; its phase ",
                                                   wanted ? "needs some" : "allows none"));
  }
  absl::flat_hash_set<std::string_view> seen;
  for (const SlotsOn& on : placement) {
    if (on.slots < 1 || on.slots > kMaxSlotsPerWorker) {
      return OutOfBounds("job", job.name, absl::StrCat(field, " on ", on.worker), on.slots, 1,
                         kMaxSlotsPerWorker);
    }
    if (!seen.insert(on.worker).second) {
      return absl::InvalidArgumentError(absl::StrCat("job ", job.name, ": ", field, ": worker \"",
                                                     on.worker, "\" is a duplicate"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckJob(const Job& job) {
  absl::Status status = CheckSizes(job);
  if (!status.ok()) return status;
  status = CheckPlacement(job, "held", job.held, !IsWaiting(job.phase));
  if (!status.ok()) return status;
  return CheckPlacement(job, "next", job.next, job.phase == JobPhase::kResizing);
}

}  // namespace

absl::Status CheckSnapshot(const Snapshot& snapshot) {
  absl::Status status = CheckNames("workers", snapshot.workers);
  if (status.ok()) status = CheckNames("queues", snapshot.queues);
  if (status.ok()) status = CheckNames("jobs", snapshot.jobs);
  if (!status.ok()) return status;
  for (const Worker& worker : snapshot.workers) {
    if (worker.slots < 0 || worker.slots > kMaxSlotsPerWorker) {
      return OutOfBounds("worker", worker.name, "slots", worker.slots, 0, kMaxSlotsPerWorker);
    }
  }
  for (const Queue& queue : snapshot.queues) {
    status = CheckQueue(queue);
    if (!status.ok()) return status;
  }
  for (const Job& job : snapshot.jobs) {
    status = CheckJob(job);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace nibble::scheduler
