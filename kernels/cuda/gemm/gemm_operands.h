// Operands of a GEMM in the form that its matmul takes: in place where possible, otherwise
// converted in buffers that are reused by the next GEMM and grow to the largest operand seen.
//
// Ownership: owns the buffers; borrows the memory and the stream. A prepared operand points to the
// original's or these buffers and is valid for the work enqueued next. Thread-safety: one thread at
// a time.
#ifndef NIBBLE_KERNELS_CUDA_GEMM_GEMM_OPERANDS_H_
#define NIBBLE_KERNELS_CUDA_GEMM_GEMM_OPERANDS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/gemm/gemm_kernels.h"
#include "kernels/cuda/gemm/operand_path.h"
#include "kernels/cuda/gemm/gemm_stream.h"
#include "kernels/cuda/gemm/lt_problem.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_scales.h"

namespace nibble {

struct PreparedOperand {
  const void* data = nullptr;
  LtOperand form;
  const void* scales = nullptr;  // of form.scale
};

// The largest power of two up to 16 that divides the address and the bytes between rows.
int AlignmentOf(const void* data, int64_t row_bytes);
// How far apart the rows of an operand are.
int64_t RowBytes(const LtOperand& operand);

gpu::ScaleView ViewOf(const LineScales& scales);

class GemmOperands {
 public:
  enum class Side : uint8_t { kA, kB };

  GemmOperands(CudaMemory& memory, const GemmStream& stream) : memory_(memory), stream_(stream) {}

  // High precision, or the emulated operand, in `dtype`: BF16 (not for FP32 matrices) or FP32.
  // Without an emulated operand, it is computed from codes.
  absl::StatusOr<PreparedOperand> Plain(const GemmOperand& operand, DType dtype, Side side);

  // The codes of both operands, K-major, with scales, as a native path takes them. Codes quantised
  // along the other dimension (square blocks) are transposed.
  absl::Status Native(GemmPath path, const GemmOperand& a, const GemmOperand& b,
                      PreparedOperand& prepared_a, PreparedOperand& prepared_b);

 private:
  struct Buffers {
    GrowingBuffer converted, transposed, scales;
  };

  Buffers& Of(Side side) { return buffers_[static_cast<int>(side)]; }
  absl::Status Codes(GemmPath path, const GemmOperand& operand, Side side, PreparedOperand& out);
  absl::Status ArrangeSlices(const GemmOperand& a, const GemmOperand& b, PreparedOperand& out_a,
                             PreparedOperand& out_b);
  absl::Status TileScales(const GemmOperand& a, const GemmOperand& b, PreparedOperand& out_a,
                          PreparedOperand& out_b);

  CudaMemory& memory_;
  const GemmStream& stream_;
  Buffers buffers_[2];
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_GEMM_GEMM_OPERANDS_H_
