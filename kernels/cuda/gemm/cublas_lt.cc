#include "kernels/cuda/gemm/cublas_lt.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/cuda/shared_library.h"

namespace nibble {
namespace {

// The major version of the headers: another one has another interface.
std::string FileName() { return absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR); }

absl::StatusOr<const CublasLt*> Load() {
  const std::vector<std::string> places = CudaLibraryPlaces(FileName());
  void* const library = LoadFirstOf(places);
  if (library == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "cuBLASLt was not found (searched ", absl::StrJoin(places, ", "), "); install CUDA ",
        CUBLAS_VER_MAJOR, "'s libraries or set CUDA_HOME to where they are"));
  }
  auto* const table = new CublasLt;
  std::string missing;
  FindFunction(library, "cublasLtCreate", table->Create, missing);
  FindFunction(library, "cublasLtDestroy", table->Destroy, missing);
  FindFunction(library, "cublasLtGetVersion", table->GetVersion, missing);
  FindFunction(library, "cublasLtGetStatusName", table->GetStatusName, missing);
  FindFunction(library, "cublasLtGetStatusString", table->GetStatusString, missing);
  FindFunction(library, "cublasLtMatmulDescCreate", table->MatmulDescCreate, missing);
  FindFunction(library, "cublasLtMatmulDescDestroy", table->MatmulDescDestroy, missing);
  FindFunction(library, "cublasLtMatmulDescSetAttribute", table->MatmulDescSetAttribute, missing);
  FindFunction(library, "cublasLtMatrixLayoutCreate", table->MatrixLayoutCreate, missing);
  FindFunction(library, "cublasLtMatrixLayoutDestroy", table->MatrixLayoutDestroy, missing);
  FindFunction(library, "cublasLtMatmulPreferenceCreate", table->MatmulPreferenceCreate, missing);
  FindFunction(library, "cublasLtMatmulPreferenceDestroy", table->MatmulPreferenceDestroy, missing);
  FindFunction(library, "cublasLtMatmulPreferenceSetAttribute", table->MatmulPreferenceSetAttribute,
               missing);
  FindFunction(library, "cublasLtMatmulAlgoGetHeuristic", table->MatmulAlgoGetHeuristic, missing);
  FindFunction(library, "cublasLtMatmulAlgoCheck", table->MatmulAlgoCheck, missing);
  FindFunction(library, "cublasLtMatmulAlgoConfigGetAttribute", table->MatmulAlgoConfigGetAttribute,
               missing);
  FindFunction(library, "cublasLtMatmul", table->Matmul, missing);
  if (!missing.empty()) {
    delete table;
    return absl::FailedPreconditionError(absl::StrCat(FileName(), " has no ", missing));
  }
  return table;
}

}  // namespace

absl::StatusOr<const CublasLt*> LoadCublasLt() {
  static const absl::StatusOr<const CublasLt*>* const loaded =
      new absl::StatusOr<const CublasLt*>(Load());
  return *loaded;
}

absl::Status LtStatus(const CublasLt& library, cublasStatus_t status, absl::string_view call) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string text = absl::StrCat(call, ": ", library.GetStatusName(status), ": ",
                                        library.GetStatusString(status));
  switch (status) {
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return absl::UnimplementedError(text);
    case CUBLAS_STATUS_ALLOC_FAILED:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::InternalError(text);
  }
}

}  // namespace nibble
