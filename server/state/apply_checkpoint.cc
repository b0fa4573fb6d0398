#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/counted.h"
#include "common/status_macros.h"
#include "server/state/apply.h"
#include "server/state/entities.h"
#include "server/state/job_uploads.h"
#include "server/state/limits.h"

namespace nibble::apply {
namespace {

absl::StatusOr<v1::Checkpoint*> EditCheckpoint(Draft& draft, const v1::CheckpointRef& ref) {
  v1::Checkpoint* const checkpoint = draft.checkpoints.Edit(CheckpointKey(ref));
  if (checkpoint == nullptr) {
    return absl::NotFoundError(absl::StrCat("ref: there is no ", CheckpointText(ref)));
  }
  return checkpoint;
}

absl::StatusOr<v1::Checkpoint*> EditExisting(Draft& draft, const v1::CheckpointRef& ref) {
  absl::StatusOr<v1::Checkpoint*> checkpoint = EditCheckpoint(draft, ref);
  if (checkpoint.ok() && (*checkpoint)->state() == v1::CHECKPOINT_STATE_WRITING) {
    return absl::FailedPreconditionError(
        absl::StrCat("ref: the ", CheckpointText(ref), " is not committed"));
  }
  return checkpoint;
}

void AddCheckpointEvent(const v1::CheckpointRef& ref, std::string text, const Stamp& stamp,
                        Draft& draft) {
  v1::JobRecord* const job = draft.jobs.Edit(ref.job());
  AddEvent({.kind = v1::JOB_EVENT_KIND_CHECKPOINT,
            .text = std::move(text),
            .attempt = ref.attempt(),
            .step = ref.step()},
           stamp, *job, draft);
}

const char* TaskName(v1::CheckpointTaskKind kind) {
  return kind == v1::CHECKPOINT_TASK_KIND_EXPORT   ? "export"
         : kind == v1::CHECKPOINT_TASK_KIND_UPLOAD ? "upload"
                                                   : "verification";
}

void RecordTask(const v1::CheckpointTaskSet& fact, Draft& draft) {
  if (fact.task().kind() != v1::CHECKPOINT_TASK_KIND_UPLOAD) return;
  v1::JobRecord& job = *draft.jobs.Edit(fact.ref().job());
  RecordUpload(fact.ref(), fact.task(), *job.mutable_uploads());
}

bool Holds(const v1::CheckpointShard& shard, const std::string& worker) {
  return std::find(shard.holders().begin(), shard.holders().end(), worker) != shard.holders().end();
}

absl::Status AddHolder(v1::CheckpointShard& shard, const std::string& worker) {
  if (Holds(shard, worker)) return absl::OkStatus();
  if (shard.holders_size() >= kMaxHolders) {
    return absl::ResourceExhaustedError(
        absl::StrCat("holders: ", shard.holders_size(), " of the shard; at most ", kMaxHolders));
  }
  shard.add_holders(worker);
  return absl::OkStatus();
}

absl::Status CheckShard(const v1::ShardStored& fact, const v1::JobRecord& job, const Draft& draft) {
  NIBBLE_RETURN_IF_ERROR(CheckAttempt(job, fact.ref().attempt()));
  NIBBLE_RETURN_IF_ERROR(
      CheckRange("ref.step", fact.ref().step(), FirstStep(job), job.shape().steps()));
  NIBBLE_RETURN_IF_ERROR(CheckRange("bytes", fact.bytes(), 0, kMaxCount / kMaxRanks));
  if (fact.world() != job.attempt().world()) {
    return absl::InvalidArgumentError(absl::StrCat("world: ", fact.world(), "; attempt ",
                                                   fact.ref().attempt(), " of ", job.id(), " has ",
                                                   job.attempt().world(), " ranks"));
  }
  NIBBLE_RETURN_IF_ERROR(CheckRange("rank", fact.rank(), 0, fact.world() - 1));
  if (draft.workers.Find(fact.worker()) == nullptr) {
    return absl::NotFoundError(absl::StrCat("worker: there is no '", fact.worker(), "'"));
  }
  return absl::OkStatus();
}

}  // namespace

void LeaveCheckpointsBeyond(int64_t step, const Stamp& stamp, const v1::JobRecord& job,
                            Draft& draft) {
  std::vector<v1::CheckpointRef> beyond;
  for (const auto& [key, checkpoint] : draft.checkpoints.WithPrefix(JobPrefix(job.id()))) {
    if (checkpoint->state() == v1::CHECKPOINT_STATE_COMMITTED && !checkpoint->left() &&
        checkpoint->ref().step() > step) {
      beyond.push_back(checkpoint->ref());
    }
  }
  for (const v1::CheckpointRef& ref : beyond) {
    draft.checkpoints.Edit(CheckpointKey(ref))->set_left(true);
    AddCheckpointEvent(
        ref, absl::StrCat("abandoned: attempt ", job.last_attempt(), " resumes from step ", step),
        stamp, draft);
  }
}

void LeaveHarmedCheckpoints(int64_t step, const Stamp& stamp, const v1::JobRecord& job,
                            Draft& draft) {
  std::vector<v1::CheckpointRef> harmed;
  for (const auto& [key, checkpoint] : draft.checkpoints.WithPrefix(JobPrefix(job.id()))) {
    if (checkpoint->state() != v1::CHECKPOINT_STATE_WRITING && !checkpoint->left() &&
        checkpoint->ref().step() > step) {
      harmed.push_back(checkpoint->ref());
    }
  }
  for (const v1::CheckpointRef& ref : harmed) {
    v1::Checkpoint& checkpoint = *draft.checkpoints.Edit(CheckpointKey(ref));
    checkpoint.set_left(true);
    checkpoint.set_harmed(true);
    AddCheckpointEvent(ref,
                       absl::StrCat("abandoned: a guard rolled attempt ", job.last_attempt(),
                                    " back to step ", step, " or before"),
                       stamp, draft);
  }
}

absl::Status Apply(const v1::ShardStored& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditUnfinished(draft, fact.ref().job()));
  NIBBLE_RETURN_IF_ERROR(CheckShard(fact, *job, draft));
  const std::string key = CheckpointKey(fact.ref());
  v1::Checkpoint* checkpoint = draft.checkpoints.Edit(key);
  if (checkpoint == nullptr) {
    const size_t count = draft.checkpoints.WithPrefix(JobPrefix(fact.ref().job())).size();
    if (static_cast<int64_t>(count) >= kMaxCheckpointsPerJob) {
      return absl::ResourceExhaustedError(absl::StrCat("checkpoints: job ", fact.ref().job(),
                                                       " has ", count, "; at most ",
                                                       kMaxCheckpointsPerJob));
    }
    checkpoint = &draft.checkpoints.Put(key);
    *checkpoint->mutable_ref() = fact.ref();
    checkpoint->set_state(v1::CHECKPOINT_STATE_WRITING);
    checkpoint->set_world(fact.world());
    checkpoint->set_first_shard_unix_ms(stamp.time_unix_ms);
  }
  const std::string shard_key = ShardKey(fact.ref(), fact.rank());
  if (v1::CheckpointShard* const known = draft.shards.Edit(shard_key)) {
    if (known->manifest_crc32c() != fact.manifest_crc32c() || known->bytes() != fact.bytes()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "manifest_crc32c: ", fact.manifest_crc32c(), " of rank ", fact.rank(), " of the ",
          CheckpointText(fact.ref()), "; it was reported as ", known->manifest_crc32c()));
    }
    return AddHolder(*known, fact.worker());
  }
  if (checkpoint->state() != v1::CHECKPOINT_STATE_WRITING) {
    return absl::FailedPreconditionError(
        absl::StrCat("ref: the ", CheckpointText(fact.ref()), " is already complete"));
  }
  v1::CheckpointShard& shard = draft.shards.Put(shard_key);
  shard.set_rank(fact.rank());
  shard.set_bytes(fact.bytes());
  shard.set_manifest_crc32c(fact.manifest_crc32c());
  shard.add_holders(fact.worker());
  checkpoint->set_durable_shards(checkpoint->durable_shards() + 1);
  checkpoint->set_bytes(checkpoint->bytes() + fact.bytes());
  return absl::OkStatus();
}

