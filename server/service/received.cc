#include "server/service/received.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/stubs/logging.h"
#include "google/protobuf/unknown_field_set.h"
#include "google/protobuf/wire_format_lite.h"
#include "server/state/bounds.h"

namespace nibble {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr size_t kMostShown = 60;

std::string Inner(const std::string& path, const std::string& name) {
  return absl::StrCat(path, path.empty() ? "" : ".", name);
}

std::string Entry(const std::string& path, int index) {
  return absl::StrCat(path, "[", index, "]");
}

absl::Status NoSuchValue(const EnumDescriptor& type, const std::string& path, int value,
                         int least) {
  std::vector<std::string> allowed;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() >= least) allowed.push_back(type.value(i)->name());
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", value, "; allowed of ", type.name(),
                                                 ": ", absl::StrJoin(allowed, ", ")));
}

class Walk {
 public:
  explicit Walk(bool change) : change_(change) {}

  absl::Status Check(const Message& message, const std::string& path) const {
    const Reflection& reflection = *message.GetReflection();
    const auto& unknown = reflection.GetUnknownFields(message);
    if (change_ && !path.empty() && !unknown.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": has field ", unknown.field(0).number(),
                       ", which this coordinator does not know: what it asks for would be lost"));
    }
    std::vector<const FieldDescriptor*> fields;
    reflection.ListFields(message, &fields);
    for (const FieldDescriptor* const field : fields) {
      absl::Status status = CheckField(message, *field, Inner(path, field->name()));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckField(const Message& message, const FieldDescriptor& field,
                          const std::string& path) const {
    const Reflection& reflection = *message.GetReflection();
    const bool is_enum = field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM;
    if (!is_enum && field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) return absl::OkStatus();
    if (!field.is_repeated()) {
      return is_enum ? CheckEnum(field, reflection.GetEnumValue(message, &field), path)
                     : Check(reflection.GetMessage(message, &field), path);
    }
    for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
      absl::Status status =
          is_enum ? CheckEnum(field, reflection.GetRepeatedEnumValue(message, &field, i),
                              Entry(path, i))
                  : Check(reflection.GetRepeatedMessage(message, &field, i), Entry(path, i));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  static absl::Status CheckEnum(const FieldDescriptor& field, int value, const std::string& path) {
    const int least = field.is_repeated() ? 1 : 0;
    const EnumDescriptor& type = *field.enum_type();
    const bool known = type.FindValueByNumber(value) != nullptr;
    if (known && value >= least) return absl::OkStatus();
    return NoSuchValue(type, path, value, least);
  }

  const bool change_;
};

// The first text of a message in its wire form that is not UTF-8.
std::optional<absl::Status> FindBadText(const Descriptor& type, const std::string& path,
                                        CodedInputStream& in) {
  std::map<int, int> entries;  // seen so far, of each list
  while (const uint32_t tag = in.ReadTag()) {
    const FieldDescriptor* const field =
        type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const bool text = field != nullptr && field->type() == FieldDescriptor::TYPE_STRING;
    const bool inner = field != nullptr && field->type() == FieldDescriptor::TYPE_MESSAGE;
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED ||
        (!text && !inner)) {
      if (!WireFormatLite::SkipField(&in, tag)) return std::nullopt;
      continue;
    }
    std::string name = Inner(path, field->name());
    if (field->is_repeated()) name = Entry(name, entries[field->number()]++);
    uint32_t size = 0;
    if (!in.ReadVarint32(&size)) return std::nullopt;
    if (text) {
      std::string value;
      if (!in.ReadString(&value, static_cast<int>(size))) return std::nullopt;
      if (Clip(value, static_cast<int64_t>(value.size())).size() == value.size()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": '", absl::CHexEscape(value.substr(0, kMostShown)), "' is not UTF-8"));
    }
    const auto [limit, depth] = in.IncrementRecursionDepthAndPushLimit(static_cast<int>(size));
    if (depth < 0) return std::nullopt;
    std::optional<absl::Status> found = FindBadText(*field->message_type(), name, in);
    if (found) return found;
    if (!in.DecrementRecursionDepthAndPopLimit(limit)) return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

absl::Status CheckReceived(Message& message) {
  const bool change = message.GetDescriptor()->FindFieldByName("request_id") != nullptr;
  absl::Status status = Walk(change).Check(message, "");
  if (status.ok()) message.DiscardUnknownFields();
  return status;
}

absl::Status WhyUnreadable(const Descriptor& type, const std::vector<grpc::Slice>& bytes) {
  std::string whole;
  for (const grpc::Slice& part : bytes) {
    whole.append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  CodedInputStream in(reinterpret_cast<const uint8_t*>(whole.data()),
                      static_cast<int>(whole.size()));
  const std::optional<absl::Status> text = FindBadText(type, "", in);
  if (text) return *text;
  return absl::InvalidArgumentError(
      absl::StrCat("the ", whole.size(), " bytes of the request are no ", type.full_name()));
}

bool ParseQuietly(grpc::ByteBuffer& buffer, Message& message) {
  const google::protobuf::LogSilencer silence;
  return grpc::GenericDeserialize<grpc::ProtoBufferReader, Message>(&buffer, &message).ok();
}

}  // namespace nibble
