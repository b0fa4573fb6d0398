#include "kernels/cuda/gemm/fake_cublas_lt.h"

#include <cmath>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/gemm/emulated_runtime.h"
#include "kernels/cuda/gemm/scale_tiles.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/gemm/gemm_testing.h"

namespace nibble {
namespace {

struct FakeOperation {
  std::map<int, std::vector<unsigned char>> attributes;

  template <class T>
  T Get(int attribute, T otherwise) const {
    const auto found = attributes.find(attribute);
    if (found == attributes.end()) return otherwise;
    T value;
    std::memcpy(&value, found->second.data(), sizeof(value));
    return value;
  }
  bool transposed(int attribute) const {
    return Get<int32_t>(attribute, CUBLAS_OP_N) == CUBLAS_OP_T;
  }
};

struct FakeLayout {
  cudaDataType_t type;
  int64_t rows, cols, stride;
};

const FakeOperation& Operation(cublasLtMatmulDesc_t d) {
  return *reinterpret_cast<const FakeOperation*>(d);
}
const FakeLayout& Layout(cublasLtMatrixLayout_t l) {
  return *reinterpret_cast<const FakeLayout*>(l);
}

int BitsOfType(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_32F:
      return 32;
    case CUDA_R_16BF:
      return 16;
    case CUDA_R_4F_E2M1:
      return 4;
    default:
      return 8;
  }
}

double ElementOf(const void* data, cudaDataType_t type, int64_t index) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  switch (type) {
    case CUDA_R_32F:
      return static_cast<const float*>(data)[index];
    case CUDA_R_16BF:
      return DecodeBf16(static_cast<const uint16_t*>(data)[index]);
    case CUDA_R_4F_E2M1:
      return testing::MinifloatValue(bytes[index / 2] >> (4 * (index % 2)) & 15, 2, 1);
    case CUDA_R_8F_E5M2:
      return testing::MinifloatValue(bytes[index], 5, 2);
    default:
      return testing::MinifloatValue(bytes[index], 4, 3);
  }
}

// One operand as [lines, K].
struct FakeOperand {
  const void* data;
  FakeLayout layout;
  bool k_first;  // K runs down the library's columns
  int32_t mode;
  const void* scales;

  int64_t depth() const { return k_first ? layout.rows : layout.cols; }
  int64_t lines() const { return k_first ? layout.cols : layout.rows; }
  // [lines, K].
  std::vector<double> Values() const {
    std::vector<double> values;
    for (int64_t line = 0; line < lines(); ++line) {
      for (int64_t k = 0; k < depth(); ++k) {
        const int64_t index = k_first ? line * layout.stride + k : k * layout.stride + line;
        values.push_back(ElementOf(data, layout.type, index) * ScaleOf(line, k));
      }
    }
    return values;
  }
  double ScaleOf(int64_t line, int64_t k) const {
    if (scales == nullptr) return 1;
    const auto* f32 = static_cast<const float*>(scales);
    const auto* bytes = static_cast<const uint8_t*>(scales);
    const int64_t padded = (depth() / 128 + 3) / 4 * 4;
    switch (mode) {
      case CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F:
        return f32[line];
      case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:
        return f32[k / 128 * lines() + line];
      case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:
        return f32[line / 128 * padded + k / 128];
      case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0:
        return std::ldexp(1.0, bytes[gpu::ScaleTileOffset(line, k / 32, depth() / 32)] - 127);
      case CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3:
        return testing::MinifloatValue(bytes[gpu::ScaleTileOffset(line, k / 16, depth() / 16)], 4,
                                       3);
      default:
        return f32[0];
    }
  }
};

struct FakeMatmul {
  FakeOperand a, b;
  FakeLayout c;
};

FakeMatmul Describe(cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                    cublasLtMatrixLayout_t c) {
  const FakeOperation& operation = Operation(d);
  return {{nullptr, Layout(a), operation.transposed(CUBLASLT_MATMUL_DESC_TRANSA),
           operation.Get<int32_t>(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, 0),
           operation.Get<const void*>(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, nullptr)},
          {nullptr, Layout(b), !operation.transposed(CUBLASLT_MATMUL_DESC_TRANSB),
           operation.Get<int32_t>(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, 0),
           operation.Get<const void*>(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, nullptr)},
          Layout(c)};
}

