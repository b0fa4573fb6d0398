#include "bench/step/timed_device.h"

#include "common/status_macros.h"

namespace nibble {

absl::Status TimedDevice::Pass(const OpCost& cost, std::function<absl::Status()> operation) {
  if (used_ == timed_.size()) {
    Timed& added = timed_.emplace_back();
    NIBBLE_ASSIGN_OR_RETURN(added.begin, inner_.backend.NewEvent());
    NIBBLE_ASSIGN_OR_RETURN(added.end, inner_.backend.NewEvent());
  }
  Timed& timed = timed_[used_++];
  timed.cost = cost;
  NIBBLE_RETURN_IF_ERROR(inner_.backend.compute().Record(*timed.begin));
  NIBBLE_RETURN_IF_ERROR(operation());
  return inner_.backend.compute().Record(*timed.end);
}

absl::Status TimedDevice::AddTo(std::map<std::string, OpTotals>& totals) const {
  for (size_t i = 0; i < used_; ++i) {
    const Timed& timed = timed_[i];
    NIBBLE_ASSIGN_OR_RETURN(const double seconds,
                            inner_.backend.SecondsBetween(*timed.begin, *timed.end));
    OpTotals& of = totals[timed.cost.kind];
    ++of.calls;
    of.seconds += seconds;
    of.flops += timed.cost.flops;
    of.bytes += timed.cost.bytes;
  }
  return absl::OkStatus();
}

absl::StatusOr<double> TimedDevice::Seconds(size_t first, size_t end) const {
  double seconds = 0;
  for (size_t i = first; i < end; ++i) {
    NIBBLE_ASSIGN_OR_RETURN(const double one,
                            inner_.backend.SecondsBetween(*timed_[i].begin, *timed_[i].end));
    seconds += one;
  }
  return seconds;
}

}  // namespace nibble
