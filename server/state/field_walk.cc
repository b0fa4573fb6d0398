#include "server/state/field_walk.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "google/protobuf/unknown_field_set.h"

namespace nibble {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;

class FieldWalk {
 public:
  explicit FieldWalk(FieldVisitor& visitor) : visitor_(visitor) {}

  absl::Status Visit(const Message& message) {
    NIBBLE_RETURN_IF_ERROR(visitor_.OnMessage(path_, message));
    std::vector<const FieldDescriptor*> fields;
    message.GetReflection()->ListFields(message, &fields);
    const size_t length = path_.size();
    for (const FieldDescriptor* const field : fields) {
      absl::StrAppend(&path_, path_.empty() ? "" : ".", field->name());
      NIBBLE_RETURN_IF_ERROR(field->is_repeated() ? VisitList(message, *field)
                                                  : VisitOne(message, *field, -1));
      path_.resize(length);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status VisitList(const Message& message, const FieldDescriptor& field) {
    const int size = message.GetReflection()->FieldSize(message, &field);
    NIBBLE_RETURN_IF_ERROR(visitor_.OnList({path_, message, field, -1}, size));
    const size_t length = path_.size();
    for (int i = 0; i < size; ++i) {
      absl::StrAppend(&path_, "[", i, "]");
      NIBBLE_RETURN_IF_ERROR(VisitOne(message, field, i));
      path_.resize(length);
    }
    return absl::OkStatus();
  }

  absl::Status VisitOne(const Message& message, const FieldDescriptor& field, int index) {
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      return visitor_.OnValue({path_, message, field, index});
    }
    const Reflection& reflection = *message.GetReflection();
    return Visit(index < 0 ? reflection.GetMessage(message, &field)
                           : reflection.GetRepeatedMessage(message, &field, index));
  }

  FieldVisitor& visitor_;
  std::string path_;
};

}  // namespace

absl::Status VisitFields(const Message& message, FieldVisitor& visitor) {
  return FieldWalk(visitor).Visit(message);
}

int UnknownFieldOf(const Message& message) {
  const auto& unknown = message.GetReflection()->GetUnknownFields(message);
  return unknown.empty() ? 0 : unknown.field(0).number();
}

}  // namespace nibble
