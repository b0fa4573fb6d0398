#include "kernels/cuda/layers/tensor_map.h"

#if defined(NIBBLE_GPU_EMULATION)
#include <cstring>

#include "kernels/cuda/layers/tensor_core_emulation.h"
#endif

namespace nibble::gpu {

#if defined(NIBBLE_GPU_EMULATION)

cudaError_t MakeTensorMap(CUtensorMap* map, const uint16_t* data, int64_t columns, int64_t length,
                          int64_t sequences, int64_t stride) {
  const emulation::EmulatedMap emulated = {data, columns, length, sequences, stride, kBoxTokens};
  static_assert(sizeof emulated <= sizeof *map);
  std::memcpy(map, &emulated, sizeof emulated);
  return cudaSuccess;
}

#else

namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The driver's function, looked up once, so that programs link without the driver's library.
EncodeTiled FindEncodeTiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned kCuda12 = 12000;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kCuda12,
                                       cudaEnableDefault, &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    return nullptr;
  }
  return reinterpret_cast<EncodeTiled>(function);
}

}  // namespace

cudaError_t MakeTensorMap(CUtensorMap* map, const uint16_t* data, int64_t columns, int64_t length,
                          int64_t sequences, int64_t stride) {
  static const EncodeTiled encode = FindEncodeTiled();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(length),
                               static_cast<cuuint64_t>(sequences)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(stride * 2),
                                 static_cast<cuuint64_t>(length * stride * 2)};  // bytes
  const cuuint32_t box[3] = {kBoxColumns, kBoxTokens, 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<uint16_t*>(data), sizes, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

#endif

}  // namespace nibble::gpu
