// A message as JSON for programs: keys are the field names of proto/nibble/v1, every field is
// there, numbers are numbers (also 64-bit ones), enums are their names. A message or a member of a
// oneof that is not set is left out.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_REMOTE_MESSAGE_JSON_H_
#define NIBBLE_CLIENT_REMOTE_MESSAGE_JSON_H_

#include <nlohmann/json.hpp>

#include "google/protobuf/message.h"

namespace nibble {

nlohmann::ordered_json JsonOf(const google::protobuf::Message& message);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_MESSAGE_JSON_H_
