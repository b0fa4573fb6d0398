#include "bench/step/timed_device.h"

#include <chrono>

#include "bench/limits.h"

namespace nibble {

absl::Status TimedDevice::Pass(const OpCost& cost, std::function<absl::Status()> operation) {
  const auto begin = std::chrono::steady_clock::now();
  absl::Status status = operation();
  if (status.ok()) status = inner_.backend.Synchronize();
  OpTotals& totals = totals_[cost.kind];
  ++totals.calls;
  totals.seconds += bench::Since(begin);
  totals.flops += cost.flops;
  totals.bytes += cost.bytes;
  return status;
}

}  // namespace nibble
