#include "kernels/cuda/gemm/lt_matmul.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

cudaDataType_t DataType(LtType type) {
  switch (type) {
    case LtType::kF32:
      return CUDA_R_32F;
    case LtType::kBf16:
      return CUDA_R_16BF;
    case LtType::kE4M3:
      return CUDA_R_8F_E4M3;
    case LtType::kE5M2:
      return CUDA_R_8F_E5M2;
    case LtType::kE2M1:
      break;
  }
  return CUDA_R_4F_E2M1;
}

int32_t ScaleMode(LtScale scale) {
  switch (scale) {
    case LtScale::kNone:
    case LtScale::kTensor:
      break;
    case LtScale::kLines:
      return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    case LtScale::kSlices:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case LtScale::kBlocks:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    case LtScale::kMx:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    case LtScale::kNvfp4:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
  }
  return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
}

bool IsNarrow(LtType type) { return LtTypeBits(type) <= 8; }

}  // namespace

template <class T>
absl::Status LtMatmul::Set(cublasLtMatmulDescAttributes_t attribute, const T& value,
                           absl::string_view name) {
  const cublasStatus_t status =
      library_->MatmulDescSetAttribute(operation_.get(), attribute, &value, sizeof(value));
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return LtStatus(
      *library_, status,
      absl::StrCat("cublasLtMatmulDescSetAttribute of ", name, " for ", problem_.Text()));
}

absl::StatusOr<LtMatmul> LtMatmul::Create(const CublasLt& library, const LtProblem& problem) {
  LtMatmul matmul(library, problem);
  cublasLtMatmulDesc_t operation = nullptr;
  // FP32 operands are multiplied in FP32: TF32 would be a compute type of its own.
  NIBBLE_RETURN_IF_ERROR(
      LtStatus(library, library.MatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
               "cublasLtMatmulDescCreate"));
  matmul.operation_ = LtOwned<cublasLtMatmulDesc_t>(operation, {library.MatmulDescDestroy});

  const auto layout = [&](LtType type, int64_t rows, int64_t cols, int64_t stride,
                          LtOwned<cublasLtMatrixLayout_t>& out) {
    cublasLtMatrixLayout_t made = nullptr;
    absl::Status status =
        LtStatus(library,
                 library.MatrixLayoutCreate(&made, DataType(type), static_cast<uint64_t>(rows),
                                            static_cast<uint64_t>(cols), stride),
                 "cublasLtMatrixLayoutCreate");
    if (status.ok()) out = LtOwned<cublasLtMatrixLayout_t>(made, {library.MatrixLayoutDestroy});
    return status;
  };
  const auto operand = [&](const LtOperand& x, int64_t lines,
                           LtOwned<cublasLtMatrixLayout_t>& out) {
    // Our rows are the library's columns.
    return x.k_major ? layout(x.type, problem.k, lines, x.stride, out)
                     : layout(x.type, lines, problem.k, x.stride, out);
  };
  NIBBLE_RETURN_IF_ERROR(operand(problem.a, problem.m, matmul.a_));
  NIBBLE_RETURN_IF_ERROR(operand(problem.b, problem.n, matmul.b_));
  NIBBLE_RETURN_IF_ERROR(layout(problem.c, problem.n, problem.m, problem.c_stride, matmul.c_));

  // The library wants op(A): [n, k] and op(B): [k, m].
  const int32_t transpose_b = problem.b.k_major ? CUBLAS_OP_T : CUBLAS_OP_N;
  const int32_t transpose_a = problem.a.k_major ? CUBLAS_OP_N : CUBLAS_OP_T;
  NIBBLE_RETURN_IF_ERROR(matmul.Set(CUBLASLT_MATMUL_DESC_TRANSA, transpose_b, "transa"));
  NIBBLE_RETURN_IF_ERROR(matmul.Set(CUBLASLT_MATMUL_DESC_TRANSB, transpose_a, "transb"));
  const int32_t pointer_mode =
      problem.device_alpha ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST;
  NIBBLE_RETURN_IF_ERROR(
      matmul.Set(CUBLASLT_MATMUL_DESC_POINTER_MODE, pointer_mode, "the pointer mode"));
  if (IsNarrow(problem.a.type)) {
    // Sums are promoted to FP32 in short intervals instead of staying in the tensor cores.
    const int8_t fast = 0;
    NIBBLE_RETURN_IF_ERROR(matmul.Set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast, "fast accumulation"));
    NIBBLE_RETURN_IF_ERROR(matmul.Set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, ScaleMode(problem.b.scale),
                                      "A's scale mode"));
    NIBBLE_RETURN_IF_ERROR(matmul.Set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, ScaleMode(problem.a.scale),
                                      "B's scale mode"));
  }
  return matmul;
}

absl::Status LtMatmul::SetScales(const LtPointers& pointers) {
  if (problem_.b.scale != LtScale::kNone) {
    NIBBLE_RETURN_IF_ERROR(
        Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, pointers.b_scales, "A's scales"));
  }
  if (problem_.a.scale != LtScale::kNone) {
    NIBBLE_RETURN_IF_ERROR(
        Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, pointers.a_scales, "B's scales"));
  }
  return absl::OkStatus();
}

absl::Status LtMatmul::Launch(const LtPointers& pointers, const cublasLtMatmulAlgo_t& algorithm,
                              const LtQueue& queue) {
  NIBBLE_RETURN_IF_ERROR(SetScales(pointers));
  const float beta = problem_.accumulate ? 1.0f : 0.0f;
  const bool device = problem_.device_alpha;
  const cublasStatus_t status = library_->Matmul(
      queue.handle, operation_.get(), device ? pointers.device_alpha : &pointers.alpha, pointers.b,
      b_.get(), pointers.a, a_.get(),
      device ? queue.zero_and_one + (problem_.accumulate ? 1 : 0) : &beta, pointers.c, c_.get(),
      pointers.c, c_.get(), &algorithm, queue.workspace, queue.workspace_bytes, queue.stream);
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return LtStatus(*library_, status, absl::StrCat("cublasLtMatmul of ", problem_.Text()));
}

}  // namespace nibble
