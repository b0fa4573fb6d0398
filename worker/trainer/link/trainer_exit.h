// How nibble-trainer ends: its exit code says whose fault an end is, so that whoever started it (a
// person, the launcher of local ranks, a worker daemon) neither retries what must fail again nor
// blames a machine for it. docs/guide/cli.md has the same table for people.
//
// An error carries its exit code as a payload from where the cause is known (the data, the
// checkpoint, the collective) up to main().
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_TRAINER_LINK_TRAINER_EXIT_H_
#define NIBBLE_WORKER_TRAINER_LINK_TRAINER_EXIT_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"

namespace nibble {

enum class TrainerExit : uint8_t {
  kDone = 0,           // every step is made
  kError = 1,          // the machine, or the program
  kUsage = 2,          // flags that it does not know, or a spec that is not valid
  kSpec = 3,           // what the spec names is not there, or cannot be trained on
  kCheckpoint = 4,     // bytes of the checkpoint to begin from are damaged
  kDisk = 5,           // no room, or the disk refuses writes
  kPeer = 6,           // another rank of the group is gone
  kGuardPause = 7,     // a guard of the spec wants a person to look
  kGuardRollback = 8,  // a guard wants the newest good checkpoint to be resumed from
  kGuardFail = 9,      // a guard of the spec ends the run
  kStopped = 101,      // stopped as told, before the last step
};

// The error as it is, with its exit code. One that has a code keeps it: the first to know the cause
// is the closest to it. An OK status stays as it is.
absl::Status WithExit(absl::Status status, TrainerExit exit);

// The code of an error: kError where nobody has set one; kDone of an OK status.
TrainerExit ExitOf(const absl::Status& status);

inline bool IsGuards(TrainerExit exit) {
  return exit >= TrainerExit::kGuardPause && exit <= TrainerExit::kGuardFail;
}

// Of an exit code as the system reports it; nullopt for a number that is none of these.
std::optional<TrainerExit> TrainerExitFrom(int code);

// Begins the line on standard error that says why a trainer ends; the last such line counts.
inline constexpr char kTrainerComplaint[] = "nibble-trainer: ";

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LINK_TRAINER_EXIT_H_
