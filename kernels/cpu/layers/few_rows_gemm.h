// A GEMM engine for decoding: Y = X·Wᵀ of few rows X, whose cost is reading W, runs on vector
// kernels that read W once at memory speed; everything else goes to another engine.
//
// Ownership: borrows the pool and the other engine. Execution model: a matmul is done when its call
// returns. Thread-safety: as GemmEngine. Results do not depend on the number of threads, nor that
// of a row on the other rows of the same vector kernel.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_FEW_ROWS_GEMM_H_
#define NIBBLE_KERNELS_CPU_LAYERS_FEW_ROWS_GEMM_H_

#include <string>

#include "absl/status/status.h"
#include "common/thread_pool.h"
#include "kernels/cpu/layers/gemv_kernels.h"
#include "kernels/cpu/layers/layer_isa.h"
#include "kernels/gemm/gemm.h"

namespace nibble {

class FewRowsGemm : public GemmEngine {
 public:
  // `isa` is one that the processor supports.
  FewRowsGemm(ThreadPool& pool, GemmEngine& many_rows, cpu::LayerIsa isa = cpu::BestLayerIsa())
      : pool_(pool), many_rows_(many_rows), kernels_(cpu::TableFor<cpu::GemvKernels>(isa)) {}

  std::string Name() const override { return many_rows_.Name(); }
  absl::Status Gemm(const GemmRequest& request) override;
  GemmPlan Wants(const GemmUse& use) const override { return many_rows_.Wants(use); }

 private:
  template <class T, class Y>
  void Run(const GemmRequest& request, void (*kernel)(const cpu::GemvTask<T, Y>&));

  ThreadPool& pool_;
  GemmEngine& many_rows_;
  const cpu::GemvKernels& kernels_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CPU_LAYERS_FEW_ROWS_GEMM_H_
