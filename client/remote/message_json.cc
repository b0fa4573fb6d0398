#include "client/remote/message_json.h"

#include <cmath>

#include "absl/strings/escaping.h"
#include "google/protobuf/descriptor.h"

namespace nibble {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

// JSON has no words for these; as texts they stay what they are.
Json NumberJson(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

Json EnumJson(const FieldDescriptor& field, int number) {
  const auto* const value = field.enum_type()->FindValueByNumber(number);
  return value == nullptr ? Json(number) : Json(value->name());
}

Json TextJson(const FieldDescriptor& field, const std::string& text) {
  return field.type() == FieldDescriptor::TYPE_BYTES ? Json(absl::Base64Escape(text)) : Json(text);
}

#define NIBBLE_VALUE(Get, ...)                                        \
  switch (field.cpp_type()) {                                         \
    case FieldDescriptor::CPPTYPE_INT32:                              \
      return reflection.Get##Int32(__VA_ARGS__);                      \
    case FieldDescriptor::CPPTYPE_INT64:                              \
      return reflection.Get##Int64(__VA_ARGS__);                      \
    case FieldDescriptor::CPPTYPE_UINT32:                             \
      return reflection.Get##UInt32(__VA_ARGS__);                     \
    case FieldDescriptor::CPPTYPE_UINT64:                             \
      return reflection.Get##UInt64(__VA_ARGS__);                     \
    case FieldDescriptor::CPPTYPE_DOUBLE:                             \
      return NumberJson(reflection.Get##Double(__VA_ARGS__));         \
    case FieldDescriptor::CPPTYPE_FLOAT:                              \
      return NumberJson(reflection.Get##Float(__VA_ARGS__));          \
    case FieldDescriptor::CPPTYPE_BOOL:                               \
      return reflection.Get##Bool(__VA_ARGS__);                       \
    case FieldDescriptor::CPPTYPE_ENUM:                               \
      return EnumJson(field, reflection.Get##EnumValue(__VA_ARGS__)); \
    case FieldDescriptor::CPPTYPE_STRING:                             \
      return TextJson(field, reflection.Get##String(__VA_ARGS__));    \
    case FieldDescriptor::CPPTYPE_MESSAGE:                            \
      return JsonOf(reflection.Get##Message(__VA_ARGS__));            \
  }                                                                   \
  return Json()

Json Single(const Message& message, const Reflection& reflection, const FieldDescriptor& field) {
  NIBBLE_VALUE(Get, message, &field);
}

Json Element(const Message& message, const Reflection& reflection, const FieldDescriptor& field,
             int index) {
  NIBBLE_VALUE(GetRepeated, message, &field, index);
}
#undef NIBBLE_VALUE

}  // namespace

Json JsonOf(const Message& message) {
  const Reflection& reflection = *message.GetReflection();
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  Json json = Json::object();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.is_repeated()) {
      Json& list = json[field.name()] = Json::array();
      const int count = reflection.FieldSize(message, &field);
      for (int j = 0; j < count; ++j) list.push_back(Element(message, reflection, field, j));
    } else if (!field.has_presence() || reflection.HasField(message, &field)) {
      json[field.name()] = Single(message, reflection, field);
    }
  }
  return json;
}

}  // namespace nibble
