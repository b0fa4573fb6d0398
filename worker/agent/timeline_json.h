// The recipe of a job over time as ranks read it, made of what the coordinator says.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_AGENT_TIMELINE_JSON_H_
#define NIBBLE_WORKER_AGENT_TIMELINE_JSON_H_

#include <string>

#include "absl/status/statusor.h"
#include "google/protobuf/repeated_field.h"
#include "proto/nibble/v1/recipe.pb.h"

namespace nibble {

// Errors as Timeline::FromRevisions.
absl::StatusOr<std::string> TimelineJson(
    const google::protobuf::RepeatedPtrField<v1::RecipeRevision>& revisions);

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_TIMELINE_JSON_H_
