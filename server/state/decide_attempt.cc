// How attempts are launched, preempted and stopped.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "server/state/decide.h"
#include "server/state/decide_tools.h"
#include "server/state/entities.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

bool AllShardsPresent(const State& state, const v1::Checkpoint& checkpoint) {
  const std::vector<const v1::CheckpointShard*> shards = state.ShardsOf(checkpoint.ref());
  return std::all_of(shards.begin(), shards.end(), [&state](const v1::CheckpointShard* shard) {
    return std::any_of(shard->holders().begin(), shard->holders().end(),
                       [&state](const std::string& holder) {
                         const v1::WorkerRecord* const worker = state.FindWorker(holder);
                         return worker != nullptr && worker->present();
                       });
  });
}

// Moves a job whose attempt stopped as requested.
void MoveAfterStop(const v1::JobRecord& job, const std::string& reason, v1::Update& update) {
  if (job.goal() == v1::JOB_GOAL_CANCEL) {
    decide::Move(job.id(), job.state(), v1::JOB_STATE_CANCELLED, reason, update);
    return;
  }
  v1::JobState at = job.state();
  if (at == v1::JOB_STATE_PAUSED) {
    if (job.goal() == v1::JOB_GOAL_RUN) {
      decide::Move(job.id(), at, v1::JOB_STATE_QUEUED, reason, update);
    }
    return;
  }
  if (at == v1::JOB_STATE_RUNNING) {
    decide::Move(job.id(), at, v1::JOB_STATE_PREEMPTED, reason, update);
    at = v1::JOB_STATE_PREEMPTED;
  }
  if (at == v1::JOB_STATE_PREEMPTED || at == v1::JOB_STATE_STARTING) {
    decide::Move(job.id(), at, v1::JOB_STATE_QUEUED, reason, update);
    at = v1::JOB_STATE_QUEUED;
  }
  if (job.goal() == v1::JOB_GOAL_PAUSE) {
    decide::Move(job.id(), at, v1::JOB_STATE_PAUSED, "paused without ranks", update);
  }
}

}  // namespace

namespace decide {

void AddStop(const v1::JobRecord& job, const std::string& reason, v1::Update& update) {
  const bool cancelled = job.goal() == v1::JOB_GOAL_CANCEL;
  End(job, cancelled ? v1::ATTEMPT_OUTCOME_CANCELLED : v1::ATTEMPT_OUTCOME_STOPPED, reason, update);
  MoveAfterStop(job, reason, update);
}

}  // namespace decide

std::vector<const v1::Checkpoint*> LoadableCheckpoints(const State& state,
                                                       const v1::JobRecord& job) {
  std::vector<const v1::Checkpoint*> all = state.CheckpointsOf(job.id());
  std::reverse(all.begin(), all.end());
  std::erase_if(all, [](const v1::Checkpoint* checkpoint) { return checkpoint->left(); });
  if (const v1::Checkpoint* const origin = state.OriginOf(job)) all.push_back(origin);
  std::erase_if(all, [&state](const v1::Checkpoint* checkpoint) {
    return checkpoint->state() != v1::CHECKPOINT_STATE_COMMITTED ||
           !AllShardsPresent(state, *checkpoint);
  });
  return all;
}

std::string WhyNeverResumes(const State& state, const v1::JobRecord& job) {
  const v1::Checkpoint* const origin = state.OriginOf(job);
  if (state.NewestGood(job.id()) != nullptr ||
      (origin != nullptr && origin->state() == v1::CHECKPOINT_STATE_COMMITTED)) {
    return "";
  }
  // Does not silently repeat all steps.
  constexpr size_t kNamed = 3;
  constexpr int64_t kEach = 200;
  std::vector<std::string> damaged;  // newest first
  const std::vector<const v1::Checkpoint*> all = state.CheckpointsOf(job.id());
  for (auto one = all.rbegin(); one != all.rend(); ++one) {
    if ((*one)->left() || (*one)->state() != v1::CHECKPOINT_STATE_DAMAGED) continue;
    damaged.push_back(
        absl::StrCat("the ", CheckpointText((*one)->ref()), ": ", Clip((*one)->damage(), kEach)));
  }
  if (!damaged.empty()) {
    const size_t more = damaged.size() - std::min(damaged.size(), kNamed);
    damaged.resize(damaged.size() - more);
    return absl::StrCat("every checkpoint of it is damaged: ", absl::StrJoin(damaged, "; "),
                        more > 0 ? absl::StrCat("; and ", more, " more") : "",
                        "; submit it anew to begin at step 0");
  }
  if (!job.has_origin()) return "";
  return absl::StrCat(
      "it is to begin with the ", CheckpointText(job.origin().checkpoint()), ", which is ",
      origin == nullptr ? "gone" : absl::StrCat("damaged: ", Clip(origin->damage(), kEach)),
      "; submit it anew to begin with another");
}

