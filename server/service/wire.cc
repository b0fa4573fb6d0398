#include "server/service/wire.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/stubs/logging.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/slice.h"
#include "proto/google/rpc/error_details.pb.h"
#include "proto/google/rpc/status.pb.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/state/field_walk.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr size_t kMaxShown = 60;

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

class WireVisitor : public FieldVisitor {
 public:
  explicit WireVisitor(bool change) : change_(change) {}

  absl::Status OnMessage(const std::string& path, const Message& message) override {
    const int unknown = change_ && !path.empty() ? UnknownFieldOf(message) : 0;
    if (unknown == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": has field ", unknown,
        ", which this coordinator does not know; upgrade the coordinator or unset the field"));
  }

  absl::Status OnValue(const VisitedField& value) override {
    const Reflection& reflection = *value.message.GetReflection();
    if (value.field.type() == FieldDescriptor::TYPE_STRING) {
      std::string scratch;
      const std::string& text =
          value.index < 0 ? reflection.GetStringReference(value.message, &value.field, &scratch)
                          : reflection.GetRepeatedStringReference(value.message, &value.field,
                                                                  value.index, &scratch);
      if (!HasUnseen(text)) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat(
          value.path, ": '", absl::CHexEscape(text.substr(0, kMaxShown)),
          "' has a character that is not seen, such as one that changes the direction of the text "
          "around it"));
    }
    if (value.field.cpp_type() != FieldDescriptor::CPPTYPE_ENUM) return absl::OkStatus();
    const int number =
        value.index < 0 ? reflection.GetEnumValue(value.message, &value.field)
                        : reflection.GetRepeatedEnumValue(value.message, &value.field, value.index);
    const int least = value.index < 0 ? 0 : 1;
    const EnumDescriptor& type = *value.field.enum_type();
    if (number >= least && type.FindValueByNumber(number) != nullptr) return absl::OkStatus();
    return NoSuchValue(type, value.path, number, least);
  }

 private:
  const bool change_;
};

// Unsets each field whose enum value the contract does not have, and blanks what nobody sees in
// texts. Lists of enum values are left.
void Tolerate(Message& message) {
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* const field : fields) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM && !field->is_repeated()) {
      const int number = reflection.GetEnumValue(message, field);
      if (field->enum_type()->FindValueByNumber(number) == nullptr) {
        reflection.ClearField(&message, field);
      }
    }
    if (field->type() == FieldDescriptor::TYPE_STRING && !field->is_repeated()) {
      reflection.SetString(&message, field, WithoutUnseen(reflection.GetString(message, field)));
    } else if (field->type() == FieldDescriptor::TYPE_STRING) {
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
        reflection.SetRepeatedString(
            &message, field, i, WithoutUnseen(reflection.GetRepeatedString(message, field, i)));
      }
    }
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      Tolerate(*reflection.MutableMessage(&message, field));
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      Tolerate(*reflection.MutableRepeatedMessage(&message, field, i));
    }
  }
}

// Finds the first string of a serialised message that is not UTF-8.
std::optional<absl::Status> FindBadText(const Descriptor& type, const std::string& path,
                                        CodedInputStream& in) {
  std::map<int, int> entries;  // by repeated field: the number of entries so far
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
          name, ": '", absl::CHexEscape(value.substr(0, kMaxShown)), "' is not UTF-8"));
    }
    const auto [limit, depth] = in.IncrementRecursionDepthAndPushLimit(static_cast<int>(size));
    if (depth < 0) return std::nullopt;
    std::optional<absl::Status> found = FindBadText(*field->message_type(), name, in);
    if (found) return found;
    if (!in.DecrementRecursionDepthAndPopLimit(limit)) return std::nullopt;
  }
  return std::nullopt;
}

// The error for bytes that are not a message of the type.
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
      absl::StrCat("the request, ", whole.size(), " bytes, is not a valid ", type.full_name()));
}

// Does not log: errors are for the caller only.
bool ParseQuietly(grpc::ByteBuffer& buffer, Message& message) {
  const google::protobuf::LogSilencer silence;
  return grpc::GenericDeserialize<grpc::ProtoBufferReader, Message>(&buffer, &message).ok();
}

}  // namespace

absl::Status CheckReceived(Message& message) {
  const Descriptor& type = *message.GetDescriptor();
  WireVisitor visitor(/*change=*/type.FindFieldByName("request_id") != nullptr);
  absl::Status status = VisitFields(message, visitor);
  if (!status.ok() && &type == v1::ConnectRequest::descriptor()) {
    Tolerate(message);
    status = VisitFields(message, visitor);
  }
  if (status.ok()) message.DiscardUnknownFields();
  return status;
}

absl::Status Receive(grpc::ByteBuffer& buffer, Message& message) {
  std::vector<grpc::Slice> bytes;  // shared with the buffer, which parsing empties
  const grpc::Status dumped = buffer.Dump(&bytes);
  if (!dumped.ok()) {
    return absl::InternalError(absl::StrCat("reading the request: ", dumped.error_message()));
  }
  return ParseQuietly(buffer, message) ? CheckReceived(message)
                                       : WhyUnreadable(*message.GetDescriptor(), bytes);
}

