#include "worker/link/link_messages.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/reflection.h"
#include "proto/nibble/v1/figure.pb.h"

namespace nibble {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Reflection;

constexpr size_t kMaxOutcomeBytes = 2048;

absl::Status TooMany(const char* field, int64_t value, int64_t most, const char* unit = "") {
  return absl::InvalidArgumentError(
      absl::StrCat("report.", field, ": ", value, unit, " are more than ", most));
}

absl::Status CheckName(const char* field, const std::string& name) {
  if (name.size() <= kMaxLayerNameBytes) return absl::OkStatus();
  return TooMany(field, static_cast<int64_t>(name.size()), kMaxLayerNameBytes, " bytes");
}

// The fields of a step whose options have `chosen`.
template <class Chosen>
std::vector<const FieldDescriptor*> FieldsWith(Chosen chosen) {
  const google::protobuf::Descriptor& type = *v1::StepSample::descriptor();
  std::vector<const FieldDescriptor*> fields;
  for (int i = 0; i < type.field_count(); ++i) {
    if (chosen(type.field(i)->options().GetExtension(v1::figure))) fields.push_back(type.field(i));
  }
  return fields;
}

}  // namespace

absl::Status CheckReport(const link::v1::RankReport& report) {
  if (!link::v1::RankActivity_IsValid(report.activity())) {
    return absl::InvalidArgumentError(absl::StrCat("report.activity: ", report.activity(),
                                                   " is not in [", link::v1::RankActivity_MIN, ", ",
                                                   link::v1::RankActivity_MAX, "]"));
  }
  if (report.begun_size() > kMaxRevisionsBegun) {
    return TooMany("begun", report.begun_size(), kMaxRevisionsBegun);
  }
  if (report.refused_size() > kMaxRevisionsRefused) {
    return TooMany("refused", report.refused_size(), kMaxRevisionsRefused);
  }
  if (report.guards_size() > kMaxGuardTotals) {
    return TooMany("guards", report.guards_size(), kMaxGuardTotals);
  }
  for (const link::v1::GuardTotal& total : report.guards()) {
    NIBBLE_RETURN_IF_ERROR(CheckName("guards.guard", total.guard()));
    NIBBLE_RETURN_IF_ERROR(CheckName("guards.action", total.action()));
  }
  if (report.decided_size() > kMaxDecisions) {
    return TooMany("decided", report.decided_size(), kMaxDecisions);
  }
  for (const v1::GuardDecision& decision : report.decided()) {
    NIBBLE_RETURN_IF_ERROR(CheckName("decided.guard", decision.guard()));
    NIBBLE_RETURN_IF_ERROR(CheckName("decided.action", decision.action()));
    if (decision.layers_size() > kMaxDecisionLayers) {
      return TooMany("decided.layers", decision.layers_size(), kMaxDecisionLayers);
    }
    for (const std::string& layer : decision.layers()) {
      NIBBLE_RETURN_IF_ERROR(CheckName("decided.layers", layer));
    }
  }
  if (report.precision_size() > kMaxPrecisionSamples) {
    return TooMany("precision", report.precision_size(), kMaxPrecisionSamples);
  }
  for (const link::v1::PrecisionSample& sample : report.precision()) {
    NIBBLE_RETURN_IF_ERROR(CheckName("precision.layer", sample.layer()));
    NIBBLE_RETURN_IF_ERROR(CheckName("precision.operand", sample.operand()));
    NIBBLE_RETURN_IF_ERROR(CheckName("precision.format", sample.format()));
  }
  return absl::OkStatus();
}

absl::Status ParseLinkMessage(absl::string_view bytes, google::protobuf::Message& message) {
  if (message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(bytes.size(), " bytes are not a ", message.GetTypeName()));
}

link::v1::Outcome OutcomeOf(const absl::Status& status) {
  link::v1::Outcome outcome;
  outcome.set_code(static_cast<int32_t>(status.code()));
  outcome.set_text(std::string(status.message().substr(0, kMaxOutcomeBytes)));
  return outcome;
}

absl::Status StatusOf(const link::v1::Outcome& outcome) {
  return absl::Status(static_cast<absl::StatusCode>(outcome.code()), outcome.text());
}

void AddFigures(const v1::StepSample& sample, v1::StepSample& sums) {
  static const auto* const kSummed = new std::vector<const FieldDescriptor*>(
      FieldsWith([](const v1::Figure& figure) { return figure.has_total(); }));
  const Reflection& reflection = *sample.GetReflection();
  for (const FieldDescriptor* const field : *kSummed) {
    // Seconds and other amounts are of type double.
    reflection.SetDouble(&sums, field,
                         reflection.GetDouble(sums, field) + reflection.GetDouble(sample, field));
  }
}

v1::StepSample ForwardedSample(v1::StepSample sample) {
  static const auto* const kLocal = new std::vector<const FieldDescriptor*>(
      FieldsWith([](const v1::Figure& figure) { return figure.local(); }));
  for (const FieldDescriptor* const field : *kLocal) {
    sample.GetReflection()->ClearField(&sample, field);
  }
  return sample;
}

}  // namespace nibble
