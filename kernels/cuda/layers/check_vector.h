// A vector of plain values on both sides, for checks.
//
// Ownership: owns both copies; borrows the backend. Thread-safety: none.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_CHECK_VECTOR_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_CHECK_VECTOR_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/tensor/matrix.h"

namespace nibble {

inline ConstMatrix Const(const MutableMatrix& m) {
  return {m.data, m.dtype, m.rows, m.cols, m.stride};
}

template <class T>
class CheckVector {
 public:
  CheckVector(CudaBackend& cuda, std::vector<T> values)
      : cuda_(cuda), host_(std::move(values)), device_(*cuda.memory().Allocate(bytes())) {
    (void)cuda_.memory().CopyIn(device_.template data<T>(), host_.data(), bytes());
  }
  CheckVector(CudaBackend& cuda, int64_t n, T value = T())
      : CheckVector(cuda, std::vector<T>(static_cast<size_t>(n), value)) {}

  T* host() { return host_.data(); }
  T* device() { return device_.template data<T>(); }
  int64_t size() const { return static_cast<int64_t>(host_.size()); }
  std::vector<T> OfDevice() {
    std::vector<T> values(host_.size());
    (void)cuda_.Synchronize();
    (void)cuda_.memory().CopyOut(values.data(), device(), bytes());
    return values;
  }
  // Any NaN equals any other: processors give them different bits.
  bool SameBits() {
    const std::vector<T> values = OfDevice();
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::memcmp(&values[i], &host_[i], sizeof(T)) == 0) continue;
      if constexpr (std::is_floating_point_v<T>) {
        if (std::isnan(values[i]) && std::isnan(host_[i])) continue;
      }
      return false;
    }
    return true;
  }
  // ‖device − host‖ / ‖host‖; 0 if both are zero, NaN if an element is finite in one only.
  double Distance() {
    const std::vector<T> values = OfDevice();
    double difference = 0, norm = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double x = values[i], y = host_[i];
      if (std::isfinite(x) != std::isfinite(y)) return std::nan("");
      if (!std::isfinite(x)) continue;
      difference += (x - y) * (x - y);
      norm += y * y;
    }
    return difference == 0 ? 0 : std::sqrt(difference / norm);
  }

 private:
  size_t bytes() const { return host_.size() * sizeof(T); }

  CudaBackend& cuda_;
  std::vector<T> host_;
  Buffer device_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_CHECK_VECTOR_H_