namespace {

// Servers and clients refuse more than 8 KiB of headers, and percent-encoding may triple a text.
constexpr int64_t kMaxMessageBytes = 2000;
constexpr size_t kMaxHeaderBytes = 7000;
constexpr char kRetryPayload[] = "nibble.v1/retry_ms";
// After Unavailable: the coordinator is restarting, or lacks something that a worker will report.
constexpr int64_t kUnavailableRetryMs = 1000;

struct NamedField {
  std::string path;
  std::string problem;
};

bool IsPath(absl::string_view text) {
  if (text.empty() || !absl::ascii_islower(static_cast<unsigned char>(text[0]))) return false;
  for (const char c : text) {
    const bool part = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' ||
                      c == '-' || c == '[' || c == ']';
    if (!part) return false;
  }
  return true;
}

// The field of a line that begins with the path of one.
std::optional<NamedField> FieldOf(absl::string_view line) {
  line = absl::StripLeadingAsciiWhitespace(line);
  NamedField named;
  if (absl::ConsumePrefix(&line, "line ")) {
    const size_t end = line.find(": ");
    if (end == absl::string_view::npos) return std::nullopt;
    named.problem = absl::StrCat("line ", line.substr(0, end), ": ");
    named.path = "spec_yaml";
    line.remove_prefix(end + 2);
  }
  const size_t end = line.find(": ");
  const bool has_path = end != absl::string_view::npos && IsPath(line.substr(0, end));
  if (has_path) {
    absl::StrAppend(&named.path, named.path.empty() ? "" : ".", line.substr(0, end));
    line.remove_prefix(end + 2);
  }
  if (named.path.empty()) return std::nullopt;
  absl::StrAppend(&named.problem, line);
  return named;
}

std::vector<NamedField> FieldsOf(absl::string_view message) {
  std::vector<NamedField> fields;
  for (const absl::string_view line : absl::StrSplit(message, '\n')) {
    if (std::optional<NamedField> field = FieldOf(line)) fields.push_back(*std::move(field));
  }
  return fields;
}

// The name of the code, except where programs may need a finer distinction.
std::string ReasonOf(const absl::Status& status) {
  const bool slow_down = status.GetPayload(kRetryPayload).has_value();
  if (absl::IsResourceExhausted(status)) return slow_down ? "TOO_MANY_REQUESTS" : "LIMIT_REACHED";
  if (absl::IsInvalidArgument(status)) return "INVALID_FIELD";
  return absl::StatusCodeToString(status.code());
}

std::optional<int64_t> RetryMsOf(const absl::Status& status) {
  int64_t retry_ms = 0;
  const auto payload = status.GetPayload(kRetryPayload);
  if (payload && absl::SimpleAtoi(std::string(*payload), &retry_ms)) return retry_ms;
  if (absl::IsUnavailable(status)) return kUnavailableRetryMs;
  return std::nullopt;
}

// Size as a header, where unprintable characters and '%' take three bytes.
size_t HeaderBytes(absl::string_view message) {
  size_t bytes = 0;
  for (const char c : message) bytes += c >= ' ' && c <= '~' && c != '%' ? 1 : 3;
  return bytes;
}

// Serialised google.rpc.Status; empty if it does not fit beside the message.
std::string DetailsOf(const absl::Status& status, const std::string& message) {
  // Base64 encodes three bytes in four.
  const size_t used = HeaderBytes(message);
  const size_t room = used < kMaxHeaderBytes ? (kMaxHeaderBytes - used) / 4 * 3 : 0;
  google::rpc::Status details;
  details.set_code(status.raw_code());
  details.set_message(message);
  const std::vector<NamedField> fields = FieldsOf(message);
  google::rpc::ErrorInfo info;
  info.set_reason(ReasonOf(status));
  info.set_domain(kErrorDomain);
  if (fields.size() == 1) (*info.mutable_metadata())["field"] = fields[0].path;
  details.add_details()->PackFrom(info);
  if (const std::optional<int64_t> retry_ms = RetryMsOf(status)) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(*retry_ms / 1000);
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(*retry_ms % 1000) * 1'000'000);
    details.add_details()->PackFrom(retry);
  }
  if (absl::IsInvalidArgument(status) && !fields.empty()) {
    google::rpc::BadRequest bad;
    for (const NamedField& field : fields) {
      auto& violation = *bad.add_field_violations();
      violation.set_field(field.path);
      violation.set_description(field.problem);
    }
    google::protobuf::Any* const last = details.add_details();
    last->PackFrom(bad);
    // Drop the descriptions if there is no room; the message has them, too.
    if (details.ByteSizeLong() > room) {
      for (auto& violation : *bad.mutable_field_violations()) violation.clear_description();
      last->PackFrom(bad);
    }
  }
  return details.ByteSizeLong() <= room ? details.SerializeAsString() : std::string();
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message = Clip(status.message(), kMaxMessageBytes);
  return {static_cast<grpc::StatusCode>(status.raw_code()), message, DetailsOf(status, message)};
}

absl::Status RetryAfter(absl::Status status, int64_t retry_ms) {
  status.SetPayload(kRetryPayload, absl::Cord(absl::StrCat(retry_ms)));
  return status;
}

}  // namespace nibble
