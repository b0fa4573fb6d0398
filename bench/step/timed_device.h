// A device that times every operation: it forwards requests to another one and adds up, by kind of
// operation, calls, seconds, floating-point operations and bytes. It waits for the queue after each
// operation, so that times of different kinds do not mix.
//
// Ownership: borrows the wrapped device. Thread-safety: none.
#ifndef NIBBLE_BENCH_STEP_TIMED_DEVICE_H_
#define NIBBLE_BENCH_STEP_TIMED_DEVICE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "worker/trainer/model/device.h"

namespace nibble {

struct OpTotals {
  int64_t calls = 0;
  double seconds = 0;
  double flops = 0;  // of GEMMs
  double bytes = 0;  // of other operations, read and written once each
};

class OpTimes {
 public:
  explicit OpTimes(Backend& backend) : backend_(backend) {}
  absl::Status Time(const std::string& kind, double flops, double bytes,
                    absl::FunctionRef<absl::Status()> run);
  const std::map<std::string, OpTotals>& totals() const { return totals_; }
  void Clear() { totals_.clear(); }

 private:
  Backend& backend_;
  std::map<std::string, OpTotals> totals_;
};

class TimedBackend : public Backend {
 public:
  TimedBackend(Backend& inner, OpTimes& times) : inner_(inner), times_(times) {}
  std::string Name() const override { return inner_.Name(); }
  Memory& memory() override { return inner_.memory(); }
  absl::Status Quantize(const QuantizeRequest& request) override;
  absl::Status Synchronize() override { return inner_.Synchronize(); }

 private:
  Backend& inner_;
  OpTimes& times_;
};

class TimedGemm : public GemmEngine {
 public:
  TimedGemm(GemmEngine& inner, OpTimes& times) : inner_(inner), times_(times) {}
  std::string Name() const override { return inner_.Name(); }
  absl::Status Gemm(const GemmRequest& request) override;

 private:
  GemmEngine& inner_;
  OpTimes& times_;
};

class TimedLayerOps : public LayerOps,
                      NormOps,
                      ElementwiseOps,
                      TokenOps,
                      AttentionOps,
                      MambaOps,
                      OptimizerOps {
 public:
  TimedLayerOps(LayerOps& inner, OpTimes& times) : inner_(inner), times_(times) {}

  NormOps& norm() override { return *this; }
  ElementwiseOps& elementwise() override { return *this; }
  TokenOps& token() override { return *this; }
  AttentionOps& attention() override { return *this; }
  MambaOps& mamba() override { return *this; }
  OptimizerOps& optimizer() override { return *this; }

 private:
  absl::Status Forward(const AddNormForward& r) override;
  absl::Status Backward(const NormBackward& r) override;
  absl::Status Forward(const GatedNormForward& r) override;
  absl::Status Backward(const GatedNormBackward& r) override;
  absl::Status Forward(const ActivationForward& r) override;
  absl::Status Backward(const ActivationBackward& r) override;
  absl::Status Forward(const BiasForward& r) override;
  absl::Status Backward(const BiasBackward& r) override;
  absl::Status Run(const Cast& r) override;
  absl::Status Run(const Accumulate& r) override;
  absl::Status Zero(void* data, int64_t bytes) override;
  absl::Status Forward(const EmbeddingForward& r) override;
  absl::Status Backward(const EmbeddingBackward& r) override;
  absl::Status Run(const CrossEntropy& r) override;
  absl::Status Run(const Rope& r) override;
  absl::Status Forward(const AttentionForward& r) override;
  absl::Status Backward(const AttentionBackward& r) override;
  absl::Status Forward(const ConvForward& r) override;
  absl::Status Backward(const ConvBackward& r) override;
  absl::Status Forward(const ScanForward& r) override;
  absl::Status Backward(const ScanBackward& r) override;
  absl::Status Run(const SumOfSquares& r) override;
  absl::Status Run(const ClipScale& r) override;
  absl::Status Run(const AdamW& r) override;

  LayerOps& inner_;
  OpTimes& times_;
};

}  // namespace nibble

#endif  // NIBBLE_BENCH_STEP_TIMED_DEVICE_H_
