#include "server/state/find_checkpoint.h"

#include "absl/strings/str_cat.h"
#include "server/state/keys.h"

namespace nibble {

absl::StatusOr<v1::CheckpointRef> FindCheckpoint(const State& state, const v1::CheckpointRef& ref) {
  if (state.FindJob(ref.job()) == nullptr) {
    return absl::NotFoundError(absl::StrCat("ref.job: there is no '", ref.job(), "'"));
  }
  const v1::Checkpoint* best = nullptr;
  for (const v1::Checkpoint* checkpoint : state.CheckpointsOf(ref.job())) {
    if (checkpoint->state() == v1::CHECKPOINT_STATE_WRITING) continue;
    const bool good = checkpoint->state() == v1::CHECKPOINT_STATE_COMMITTED;
    if (ref.step() == -1) {
      if (good) best = checkpoint;
      continue;
    }
    if (checkpoint->ref().step() != ref.step()) continue;
    if (ref.attempt() != 0 && checkpoint->ref().attempt() != ref.attempt()) continue;
    if (good || best == nullptr || best->state() == v1::CHECKPOINT_STATE_DAMAGED) best = checkpoint;
  }
  if (best != nullptr) return best->ref();
  if (ref.step() == -1) {
    return absl::NotFoundError(absl::StrCat("ref: ", ref.job(), " has no good checkpoint"));
  }
  return absl::NotFoundError(
      absl::StrCat("ref: ", ref.job(), " has no committed checkpoint at step ", ref.step(),
                   ref.attempt() == 0 ? "" : absl::StrCat(" of attempt ", ref.attempt())));
}

}  // namespace nibble
