// Inputs of the attention checks: problems, documents, and device buffers.
//
// Ownership: a DeviceArray owns its memory. Thread-safety: none.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_CHECK_DATA_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_CHECK_DATA_H_

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/layers/cuda_attention_ops.h"
#include "kernels/ops/attention_ops.h"

namespace nibble {

inline const char* NameOf(CudaAttentionOps::Path path) {
  switch (path) {
    case CudaAttentionOps::Path::kSimple:
      return "simple";
    case CudaAttentionOps::Path::kMma:
      return "mma";
    case CudaAttentionOps::Path::kHopper:
      break;
  }
  return "hopper";
}

struct AttentionCase {
  int64_t sequences, length;
  int heads, kv_heads, head_dim;
  int64_t mean_document = 0;  // tokens; 0: no documents
  int64_t gap = 0;            // elements between rows
  double spread = 1;          // of q, k, v

  AttentionShape shape() const {
    return {heads, kv_heads, head_dim, static_cast<float>(1 / std::sqrt(head_dim))};
  }
  int64_t tokens() const { return sequences * length; }
  int64_t qkv_cols() const { return shape().qkv_cols(); }
  int64_t out_cols() const { return shape().out_cols(); }
  std::string Name() const {
    return absl::StrCat(sequences, " x ", length, ", heads ", heads, "/", kv_heads, " x ", head_dim,
                        mean_document != 0 ? absl::StrCat(", documents of ", mean_document) : "");
  }
  // [tokens]; documents of 1 to 2 · mean_document tokens.
  std::vector<int32_t> DocBegin() const {
    std::vector<int32_t> begin(static_cast<size_t>(tokens()));
    std::mt19937_64 random(11);
    for (int64_t s = 0; s < sequences; ++s) {
      int64_t first = 0, left = 0;
      for (int64_t t = 0; t < length && mean_document != 0; ++t) {
        if (left-- == 0) {
          first = t;
          left = static_cast<int64_t>(random() % static_cast<uint64_t>(2 * mean_document));
        }
        begin[static_cast<size_t>(s * length + t)] = static_cast<int32_t>(first);
      }
    }
    return begin;
  }
  // Pairs of a query and a key that it attends to, of one head; without documents length² / 2, as
  // FLOPs are usually counted.
  double VisiblePairs() const {
    if (mean_document == 0) return static_cast<double>(sequences) * length * length / 2;
    const std::vector<int32_t> begin = DocBegin();
    double pairs = 0;
    for (int64_t t = 0; t < tokens(); ++t) pairs += t % length - begin[static_cast<size_t>(t)] + 1;
    return pairs;
  }
};

// `count` elements of T on the device.
template <class T>
class DeviceArray {
 public:
  DeviceArray(CudaBackend& cuda, int64_t count) : cuda_(cuda), count_(count) {
    buffer_ = *cuda.memory().Allocate(static_cast<size_t>(count) * sizeof(T));
    (void)cuda.memory().Fill(buffer_.data(), 0xff, static_cast<size_t>(count) * sizeof(T));
  }
  DeviceArray(CudaBackend& cuda, const std::vector<T>& values)
      : DeviceArray(cuda, static_cast<int64_t>(values.size())) {
    (void)cuda.memory().CopyIn(buffer_.data(), values.data(), values.size() * sizeof(T));
  }
  T* data() const { return buffer_.template data<T>(); }
  std::vector<T> Values() const {
    std::vector<T> values(static_cast<size_t>(count_));
    (void)cuda_.Synchronize();
    (void)cuda_.memory().CopyOut(values.data(), buffer_.data(), values.size() * sizeof(T));
    return values;
  }

 private:
  CudaBackend& cuda_;
  int64_t count_;
  Buffer buffer_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_CHECK_DATA_H_
