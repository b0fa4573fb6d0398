// Quantises every 2-D F32, BF16 or F16 tensor of a safetensors file into another file and copies
// the other tensors: the work of `nibble quantize`.
//
// Ownership: values. Thread-safety: reentrant; uses threads of its own.
#ifndef NIBBLE_CLIENT_LOCAL_QUANTIZE_FILE_H_
#define NIBBLE_CLIENT_LOCAL_QUANTIZE_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/isa.h"
#include "kernels/formats/philox.h"
#include "kernels/tensor/quant_stats.h"
#include "recipe/operand_spec.h"

namespace nibble {

struct QuantizeFileOptions {
  std::string input;
  std::string output;
  OperandSpec spec;
  bool transpose = false;
  RandomStream random;
  std::optional<float> amax;  // for every tensor, instead of its own
  int threads = 0;
  std::optional<cpu::Isa> isa;
};

struct QuantizedTensorReport {
  std::string name;
  std::vector<int64_t> shape;  // as in the input
  QuantStats stats;
};

struct CopiedTensorReport {
  std::string name;
  std::string reason;  // why it was not quantised, naming its shape or dtype
};

struct QuantizeFileReport {
  std::string backend;
  std::vector<QuantizedTensorReport> tensors;
  std::vector<CopiedTensorReport> copied;
};

// Writes, for each tensor T that can be quantised: T.codes, T.scales, T.amax, T.dequantized, and
// T.emulated if code · scale is exact in BF16. A tensor of another rank or dtype, or whose sizes
// are not multiples of the block, is copied unchanged. The output is atomic. Errors name the tensor
// and the value: InvalidArgument if no tensor can be quantised, NotFound if the input does not
// exist.
absl::StatusOr<QuantizeFileReport> QuantizeFile(const QuantizeFileOptions& options);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_QUANTIZE_FILE_H_