bool ScalesAreSupported(const FakeMatmul& matmul) {
  const int capability = FakeLt().capability;
  const auto [a, b] = std::pair(matmul.a.mode, matmul.b.mode);
  const bool fp4 = matmul.a.layout.type == CUDA_R_4F_E2M1;
  const auto is_slice = [](int32_t mode) {
    return mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F ||
           mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  };
  const auto aligned = [](const void* scales) {
    return scales != nullptr && reinterpret_cast<uintptr_t>(scales) % 16 == 0;
  };
  if (fp4 != (a == CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3)) return false;
  if (is_slice(a) || is_slice(b)) {
    return capability == 90 && is_slice(a) && is_slice(b) &&
           !(a == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F && a == b) &&
           matmul.a.lines() % 4 == 0 && matmul.b.lines() % 4 == 0 && aligned(matmul.a.scales) &&
           aligned(matmul.b.scales);
  }
  if (a != b) return false;
  switch (a) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F:
      return true;
    case CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F:
      return capability == 90 && aligned(matmul.a.scales) && aligned(matmul.b.scales);
    default:
      return capability >= 100 && aligned(matmul.a.scales) && aligned(matmul.b.scales);
  }
}

bool IsSupported(const FakeMatmul& matmul) {
  const auto [a, b, c] = std::tuple(matmul.a.layout.type, matmul.b.layout.type, matmul.c.type);
  if (matmul.a.depth() != matmul.b.depth() || matmul.c.rows != matmul.a.lines() ||
      matmul.c.cols != matmul.b.lines() || matmul.c.stride < matmul.c.rows) {
    return false;
  }
  if (a == CUDA_R_32F || b == CUDA_R_32F) return a == b && c == CUDA_R_32F;
  if (a == CUDA_R_16BF || b == CUDA_R_16BF) return a == b;
  const auto rows_fit = [](const FakeLayout& layout) {
    return layout.stride * BitsOfType(layout.type) % 128 == 0;
  };
  if (!rows_fit(matmul.a.layout) || !rows_fit(matmul.b.layout) || !rows_fit(matmul.c)) return false;
  const bool k_first = matmul.a.k_first && matmul.b.k_first;
  if (a == CUDA_R_4F_E2M1 || b == CUDA_R_4F_E2M1) {
    return a == b && k_first && FakeLt().capability >= 100 && ScalesAreSupported(matmul);
  }
  if (a == CUDA_R_8F_E5M2 && b == CUDA_R_8F_E5M2) return false;
  return (k_first || FakeLt().capability >= 100) && ScalesAreSupported(matmul);
}

cublasStatus_t FakeCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int(0));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t FakeDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
size_t FakeVersion() { return FakeLt().version; }
const char* FakeStatusName(cublasStatus_t) { return "CUBLAS_STATUS_FAKE"; }
const char* FakeStatusString(cublasStatus_t) { return "the fake cuBLASLt refused"; }

