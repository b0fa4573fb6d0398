// cuBLASLt, loaded when a GEMM engine is first made, so that programs that also run on machines
// without it need no second build.
//
// Ownership: the library stays loaded until the process ends. Thread-safety: LoadCublasLt may be
// called from any thread; the table is immutable.
#ifndef NIBBLE_KERNELS_CUDA_GEMM_CUBLAS_LT_H_
#define NIBBLE_KERNELS_CUDA_GEMM_CUBLAS_LT_H_

#include <cublasLt.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nibble {

// The functions of the library that the engine calls, by the library's names without its prefix.
struct CublasLt {
  decltype(&cublasLtCreate) Create;
  decltype(&cublasLtDestroy) Destroy;
  decltype(&cublasLtGetVersion) GetVersion;
  decltype(&cublasLtGetStatusName) GetStatusName;
  decltype(&cublasLtGetStatusString) GetStatusString;
  decltype(&cublasLtMatmulDescCreate) MatmulDescCreate;
  decltype(&cublasLtMatmulDescDestroy) MatmulDescDestroy;
  decltype(&cublasLtMatmulDescSetAttribute) MatmulDescSetAttribute;
  decltype(&cublasLtMatrixLayoutCreate) MatrixLayoutCreate;
  decltype(&cublasLtMatrixLayoutDestroy) MatrixLayoutDestroy;
  decltype(&cublasLtMatmulPreferenceCreate) MatmulPreferenceCreate;
  decltype(&cublasLtMatmulPreferenceDestroy) MatmulPreferenceDestroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) MatmulPreferenceSetAttribute;
  decltype(&cublasLtMatmulAlgoGetHeuristic) MatmulAlgoGetHeuristic;
  decltype(&cublasLtMatmulAlgoCheck) MatmulAlgoCheck;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) MatmulAlgoConfigGetAttribute;
  decltype(&cublasLtMatmul) Matmul;
};

// NotFound naming every place searched: the linker's own search, then CUDA_HOME and
// /usr/local/cuda. FailedPrecondition naming a function that the library lacks.
absl::StatusOr<const CublasLt*> LoadCublasLt();

// OK, or Internal with the call, cuBLAS's name of the error and its text; Unimplemented if cuBLASLt
// does not support the operation, ResourceExhausted if memory ran out.
absl::Status LtStatus(const CublasLt& library, cublasStatus_t status, absl::string_view call);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_GEMM_CUBLAS_LT_H_
