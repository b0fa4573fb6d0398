// Which Hugging Face transformers model class a model is, the tensor of that class that stores each
// of its parameters, and the encoding of weight elements. Export and import share this table:
//
//   nemotron_h   mixers in any order, RMSNorm, squared ReLU, no positions, no biases, own head
//   llama        attention and MLP in turn, RMSNorm, SwiGLU, RoPE; head tied or not
//   arcee        llama with squared ReLU in place of SwiGLU
//   gpt2         attention and MLP in turn, LayerNorm, GELU, learned positions, biases
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_WORKER_INTEROP_HF_LAYOUT_H_
#define NIBBLE_WORKER_INTEROP_HF_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/safetensors/dtype.h"
#include "model/outline.h"

namespace nibble {

enum class HfClass : uint8_t { kNemotronH, kLlama, kArcee, kGpt2 };

struct HfClassInfo {
  HfClass id;
  std::string_view model_type;    // config.json's model_type: "llama"
  std::string_view architecture;  // "LlamaForCausalLM"
  // Begins the name of every tensor but the head's. Files of the bare model, without a head, omit
  // it.
  std::string_view prefix;
  // Linears are Conv1D modules, whose weights are [in, out].
  bool transposed_linears;
};

std::span<const HfClassInfo> HfClasses();
const HfClassInfo& Info(HfClass id);
// Null for a model type that is not one of HfClasses().
const HfClassInfo* FindHfClass(std::string_view model_type);

// One tensor of the file.
struct HfTensor {
  std::string name;
  std::vector<int64_t> shape;  // in the file
  int64_t param = 0;           // index in Outline::params
  // The rows of the parameter, as [shape[0], product of the others], that this tensor stores.
  int64_t first_row = 0;
  int64_t rows = 0;
  bool transposed = false;  // the file has [columns, rows]

  int64_t elements() const;
  // The module a linear's weight belongs to: the name without ".weight" or ".bias".
  std::string_view module() const;
};

struct HfModelLayout {
  HfClass model_class = HfClass::kLlama;
  std::vector<HfTensor> tensors;  // parameters in the outline's order, each one's rows in order
};

// FailedPrecondition that names for each class why it does not fit.
absl::StatusOr<HfModelLayout> HfLayout(const Outline& outline);

// F32, BF16 and F16: FP32 represents all their values.
bool IsWeightType(FileDType dtype);

// IEEE half precision, infinities and NaN included.
float DecodeF16(uint16_t bits);

// Element `index` of little-endian bytes at any address; `dtype` is a weight type.
float DecodeElement(FileDType dtype, const std::byte* bytes, size_t index);

// Appends `values` as F32 or BF16 (rounded to nearest even).
void AppendElements(FileDType dtype, absl::Span<const float> values, std::vector<std::byte>& out);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INTEROP_HF_LAYOUT_H_
