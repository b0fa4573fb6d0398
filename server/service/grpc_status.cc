#include "server/service/grpc_status.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/google/rpc/error_details.pb.h"
#include "proto/google/rpc/status.pb.h"
#include "server/state/bounds.h"

namespace nibble {
namespace {

// Servers and clients refuse more than 8 KiB of headers, and percent-encoding may triple a text.
constexpr int64_t kMaxMessageBytes = 2000;
constexpr size_t kMaxHeaderBytes = 7000;
constexpr char kRetryPayload[] = "nibble.v1/retry_ms";
// Of the coordinator being away, or not having what it needs yet.
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

// Of a line of a message that begins with the path of a field.
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

// Reasons are codes, but where programs may want to tell more apart.
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

// As a header: what is not printable, and '%', takes three bytes.
size_t HeaderBytes(absl::string_view message) {
  size_t bytes = 0;
  for (const char c : message) bytes += c >= ' ' && c <= '~' && c != '%' ? 1 : 3;
  return bytes;
}

// Serialised google.rpc.Status; empty where it would not fit beside the message.
std::string DetailsOf(const absl::Status& status, const std::string& message) {
  // In base64 four bytes carry three.
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
    // The descriptions are in the message, too.
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
