// GEMMs on the CUDA engine, compared with float64 sums computed from the same codes and scales and,
// where the definition leaves no choice, with the CPU engine's bits. The CPU quantises, so that the
// engine is tested alone.
//
// A result passes within a bound of its path:
//   BF16, FP32 and slices  every addition, and every multiplication by a scale, rounds within 2^-23
//                          of its result (tensor cores truncate)
//   FP4 codes on FP8       the same: sums of 128 products of FP4 codes are exact there
//   FP8 codes on FP8       2^-11 of Σ |a| |b| more: products are added with about 14 bits
// BF16 results round once more, also where they are added to C. Every case runs twice, and must
// give the same bits.
//
// Ownership: borrows backends and engines. Thread-safety: one thread at a time.
#ifndef NIBBLE_KERNELS_CUDA_GEMM_GEMM_CASES_H_
#define NIBBLE_KERNELS_CUDA_GEMM_GEMM_CASES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/gemm/cuda_gemm.h"
#include "kernels/gemm/cpu_gemm.h"
#include "kernels/gemm/gemm_testing.h"

namespace nibble {

// Which parts of a quantised operand exist on the device.
enum class CaseForm : uint8_t { kWanted, kPackedOnly, kEmulatedSource, kEmulatedCopy };

struct GemmCase {
  std::string name;  // "nvfp4 wgrad"
  testing::OperandKind a, b;
  int64_t m = 0, n = 0, k = 0;
  Contract contract_a = Contract::kCols, contract_b = Contract::kCols;
  bool crossed_a = false, crossed_b = false;  // square blocks, quantised along the other dimension
  CaseForm form = CaseForm::kWanted;
  DType c = DType::kF32;
  int64_t gap = 0;  // elements between the rows of C
  float alpha = 1.0f;
  bool accumulate = false;
  uint32_t seed = 1;
};

// The matmuls of every preset's layers, each once, at a shape that is odd in the formats' blocks.
std::vector<GemmCase> PresetCases();
// Every pair of formats, in all three contractions, with forms, results and alphas in turn.
std::vector<GemmCase> PairCases();
// Shapes, alignments and crossings that conversions and fallbacks depend on.
std::vector<GemmCase> EdgeCases();

struct PathTally {
  int64_t cases = 0;
  int64_t elements = 0;
  int64_t outside = 0;       // elements outside the bound, or not finite
  int64_t unrepeatable = 0;  // cases
  int64_t not_cpu_bits = 0;  // elements, where the CPU's bits are expected
  int64_t failed = 0;        // cases that the engine refused
  double worst = 0;          // largest error / bound
  double worst_sum = 0;      // largest error / Σ |a| |b|, of FP32 results
};

class GemmChecker {
 public:
  explicit GemmChecker(CudaBackend& cuda);

  // Runs a case on an engine; differences are counted, and the first ones printed.
  // `second`: how the second run is enqueued; without it as the first.
  using Runner = std::function<absl::Status(const GemmRequest&)>;
  void Run(CudaGemm& gemm, const GemmCase& check, const Runner& second = {});

  const std::map<std::string, PathTally>& by_path() const { return by_path_; }
  // Elements and cases that are wrong.
  int64_t failures() const;
  void Print() const;

 private:
  struct Device;
  absl::StatusOr<Device> Upload(const GemmOperand& host, const OperandPlan& plan, CaseForm form);
  absl::Status RunCase(CudaGemm& gemm, const GemmCase& check, const Runner& second);
  void Report(const GemmCase& check, const std::string& what);

  CudaBackend& cuda_;
  std::unique_ptr<CpuGemm> cpu_;
  std::map<std::string, PathTally> by_path_;
  int64_t reports_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_GEMM_GEMM_CASES_H_
