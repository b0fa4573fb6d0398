#include "server/controller/checkpoint_keeper.h"

#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/controller/log.h"

namespace nibble {

CheckpointKeeper::CheckpointKeeper(const ControllerContext& context, WorkerSessions& sessions)
    : context_(context), sessions_(sessions), rounds_(context.options.copies) {
  const std::shared_ptr<const State> state = context.ledger.Shown();
  for (const auto& [number, id] : state->index().unfinished()) to_trim_.insert(id);
  context_.metrics.CopiesMissing(0);
}

void CheckpointKeeper::NoteChanges(const Changes& changes) {
  MutexLock lock(&mutex_);
  to_trim_.insert(changes.checkpoints_of.begin(), changes.checkpoints_of.end());
  to_care_for_.insert(changes.jobs.begin(), changes.jobs.end());
  workers_changed_ |= changes.workers;
  if (changes.workers) to_trim_.merge(std::exchange(trim_later_, {}));
}

void CheckpointKeeper::Tick() {
  Trim();
  {
    MutexLock lock(&mutex_);
    for (const std::string& job : std::exchange(to_care_for_, {})) rounds_.JobChanged(job);
    if (std::exchange(workers_changed_, false)) rounds_.WorkersChanged();
  }
  if (!rounds_.behind()) return;
  // Works on the durable state only.
  const bool changed =
      context_.ledger.Read([this](const State& state) { return rounds_.Step(state); });
  for (const std::string& job : rounds_.TakeSurplus()) GiveUpSurplus(job);
  if (!changed) return;
  std::map<std::string, CheckpointWork> work = rounds_.Work();
  std::set<std::string> workers;
  int64_t missing = 0;
  for (const auto& [worker, its_work] : work) {
    workers.insert(worker);
    missing += std::ssize(its_work.replicas);
  }
  context_.metrics.CopiesMissing(missing);
  {
    MutexLock lock(&mutex_);
    work_.swap(work);
  }
  sessions_.Notify(workers);
}

void CheckpointKeeper::AddWork(const std::string& worker, v1::ConnectResponse& desired) const {
  MutexLock lock(&mutex_);
  const auto work = work_.find(worker);
  if (work == work_.end()) return;
  for (const v1::DesiredReplica& replica : work->second.replicas) {
    *desired.add_replicas() = replica;
  }
  for (const v1::DesiredTask& task : work->second.tasks) *desired.add_tasks() = task;
}

void CheckpointKeeper::Trim() {
  std::set<std::string> jobs;
  {
    MutexLock lock(&mutex_);
    jobs.swap(to_trim_);
  }
  for (const std::string& job : jobs) {
    {
      // Before the state is read, so that no later change of workers is missed.
      MutexLock lock(&mutex_);
      trim_later_.insert(job);
    }
    bool waits = false;
    const std::vector<v1::CheckpointRef> beyond = context_.ledger.ReadDecided(
        [&](const State& state) { return BeyondRetention(state, job, &waits); });
    if (!waits) {
      MutexLock lock(&mutex_);
      trim_later_.erase(job);
    }
    for (const v1::CheckpointRef& ref : beyond) {
      context_.ledger.ChangeUnawaited(
          [&](const State& state) { return DecideRetention(state, ref, context_.coordinator()); },
          absl::StrCat("retention of ", job));
    }
  }
}

void CheckpointKeeper::GiveUpSurplus(const std::string& job) {
  context_.ledger.Change(
      [&](const State& state) {
        return DecideSurplus(state, job, context_.options.copies, context_.coordinator());
      },
      [this, job](const absl::Status& status) {
        if (status.ok()) return;
        Log(LogLevel::kWarning,
            absl::StrCat("giving up surplus copies of ", job, ": ", status.ToString()));
        MutexLock lock(&mutex_);
        to_care_for_.insert(job);
      });
}

}  // namespace nibble
