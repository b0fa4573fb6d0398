// From what a step and a checkpoint report to what the daemon is told of them.
//
// Both add to news that the rank keeps from its beginning to its end: totals grow, the rest is of
// the newest step. What the rank does, its next step and its memory are the caller's.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_RANK_NEWS_H_
#define NIBBLE_WORKER_TRAINER_LOOP_RANK_NEWS_H_

#include "worker/checkpoint/checkpoint_guest.h"
#include "worker/trainer/link/link_message.h"
#include "worker/trainer/loop/trainer.h"

namespace nibble {

// A step is done. `with_precision`: of rank 0, whose figures stand for all; they are bounded.
void AddStep(const StepReport& report, const Outline& outline, const Timeline& timeline,
             bool with_precision, RankNews& news);

// A step is about to be made under this revision. False where it is the one of the step before.
bool NoteBegun(const RevisionBegun& begun, RankNews& news);

// Ranks could not prepare this revision.
void NoteRefused(RevisionRefused refused, RankNews& news);

// A checkpoint is stored, or is not.
void AddCheckpoint(const CheckpointGuest::Outcome& outcome, RankNews& news);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_RANK_NEWS_H_
