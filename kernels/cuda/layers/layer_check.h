// Checks and measurements of the layer operations on a card: the same request on the CPU, in FP32
// and in BF16, and on the card; distances of the card's results from the FP32 ones beside those of
// the CPU's BF16; times beside the limit that bytes and FLOPs give.
//
// A result passes if it is no farther from the FP32 result than the CPU's BF16 result, apart from a
// tenth, and from 2/√n for a tensor of n elements: what rounds the same values in another order is
// as exact.
//
// Ownership: a LayerCheck owns its CPU operations and borrows the CUDA backend. Thread-safety:
// none.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_LAYER_CHECK_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_LAYER_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/thread_pool.h"
#include "kernels/cpu/layers/cpu_layer_ops.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/tensor/matrix.h"

namespace nibble {

// A tensor on both sides: FP32 values that BF16 represents, their BF16 bits, and a device copy.
class CheckTensor {
 public:
  // [rows, cols], rows `stride` elements apart (0: cols). Values are written by `value(row, col)`,
  // rounded to BF16; without it every element is a pattern that no result has, to find what is not
  // written.
  CheckTensor(CudaBackend& cuda, int64_t rows, int64_t cols,
              const std::function<float(int64_t, int64_t)>& value = {}, int64_t stride = 0);

  MutableMatrix f32() { return {f32_.data(), DType::kF32, rows_, cols_, stride_}; }
  MutableMatrix bf16() { return {bf16_.data(), DType::kBf16, rows_, cols_, stride_}; }
  MutableMatrix device(DType dtype = DType::kBf16) const;

  int64_t elements() const { return rows_ * cols_; }
  // ‖device − f32‖ / ‖f32‖ over the elements, and the same of the host's BF16 matrix; NaN where one
  // of them is not finite and the other is.
  double DeviceDistance(DType dtype = DType::kBf16);
  double HostDistance() const;
  // The device's values, and whether the device wrote between the rows.
  std::vector<float> DeviceValues(DType dtype = DType::kBf16);
  bool GapsAreUntouched(DType dtype = DType::kBf16);

 private:
  CudaBackend& cuda_;
  int64_t rows_, cols_, stride_;
  std::vector<float> f32_;
  std::vector<uint16_t> bf16_;
  Buffer device_f32_, device_bf16_;
};

struct LayerTime {
  std::string name;  // "norm forward [16384, 2048]"
  double bytes = 0;  // read and written, each once
  double flops = 0;  // of matrix products
  double ms = 0;     // median
};

class LayerCheck {
 public:
  explicit LayerCheck(CudaBackend& cuda);

  CudaBackend& cuda() { return cuda_; }
  ThreadPool& pool() { return pool_; }
  LayerOps& cpu() { return cpu_; }
  std::mt19937_64& random() { return random_; }
  float Normal() { return normal_(random_); }

  // Prints a line and counts a failure unless `condition`.
  void Expect(bool condition, const std::string& what);
  // The factor by which the distance of a result of `elements` elements may exceed the CPU's.
  static double Allowance(int64_t elements);
  // Judges `result` as described above.
  void ExpectClose(const std::string& name, CheckTensor& result);
  void ExpectOk(const std::string& name, const absl::Status& status);
  // `run()` of operations that have not run before keeps as much memory as ScratchBytes() says,
  // `bytes`, but for a few.
  void ExpectKeeps(const std::string& name, size_t bytes, const std::function<void()>& run);
  int64_t failures() const { return failures_; }
  int64_t checks() const { return checks_; }

  // Median device time of `run(i)`, which should use other tensors for each i modulo some number,
  // so that the second-level cache does not help. Adds a row to the table.
  void Time(const std::string& name, double bytes, double flops,
            const std::function<absl::Status(int)>& run, int runs = 30);
  // Bytes read and written per second by a copy of a gigabyte.
  double CopyRate();
  // The table: time, bytes, rate, and the fraction of the copy and GEMM rates measured on the same
  // card.
  void PrintTimes(double copy_bytes_per_second, double gemm_flops) const;

 private:
  CudaBackend& cuda_;
  ThreadPool pool_;
  CpuLayerOps cpu_;
  std::mt19937_64 random_{1};
  std::normal_distribution<float> normal_;
  int64_t failures_ = 0, checks_ = 0;
  std::vector<LayerTime> times_;
};

// With `few` every third of the cases, for tools that make kernels a hundred times slower.
template <class Case>
std::vector<Case> CasesOf(bool few, const std::vector<Case>& cases) {
  if (!few) return cases;
  std::vector<Case> kept;
  for (size_t i = 0; i < cases.size(); i += 3) kept.push_back(cases[i]);
  return kept;
}

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_LAYER_CHECK_H_
