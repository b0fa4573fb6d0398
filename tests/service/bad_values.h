// Requests that are wrong in one field: every field of a message, however deep, set to each value
// of its type that nobody ought to send.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_TESTS_SERVICE_BAD_VALUES_H_
#define NIBBLE_TESTS_SERVICE_BAD_VALUES_H_

#include <functional>
#include <string>

#include "google/protobuf/message.h"

namespace nibble {

// Calls `use` with the name of the field and the value ("scheduling.priority = 2147483647"), for
// every field and value, and `base` so changed. Restored between two calls.
void ForEachBadValue(
    google::protobuf::Message& base,
    const std::function<void(const std::string& what, const google::protobuf::Message&)>& use);

}  // namespace nibble

#endif  // NIBBLE_TESTS_SERVICE_BAD_VALUES_H_
