// Mamba-2's convolution and scan on the CPU.
//
// A value that is not finite spreads to all outputs that depend on it and, since matmuls over
// chunks multiply invisible tokens by zero, perhaps to others of its chunk.
//
// Ownership: borrows the pool, owns scratch that grows to the largest request. Execution model: an
// operation is done when its call returns. Thread-safety: one call at a time.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_CPU_MAMBA_OPS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_CPU_MAMBA_OPS_H_

#include "absl/status/status.h"
#include "common/thread_pool.h"
#include "kernels/cpu/layers/cpu_conv.h"
#include "kernels/cpu/layers/cpu_recurrence.h"
#include "kernels/cpu/layers/cpu_scan.h"
#include "kernels/cpu/layers/panel_gemm.h"
#include "kernels/ops/mamba_ops.h"

namespace nibble {

class CpuMambaOps : public MambaOps {
 public:
  // `isa` is one that the processor supports.
  explicit CpuMambaOps(ThreadPool& pool, cpu::PanelIsa isa = cpu::BestPanelIsa())
      : conv_(pool, isa),
        scan_fp32_(pool, isa),
        scan_bf16_(pool, isa),
        recurrence_(pool, cpu::VectorIsaOf(isa)) {}

  absl::Status Forward(const ConvForward& request) override;
  absl::Status Backward(const ConvBackward& request) override;
  absl::Status Forward(const ScanForward& request) override;
  absl::Status Backward(const ScanBackward& request) override;

 private:
  cpu::CpuConv conv_;
  cpu::CpuScan<float> scan_fp32_;
  cpu::CpuScan<uint16_t> scan_bf16_;
  cpu::CpuRecurrence recurrence_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CPU_LAYERS_CPU_MAMBA_OPS_H_
