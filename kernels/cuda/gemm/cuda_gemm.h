// GEMMs on a CUDA card, through cuBLASLt or, if it has no such matmul, through a kernel of our own;
// recipe/gemm_path.h chooses. Enqueues on the backend's stream; tensors' scales and amax stay in
// device memory.
//
// BF16 operands take any transposition; codes are K-major. An operand that lacks the wanted form is
// converted in each GEMM: codes without an emulated operand become BF16, codes of square blocks
// quantised along the other dimension are transposed.
//
// Limits on one H200, for large shapes: BF16 and emulated formats run at cuBLASLt's rate (the
// tensor cores' 989 TFLOP/s, less what the power limit takes), FP8 at up to twice that. Scales per
// line in a second pass move 4 + 4 bytes more per element of C. Slices of 128 in BF16 run at 200 to
// 255 TFLOP/s (sliced_kernel.cu). Before a matmul of NVFP4 operands, or with an emulated tensor
// scale, a kernel of one thread computes alpha: 5 microseconds.
//
// BF16 results that are added to C go through FP32 sums and a pass of our own, 12 bytes per element
// of C: some algorithms of cuBLASLt round α·Σ to BF16 before they add C.
//
// Results have the same bits in every call and, as algorithms are chosen by default, in every
// process with the same cuBLASLt on the same kind of card; choices that were measured must be
// loaded for that (Choices, LoadChoices). Native GEMMs depart from the definition in gemm.h in two
// ways: the library applies scales in its own order, and the tensor cores add products of FP8
// codes with about 14 bits before the sum is promoted to FP32. Options::native switches them off.
//
// Gemm only enqueues, on the backend's stream. Exceptions, at the first GEMM of a shape: a choice
// by measurement waits for the device, and so does a buffer that grows. A graph may capture GEMMs
// that ran or were prepared before; one that was not is refused and named. Replays use the
// workspace and the buffers of this engine, so that they must run in order with its other GEMMs.
//
// Ownership: borrows the backend; owns the library's handle, 64 MiB of workspace and buffers for
// conversions, which grow to the largest operand seen. It must outlive graphs that captured it.
// Thread-safety: one thread at a time, together with its backend.
#ifndef NIBBLE_KERNELS_CUDA_GEMM_CUDA_GEMM_H_
#define NIBBLE_KERNELS_CUDA_GEMM_CUDA_GEMM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/gemm/gemm_kernels.h"
#include "kernels/cuda/gemm/gemm_operands.h"
#include "kernels/cuda/gemm/gemm_stream.h"
#include "kernels/cuda/gemm/lt_engine.h"
#include "kernels/cuda/gemm/operand_path.h"
#include "kernels/gemm/gemm.h"

namespace nibble {

class CudaGemm : public GemmEngine {
 public:
  struct Options {
    // Multiplies codes on FP8 and FP4 tensor cores. Without it every format is emulated in BF16,
    // which follows the definition in gemm.h but for the order of additions.
    bool native = true;
    // Multiplies FP4 codes on FP8 tensor cores where they have FP32 scales per line or per 128.
    bool fp4_in_fp8 = true;
    // Algorithms that are measured for each new matmul, of which the fastest with the bits of the
    // heuristics' first is used. 1: that one, unmeasured.
    int candidates = 12;
    // Elements of the smallest result that is measured. Two orders of additions differ in about one
    // of 10,000 elements after rounding to BF16: so many show it.
    int64_t least_measured = int64_t{1} << 18;
    // Memory for a copy of a result that is added to, while algorithms are measured: of a larger
    // one, they compute the first rows.
    int64_t copy_bytes = int64_t{128} << 20;
    // Memory for FP32 sums that are finished in a second pass: C is computed in bands of rows that
    // need about this much.
    int64_t sum_bytes = int64_t{256} << 20;
    // For tests: 0 and null stand for the card's and the installed one.
    int capability = 0;
    const CublasLt* library = nullptr;
  };
  // NotFound if cuBLASLt is not installed.
  static absl::StatusOr<std::unique_ptr<CudaGemm>> Create(CudaBackend& backend,
                                                          const Options& options);

  // "cublasLt 130100 on compute capability 9.0".
  std::string Name() const override;
  // Beyond Validate: Unimplemented if cuBLASLt has no algorithm for the matmul; ResourceExhausted
  // if there is no memory for a buffer; FailedPrecondition during a capture that it is not prepared
  // for.
  absl::Status Gemm(const GemmRequest& request) override;
  GemmPlan Wants(const GemmUse& use) const override;
  // Runs the GEMM and waits. FailedPrecondition during a capture.
  absl::Status Prepare(const GemmRequest& request) override;
  std::string Choices() const override { return lt_->Choices(); }
  std::vector<std::string> TakeNotices() override { return lt_->TakeNotices(); }
  absl::Status LoadChoices(absl::string_view text) override { return lt_->LoadChoices(text); }

  // The path of a valid request and why: "emulated BF16: cards before compute capability 10.0 have
  // no FP4 tensor cores".
  std::string PathName(const GemmRequest& request) const;

 private:
  CudaGemm(CudaBackend& backend, int device, const GemmHardware& hardware, int64_t sum_bytes)
      : backend_(backend),
        device_(device),
        hardware_(hardware),
        sum_bytes_(sum_bytes),
        stream_(backend.stream()),
        operands_(backend.memory(), stream_) {}

  PathChoice PathOf(const GemmRequest& request) const;
  absl::Status RunPlain(const GemmRequest& request, GemmPath path);
  // FP32 sums, then a pass that applies the scales of `finish` and writes C.
  absl::Status RunWithFinish(const GemmRequest& request, const LtProblem& problem,
                             const LtPointers& pointers, gpu::FinishArgs finish);
  absl::Status RunSliced(const GemmRequest& request);
  absl::Status RunNative(const GemmRequest& request, GemmPath path);
  // Computes alpha in device memory, in one of a ring of scalars.
  absl::StatusOr<const float*> DeviceAlpha(const GemmRequest& request);

  CudaBackend& backend_;
  const int device_;
  const GemmHardware hardware_;
  const int64_t sum_bytes_;
  GemmStream stream_;
  std::unique_ptr<LtEngine> lt_;
  GemmOperands operands_;
  GrowingBuffer sums_;
  Buffer alphas_;
  int64_t next_alpha_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_GEMM_CUDA_GEMM_H_
