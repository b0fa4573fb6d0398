#include "tests/cluster/chaos_plan.h"

#include <iterator>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

constexpr uint32_t kLongestPauseMs = 900;

// By fault.
constexpr const char* kNames[] = {"kill a rank",
                                  "kill a worker",
                                  "kill the coordinator",
                                  "stop a worker past its lease",
                                  "stop a rank for a while",
                                  "cut a worker's connection past its lease",
                                  "stall a worker's connection past its lease",
                                  "set the coordinator's wall clock",
                                  "set a worker's wall clock",
                                  "fill a worker's disk for a while",
                                  "remove a job's checkpoints from a worker",
                                  "open watches without reading them",
                                  "restore an older copy of the coordinator's store",
                                  "restore an older copy while a worker is lost",
                                  "continue with a copy of the store that nobody announces"};
static_assert(std::size(kNames) == kFaults);

}  // namespace

std::vector<PlannedFault> PlanFaults(uint64_t seed, int count) {
  // Uses only the generator, whose numbers are the same with every standard library.
  std::mt19937 random(static_cast<std::mt19937::result_type>(seed));
  const auto draw = [&random](uint32_t below) { return static_cast<uint32_t>(random() % below); };
  std::vector<PlannedFault> plan;
  for (int i = 0; i < count; ++i) {
    plan.push_back({.fault = static_cast<Fault>(i % kFaults),
                    .pause = std::chrono::milliseconds(draw(kLongestPauseMs)),
                    .victim = static_cast<uint32_t>(random()),
                    .job = static_cast<uint32_t>(random())});
  }
  for (size_t i = plan.size(); i > 1; --i) {
    std::swap(plan[i - 1].fault, plan[draw(static_cast<uint32_t>(i))].fault);
  }
  return plan;
}

std::chrono::milliseconds WallClockAfter(const PlannedFault& planned) {
  using std::chrono::hours;
  static constexpr std::chrono::milliseconds kAhead[] = {
      std::chrono::seconds(10), hours(-2), hours(30 * 24), hours(1), std::chrono::seconds(-10)};
  // Not the part of the number that selects the worker.
  return kAhead[planned.victim / 1000 % std::size(kAhead)];
}

std::string Describe(const PlannedFault& planned) {
  return absl::StrCat(kNames[static_cast<size_t>(planned.fault)], " (", planned.victim % 100,
                      ") after ", planned.pause.count(), " ms");
}

}  // namespace nibble
