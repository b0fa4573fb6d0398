// The exit codes of nibble-trainer: how it ended and whose fault that was, so that its parent (a
// shell, the launcher of local ranks, a worker daemon) neither retries what must fail again nor
// blames a machine for it. docs/guide/cli.md has the same table.
//
// An error carries its exit code as a payload from where the cause is known (the data, the
// checkpoint, the collective) up to main().
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_LINK_TRAINER_EXIT_H_
#define NIBBLE_WORKER_LINK_TRAINER_EXIT_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"

namespace nibble {

enum class TrainerExit : uint8_t {
  kDone = 0,           // every step is done
  kError = 1,          // of the machine or the program
  kUsage = 2,          // unknown flags or an invalid spec
  kSpec = 3,           // what the spec names is missing or unusable for training
  kCheckpoint = 4,     // the checkpoint to resume from is damaged
  kDisk = 5,           // the disk is full or refuses writes
  kPeer = 6,           // another rank of the group is gone
  kGuardPause = 7,     // a guard of the spec pauses the job for a person
  kGuardRollback = 8,  // a guard requests a resume from an earlier checkpoint
  kGuardFail = 9,      // a guard of the spec ends the run
  kStopped = 101,      // stopped on command before the last step
};

// Adds the exit code to an error. An existing code is kept, because it was set closest to the
// cause. An OK status is returned unchanged.
absl::Status WithExit(absl::Status status, TrainerExit exit);

// The exit code of an error, kError if none was set; kDone for an OK status.
TrainerExit ExitOf(const absl::Status& status);

inline bool IsGuards(TrainerExit exit) {
  return exit >= TrainerExit::kGuardPause && exit <= TrainerExit::kGuardFail;
}

// From an exit code as the system reports it; nullopt for any other number.
std::optional<TrainerExit> TrainerExitFrom(int code);

// Prefix of the line on standard error with the reason of a trainer's end; the last such line
// counts.
inline constexpr char kTrainerComplaint[] = "nibble-trainer: ";

}  // namespace nibble

#endif  // NIBBLE_WORKER_LINK_TRAINER_EXIT_H_
