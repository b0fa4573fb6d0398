#include "server/state/report_numbers.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
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
    {"RecipeRevision.first_step", 0, kMaxSteps},
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

class NumberWalk {
 public:
  absl::Status Check(const Message& message) {
    const Reflection& reflection = *message.GetReflection();
    std::vector<const FieldDescriptor*> fields;
    reflection.ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      const size_t length = path_.size();
      absl::StrAppend(&path_, path_.empty() ? "" : ".", field->name());
      NIBBLE_RETURN_IF_ERROR(CheckField(message, reflection, *field));
      path_.resize(length);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckField(const Message& message, const Reflection& reflection,
                          const FieldDescriptor& field) {
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (!field.is_repeated()) return Check(reflection.GetMessage(message, &field));
      const size_t length = path_.size();
      for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
        absl::StrAppend(&path_, "[", i, "]");
        NIBBLE_RETURN_IF_ERROR(Check(reflection.GetRepeatedMessage(message, &field, i)));
        path_.resize(length);
      }
      return absl::OkStatus();
    }
    if (field.is_repeated()) return absl::OkStatus();  // reports have no lists of numbers
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return CheckWhole(field, reflection.GetInt32(message, &field));
      case FieldDescriptor::CPPTYPE_INT64:
        return CheckWhole(field, reflection.GetInt64(message, &field));
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return CheckFraction(field, reflection.GetDouble(message, &field));
      default:
        return absl::OkStatus();
    }
  }

  absl::Status CheckWhole(const FieldDescriptor& field, int64_t value) const {
    const NumberLimit limit = BoundsOf(field);
    return CheckRange(path_, value, limit.least, limit.most);
  }

  absl::Status CheckFraction(const FieldDescriptor& field, double value) const {
    if (IsFigure(field) || (std::isfinite(value) && value >= 0)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", value, "; allowed: 0 or more, finite"));
  }

  std::string path_;
};

}  // namespace

absl::Status CheckNumbers(const v1::ConnectRequest& report) { return NumberWalk().Check(report); }

}  // namespace nibble
