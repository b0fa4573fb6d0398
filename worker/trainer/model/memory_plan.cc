#include "worker/trainer/model/memory_plan.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace nibble {
namespace {

struct Unit {
  double bytes;
  const char* name;
};
Unit UnitOf(size_t bytes) {
  constexpr double kMiB = 1 << 20, kGiB = 1 << 30;
  return static_cast<double>(bytes) < kGiB ? Unit{kMiB, "MiB"} : Unit{kGiB, "GiB"};
}

}  // namespace

std::string BytesOfMemory(size_t bytes) {
  const Unit unit = UnitOf(bytes);
  return absl::StrFormat("%.2f %s", static_cast<double>(bytes) / unit.bytes, unit.name);
}

std::string MemoryPlanText(const MemoryPlan& plan) {
  const Unit unit = UnitOf(plan.total());
  std::string text = absl::StrCat(BytesOfMemory(plan.total()), ":");
  const struct {
    const char* name;
    size_t bytes;
  } parts[] = {{" weights", plan.weights},          {", gradients", plan.gradients},
               {", moments", plan.moments},         {", working weights", plan.working_weights},
               {", activations", plan.activations}, {", scratch", plan.scratch},
               {", operations", plan.operations},   {", fixed", plan.fixed}};
  for (const auto& part : parts) {
    absl::StrAppendFormat(&text, "%s %.2f", part.name,
                          static_cast<double>(part.bytes) / unit.bytes);
  }
  return text;
}

}  // namespace nibble
