#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/state/apply.h"
#include "server/state/bounds.h"
#include "server/state/keys.h"
#include "server/state/limits.h"

namespace nibble::apply {
namespace {

constexpr char kDefaultQueue[] = "default";

absl::StatusOr<v1::WorkerRecord*> EditWorker(Draft& draft, const std::string& name) {
  v1::WorkerRecord* const worker = draft.workers.Edit(name);
  if (worker == nullptr) {
    return absl::NotFoundError(absl::StrCat("worker: there is no '", name, "'"));
  }
  return worker;
}

// Its place among the job's blames; below 0: there is none of the worker.
int FindBlame(const v1::JobRecord& job, const std::string& worker) {
  for (int i = 0; i < job.blames_size(); ++i) {
    if (job.blames(i).worker() == worker) return i;
  }
  return -1;
}

absl::Status CheckIdentity(const v1::WorkerIdentity& identity) {
  absl::Status status = CheckName("identity.name", identity.name());
  if (!status.ok()) return status;
  status = CheckRange("identity.incarnation", identity.incarnation(), 1, kMaxCount);
  if (!status.ok()) return status;
  status = CheckRange("identity.slots", identity.slots(), 1, kMaxSlots);
  if (!status.ok()) return status;
  status = CheckRange("identity.hardware.device", identity.hardware().device(), v1::DEVICE_CPU,
                      v1::DEVICE_CUDA);
  if (!status.ok()) return status;
  status = CheckRange("identity.hardware.memory_bytes", identity.hardware().memory_bytes(), 0,
                      kMaxCount);
  if (!status.ok()) return status;
  std::set<std::string> keys;
  for (const v1::Label& label : identity.labels()) {
    if (label.key().empty() || !keys.insert(label.key()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("identity.labels: the key '", label.key(), "' is empty or there twice"));
    }
  }
  return absl::OkStatus();
}

// A worker's life can end only when the attempts that rely on it have.
absl::Status CheckNoGangs(const std::string& worker, const Draft& draft) {
  const std::set<std::string> gangs = draft.GangsOn(worker);
  if (gangs.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("worker: ", worker, " has ranks of ", *gangs.begin()));
}

}  // namespace

absl::Status Apply(const v1::ClusterNamed& fact, const Stamp&, Draft& draft) {
  absl::Status status = CheckName("cluster", fact.name());
  if (!status.ok()) return status;
  if (const v1::ClusterRecord* const known = draft.cluster.Find(kOnlyKey)) {
    return absl::FailedPreconditionError(
        absl::StrCat("cluster: this is '", known->name(), "', not '", fact.name(), "'"));
  }
  v1::ClusterRecord& cluster = draft.cluster.Put(kOnlyKey);
  cluster.set_name(fact.name());
  cluster.set_next_job_number(1);
  if (!fact.store_id().empty()) {
    status = CheckStoreId("store_id", fact.store_id());
    if (!status.ok()) return status;
    cluster.mutable_store()->set_id(fact.store_id());
    cluster.mutable_store()->set_epoch(1);
  }
  v1::Queue& queue = draft.queues.Put(kDefaultQueue);
  queue.set_name(kDefaultQueue);
  queue.set_quota_slots(-1);
  queue.set_borrow_slots(-1);
  queue.set_revision(1);
  return absl::OkStatus();
}

absl::Status Apply(const v1::WorkerRegistered& fact, const Stamp& stamp, Draft& draft) {
  const v1::WorkerIdentity& identity = fact.identity();
  absl::Status status = CheckIdentity(identity);
  if (!status.ok()) return status;
  v1::WorkerRecord* worker = draft.workers.Edit(identity.name());
  if (worker == nullptr) {
    if (draft.workers.size() >= kMaxWorkers) {
      return absl::ResourceExhaustedError(
          absl::StrCat("workers: there are ", draft.workers.size(), "; at most ", kMaxWorkers));
    }
    worker = &draft.workers.Put(identity.name());
    worker->set_mode(v1::WORKER_MODE_OPEN);
  } else if (worker->present() && identity.incarnation() < worker->identity().incarnation()) {
    return absl::AbortedError(absl::StrCat("incarnation: ", identity.incarnation(), " of worker ",
                                           identity.name(), " is over; the current one is ",
                                           worker->identity().incarnation()));
  } else if (identity.incarnation() != worker->identity().incarnation() ||
             identity.slots() != worker->identity().slots()) {
    status = CheckNoGangs(identity.name(), draft);
    if (!status.ok()) return status;
  }
  *worker->mutable_identity() = identity;
  if (!worker->present()) worker->set_present_since_unix_ms(stamp.time_unix_ms);
  worker->set_present(true);
  return absl::OkStatus();
}

absl::Status Apply(const v1::WorkerLost& fact, const Stamp& stamp, Draft& draft) {
  absl::StatusOr<v1::WorkerRecord*> worker = EditWorker(draft, fact.worker());
  if (!worker.ok()) return worker.status();
  if ((*worker)->identity().incarnation() != fact.incarnation()) {
    return absl::AbortedError(absl::StrCat("incarnation: ", fact.incarnation(), " of worker ",
                                           fact.worker(), " is over; the current one is ",
                                           (*worker)->identity().incarnation()));
  }
  if (!(*worker)->present()) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker: ", fact.worker(), " is absent already"));
  }
  absl::Status status = CheckNoGangs(fact.worker(), draft);
  if (!status.ok()) return status;
  (*worker)->set_present(false);
  (*worker)->set_present_since_unix_ms(stamp.time_unix_ms);
  return absl::OkStatus();
}

