// Common parts of the checks of CudaMambaOps: arrays on both sides, documents, and judgements.
//
// Ownership: arrays own their memory on both sides. Thread-safety: none.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_MAMBA_CHECK_DATA_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_MAMBA_CHECK_DATA_H_

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/layers/layer_check.h"

namespace nibble {

// Elements of a vector on the host and on the device, equal when it is made.
template <class T>
class CheckArray {
 public:
  CheckArray(CudaBackend& cuda, std::vector<T> values) : cuda_(cuda), host_(std::move(values)) {
    device_ = *cuda.memory().Allocate(host_.size() * sizeof(T));
    (void)cuda.memory().CopyIn(device_.data(), host_.data(), host_.size() * sizeof(T));
  }
  T* host() { return host_.data(); }
  T* device() const { return device_.template data<T>(); }
  size_t size() const { return host_.size(); }
  // Overwrites the device's elements.
  void SetDevice(const std::vector<T>& values) {
    (void)cuda_.memory().CopyIn(device_.data(), values.data(), values.size() * sizeof(T));
  }
  std::vector<T> Device() const {
    std::vector<T> values(host_.size());
    (void)cuda_.Synchronize();
    (void)cuda_.memory().CopyOut(values.data(), device_.data(), values.size() * sizeof(T));
    return values;
  }

 private:
  CudaBackend& cuda_;
  std::vector<T> host_;
  Buffer device_;
};

inline std::vector<float> RandomValues(LayerCheck& check, int64_t count, float mean, float spread) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) x = mean + spread * check.Normal();
  return values;
}

// [tokens]: documents of 1 to 2 · mean tokens.
inline std::vector<int32_t> RandomDocuments(LayerCheck& check, int64_t sequences, int64_t length,
                                            int64_t mean) {
  std::vector<int32_t> begin(static_cast<size_t>(sequences * length));
  for (int64_t s = 0; s < sequences; ++s) {
    int64_t first = 0, left = 0;
    for (int64_t t = 0; t < length; ++t) {
      if (left-- == 0) {
        first = t;
        left = static_cast<int64_t>(check.random()() % static_cast<uint64_t>(2 * mean));
      }
      begin[static_cast<size_t>(s * length + t)] = static_cast<int32_t>(first);
    }
  }
  return begin;
}

inline double RelativeDistance(const std::vector<float>& a, const float* b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

// FP32 sums over the tokens, some of which nearly cancel: the fewer there are, the more the two
// sides' errors differ by chance.
inline void ExpectSums(LayerCheck& check, const std::string& name, const std::vector<float>& device,
                       const std::vector<float>& cpu_bf16, const float* f32) {
  const double distance = RelativeDistance(device, f32), host = RelativeDistance(cpu_bf16, f32);
  char text[200];
  std::snprintf(text, sizeof text, "%s: %.3e from FP32, the CPU's BF16 %.3e", name.c_str(),
                distance, host);
  const double chance = 2 / std::sqrt(static_cast<double>(device.size()));
  check.Expect(distance <= (1.1 + chance) * host + 1.0 / 256, text);
}
// As LayerCheck::ExpectClose, for results whose norm is that of a few large elements: a quarter
// more.
inline void ExpectCloseByFew(LayerCheck& check, const std::string& name, CheckTensor& result) {
  const double distance = result.DeviceDistance(), host = result.HostDistance();
  char text[200];
  std::snprintf(text, sizeof text, "%s: %.3e from FP32, the CPU's BF16 %.3e", name.c_str(),
                distance, host);
  check.Expect(distance <= 1.25 * host + 1e-6, text);
}
// FP32 on both sides.
inline void ExpectNear(LayerCheck& check, const std::string& name, double distance, double most) {
  char text[200];
  std::snprintf(text, sizeof text, "%s: %.3e from the CPU's FP32, allowed %.1e", name.c_str(),
                distance, most);
  check.Expect(distance <= most, text);
}
inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline void Report(LayerCheck& check, const char* group) {
  std::printf("%-36s %6ld checks, %ld failures so far\n", group, static_cast<long>(check.checks()),
              static_cast<long>(check.failures()));
  std::fflush(stdout);
}

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_MAMBA_CHECK_DATA_H_
