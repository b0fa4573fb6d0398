// Facts of the cluster: its name, workers, queues and the identity of its store.
#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/state/apply.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/workers.h"

namespace nibble::apply {
namespace {

constexpr char kDefaultQueue[] = "default";
constexpr size_t kStoreIdDigits = 32;

// InvalidArgument unless it is 32 lower-case hexadecimal digits.
absl::Status CheckStoreId(absl::string_view field, const std::string& id) {
  const bool good =
      id.size() == kStoreIdDigits && std::all_of(id.begin(), id.end(), [](char c) {
        return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
      });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": '", Clip(id, kMaxNameBytes), "' is not ",
                                                 kStoreIdDigits, " of 0-9 and a-f"));
}

absl::StatusOr<v1::WorkerRecord*> EditWorker(Draft& draft, const std::string& name) {
  v1::WorkerRecord* const worker = draft.workers.Edit(name);
  if (worker == nullptr) {
    return absl::NotFoundError(absl::StrCat("worker: there is no '", name, "'"));
  }
  return worker;
}

// The worker's index among the job's blames; -1 if it has none.
int FindBlame(const v1::JobRecord& job, const std::string& worker) {
  for (int i = 0; i < job.blames_size(); ++i) {
    if (job.blames(i).worker() == worker) return i;
  }
  return -1;
}

// An incarnation of a worker ends only after the attempts that rely on it.
absl::Status CheckNoGangs(const std::string& worker, const Draft& draft) {
  const std::set<std::string> gangs = draft.GangsOn(worker);
  if (gangs.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("worker: ", worker, " has ranks of ", *gangs.begin()));
}

}  // namespace

absl::Status Apply(const v1::ClusterNamed& fact, const Stamp&, Draft& draft) {
  NIBBLE_RETURN_IF_ERROR(CheckName("cluster", fact.name()));
  if (const v1::ClusterRecord* const known = draft.cluster.Find(kOnlyKey)) {
    return absl::FailedPreconditionError(
        absl::StrCat("cluster: this is '", known->name(), "', not '", fact.name(), "'"));
  }
  v1::ClusterRecord& cluster = draft.cluster.Put(kOnlyKey);
  cluster.set_name(fact.name());
  cluster.set_next_job_number(1);
  if (!fact.store_id().empty()) {
    NIBBLE_RETURN_IF_ERROR(CheckStoreId("store_id", fact.store_id()));
    cluster.mutable_store()->set_id(fact.store_id());
    cluster.mutable_store()->set_epoch(1);
    cluster.mutable_store()->set_epoch_id(fact.epoch_id());
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
  NIBBLE_RETURN_IF_ERROR(CheckIdentity(identity));
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
    NIBBLE_RETURN_IF_ERROR(CheckNoGangs(identity.name(), draft));
  }
  *worker->mutable_identity() = identity;
  if (!worker->present()) worker->set_present_since_unix_ms(stamp.time_unix_ms);
  worker->set_present(true);
  return absl::OkStatus();
}

absl::Status Apply(const v1::WorkerLost& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::WorkerRecord* const worker, EditWorker(draft, fact.worker()));
  if (worker->identity().incarnation() != fact.incarnation()) {
    return absl::AbortedError(absl::StrCat("incarnation: ", fact.incarnation(), " of worker ",
                                           fact.worker(), " is over; the current one is ",
                                           worker->identity().incarnation()));
  }
  if (!worker->present()) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker: ", fact.worker(), " is already absent"));
  }
  NIBBLE_RETURN_IF_ERROR(CheckNoGangs(fact.worker(), draft));
  worker->set_present(false);
  worker->set_present_since_unix_ms(stamp.time_unix_ms);
  return absl::OkStatus();
}

absl::Status Apply(const v1::WorkerModeSet& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::WorkerRecord* const worker, EditWorker(draft, fact.worker()));
  NIBBLE_RETURN_IF_ERROR(
      CheckRange("mode", fact.mode(), v1::WORKER_MODE_OPEN, v1::WORKER_MODE_DRAINING));
  worker->set_mode(fact.mode());
  worker->set_mode_reason(fact.reason());
  worker->set_mode_author(std::string(stamp.author));
  return absl::OkStatus();
}

absl::Status Apply(const v1::WorkerFlagged& fact, const Stamp&, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::WorkerRecord* const worker, EditWorker(draft, fact.worker()));
  if (fact.flag().empty()) return absl::InvalidArgumentError("flag: is empty");
  auto& flags = *worker->mutable_flags();
  if (flags.size() == kMaxFlags) flags.erase(flags.begin());
  *flags.Add() = fact.flag();
  return absl::OkStatus();
}

absl::Status Apply(const v1::WorkerFlagsCleared& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::WorkerRecord* const worker, EditWorker(draft, fact.worker()));
  worker->clear_flags();
  // The flags came from failed attempts, so jobs may use the worker again.
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
  NIBBLE_ASSIGN_OR_RETURN(v1::WorkerRecord* const worker, EditWorker(draft, fact.worker()));
  if (worker->present() || !draft.before().ShardsOn(fact.worker()).empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker: ", fact.worker(), worker->present() ? " is present" : " stores shards"));
  }
  NIBBLE_RETURN_IF_ERROR(CheckNoGangs(fact.worker(), draft));
  draft.workers.Erase(fact.worker());
  return absl::OkStatus();
}

absl::Status Apply(const v1::QueueSet& fact, const Stamp&, Draft& draft) {
  const v1::Queue& queue = fact.queue();
  NIBBLE_RETURN_IF_ERROR(CheckName("queue.name", queue.name()));
  NIBBLE_RETURN_IF_ERROR(
      CheckRange("queue.quota_slots", queue.quota_slots(), -1, kMaxWorkers * kMaxSlots));
  NIBBLE_RETURN_IF_ERROR(
      CheckRange("queue.borrow_slots", queue.borrow_slots(), -1, kMaxWorkers * kMaxSlots));
  if (!queue.cohort().empty()) {
    NIBBLE_RETURN_IF_ERROR(CheckName("queue.cohort", queue.cohort()));
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

absl::Status Apply(const v1::StoreRestored& fact, const Stamp&, Draft& draft) {
  NIBBLE_RETURN_IF_ERROR(CheckStoreId("store_id", fact.store_id()));
  v1::StoreIdentity& store = *draft.cluster.Edit(kOnlyKey)->mutable_store();
  if (!store.id().empty() && store.id() != fact.store_id()) {
    return absl::FailedPreconditionError(
        absl::StrCat("store_id: this is '", store.id(), "', not '", fact.store_id(), "'"));
  }
  NIBBLE_RETURN_IF_ERROR(CheckRange("epoch", fact.epoch(), store.epoch() + 1, kMaxCount));
  store.set_id(fact.store_id());
  store.set_epoch(fact.epoch());
  store.set_epoch_id(fact.epoch_id());
  return absl::OkStatus();
}

}  // namespace nibble::apply
