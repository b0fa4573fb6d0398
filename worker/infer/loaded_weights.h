// What a decoder computes with: the device, the weights loaded for it, and matmuls with them.
//
//   DecodeDevice    the CPU's threads, its GEMM and layer operations, and tables that layers share
//   LoadedWeights   a model's parameters: matrices (linears, embedding, positions, head) in one
//                   type, rounded once if that is BF16; everything else FP32
//   DecodeLinear    y = x·Wᵀ for any number of rows: few rows use kernels that read W once at
//                   memory speed, many the matrix units; independent of the number of threads
//
// Ownership: a DecodeDevice owns its parts and outlives the layers that borrow it; LoadedWeights
// owns its numbers, in memory that outlives it; DecodeLinear borrows both.
// Thread-safety: DecodeDevice and DecodeLinear: one thread at a time, synchronous; LoadedWeights:
// immutable.
#ifndef NIBBLE_WORKER_INFER_LOADED_WEIGHTS_H_
#define NIBBLE_WORKER_INFER_LOADED_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "common/thread_pool.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/layers/cpu_layer_ops.h"
#include "kernels/cpu/layers/layer_isa.h"
#include "kernels/cpu/layers/rope_table.h"
#include "kernels/cpu/layers/scratch.h"
#include "kernels/gemm/cpu_gemm.h"
#include "kernels/tensor/matrix.h"
#include "kernels/tensor/memory.h"
#include "model/outline.h"
#include "worker/weights/weight_source.h"

namespace nibble {

struct DecodeDevice {
  // `threads` as ThreadPool's.
  static absl::StatusOr<std::unique_ptr<DecodeDevice>> Create(int threads) {
    auto device = std::make_unique<DecodeDevice>(threads);
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CpuGemm> gemm, CpuGemm::Create(device->pool, {}));
    device->gemm = std::move(gemm);
    return device;
  }
  explicit DecodeDevice(int threads) : pool(threads), ops(pool) {}
  DecodeDevice(const DecodeDevice&) = delete;

  HostMemory memory;
  ThreadPool pool;
  CpuLayerOps ops;
  std::unique_ptr<CpuGemm> gemm;
  cpu::LayerIsa isa = cpu::BestLayerIsa();
  cpu::RopeTable rope;
  cpu::Scratch<char> attention;  // working memory of attention, one layer at a time
};

class LoadedWeights {
 public:
  // Reads every parameter of the source's outline, in order, one at a time. Errors of the source,
  // and of the memory with the parameter's name.
  static absl::StatusOr<LoadedWeights> Load(WeightSource& source, DType precision,
                                            DecodeDevice& device);

  const Outline& outline() const { return outline_; }
  DType precision() const { return precision_; }
  int64_t bytes() const { return bytes_; }

  // A matrix parameter, by index in the outline.
  ConstMatrix matrix(int64_t param) const;
  // Any other parameter.
  const float* vector(int64_t param) const;
  // By name. Internal if the outline lacks it.
  absl::StatusOr<const float*> FindVector(std::string_view name) const;
  absl::StatusOr<ConstMatrix> FindMatrix(std::string_view name) const;

 private:
  Outline outline_;
  DType precision_ = DType::kF32;
  int64_t bytes_ = 0;
  std::vector<Buffer> buffers_;
};

// x: [rows, in], w: [out, in] contiguous and of x's type, y: [rows, out] of x's type or FP32.
absl::Status Multiply(DecodeDevice& device, const ConstMatrix& x, const ConstMatrix& w,
                      const MutableMatrix& y);

// A linear layer's weights.
class DecodeLinear {
 public:
  // The layer "blocks.<block>.<kind>". Internal if the outline lacks it.
  static absl::StatusOr<DecodeLinear> Find(DecodeDevice& device, const LoadedWeights& weights,
                                           int64_t block, std::string_view kind);

  int64_t in() const { return weight_.cols; }
  int64_t out() const { return weight_.rows; }
  const float* bias() const { return bias_; }  // null: none

  absl::Status Forward(const ConstMatrix& x, const MutableMatrix& y) const;
  absl::Status ForwardWithoutBias(const ConstMatrix& x, const MutableMatrix& y) const;

 private:
  DecodeLinear(DecodeDevice& device, const ConstMatrix& weight, const float* bias)
      : device_(&device), weight_(weight), bias_(bias) {}

  DecodeDevice* device_;
  ConstMatrix weight_;
  const float* bias_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_LOADED_WEIGHTS_H_
