#include "server/controller/checkpoint_uploads.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/state/decide.h"

namespace nibble {

Upload FindUpload(const State& state, const std::string& job) {
  const v1::Checkpoint* const newest = state.NewestGood(job);
  if (newest == nullptr) return {};
  const v1::CheckpointTask* last = nullptr;  // that ended
  for (const v1::Checkpoint* checkpoint : state.CheckpointsOf(job)) {
    for (const v1::CheckpointTask& task : checkpoint->tasks()) {
      if (task.kind() != v1::CHECKPOINT_TASK_KIND_UPLOAD) continue;
      if (task.state() == v1::CHECKPOINT_TASK_STATE_REQUESTED) {
        return {UploadNeed::kUnderWay, checkpoint->ref()};
      }
      if (checkpoint == newest && task.state() == v1::CHECKPOINT_TASK_STATE_DONE) return {};
      if (last == nullptr || task.ended_unix_ms() >= last->ended_unix_ms()) last = &task;
    }
  }
  const bool failed = last != nullptr && last->state() == v1::CHECKPOINT_TASK_STATE_FAILED;
  return {failed ? UploadNeed::kFailed : UploadNeed::kWanted, newest->ref()};
}

CheckpointUploads::CheckpointUploads(const ControllerContext& context) : context_(context) {
  if (context_.options.object_store.empty()) return;
  context_.metrics.UploadsFailing(0);
  const std::shared_ptr<const State> state = context.ledger.Shown();
  for (const auto& [id, record] : state->tables().jobs) changed_.insert(id);
}

void CheckpointUploads::NoteChanges(const std::set<std::string>& jobs) {
  if (context_.options.object_store.empty()) return;
  MutexLock lock(&mutex_);
  changed_.insert(jobs.begin(), jobs.end());
}

void CheckpointUploads::Tick() {
  if (context_.options.object_store.empty()) return;
  std::set<std::string> jobs;
  {
    MutexLock lock(&mutex_);
    jobs.swap(changed_);
  }
  const int64_t now_ms = context_.clock.SteadyMs();
  for (const auto& [job, due_ms] : retry_ms_) {
    if (due_ms <= now_ms) jobs.insert(job);
  }
  for (const std::string& job : jobs) Look(job, now_ms);
  context_.metrics.UploadsFailing(static_cast<int64_t>(retry_ms_.size()));
}

void CheckpointUploads::Look(const std::string& job, int64_t now_ms) {
  const Upload upload =
      context_.ledger.ReadDecided([&](const State& state) { return FindUpload(state, job); });
  if (upload.need == UploadNeed::kUnderWay) {
    // A retry: it counts as failing until it has succeeded.
    if (const auto at = retry_ms_.find(job); at != retry_ms_.end()) at->second = INT64_MAX;
    return;
  }
  if (upload.need == UploadNeed::kNone) {
    retry_ms_.erase(job);
    return;
  }
  if (upload.need == UploadNeed::kWanted) {
    retry_ms_.erase(job);
  } else {
    const auto [at, is_new] = retry_ms_.try_emplace(job, now_ms + kRetryMs);
    if (at->second == INT64_MAX) at->second = now_ms + kRetryMs;  // the retry has failed
    if (at->second > now_ms) return;
    at->second = INT64_MAX;
  }
  context_.ledger.ChangeUnawaited(
      [&](const State& state) {
        return DecideUpload(state, upload.ref,
                            absl::StrCat(context_.options.object_store, "/", job),
                            context_.options.object_store_keep, context_.coordinator());
      },
      absl::StrCat("upload of ", job));
}

}  // namespace nibble
