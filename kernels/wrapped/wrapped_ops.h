// Passes every operation of a device through one function, with its kind and cost: to time it, or
// to run it later. Requests are checked before they pass, and copied with what they name in host
// memory, so that they may run after the call.
//
// Ownership: borrows the wrapped objects and the passage. Thread-safety: as what is wrapped.
#ifndef NIBBLE_KERNELS_WRAPPED_WRAPPED_OPS_H_
#define NIBBLE_KERNELS_WRAPPED_WRAPPED_OPS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/gemm/gemm.h"
#include "kernels/ops/backend.h"
#include "kernels/ops/layer_ops.h"
#include "kernels/ops/quantize.h"

namespace nibble {

struct OpCost {
  const char* kind;  // "norm forward"
  double flops = 0;  // of matmuls
  double bytes = 0;  // of other operations, read and written once each
};

class Passage {
 public:
  virtual ~Passage() = default;
  virtual absl::Status Pass(const OpCost& cost, std::function<absl::Status()> operation) = 0;
  // Whether operations may run at once without passing: then nothing is copied for them.
  virtual bool direct() const { return false; }
};

OpCost CostOf(const QuantizeRequest& request);

// Only quantising passes; queues, events and memory are those of the wrapped backend.
class WrappedBackend : public Backend {
 public:
  WrappedBackend(Backend& inner, Passage& passage) : inner_(inner), passage_(passage) {}
  std::string Name() const override { return inner_.Name(); }
  Memory& memory() override { return inner_.memory(); }
  Memory& pinned() override { return inner_.pinned(); }
  absl::Status Pin(void* host, size_t bytes) override { return inner_.Pin(host, bytes); }
  absl::Status Unpin(void* host) override { return inner_.Unpin(host); }
  int64_t chunk_bytes() const override { return inner_.chunk_bytes(); }
  absl::Status Quantize(const QuantizeRequest& request) override;
  bool QuantizesSquaredRelu() const override { return inner_.QuantizesSquaredRelu(); }
  Queue& compute() override { return inner_.compute(); }
  Queue& transfers() override { return inner_.transfers(); }
  absl::StatusOr<std::unique_ptr<Event>> NewEvent() override { return inner_.NewEvent(); }
  absl::Status Wait(const Event& event) override { return inner_.Wait(event); }
  absl::StatusOr<bool> HasPassed(const Event& event) override { return inner_.HasPassed(event); }
  absl::StatusOr<double> SecondsBetween(const Event& begin, const Event& end) override {
    return inner_.SecondsBetween(begin, end);
  }
  absl::Status Synchronize() override { return inner_.Synchronize(); }

 private:
  Backend& inner_;
  Passage& passage_;
};

class WrappedGemm : public GemmEngine {
 public:
  WrappedGemm(GemmEngine& inner, Passage& passage) : inner_(inner), passage_(passage) {}
  std::string Name() const override { return inner_.Name(); }
  absl::Status Gemm(const GemmRequest& request) override;
  GemmPlan Wants(const GemmUse& use) const override { return inner_.Wants(use); }
  absl::Status Prepare(const GemmRequest& request) override { return inner_.Prepare(request); }
  std::string Choices() const override { return inner_.Choices(); }
  std::vector<std::string> TakeNotices() override { return inner_.TakeNotices(); }
  absl::Status LoadChoices(absl::string_view text) override { return inner_.LoadChoices(text); }

 private:
  GemmEngine& inner_;
  Passage& passage_;
};

class WrappedLayerOps : public LayerOps,
                        NormOps,
                        ElementwiseOps,
                        TokenOps,
                        AttentionOps,
                        MambaOps,
                        OptimizerOps,
                        StepOps {
 public:
  WrappedLayerOps(LayerOps& inner, Passage& passage) : inner_(inner), passage_(passage) {}

  NormOps& norm() override { return *this; }
  ElementwiseOps& elementwise() override { return *this; }
  TokenOps& token() override { return *this; }
  AttentionOps& attention() override { return *this; }
  MambaOps& mamba() override { return *this; }
  OptimizerOps& optimizer() override { return *this; }
  StepOps& step() override { return *this; }

 private:
  absl::Status Forward(const AddNormForward& r) override;
  absl::Status Backward(const NormBackward& r) override;
  absl::Status Forward(const GatedNormForward& r) override;
  absl::Status Backward(const GatedNormBackward& r) override;
  size_t ScratchBytes(const NormBackward& r) const override {
    return inner_.norm().ScratchBytes(r);
  }
  size_t ScratchBytes(const GatedNormBackward& r) const override {
    return inner_.norm().ScratchBytes(r);
  }
  absl::Status Forward(const ActivationForward& r) override;
  absl::Status Backward(const ActivationBackward& r) override;
  absl::Status Forward(const BiasForward& r) override;
  absl::Status Backward(const BiasBackward& r) override;
  absl::Status Run(const Cast& r) override;
  absl::Status Run(const Accumulate& r) override;
  absl::Status Run(const CopyParts& r) override;
  absl::Status Run(const FillInitial& r) override;
  absl::Status Zero(void* data, int64_t bytes) override;
  size_t ScratchBytes(const BiasBackward& r) const override {
    return inner_.elementwise().ScratchBytes(r);
  }
  absl::Status Forward(const EmbeddingForward& r) override;
  absl::Status Backward(const EmbeddingBackward& r) override;
  absl::Status Run(const CrossEntropy& r) override;
  size_t ScratchBytes(const EmbeddingBackward& r) const override {
    return inner_.token().ScratchBytes(r);
  }
  absl::Status Run(const Rope& r) override;
  absl::Status Forward(const AttentionForward& r) override;
  absl::Status Backward(const AttentionBackward& r) override;
  size_t ScratchBytes(const AttentionBackward& r) const override {
    return inner_.attention().ScratchBytes(r);
  }
  absl::Status Forward(const ConvForward& r) override;
  absl::Status Backward(const ConvBackward& r) override;
  absl::Status Forward(const ScanForward& r) override;
  absl::Status Backward(const ScanBackward& r) override;
  size_t ScratchBytes(const ConvBackward& r) const override {
    return inner_.mamba().ScratchBytes(r);
  }
  size_t ScratchBytes(const ScanBackward& r) const override {
    return inner_.mamba().ScratchBytes(r);
  }
  absl::Status Run(const SumOfSquares& r) override;
  absl::Status Run(const AdamW& r) override;
  absl::Status Run(const AddLosses& r) override;
  absl::Status Run(const CountNonFinite& r) override;
  absl::Status Run(const Judge& r) override;

  LayerOps& inner_;
  Passage& passage_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_WRAPPED_WRAPPED_OPS_H_
