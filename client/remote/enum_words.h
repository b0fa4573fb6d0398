// The values of the contract's enums as people read them.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_REMOTE_ENUM_WORDS_H_
#define NIBBLE_CLIENT_REMOTE_ENUM_WORDS_H_

#include <string>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/generated_enum_reflection.h"

namespace nibble {

// "running", "rank failed": the name of the enum value without the common prefix; empty for a value
// that this program does not know.
std::string WordOf(const google::protobuf::EnumDescriptor& type, int value);

template <class Enum>
requires google::protobuf::is_proto_enum<Enum>::value std::string Word(Enum value) {
  return WordOf(*google::protobuf::GetEnumDescriptor<Enum>(), value);
}

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_ENUM_WORDS_H_
