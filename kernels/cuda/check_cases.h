// Quantises the same matrix on the CPU backend and the CUDA backend and compares every output byte
// and the head, with zero tolerance.
//
// Ownership: borrows both backends. Thread-safety: one thread at a time.
#ifndef NIBBLE_KERNELS_CUDA_CHECK_CASES_H_
#define NIBBLE_KERNELS_CUDA_CHECK_CASES_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/check_data.h"
#include "kernels/cuda/cuda_backend.h"

namespace nibble {

// One copy that a case requests.
struct CheckCopy {
  bool wanted = false;
  OperandSpec spec;
  bool packed = true;
  EmulatedLayout emulated = EmulatedLayout::kNone;
  bool statistics = false;
  RandomStream random;
  bool device_step = false;  // pass the step through device memory
  // Given amax: this times the true one; 0: the call computes it. `amax_value` gives infinity and a
  // zero amax.
  float amax_factor = 0;
  bool amax_spelled = false;
  float amax_value = 0;
  bool statistics_amax = false;  // pass the true one for statistics, besides a given one
};

struct CheckCase {
  Temper temper = Temper::kNormal;
  uint64_t seed = 0;
  bool bf16 = true;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;
  int64_t offset = 0;  // elements skipped at the buffer's start, to break its alignment
  Placement placement;
  CheckCopy row;
  CheckCopy column;
  bool naive_only = false;
  bool squared_relu = false;  // of BF16: the card computes it

  std::string Name() const;
};

// A random combination of formats and options; `largest`: limit for rows and columns. Half of the
// copies are NVFP4.
CheckCase RandomCase(uint64_t seed, int64_t largest);

struct CheckTally {
  int64_t cases = 0;
  int64_t elements = 0;     // source elements, counted once per compared copy
  int64_t differences = 0;  // of bytes, codes, scales or head fields
};

class Checker {
 public:
  Checker(CpuBackend& cpu, CudaBackend& cuda) : cpu_(cpu), cuda_(cuda) {}

  // Returns an error only if a backend failed; differences are counted, and the first ones printed.
  absl::Status Run(const CheckCase& check);

  // By the kernels that ran, and by the kind of input.
  const std::map<std::string, CheckTally>& by_path() const { return by_path_; }
  const std::map<std::string, CheckTally>& by_temper() const { return by_temper_; }
  int64_t elements() const { return elements_; }
  int64_t differences() const { return differences_; }

 private:
  struct Pair;  // one copy on both sides

  absl::Status Prepare(const CheckCase& check, const CheckCopy& copy, Orientation orientation,
                       const ConstMatrix& host_x, Pair& pair);
  absl::Status Compare(const CheckCase& check, const Pair& pair, const void* x, CheckTally& tally);
  void Report(const CheckCase& check, const std::string& what);

  CpuBackend& cpu_;
  CudaBackend& cuda_;
  std::map<std::string, CheckTally> by_path_;
  std::map<std::string, CheckTally> by_temper_;
  int64_t elements_ = 0;
  int64_t differences_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_CHECK_CASES_H_
