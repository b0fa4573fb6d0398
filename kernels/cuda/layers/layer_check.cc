#include "kernels/cuda/layers/layer_check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/formats/bfloat16.h"

namespace nibble {
namespace {

// No operation gives this NaN.
constexpr uint32_t kUnwritten = 0x7fc1dead;

double Distance(const std::vector<float>& a, const std::vector<float>& b, int64_t rows,
                int64_t cols, int64_t stride) {
  double difference = 0, norm = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const double x = a[r * stride + c], y = b[r * stride + c];
      if (!std::isfinite(x) || !std::isfinite(y)) {
        const bool same = (std::isnan(x) && std::isnan(y)) || x == y;
        if (!same) return std::numeric_limits<double>::quiet_NaN();
        continue;
      }
      difference += (x - y) * (x - y);
      norm += y * y;
    }
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

}  // namespace

CheckTensor::CheckTensor(CudaBackend& cuda, int64_t rows, int64_t cols,
                         const std::function<float(int64_t, int64_t)>& value, int64_t stride)
    : cuda_(cuda), rows_(rows), cols_(cols), stride_(stride == 0 ? cols : stride) {
  const size_t n = static_cast<size_t>(rows_ * stride_);
  float unwritten;
  std::memcpy(&unwritten, &kUnwritten, sizeof unwritten);
  f32_.assign(n, unwritten);
  bf16_.assign(n, static_cast<uint16_t>(kUnwritten >> 16));
  if (value) {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) {
        const uint16_t bits = EncodeBf16(value(r, c));
        bf16_[r * stride_ + c] = bits;
        f32_[r * stride_ + c] = DecodeBf16(bits);
      }
    }
  }
  device_f32_ = *cuda.memory().Allocate(n * sizeof(float));
  device_bf16_ = *cuda.memory().Allocate(n * sizeof(uint16_t));
  (void)cuda.memory().CopyIn(device_f32_.data(), f32_.data(), n * sizeof(float));
  (void)cuda.memory().CopyIn(device_bf16_.data(), bf16_.data(), n * sizeof(uint16_t));
}

MutableMatrix CheckTensor::device(DType dtype) const {
  return {dtype == DType::kF32 ? device_f32_.data() : device_bf16_.data(), dtype, rows_, cols_,
          stride_};
}

std::vector<float> CheckTensor::DeviceValues(DType dtype) {
  std::vector<float> values(f32_.size());
  (void)cuda_.Synchronize();
  if (dtype == DType::kF32) {
    (void)cuda_.memory().CopyOut(values.data(), device_f32_.data(), values.size() * sizeof(float));
    return values;
  }
  std::vector<uint16_t> bits(values.size());
  (void)cuda_.memory().CopyOut(bits.data(), device_bf16_.data(), bits.size() * sizeof(uint16_t));
  for (size_t i = 0; i < bits.size(); ++i) values[i] = DecodeBf16(bits[i]);
  return values;
}

double CheckTensor::DeviceDistance(DType dtype) {
  return Distance(DeviceValues(dtype), f32_, rows_, cols_, stride_);
}

double CheckTensor::HostDistance() const {
  std::vector<float> values(bf16_.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = DecodeBf16(bf16_[i]);
  return Distance(values, f32_, rows_, cols_, stride_);
}

bool CheckTensor::GapsAreUntouched(DType dtype) {
  const std::vector<float> values = DeviceValues(dtype);
  uint32_t expected = kUnwritten;
  if (dtype == DType::kBf16) expected &= 0xffff0000u;
  for (int64_t r = 0; r < rows_; ++r) {
    for (int64_t c = cols_; c < stride_; ++c) {
      if (std::memcmp(&values[r * stride_ + c], &expected, sizeof expected) != 0) return false;
    }
  }
  return true;
}

LayerCheck::LayerCheck(CudaBackend& cuda) : cuda_(cuda), pool_(0), cpu_(pool_) {}

void LayerCheck::Expect(bool condition, const std::string& what) {
  ++checks_;
  if (condition) return;
  ++failures_;
  std::printf("FAILED  %s\n", what.c_str());
}

void LayerCheck::ExpectKeeps(const std::string& name, size_t bytes,
                             const std::function<void()>& run) {
  const size_t before = cuda_.memory().use().used;
  run();
  const size_t kept = cuda_.memory().use().used - before;
  constexpr size_t kFew = 64;
  Expect(kept >= bytes && kept <= bytes + kFew,
         absl::StrCat(name, ": keeps ", kept, " bytes, said ", bytes));
}

void LayerCheck::ExpectOk(const std::string& name, const absl::Status& status) {
  Expect(status.ok(), name + ": " + status.ToString());
}

double LayerCheck::Allowance(int64_t elements) {
  return 1.1 + 2 / std::sqrt(static_cast<double>(std::max<int64_t>(elements, 1)));
}

void LayerCheck::ExpectClose(const std::string& name, CheckTensor& result) {
  const double device = result.DeviceDistance(), host = result.HostDistance();
  char text[160];
  std::snprintf(text, sizeof text, "%s: %.3e from FP32, the CPU's BF16 %.3e", name.c_str(), device,
                host);
  Expect(device <= Allowance(result.elements()) * host + 1e-6, text);
}

void LayerCheck::Time(const std::string& name, double bytes, double flops,
                      const std::function<absl::Status(int)>& run, int runs) {
  std::vector<cudaEvent_t> events(2 * runs);
  for (cudaEvent_t& event : events) cudaEventCreate(&event);
  absl::Status status;
  for (int i = 0; i < 3 && status.ok(); ++i) status = run(i);
  for (int i = 0; i < runs && status.ok(); ++i) {
    cudaEventRecord(events[2 * i], cuda_.stream());
    status = run(i);
    cudaEventRecord(events[2 * i + 1], cuda_.stream());
  }
  if (status.ok()) status = cuda_.Synchronize();
  ExpectOk(name, status);
  std::vector<float> times(runs);
  for (int i = 0; i < runs; ++i) {
    cudaEventElapsedTime(&times[i], events[2 * i], events[2 * i + 1]);
  }
  for (cudaEvent_t& event : events) cudaEventDestroy(event);
  std::nth_element(times.begin(), times.begin() + runs / 2, times.end());
  times_.push_back({name, bytes, flops, times[runs / 2]});
}

double LayerCheck::CopyRate() {
  constexpr size_t kBytes = size_t{1} << 30;
  const Buffer from = *cuda_.memory().Allocate(kBytes), to = *cuda_.memory().Allocate(kBytes);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  constexpr int kCopies = 10;
  for (int i = 0; i <= kCopies; ++i) {
    if (i == 1) cudaEventRecord(begin, cuda_.stream());
    cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, cuda_.stream());
  }
  cudaEventRecord(end, cuda_.stream());
  (void)cuda_.Synchronize();
  float ms = 0;
  cudaEventElapsedTime(&ms, begin, end);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return 2.0 * kCopies * kBytes / (ms / 1e3);
}

void LayerCheck::PrintTimes(double copy_bytes_per_second, double gemm_flops) const {
  std::printf("%-64s %9s %9s %9s %8s %8s\n", "operation", "ms", "GB/s", "TFLOP/s", "of copy",
              "of GEMM");
  for (const LayerTime& t : times_) {
    const double seconds = t.ms / 1e3;
    std::printf("%-64s %9.4f %9.0f %9.1f %8.2f %8.2f\n", t.name.c_str(), t.ms,
                t.bytes / seconds / 1e9, t.flops / seconds / 1e12,
                t.bytes / seconds / copy_bytes_per_second, t.flops / seconds / gemm_flops);
  }
}

}  // namespace nibble
