// The CPU's GEMMs, on oneDNN. Two paths, chosen once by the features of the processor:
//   kBf16  BF16 operands, FP32 accumulation, where the processor multiplies BF16 itself
//   kFp32  the same operands widened to FP32 (exact) elsewhere
// A GEMM with an FP32 matrix among its operands always uses FP32 operands, unrounded, with the
// other operand widened: this is the reference for everything else.
//
// The request's shape alone determines how C is cut into tiles; each tile is computed by one thread
// in a fixed order, so results do not depend on the number of threads. They may differ between the
// two paths, and between the layouts of one operand (emulated in the source's or the copy's), by
// the order of FP32 additions.
//
// Ownership: borrows the pool, which must outlive it; owns scratch, which grows to the largest
// request seen (FP32 copies of both operands on the FP32 path) and is reused.
// Thread-safety: one thread at a time, and not while the pool runs something else.
#ifndef NIBBLE_KERNELS_GEMM_CPU_GEMM_H_
#define NIBBLE_KERNELS_GEMM_CPU_GEMM_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/thread_pool.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_scales.h"
#include "kernels/gemm/tile_gemm.h"
#include "kernels/gemm/tile_plan.h"

namespace nibble {

class CpuGemm : public GemmEngine {
 public:
  enum class Path : uint8_t { kFp32, kBf16 };

  struct Options {
    std::optional<Path> path;  // unset: the faster path on this processor
  };
  // FailedPrecondition if a forced path is not supported here.
  static absl::StatusOr<std::unique_ptr<CpuGemm>> Create(ThreadPool& pool, const Options& options);

  std::string Name() const override;
  Path path() const { return path_; }
  // Has finished when it returns.
  absl::Status Gemm(const GemmRequest& request) override;
  // Emulated operands in the source's layout: oneDNN takes any transposition.
  GemmPlan Wants(const GemmUse& use) const override;

 private:
  struct ThreadScratch {
    Buffer acc, partial, row_scales, col_scales;
  };

  CpuGemm(ThreadPool& pool, Path path) : pool_(pool), path_(path), threads_(pool.threads()) {}

  // Grows `buffer` to `bytes`; its contents are lost.
  absl::Status Reserve(Buffer& buffer, int64_t bytes);
  // The operand in the form that its GEMM takes: in place if possible, otherwise written to
  // `buffer`.
  absl::StatusOr<cpu::OperandView> Prepare(const GemmOperand& operand, DType dtype, Buffer& buffer);
  absl::Status RunTiles(const GemmRequest& request, const cpu::OperandView& a,
                        const cpu::OperandView& b, cpu::TileGemm& gemm);

  ThreadPool& pool_;
  const Path path_;
  HostMemory memory_;
  std::unique_ptr<cpu::TileGemm> fp32_, bf16_;
  Buffer a_, b_;
  std::vector<ThreadScratch> threads_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_GEMM_CPU_GEMM_H_
