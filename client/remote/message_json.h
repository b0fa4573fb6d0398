// A message as JSON for programs: keys are the field names of proto/nibble/v1, every field is
// there, numbers are numbers (also 64-bit ones), enums are their names. A message or a member of a
// oneof that is not set is left out.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_REMOTE_MESSAGE_JSON_H_
#define NIBBLE_CLIENT_REMOTE_MESSAGE_JSON_H_

#include <nlohmann/json.hpp>
#include <string>

#include "google/protobuf/message.h"

namespace nibble {

nlohmann::ordered_json JsonOf(const google::protobuf::Message& message);
// With an indent of two, or on one line; without a newline at the end.
std::string JsonText(const nlohmann::ordered_json& json);
std::string JsonLine(const nlohmann::ordered_json& json);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_MESSAGE_JSON_H_
