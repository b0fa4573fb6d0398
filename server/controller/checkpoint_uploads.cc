#include "server/controller/checkpoint_uploads.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/controller/checkpoint_care.h"
#include "server/state/decide.h"
#include "server/state/entities.h"
#include "server/state/job_uploads.h"

namespace nibble {

Upload FindUpload(const State& state, const std::string& job, const std::string& place,
                  int64_t now_unix_ms) {
  const v1::JobRecord* const record = state.FindJob(job);
  if (record == nullptr) return {};
  const v1::JobUploads& uploads = record->uploads();
  Upload upload;
  upload.failures = uploads.failures();
  if (uploads.has_open()) {
    upload.ref = uploads.open();
    upload.need =
        FindAbsentShard(state, upload.ref).has_value() ? UploadNeed::kLost : UploadNeed::kUnderWay;
    return upload;
  }
  const v1::Checkpoint* const newest = state.NewestGood(job);
  if (newest == nullptr) return {};
  upload.ref = newest->ref();
  const bool known = uploads.place() == place;
  if (known && !uploads.copies().empty() &&
      CheckpointKey(*uploads.copies().rbegin()) == CheckpointKey(upload.ref)) {
    return {};
  }
  if (!known) upload.failures = 0;
  if (FindAbsentShard(state, upload.ref).has_value()) {
    upload.need = UploadNeed::kAbsent;
  } else {
    upload.need = UploadNeed::kWanted;
    upload.wait_ms = known ? UploadWaitMs(uploads, now_unix_ms) : 0;
  }
  return upload;
}

CheckpointUploads::CheckpointUploads(const ControllerContext& context) : context_(context) {
  if (context_.options.object_store.empty()) return;
  context_.metrics.UploadsFailing(0);
  const std::shared_ptr<const State> state = context.ledger.Shown();
  for (const auto& [id, record] : state->tables().jobs) changed_.insert(id);
}

void CheckpointUploads::NoteChanges(const CheckpointKeeper::Changes& changes) {
  if (context_.options.object_store.empty()) return;
  MutexLock lock(&mutex_);
  changed_.insert(changes.jobs.begin(), changes.jobs.end());
  workers_changed_ |= changes.workers;
}

void CheckpointUploads::Tick() {
  if (context_.options.object_store.empty()) return;
  std::set<std::string> jobs;
  bool workers_changed = false;
  {
    MutexLock lock(&mutex_);
    jobs.swap(changed_);
    workers_changed = std::exchange(workers_changed_, false);
  }
  if (workers_changed) jobs.insert(depend_on_workers_.begin(), depend_on_workers_.end());
  const int64_t now_ms = context_.clock.SteadyMs();
  for (const auto& [job, due_ms] : due_ms_) {
    if (due_ms <= now_ms) jobs.insert(job);
  }
  for (const std::string& job : jobs) Look(job, now_ms);
  context_.metrics.UploadsFailing(std::ssize(failing_));
}

void CheckpointUploads::Look(const std::string& job, int64_t now_ms) {
  const std::string place = absl::StrCat(context_.options.object_store, "/", job);
  const Upload upload = context_.ledger.ReadDecided([&](const State& state) {
    return FindUpload(state, job, place, context_.clock.NowUnixMs());
  });
  due_ms_.erase(job);
  failing_.erase(job);
  depend_on_workers_.erase(job);
  if (upload.need == UploadNeed::kNone) return;
  if (upload.failures > 0) failing_.insert(job);
  depend_on_workers_.insert(job);
  if (upload.need == UploadNeed::kUnderWay) return;
  if (upload.need == UploadNeed::kLost) {
    context_.ledger.ChangeUnawaited(
        [&context = context_, job, ref = upload.ref](const State& state) -> MaybeUpdate {
          const std::optional<int32_t> rank = FindAbsentShard(state, ref);
          if (!rank.has_value()) return std::nullopt;
          return DecideUploadLost(state, job,
                                  absl::StrCat("no present worker has the shard of rank ", *rank),
                                  context.coordinator());
        },
        absl::StrCat("end of the upload of ", job));
  } else if (upload.need == UploadNeed::kWanted && upload.wait_ms > 0) {
    due_ms_[job] = now_ms + upload.wait_ms;
  } else if (upload.need == UploadNeed::kWanted || upload.failures == 0) {
    // An upload that nobody can make fails once, with the reason, and is not tried until it can be.
    context_.ledger.ChangeUnawaited(
        [&context = context_, place, ref = upload.ref](const State& state) {
          return DecideUpload(state, ref,
                              {.place = place,
                               .keep = context.options.object_store_keep,
                               .worker = FindMostHolder(state, ref)},
                              context.coordinator());
        },
        absl::StrCat("upload of ", job));
  }
}

}  // namespace nibble