MaybeUpdate DecideUnresumable(const State& state, const std::string& job, const Caller& caller) {
  const v1::JobRecord* const found = state.FindJob(job);
  if (found == nullptr || found->has_attempt() ||
      (found->state() != v1::JOB_STATE_QUEUED && found->state() != v1::JOB_STATE_RECOVERING)) {
    return std::nullopt;
  }
  const std::string why = WhyNeverResumes(state, *found);
  if (why.empty()) return std::nullopt;
  v1::Update update = decide::NextUpdate(state, caller);
  decide::Move(job, found->state(), v1::JOB_STATE_FAILED, why, update);
  return decide::Checked(state, std::move(update));
}

MaybeUpdate DecideLaunch(const State& state, const std::string& job,
                         const std::vector<SlotChoice>& slots,
                         const std::optional<v1::CheckpointRef>& resume, const std::string& reason,
                         const Caller& caller) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::JobRecord* const found, decide::FindUnfinished(state, job));
  v1::Update update = decide::NextUpdate(state, caller);
  v1::AttemptLaunched& launched = *update.add_facts()->mutable_attempt_launched();
  launched.set_job(job);
  launched.set_reason(OneLine(reason));
  v1::Attempt& attempt = *launched.mutable_attempt();
  attempt.set_number(found->last_attempt() + 1);
  int32_t ranks = 0;
  for (const SlotChoice& choice : slots) {
    const v1::WorkerRecord* const worker = state.FindWorker(choice.worker);
    if (worker == nullptr) {
      return absl::NotFoundError(absl::StrCat("worker: there is no '", choice.worker, "'"));
    }
    v1::Placement& placement = *attempt.add_placements();
    placement.set_worker(choice.worker);
    placement.set_incarnation(worker->identity().incarnation());
    placement.set_first_rank(ranks);
    placement.set_phase(v1::RANK_PHASE_ASSIGNED);
    for (const int32_t slot : choice.slots) placement.add_slots(slot);
    ranks += static_cast<int32_t>(choice.slots.size());
  }
  attempt.set_world(ranks);
  if (resume) *attempt.mutable_resume() = *resume;
  if (found->state() == v1::JOB_STATE_QUEUED) {
    decide::Move(job, v1::JOB_STATE_QUEUED, v1::JOB_STATE_STARTING,
                 reason.empty() ? "slots are free" : reason, update);
  }
  return decide::Checked(state, std::move(update));
}

MaybeUpdate DecidePreempt(const State& state, const std::string& job, const std::string& reason,
                          int64_t grace_ms, const Caller& caller) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::JobRecord* const found, decide::FindUnfinished(state, job));
  NIBBLE_RETURN_IF_ERROR(CheckRange("grace_ms", grace_ms, 0, kMaxGraceMs));
  const v1::JobRecord& record = *found;
  if (!record.has_attempt()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job: ", job, " is ", StateName(record.state()), " and has no slots to free"));
  }
  if (record.attempt().stopping()) return std::nullopt;
  v1::Update update = decide::NextUpdate(state, caller);
  const std::string why = absl::StrCat("preempted: ", reason);
  if (record.state() == v1::JOB_STATE_STARTING || record.state() == v1::JOB_STATE_RECOVERING) {
    decide::AddStop(record, why, update);
    return decide::Checked(state, std::move(update));
  }
  v1::AttemptStopping& stopping = *update.add_facts()->mutable_attempt_stopping();
  stopping.set_job(job);
  stopping.set_attempt(record.attempt().number());
  // 0 would mean the default.
  stopping.set_grace_ms(std::max<int64_t>(grace_ms, 1));
  stopping.set_stop_by_unix_ms(update.time_unix_ms() + grace_ms);
  stopping.set_reason(OneLine(why));
  if (record.state() == v1::JOB_STATE_RUNNING) {
    decide::Move(job, record.state(), v1::JOB_STATE_PREEMPTED, why, update);
  }
  return decide::Checked(state, std::move(update));
}

int64_t StopGraceOf(const v1::Attempt& attempt) {
  if (!attempt.stopping()) return 0;
  return attempt.stop_grace_ms() > 0 ? attempt.stop_grace_ms() : kDefaultGraceMs;
}

MaybeUpdate DecideStopDeadline(const State& state, const std::string& job, int64_t attempt,
                               const Caller& caller) {
  const v1::JobRecord* const found = state.FindJob(job);
  if (found == nullptr || !found->attempt().stopping() || found->attempt().number() != attempt) {
    return std::nullopt;
  }
  v1::Update update = decide::NextUpdate(state, caller);
  decide::AddStop(*found, "stopped without a checkpoint: its grace period was over", update);
  return decide::Checked(state, std::move(update));
}

}  // namespace nibble
