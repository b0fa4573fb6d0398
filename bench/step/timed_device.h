// A device that times every operation: it forwards requests to another one and adds up, by kind of
// operation, calls, seconds, floating-point operations and bytes. It waits for the queue after each
// operation, so that times of different kinds do not mix.
//
// Ownership: borrows the wrapped device. Thread-safety: none.
#ifndef NIBBLE_BENCH_STEP_TIMED_DEVICE_H_
#define NIBBLE_BENCH_STEP_TIMED_DEVICE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "kernels/wrapped/wrapped_ops.h"
#include "worker/trainer/model/device.h"

namespace nibble {

struct OpTotals {
  int64_t calls = 0;
  double seconds = 0;
  double flops = 0;  // of GEMMs
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
  const std::map<std::string, OpTotals>& totals() const { return totals_; }
  void Clear() { totals_.clear(); }

 private:
  absl::Status Pass(const OpCost& cost, std::function<absl::Status()> operation) override;

  Device inner_;
  WrappedBackend backend_;
  WrappedGemm gemm_;
  WrappedLayerOps ops_;
  std::map<std::string, OpTotals> totals_;
};

}  // namespace nibble

#endif  // NIBBLE_BENCH_STEP_TIMED_DEVICE_H_