absl::Status Apply(const v1::WorkerModeSet& fact, const Stamp& stamp, Draft& draft) {
  absl::StatusOr<v1::WorkerRecord*> worker = EditWorker(draft, fact.worker());
  if (!worker.ok()) return worker.status();
  absl::Status status =
      CheckRange("mode", fact.mode(), v1::WORKER_MODE_OPEN, v1::WORKER_MODE_DRAINING);
  if (!status.ok()) return status;
  (*worker)->set_mode(fact.mode());
  (*worker)->set_mode_reason(fact.reason());
  (*worker)->set_mode_author(std::string(stamp.author));
  return absl::OkStatus();
}

absl::Status Apply(const v1::WorkerFlagged& fact, const Stamp&, Draft& draft) {
  absl::StatusOr<v1::WorkerRecord*> worker = EditWorker(draft, fact.worker());
  if (!worker.ok()) return worker.status();
  if (fact.flag().empty()) return absl::InvalidArgumentError("flag: is empty");
  auto& flags = *(*worker)->mutable_flags();
  if (flags.size() == kMaxFlags) flags.erase(flags.begin());
  *flags.Add() = fact.flag();
  return absl::OkStatus();
}

absl::Status Apply(const v1::WorkerFlagsCleared& fact, const Stamp& stamp, Draft& draft) {
  absl::StatusOr<v1::WorkerRecord*> worker = EditWorker(draft, fact.worker());
  if (!worker.ok()) return worker.status();
  (*worker)->clear_flags();
  // What it was flagged for is what it has done to jobs: they may use it again.
  for (const auto& [number, id] : draft.before().unfinished()) {
    const v1::JobRecord* const job = draft.jobs.Find(id);
    if (job == nullptr || FindBlame(*job, fact.worker()) < 0) continue;
    v1::JobRecord& edited = *draft.jobs.Edit(id);
    auto& blames = *edited.mutable_blames();
    const auto blame = blames.begin() + FindBlame(edited, fact.worker());
    const bool excluded = blame->excluded();
    blames.erase(blame);
    if (!excluded) continue;
    AddEvent({.kind = v1::JOB_EVENT_KIND_EXCLUDED,
              .text = absl::StrCat("worker ", fact.worker(), " is no longer excluded")},
             stamp, edited, draft);
  }
  return absl::OkStatus();
}

absl::Status Apply(const v1::WorkerForgotten& fact, const Stamp&, Draft& draft) {
  absl::StatusOr<v1::WorkerRecord*> worker = EditWorker(draft, fact.worker());
  if (!worker.ok()) return worker.status();
  if ((*worker)->present() || !draft.before().ShardsOn(fact.worker()).empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker: ", fact.worker(), (*worker)->present() ? " is present" : " holds shards"));
  }
  absl::Status status = CheckNoGangs(fact.worker(), draft);
  if (!status.ok()) return status;
  draft.workers.Erase(fact.worker());
  return absl::OkStatus();
}

absl::Status Apply(const v1::QueueSet& fact, const Stamp&, Draft& draft) {
  const v1::Queue& queue = fact.queue();
  absl::Status status = CheckName("queue.name", queue.name());
  if (!status.ok()) return status;
  status = CheckRange("queue.quota_slots", queue.quota_slots(), -1, kMaxWorkers * kMaxSlots);
  if (!status.ok()) return status;
  status = CheckRange("queue.borrow_slots", queue.borrow_slots(), -1, kMaxWorkers * kMaxSlots);
  if (!status.ok()) return status;
  if (!queue.cohort().empty()) {
    status = CheckName("queue.cohort", queue.cohort());
    if (!status.ok()) return status;
  }
  const v1::Queue* const known = draft.queues.Find(queue.name());
  const int64_t next = known == nullptr ? 1 : known->revision() + 1;
  if (queue.revision() != next) {
    return absl::FailedPreconditionError(absl::StrCat("queue.revision: ", queue.revision(), " of ",
                                                      queue.name(), "; the next is ", next));
  }
  if (known == nullptr && draft.queues.size() >= kMaxQueues) {
    return absl::ResourceExhaustedError(
        absl::StrCat("queues: there are ", draft.queues.size(), "; at most ", kMaxQueues));
  }
  draft.queues.Put(queue.name()) = queue;
  return absl::OkStatus();
}

absl::Status Apply(const v1::QueueDeleted& fact, const Stamp&, Draft& draft) {
  if (fact.queue() == kDefaultQueue) {
    return absl::InvalidArgumentError("queue: 'default' stays");
  }
  if (draft.queues.Find(fact.queue()) == nullptr) {
    return absl::NotFoundError(absl::StrCat("queue: there is no '", fact.queue(), "'"));
  }
  if (draft.AnyUnfinishedIn(fact.queue())) {
    return absl::FailedPreconditionError(
        absl::StrCat("queue: unfinished jobs are in '", fact.queue(), "'"));
  }
  draft.queues.Erase(fact.queue());
  return absl::OkStatus();
}

}  // namespace nibble::apply
