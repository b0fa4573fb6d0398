// The values of the contract's enums as people read them.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_REMOTE_ENUM_WORDS_H_
#define NIBBLE_CLIENT_REMOTE_ENUM_WORDS_H_

#include <string>

#include "proto/nibble/v1/checkpoint.pb.h"
#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/worker.pb.h"

namespace nibble {

// "running", "rank failed": the name of the enum value without the common prefix.
std::string Word(v1::JobState value);
std::string Word(v1::JobGoal value);
std::string Word(v1::AttemptOutcome value);
std::string Word(v1::RankPhase value);
std::string Word(v1::CheckpointState value);
std::string Word(v1::CheckpointTaskKind value);
std::string Word(v1::CheckpointTaskState value);
std::string Word(v1::WorkerMode value);
std::string Word(v1::Device value);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_ENUM_WORDS_H_
