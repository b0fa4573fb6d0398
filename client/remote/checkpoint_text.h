// Checkpoints of jobs for people.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_REMOTE_CHECKPOINT_TEXT_H_
#define NIBBLE_CLIENT_REMOTE_CHECKPOINT_TEXT_H_

#include <string>

#include "google/protobuf/repeated_field.h"
#include "proto/nibble/v1/checkpoint.pb.h"

namespace nibble {

// "train-7@300"
std::string NameOf(const v1::CheckpointRef& ref);
// A line each, oldest first, of a list that is newest first.
std::string CheckpointTable(const google::protobuf::RepeatedPtrField<v1::Checkpoint>& checkpoints);
std::string CheckpointText(const v1::DescribeCheckpointResponse& described);
// "verification 3 of train-7@300 is done on w1: …"
std::string TaskText(const v1::CheckpointRef& ref, const v1::CheckpointTask& task);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_CHECKPOINT_TEXT_H_
