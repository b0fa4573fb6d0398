#include "server/state/find_checkpoint.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "server/state/keys.h"

namespace nibble {

absl::StatusOr<v1::CheckpointRef> FindCheckpoint(const State& state, const v1::CheckpointRef& ref,
                                                 absl::string_view field) {
  const v1::JobRecord* const job = state.FindJob(ref.job());
  if (job == nullptr) {
    return absl::NotFoundError(absl::StrCat(field, ".job: there is no '", ref.job(), "'"));
  }
  const v1::Checkpoint* best = nullptr;
  for (const v1::Checkpoint* checkpoint : state.CheckpointsOf(ref.job())) {
    if (checkpoint->state() == v1::CHECKPOINT_STATE_WRITING) continue;
    if (ref.attempt() != 0 && checkpoint->ref().attempt() != ref.attempt()) continue;
    const bool good = checkpoint->state() == v1::CHECKPOINT_STATE_COMMITTED;
    if (ref.step() == -1) {
      if (good) best = checkpoint;
      continue;
    }
    if (checkpoint->ref().step() != ref.step()) continue;
    if (good || best == nullptr || best->state() == v1::CHECKPOINT_STATE_DAMAGED) best = checkpoint;
  }
  if (best != nullptr) return best->ref();
  const int64_t attempts = job->last_attempt();
  if (ref.attempt() < 0 || ref.attempt() > attempts) {
    return absl::NotFoundError(absl::StrCat(field, ".attempt: there is no ", ref.attempt(), " of ",
                                            ref.job(), ", which has had ", attempts, "; 0: any"));
  }
  const std::string which = ref.attempt() == 0 ? "" : absl::StrCat(" of attempt ", ref.attempt());
  if (ref.step() == -1) {
    return absl::NotFoundError(
        absl::StrCat(field, ": ", ref.job(), " has no good checkpoint", which));
  }
  return absl::NotFoundError(absl::StrCat(
      field, ": ", ref.job(), " has no committed checkpoint at step ", ref.step(), which));
}

}  // namespace nibble
