#include "server/controller/scheduling.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/controller/slot_choice.h"
#include "server/state/decide.h"
#include "server/state/entities.h"

namespace nibble {
namespace {

constexpr char kRack[] = "rack";
constexpr char kFp4[] = "fp4=tensor-cores";

std::string DeviceLabel(v1::Device device) {
  return device == v1::DEVICE_CUDA ? "device=cuda" : "device=cpu";
}

std::string Text(const v1::Label& label) { return absl::StrCat(label.key(), "=", label.value()); }

bool Waits(const v1::JobRecord& job) {
  return !job.has_attempt() &&
         (job.state() == v1::JOB_STATE_QUEUED || job.state() == v1::JOB_STATE_RECOVERING);
}

scheduler::Worker ToWorker(const v1::WorkerRecord& record) {
  const v1::WorkerIdentity& identity = record.identity();
  scheduler::Worker worker;
  worker.name = identity.name();
  worker.slots = identity.slots();
  worker.labels.push_back(DeviceLabel(identity.hardware().device()));
  if (identity.hardware().fp4_tensor_cores()) worker.labels.emplace_back(kFp4);
  for (const v1::Label& label : identity.labels()) {
    worker.labels.push_back(Text(label));
    if (label.key() == kRack) worker.rack = label.value();
  }
  std::sort(worker.labels.begin(), worker.labels.end());
  worker.labels.erase(std::unique(worker.labels.begin(), worker.labels.end()), worker.labels.end());
  if (!record.present()) {
    worker.state = scheduler::WorkerState::kLost;
  } else if (record.mode() == v1::WORKER_MODE_DRAINING) {
    worker.state = scheduler::WorkerState::kDraining;
  } else if (record.mode() == v1::WORKER_MODE_CORDONED) {
    worker.state = scheduler::WorkerState::kCordoned;
  }
  return worker;
}

scheduler::Queue ToQueue(const v1::Queue& record) {
  scheduler::Queue queue;
  queue.name = record.name();
  queue.quota = record.quota_slots() < 0 ? scheduler::kUnlimited : record.quota_slots();
  queue.borrow_limit = record.borrow_slots() < 0 ? scheduler::kUnlimited : record.borrow_slots();
  if (queue.quota != scheduler::kUnlimited) queue.cohort = record.cohort();
  return queue;
}

scheduler::Placement HeldBy(const v1::Attempt& attempt) {
  std::map<std::string, int> slots;
  for (const v1::Placement& placement : attempt.placements()) {
    slots[placement.worker()] += placement.slots_size();
  }
  scheduler::Placement held;
  for (const auto& [worker, count] : slots) held.push_back({worker, count});
  return held;
}

void FillPhase(const v1::JobRecord& record, const Promises& promises, scheduler::Job& job) {
  const auto reserved = promises.reserved.find(record.id());
  const auto resizing = promises.resizing.find(record.id());
  if (!record.has_attempt()) {
    job.phase = record.state() == v1::JOB_STATE_RECOVERING ? scheduler::JobPhase::kRecovering
                                                           : scheduler::JobPhase::kQueued;
    if (reserved != promises.reserved.end()) {
      job.phase = scheduler::JobPhase::kStarting;
      job.held = reserved->second;
    }
    return;
  }
  job.held = HeldBy(record.attempt());
  if (record.attempt().stopping() && resizing != promises.resizing.end()) {
    job.phase = scheduler::JobPhase::kResizing;
    job.next = resizing->second;
  } else if (record.attempt().stopping()) {
    job.phase = scheduler::JobPhase::kStopping;
  } else if (record.state() == v1::JOB_STATE_STARTING ||
             record.state() == v1::JOB_STATE_RECOVERING) {
    job.phase = scheduler::JobPhase::kStarting;
  } else {
    job.phase = scheduler::JobPhase::kRunning;
  }
}

scheduler::Job ToJob(const v1::JobRecord& record, const Promises& promises,
                     const Moments::OfJob& moments) {
  const v1::JobScheduling& wishes = record.scheduling();
  scheduler::Job job;
  job.name = record.id();
  job.queue = wishes.queue();
  job.priority = wishes.priority();
  job.submitted = record.number();
  for (const int32_t ranks : wishes.allowed_ranks()) job.sizes.push_back(ranks);
  std::sort(job.sizes.begin(), job.sizes.end());
  job.min_slots = job.sizes.front();
  job.max_slots = job.sizes.back();
  job.required.push_back(DeviceLabel(record.shape().device()));
  for (const v1::Label& label : wishes.required_labels()) job.required.push_back(Text(label));
  for (const v1::Label& label : wishes.preferred_labels()) job.preferred.push_back(Text(label));
  if (wishes.wants_fp4_tensor_cores()) job.preferred.emplace_back(kFp4);
  for (const v1::WorkerBlame& blame : record.blames()) {
    if (blame.excluded()) job.excluded_workers.push_back(blame.worker());
  }
  FillPhase(record, promises, job);
  job.not_before_ms = moments.not_before_ms;
  job.resized_ms = moments.launched_ms;
  job.checkpoint_ms = moments.checkpoint_ms;
  return job;
}

bool TakesAttempts(const State& state, const std::string& name) {
  const v1::WorkerRecord* const worker = state.FindWorker(name);
  return worker != nullptr && worker->present() && worker->mode() == v1::WORKER_MODE_OPEN;
}

bool OnOpenWorkers(const State& state, const scheduler::Placement& placement) {
  return std::all_of(placement.begin(), placement.end(),
                     [&](const scheduler::SlotsOn& on) { return TakesAttempts(state, on.worker); });
}

// The absent workers that have shards of a checkpoint.
std::string AbsentHolders(const State& state, const v1::CheckpointRef& ref) {
  std::set<std::string> absent;
  for (const v1::CheckpointShard* shard : state.ShardsOf(ref)) {
    for (const std::string& holder : shard->holders()) {
      const v1::WorkerRecord* const worker = state.FindWorker(holder);
      if (worker == nullptr || !worker->present()) absent.insert(holder);
    }
  }
  constexpr size_t kNamed = 3;
  const size_t count = absent.size();
  if (count == 0) return "no worker";
  std::vector<std::string> named(
      absent.begin(), std::next(absent.begin(), static_cast<ptrdiff_t>(std::min(count, kNamed))));
  return absl::StrCat(absl::StrJoin(named, ", "),
                      count > kNamed ? absl::StrCat(" and ", count - kNamed, " more") : "");
}

}  // namespace

Moments::OfJob Moments::Note(const State& state, const v1::JobRecord& job, int64_t now_ms) {
  MutexLock lock(&mutex_);
  if (IsFinished(job.state())) {
    known_.erase(job.id());
    return {};
  }
  if (!job.has_attempt()) {
    const int64_t backoff_ms = BackoffOf(job);
    if (backoff_ms == 0) return {};
    Known& known = known_[job.id()];
    if (known.ended < job.last_attempt()) {
      known.ended = job.last_attempt();
      known.not_before_ms = now_ms + backoff_ms;
    }
    return {.not_before_ms = known.not_before_ms};
  }
  const v1::Attempt& attempt = job.attempt();
  const v1::Checkpoint* const newest = state.NewestGood(job.id());
  const int64_t step = newest == nullptr ? -1 : newest->ref().step();
  Known& known = known_[job.id()];
  if (attempt.number() > known.attempt) {
    known.attempt = attempt.number();
    known.launched_ms = known.checkpoint_ms = now_ms;
    known.checkpoint_step = step;
    known.grace_ms = known.stop_by_ms = 0;
  }
  if (attempt.number() == known.attempt) {
    if (step > known.checkpoint_step) {
      known.checkpoint_step = step;
      known.checkpoint_ms = now_ms;
    }
    const int64_t grace_ms = StopGraceOf(attempt);
    if (grace_ms > 0 && (known.grace_ms == 0 || grace_ms < known.grace_ms)) {
      const int64_t stop_by_ms = now_ms + grace_ms;
      known.stop_by_ms = known.grace_ms == 0 ? stop_by_ms : std::min(known.stop_by_ms, stop_by_ms);
      known.grace_ms = grace_ms;
    }
  }
  return {.stop_by_ms = attempt.stopping() ? known.stop_by_ms : 0,
          .launched_ms = known.launched_ms,
          .checkpoint_ms = known.checkpoint_ms};
}

void Moments::Forget(const std::string& job) {
  MutexLock lock(&mutex_);
  known_.erase(job);
}

scheduler::Snapshot FillSnapshot(const State& state, const Promises& promises,
                                 const std::map<std::string, std::string>& held_back,
                                 Moments& moments, int64_t now_ms) {
  scheduler::Snapshot snapshot;
  for (const auto& [name, worker] : state.tables().workers) {
    snapshot.workers.push_back(ToWorker(*worker));
  }
  for (const auto& [name, queue] : state.tables().queues) {
    snapshot.queues.push_back(ToQueue(*queue));
  }
  for (const auto& [number, id] : state.index().unfinished()) {
    const v1::JobRecord& job = *state.FindJob(id);
    if ((job.has_attempt() || Waits(job)) && !held_back.contains(id)) {
      snapshot.jobs.push_back(ToJob(job, promises, moments.Note(state, job, now_ms)));
    }
  }
  return snapshot;
}

void ExcludeTaken(const TakenWorkers& taken, scheduler::Snapshot& snapshot) {
  if (taken.empty()) return;
  for (scheduler::Job& job : snapshot.jobs) {
    const auto of_job = taken.find(job.name);
    if (of_job == taken.end()) continue;
    for (const auto& [worker, why] : of_job->second) job.excluded_workers.push_back(worker);
  }
}

void DropTaken(const TakenWorkers& taken, Promises& promises) {
  const auto is_taken = [&taken](const auto& promise) {
    const auto of_job = taken.find(promise.first);
    return of_job != taken.end() && std::any_of(promise.second.begin(), promise.second.end(),
                                                [&](const scheduler::SlotsOn& on) {
                                                  return of_job->second.contains(on.worker);
                                                });
  };
  std::erase_if(promises.reserved, is_taken);
  std::erase_if(promises.resizing, is_taken);
}

void DropBroken(const State& state, Promises& promises) {
  std::erase_if(promises.reserved, [&state](const auto& promise) {
    const v1::JobRecord* const job = state.FindJob(promise.first);
    return job == nullptr || !Waits(*job) || !OnOpenWorkers(state, promise.second);
  });
  std::erase_if(promises.resizing, [&state](const auto& promise) {
    const v1::JobRecord* const job = state.FindJob(promise.first);
    return job == nullptr || !job->has_attempt() || !job->attempt().stopping() ||
           !OnOpenWorkers(state, promise.second);
  });
}

std::optional<std::vector<SlotChoice>> ChooseSlots(const State& state,
                                                   const scheduler::Placement& placement) {
  std::vector<SlotChoice> choices;
  for (const scheduler::SlotsOn& on : placement) {
    if (!TakesAttempts(state, on.worker)) return std::nullopt;
    std::set<int32_t> used;
    for (const std::string& id : state.index().GangsOn(on.worker)) {
      for (const v1::Placement& other : state.FindJob(id)->attempt().placements()) {
        if (other.worker() == on.worker) used.insert(other.slots().begin(), other.slots().end());
      }
    }
    const v1::WorkerIdentity& identity = state.FindWorker(on.worker)->identity();
    std::vector<int32_t> free;
    for (int32_t slot = 0; slot < identity.slots(); ++slot) {
      if (!used.contains(slot)) free.push_back(slot);
    }
    if (on.slots < 0 || std::ssize(free) < on.slots) return std::nullopt;
    choices.push_back(
        {on.worker, CloseSlots(identity.topology(), free, static_cast<size_t>(on.slots))});
  }
  return choices;
}

absl::StatusOr<Resume> ChooseResume(const State& state, const v1::JobRecord& job) {
  if (std::string never = WhyNeverResumes(state, job); !never.empty()) {
    return absl::DataLossError(never);
  }
  const v1::Checkpoint* newest = state.NewestGood(job.id());
  if (newest == nullptr) newest = state.OriginOf(job);
  Resume resume;
  if (newest == nullptr) return resume;
  const std::vector<const v1::Checkpoint*> loadable = LoadableCheckpoints(state, job);
  if (loadable.empty()) {
    return absl::UnavailableError(absl::StrCat("waits for workers that are away: the ",
                                               CheckpointText(newest->ref()), " is with ",
                                               AbsentHolders(state, newest->ref())));
  }
  resume.from = loadable.front()->ref();
  if (CheckpointKey(*resume.from) != CheckpointKey(newest->ref())) {
    resume.remark = absl::StrCat("from step ", resume.from->step(), " because the ",
                                 CheckpointText(newest->ref()), " is with ",
                                 AbsentHolders(state, newest->ref()));
  }
  return resume;
}

std::map<std::string, std::string> HeldBack(const State& state) {
  std::map<std::string, std::string> held;
  for (const auto& [number, id] : state.index().unfinished()) {
    const v1::JobRecord& job = *state.FindJob(id);
    if (!Waits(job)) continue;
    const absl::StatusOr<Resume> resume = ChooseResume(state, job);
    if (!resume.ok()) held[id] = std::string(resume.status().message());
  }
  return held;
}

}  // namespace nibble
