#include "kernels/cuda/gemm/cublas_lt.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace nibble {
namespace {

// The major version of the headers: another one has another interface.
std::string FileName() { return absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR); }

std::vector<std::string> Places() {
  std::vector<std::string> places = {FileName()};
  std::vector<std::string> homes = {"/usr/local/cuda"};
  if (const char* home = std::getenv("CUDA_HOME"); home != nullptr && *home != '\0') {
    homes.insert(homes.begin(), home);
  }
  for (const std::string& home : homes) {
    for (const char* folder : {"targets/x86_64-linux/lib", "lib64"}) {
      places.push_back(absl::StrCat(home, "/", folder, "/", FileName()));
    }
  }
  return places;
}

template <class Function>
bool Find(void* library, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr && missing.empty()) missing = name;
  return function != nullptr;
}

absl::StatusOr<const CublasLt*> Load() {
  const std::vector<std::string> places = Places();
  void* library = nullptr;
  for (const std::string& place : places) {
    library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "cuBLASLt was not found (searched ", absl::StrJoin(places, ", "), "); install CUDA ",
        CUBLAS_VER_MAJOR, "'s libraries or set CUDA_HOME to where they are"));
  }
  auto* const table = new CublasLt;
  std::string missing;
  Find(library, "cublasLtCreate", table->Create, missing);
  Find(library, "cublasLtDestroy", table->Destroy, missing);
  Find(library, "cublasLtGetVersion", table->GetVersion, missing);
  Find(library, "cublasLtGetStatusName", table->GetStatusName, missing);
  Find(library, "cublasLtGetStatusString", table->GetStatusString, missing);
  Find(library, "cublasLtMatmulDescCreate", table->MatmulDescCreate, missing);
  Find(library, "cublasLtMatmulDescDestroy", table->MatmulDescDestroy, missing);
  Find(library, "cublasLtMatmulDescSetAttribute", table->MatmulDescSetAttribute, missing);
  Find(library, "cublasLtMatrixLayoutCreate", table->MatrixLayoutCreate, missing);
  Find(library, "cublasLtMatrixLayoutDestroy", table->MatrixLayoutDestroy, missing);
  Find(library, "cublasLtMatmulPreferenceCreate", table->MatmulPreferenceCreate, missing);
  Find(library, "cublasLtMatmulPreferenceDestroy", table->MatmulPreferenceDestroy, missing);
  Find(library, "cublasLtMatmulPreferenceSetAttribute", table->MatmulPreferenceSetAttribute,
       missing);
  Find(library, "cublasLtMatmulAlgoGetHeuristic", table->MatmulAlgoGetHeuristic, missing);
  Find(library, "cublasLtMatmulAlgoCheck", table->MatmulAlgoCheck, missing);
  Find(library, "cublasLtMatmulAlgoConfigGetAttribute", table->MatmulAlgoConfigGetAttribute,
       missing);
  Find(library, "cublasLtMatmul", table->Matmul, missing);
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