cublasStatus_t FakeDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t, cudaDataType_t) {
  *d = reinterpret_cast<cublasLtMatmulDesc_t>(new FakeOperation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t FakeDescDestroy(cublasLtMatmulDesc_t d) {
  delete reinterpret_cast<FakeOperation*>(d);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t FakeDescSet(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attribute,
                           const void* value, size_t bytes) {
  const auto* from = static_cast<const unsigned char*>(value);
  reinterpret_cast<FakeOperation*>(d)->attributes[attribute].assign(from, from + bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t FakeLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                                uint64_t cols, int64_t stride) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(
      new FakeLayout{type, static_cast<int64_t>(rows), static_cast<int64_t>(cols), stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t FakeLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<FakeLayout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t FakePreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new int(0));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t FakePreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<int*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t FakePreferenceSet(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                 const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t FakeHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                             cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                             cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int count,
                             cublasLtMatmulHeuristicResult_t results[], int* returned) {
  ++FakeLt().heuristics;
  *returned = 0;
  if (!IsSupported(Describe(d, a, b, c))) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (uint64_t i = 0; i < 4 && *returned < count; ++i) {
    cublasLtMatmulHeuristicResult_t result = {};
    result.algo.data[0] = 100 + i;
    result.state = CUBLAS_STATUS_SUCCESS;
    results[(*returned)++] = result;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t FakeCheck(cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                         cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t,
                         const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t*) {
  const bool known = algorithm->data[0] >= 100 && algorithm->data[0] < 104;
  return known && IsSupported(Describe(d, a, b, c)) ? CUBLAS_STATUS_SUCCESS
                                                    : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t FakeConfig(const cublasLtMatmulAlgo_t* algorithm,
                          cublasLtMatmulAlgoConfigAttributes_t attribute, void* value, size_t bytes,
                          size_t*) {
  const uint64_t id = algorithm->data[0];
  uint32_t result = 0;
  if (attribute == CUBLASLT_ALGO_CONFIG_ID) result = static_cast<uint32_t>(id);
  if (attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM) result = id == 101 || id == 102 ? 4 : 1;
  if (attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) {
    result = id == 101   ? CUBLASLT_REDUCTION_SCHEME_INPLACE
             : id == 102 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                         : CUBLASLT_REDUCTION_SCHEME_NONE;
  }
  std::memcpy(value, &result, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t FakeRun(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void* alpha, const void* a,
                       cublasLtMatrixLayout_t layout_a, const void* b,
                       cublasLtMatrixLayout_t layout_b, const void* beta, const void* c,
                       cublasLtMatrixLayout_t layout_c, void* out, cublasLtMatrixLayout_t,
                       const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t,
                       cudaStream_t) {
  FakeMatmul matmul = Describe(d, layout_a, layout_b, layout_c);
  const uint64_t id = algorithm->data[0];
  ++FakeLt().launches[id];
  if (const auto ms = FakeLt().ms.find(id); ms != FakeLt().ms.end()) {
    gpu::emulation::clock_ms += ms->second;
  }
  const double nudge = FakeLt().other_order.contains(id) ? 1 + 1e-6 : 1;
  if (!IsSupported(matmul) || workspace == nullptr || c != out) return CUBLAS_STATUS_INVALID_VALUE;
  matmul.a.data = a;
  matmul.b.data = b;
  const double alpha_value = *static_cast<const float*>(alpha);
  const double beta_value = *static_cast<const float*>(beta);
  const int64_t depth = matmul.a.depth();
  const std::vector<double> values_a = matmul.a.Values(), values_b = matmul.b.Values();
  for (int64_t col = 0; col < matmul.c.cols; ++col) {
    for (int64_t row = 0; row < matmul.c.rows; ++row) {
      const double* line_a = &values_a[static_cast<size_t>(row * depth)];
      const double* line_b = &values_b[static_cast<size_t>(col * depth)];
      double sum = 0;
      for (int64_t k = 0; k < depth; ++k) sum += line_a[k] * line_b[k];
      sum *= alpha_value * nudge;
      const int64_t at = col * matmul.c.stride + row;
      if (beta_value != 0 && matmul.c.type == CUDA_R_16BF) {
        sum = DecodeBf16(EncodeBf16(static_cast<float>(sum)));
      }
      if (beta_value != 0) sum += beta_value * ElementOf(c, matmul.c.type, at);
      if (matmul.c.type == CUDA_R_32F) {
        static_cast<float*>(out)[at] = static_cast<float>(sum);
      } else {
        static_cast<uint16_t*>(out)[at] = EncodeBf16(static_cast<float>(sum));
      }
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

FakeLtState& FakeLt() {
  static FakeLtState* const state = new FakeLtState;
  return *state;
}

const CublasLt& FakeCublasLt() {
  static const CublasLt table = {
      .Create = FakeCreate,
      .Destroy = FakeDestroy,
      .GetVersion = FakeVersion,
      .GetStatusName = FakeStatusName,
      .GetStatusString = FakeStatusString,
      .MatmulDescCreate = FakeDescCreate,
      .MatmulDescDestroy = FakeDescDestroy,
      .MatmulDescSetAttribute = FakeDescSet,
      .MatrixLayoutCreate = FakeLayoutCreate,
      .MatrixLayoutDestroy = FakeLayoutDestroy,
      .MatmulPreferenceCreate = FakePreferenceCreate,
      .MatmulPreferenceDestroy = FakePreferenceDestroy,
      .MatmulPreferenceSetAttribute = FakePreferenceSet,
      .MatmulAlgoGetHeuristic = FakeHeuristic,
      .MatmulAlgoCheck = FakeCheck,
      .MatmulAlgoConfigGetAttribute = FakeConfig,
      .Matmul = FakeRun,
  };
  return table;
}

}  // namespace nibble