absl::Status Apply(const v1::ShardHolderSet& fact, const Stamp&, Draft& draft) {
  NIBBLE_RETURN_IF_ERROR(EditExisting(draft, fact.ref()).status());
  v1::CheckpointShard* const shard = draft.shards.Edit(ShardKey(fact.ref(), fact.rank()));
  if (shard == nullptr) {
    return absl::NotFoundError(absl::StrCat("rank: the ", CheckpointText(fact.ref()),
                                            " has no shard of rank ", fact.rank()));
  }
  if (fact.held()) {
    if (draft.workers.Find(fact.worker()) == nullptr) {
      return absl::NotFoundError(absl::StrCat("worker: there is no '", fact.worker(), "'"));
    }
    return AddHolder(*shard, fact.worker());
  }
  auto& holders = *shard->mutable_holders();
  holders.erase(std::remove(holders.begin(), holders.end(), fact.worker()), holders.end());
  return absl::OkStatus();
}

absl::Status Apply(const v1::CheckpointCommitted& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditUnfinished(draft, fact.ref().job()));
  NIBBLE_RETURN_IF_ERROR(CheckAttempt(*job, fact.ref().attempt()));
  NIBBLE_ASSIGN_OR_RETURN(v1::Checkpoint* const checkpoint, EditCheckpoint(draft, fact.ref()));
  if (checkpoint->state() != v1::CHECKPOINT_STATE_WRITING ||
      checkpoint->durable_shards() != checkpoint->world()) {
    return absl::FailedPreconditionError(
        absl::StrCat("ref: the ", CheckpointText(fact.ref()), " has ", checkpoint->durable_shards(),
                     " of ", checkpoint->world(), " shards, or is already committed"));
  }
  checkpoint->set_state(v1::CHECKPOINT_STATE_COMMITTED);
  checkpoint->set_committed_unix_ms(stamp.time_unix_ms);
  checkpoint->set_epoch_id(draft.cluster.Find(kOnlyKey)->store().epoch_id());
  job->set_restarts_without_progress(0);
  // A new checkpoint is progress: it clears the blame for failures before it, short of exclusion.
  auto& blames = *job->mutable_blames();
  blames.erase(std::remove_if(blames.begin(), blames.end(),
                              [](const v1::WorkerBlame& blame) { return !blame.excluded(); }),
               blames.end());
  v1::Attempt& attempt = *job->mutable_attempt();
  attempt.set_checkpoints(attempt.checkpoints() + 1);
  AddCheckpointEvent(fact.ref(),
                     absl::StrCat("committed: ", Counted(checkpoint->world(), "shard"), ", ",
                                  Counted(checkpoint->bytes(), "byte")),
                     stamp, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::CheckpointDamaged& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::Checkpoint* const checkpoint, EditExisting(draft, fact.ref()));
  if (checkpoint->state() == v1::CHECKPOINT_STATE_DAMAGED) return absl::OkStatus();
  checkpoint->set_state(v1::CHECKPOINT_STATE_DAMAGED);
  checkpoint->set_damage(fact.detail());
  AddCheckpointEvent(fact.ref(), absl::StrCat("damaged: ", Clip(fact.detail(), kMaxClause)), stamp,
                     draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::CheckpointPinSet& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::Checkpoint* const checkpoint, EditExisting(draft, fact.ref()));
  if (fact.pin().empty()) return absl::InvalidArgumentError("pin: is empty");
  auto& pins = *checkpoint->mutable_pins();
  const auto found = std::find(pins.begin(), pins.end(), fact.pin());
  if (fact.pinned() && found == pins.end()) {
    if (pins.size() >= kMaxPins) {
      return absl::ResourceExhaustedError(
          absl::StrCat("pins: ", pins.size(), " of the checkpoint; at most ", kMaxPins));
    }
    *pins.Add() = fact.pin();
  } else if (!fact.pinned()) {
    if (found == pins.end()) {
      return absl::NotFoundError(
          absl::StrCat("pin: '", fact.pin(), "' does not pin the ", CheckpointText(fact.ref())));
    }
    pins.erase(found);
  }
  AddCheckpointEvent(fact.ref(),
                     absl::StrCat(fact.pinned() ? "pinned by " : "unpinned by ", fact.pin()), stamp,
                     draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::CheckpointDeleted& fact, const Stamp& stamp, Draft& draft) {
  // Stores from before deletions had kinds have unspecified ones.
  NIBBLE_RETURN_IF_ERROR(
      CheckRange("kind", fact.kind(), v1::DELETION_KIND_UNSPECIFIED, v1::DELETION_KIND_REQUESTED));
  NIBBLE_ASSIGN_OR_RETURN(v1::Checkpoint* const found, EditExisting(draft, fact.ref()));
  const v1::Checkpoint& checkpoint = *found;
  const std::string key = CheckpointKey(fact.ref());
  const v1::JobRecord& job = *draft.jobs.Find(fact.ref().job());
  std::string why;
  const auto is_newest = [&] {
    const v1::Checkpoint* const whole = draft.NewestWhole(job.id());
    return whole == nullptr || whole->ref().step() <= fact.ref().step();
  };
  if (fact.kind() == v1::DELETION_KIND_RETENTION && is_newest()) {
    why = "is older than none that was committed in this epoch and is whole";
  } else if (!checkpoint.pins().empty()) {
    why = absl::StrCat("is pinned by ", checkpoint.pins(0));
  } else if (!IsFinished(job.state()) && draft.NewestGood(job.id()) == &checkpoint) {
    why = "is the one that the job would resume from";
  } else if (job.has_attempt() && job.attempt().has_resume() &&
             CheckpointKey(job.attempt().resume()) == key) {
    why = "is the one that the job's attempt started from";
  } else if (draft.AnyForkOf(key)) {
    why = "has the initial weights of another unfinished job";
  }
  for (const v1::CheckpointTask& task : checkpoint.tasks()) {
    if (task.state() == v1::CHECKPOINT_TASK_STATE_REQUESTED) why = "has a task in progress";
  }
  if (!why.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("ref: the ", CheckpointText(fact.ref()), " ", why));
  }
  EraseCheckpoint(checkpoint, fact.kind(), fact.reason(), stamp, draft);
  AddCheckpointEvent(
      fact.ref(),
      absl::StrCat("deleted", fact.reason().empty() ? "" : ": ", Clip(fact.reason(), kMaxClause)),
      stamp, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::CheckpointTaskSet& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::Checkpoint* const checkpoint, EditExisting(draft, fact.ref()));
  NIBBLE_RETURN_IF_ERROR(CheckRange("task.kind", fact.task().kind(),
                                    v1::CHECKPOINT_TASK_KIND_VERIFY,
                                    v1::CHECKPOINT_TASK_KIND_UPLOAD));
  NIBBLE_RETURN_IF_ERROR(CheckRange("task.state", fact.task().state(),
                                    v1::CHECKPOINT_TASK_STATE_REQUESTED,
                                    v1::CHECKPOINT_TASK_STATE_FAILED));
  NIBBLE_RETURN_IF_ERROR(CheckRange("task.keep", fact.task().keep(), 0, kMaxUploadCopies));
  auto& tasks = *checkpoint->mutable_tasks();
  const int64_t latest = tasks.empty() ? 0 : tasks.rbegin()->number();
  const bool writes = fact.task().kind() != v1::CHECKPOINT_TASK_KIND_VERIFY;
  if (fact.task().state() == v1::CHECKPOINT_TASK_STATE_REQUESTED) {
    if (fact.task().number() != latest + 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("task.number: ", fact.task().number(), "; the next is ", latest + 1));
    }
    if (writes && checkpoint->state() == v1::CHECKPOINT_STATE_DAMAGED) {
      return absl::FailedPreconditionError(
          absl::StrCat("ref: the ", CheckpointText(fact.ref()), " is damaged"));
    }
    if (tasks.size() >= kMaxTasks) {
      if (tasks.begin()->state() == v1::CHECKPOINT_TASK_STATE_REQUESTED) {
        return absl::ResourceExhaustedError(
            absl::StrCat("tasks: ", tasks.size(), " of the checkpoint; at most ", kMaxTasks));
      }
      tasks.erase(tasks.begin());
    }
    *tasks.Add() = fact.task();
    RecordTask(fact, draft);
    AddCheckpointEvent(fact.ref(),
                       absl::StrCat(TaskName(fact.task().kind()), writes ? " to " : "",
                                    fact.task().destination(), " requested"),
                       stamp, draft);
    return absl::OkStatus();
  }
  const auto task = std::find_if(tasks.begin(), tasks.end(), [&](const v1::CheckpointTask& t) {
    return t.number() == fact.task().number();
  });
  if (task == tasks.end()) {
    return absl::NotFoundError(absl::StrCat("task: there is no ", fact.task().number(), " of the ",
                                            CheckpointText(fact.ref())));
  }
  if (task->state() != v1::CHECKPOINT_TASK_STATE_REQUESTED || task->kind() != fact.task().kind()) {
    return absl::FailedPreconditionError(absl::StrCat("task: ", fact.task().number(), " of the ",
                                                      CheckpointText(fact.ref()),
                                                      " has already ended"));
  }
  *task = fact.task();
  RecordTask(fact, draft);
  AddCheckpointEvent(
      fact.ref(),
      absl::StrCat(TaskName(fact.task().kind()), " ",
                   fact.task().state() == v1::CHECKPOINT_TASK_STATE_DONE ? "done" : "failed",
                   fact.task().detail().empty() ? "" : ": ",
                   Clip(fact.task().detail(), kMaxClause)),
      stamp, draft);
  return absl::OkStatus();
}

}  // namespace nibble::apply
