// The fields of a message and of the messages inside it, visited with their paths, such as
// "facts[2].job_moved.reason". Only fields that are set are visited, and those that the program
// knows; the visitor finds the others in the messages that it is shown.
//
// Ownership: nothing is kept; what a visitor is given is valid during the call.
// Thread-safety: a pure function, as far as the visitor is.
#ifndef NIBBLE_SERVER_STATE_FIELD_WALK_H_
#define NIBBLE_SERVER_STATE_FIELD_WALK_H_

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace nibble {

// A field that is set, or an entry of a list.
struct VisitedField {
  const std::string& path;
  const google::protobuf::Message& message;  // that has the field
  const google::protobuf::FieldDescriptor& field;
  int index;  // of the entry; -1: the field is not a list
};

// An error ends the walk.
class FieldVisitor {
 public:
  virtual ~FieldVisitor() = default;

  // Each message before its fields; the path of the outermost is empty.
  virtual absl::Status OnMessage(const std::string& /*path*/,
                                 const google::protobuf::Message& /*message*/) {
    return absl::OkStatus();
  }
  // Each list, with at least one entry, before its entries.
  virtual absl::Status OnList(const VisitedField& /*list*/, int /*size*/) {
    return absl::OkStatus();
  }
  // Each number, text, bytes or enum value.
  virtual absl::Status OnValue(const VisitedField& value) = 0;
};

// The visitor's first error.
absl::Status VisitFields(const google::protobuf::Message& message, FieldVisitor& visitor);

// The number of a field that the message has and the program does not know, because a newer program
// wrote it; 0: none. Does not look into the messages inside it.
int UnknownFieldOf(const google::protobuf::Message& message);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_FIELD_WALK_H_
