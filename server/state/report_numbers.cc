#include "server/state/report_numbers.h"

#include <cmath>
#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "server/state/field_walk.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Reflection;

// "Message.field": whole numbers with bounds of their own.
struct NumberLimit {
  const char* field;
  int64_t least;
  int64_t most;
};

constexpr int64_t kMaxNumaNode = 65'535;

constexpr NumberLimit kNumbers[] = {
    {"SlotPlace.numa_node", -1, kMaxNumaNode},  // -1: unknown or several
    {"NumaNode.node", 0, kMaxNumaNode},          {"SlotLink.slot", 0, kMaxSlots - 1},
    {"SlotLink.other", 0, kMaxSlots - 1},        {"SlotLink.nvlinks", 0, 1024},
    {"GangReport.next_step", 0, kMaxSteps},      {"RankHealth.rank", 0, kMaxRanks - 1},
    {"RankHealth.next_step", 0, kMaxSteps},      {"CheckpointRef.step", 0, kMaxSteps},
    {"ShardReport.rank", 0, kMaxRanks - 1},      {"ShardReport.world", 1, kMaxRanks},
    {"DamagedShard.rank", 0, kMaxRanks - 1},     {"RevisionStart.first_step", 0, kMaxSteps},
    {"RecipeRevision.first_step", 0, kMaxSteps}, {"TrashedShard.rank", 0, kMaxRanks - 1},
    {"TrashedShard.world", 1, kMaxRanks},
};

// Whose fractions are figures of training, but for their durations.
constexpr const char* kFigures[] = {"StepSample", "PrecisionSummary", "OperandPrecision"};

NumberLimit BoundsOf(const FieldDescriptor& field) {
  const std::string name = absl::StrCat(field.containing_type()->name(), ".", field.name());
  for (const NumberLimit& limit : kNumbers) {
    if (name == limit.field) return limit;
  }
  return {field.name().c_str(), 0, kMaxCount};
}

bool IsFigure(const FieldDescriptor& field) {
  if (absl::EndsWith(field.name(), "_seconds")) return false;
  for (const char* const message : kFigures) {
    if (field.containing_type()->name() == message) return true;
  }
  return false;
}

class NumberVisitor : public FieldVisitor {
 public:
  absl::Status OnValue(const VisitedField& value) override {
    const Reflection& reflection = *value.message.GetReflection();
    const FieldDescriptor& field = value.field;
    if (field.is_repeated()) return absl::OkStatus();  // reports have no lists of numbers
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return CheckWhole(value, reflection.GetInt32(value.message, &field));
      case FieldDescriptor::CPPTYPE_INT64:
        return CheckWhole(value, reflection.GetInt64(value.message, &field));
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return CheckFraction(value, reflection.GetDouble(value.message, &field));
      default:
        return absl::OkStatus();
    }
  }

 private:
  static absl::Status CheckWhole(const VisitedField& value, int64_t number) {
    const NumberLimit limit = BoundsOf(value.field);
    return CheckRange(value.path, number, limit.least, limit.most);
  }

  static absl::Status CheckFraction(const VisitedField& value, double number) {
    if (IsFigure(value.field) || (std::isfinite(number) && number >= 0)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(value.path, ": ", number, "; allowed: 0 or more, finite"));
  }
};

}  // namespace

absl::Status CheckNumbers(const v1::ConnectRequest& report) {
  NumberVisitor visitor;
  return VisitFields(report, visitor);
}

}  // namespace nibble
