// Holds a message against the table of bounds: nothing that is too long, in whatever depth, gets as
// far as a rule.
//
// Thread-safety: pure functions over immutable tables.
#ifndef NIBBLE_SERVER_STATE_BOUNDS_H_
#define NIBBLE_SERVER_STATE_BOUNDS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "server/state/limits.h"

namespace nibble {

// InvalidArgument naming the field by its path ("facts[2].job_moved.reason"), its size and the
// bound; also for a text that is not UTF-8 or that has control characters (documents and outputs
// may have line ends and tabs).
absl::Status CheckBounds(const google::protobuf::Message& message);

// The bound of a text, bytes or list field; unset where the table has none.
std::optional<FieldLimit> LimitOf(const google::protobuf::FieldDescriptor& field);

// InvalidArgument naming `field` unless the text is a name: letters, digits, '.', '_' and '-', the
// first of them a letter or digit, 1 to kMaxNameBytes.
absl::Status CheckName(absl::string_view field, absl::string_view name);
// … unless it is 8 to 64 of letters, digits, '_' and '-'.
absl::Status CheckRequestId(absl::string_view request_id);
// … unless least <= value <= most.
absl::Status CheckRange(absl::string_view field, int64_t value, int64_t least, int64_t most);

// The longest beginning of `text` that is whole UTF-8 characters and at most `most` bytes.
std::string Clip(absl::string_view text, int64_t most);
// As a reason: clipped to kMaxReasonBytes, with blanks in place of control characters.
std::string OneLine(absl::string_view text);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_BOUNDS_H_
