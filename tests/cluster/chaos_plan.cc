#include "tests/cluster/chaos_plan.h"

#include <iterator>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

constexpr uint32_t kLongestPauseMs = 900;

const char* NameOf(Fault fault) {
  switch (fault) {
    case Fault::kKillRank:
      return "kill a rank";
    case Fault::kKillWorker:
      return "kill a worker";
    case Fault::kKillCoordinator:
      return "kill the coordinator";
    case Fault::kStopWorker:
      return "stop a worker past its lease";
    case Fault::kStopRank:
      return "stop a rank for a while";
    case Fault::kCutWire:
      return "cut a worker's connection past its lease";
    case Fault::kStallWire:
      return "stall a worker's connection past its lease";
    case Fault::kJumpCoordinatorClock:
      return "set the coordinator's wall clock";
    case Fault::kJumpWorkerClock:
      return "set a worker's wall clock";
    case Fault::kFullDisk:
      return "fill a worker's disk for a while";
    case Fault::kRemoveCheckpoints:
      return "remove a job's checkpoints from a worker";
    case Fault::kWatchStorm:
      return "open watches without reading them";
    case Fault::kRestoreBackup:
      return "restore an older copy of the coordinator's store";
  }
  return "?";
}

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
  return absl::StrCat(NameOf(planned.fault), " (", planned.victim % 100, ") after ",
                      planned.pause.count(), " ms");
}

}  // namespace nibble
