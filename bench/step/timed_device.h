// A device that times every operation while it measures: it forwards requests to another one and
// adds up, by kind of operation, calls, seconds, floating-point operations and bytes. Times are
// those of the queue, from events around each operation: nothing waits.
//
// Ownership: borrows the wrapped device; owns the events. Thread-safety: none.
#ifndef NIBBLE_BENCH_STEP_TIMED_DEVICE_H_
#define NIBBLE_BENCH_STEP_TIMED_DEVICE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/wrapped/wrapped_ops.h"
#include "worker/trainer/model/device.h"

namespace nibble {

struct OpTotals {
  int64_t calls = 0;
  double seconds = 0;
  double flops = 0;  // of matmuls
  double bytes = 0;  // of other operations, read and written once each
};

class TimedDevice : private Passage {
 public:
  explicit TimedDevice(const Device& inner)
      : inner_(inner),
        backend_(inner.backend, *this),
        gemm_(inner.gemm, *this),
        ops_(inner.ops, *this) {}

  Device device() { return {backend_, gemm_, ops_}; }
  // Forgets what was timed, and times operations from now on, or no longer.
  void Measure(bool measures) {
    used_ = 0;
    measures_ = measures;
  }
  size_t operations() const { return used_; }
  // Of the operations timed; adds to `totals`. Waits for the queue.
  absl::Status AddTo(std::map<std::string, OpTotals>& totals) const;
  // Of operations `first` up to `end`. Waits for the queue.
  absl::StatusOr<double> Seconds(size_t first, size_t end) const;

 private:
  struct Timed {
    OpCost cost;
    std::unique_ptr<Event> begin, end;
  };
  absl::Status Pass(const OpCost& cost, std::function<absl::Status()> operation) override;
  bool direct() const override { return !measures_; }

  Device inner_;
  WrappedBackend backend_;
  WrappedGemm gemm_;
  WrappedLayerOps ops_;
  std::vector<Timed> timed_;
  size_t used_ = 0;  // of timed_
  bool measures_ = false;
};

}  // namespace nibble

#endif  // NIBBLE_BENCH_STEP_TIMED_DEVICE_H_
