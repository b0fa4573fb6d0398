// The list of a model's parameters and of its linear layers, the only layers that quantise. Recipes
// resolve against it; trainers and checkpoints take sizes and names from it.
//
// Names: "embedding.weight", "positions.weight", "blocks.3.norm.weight" (and ".bias"), linears
// "blocks.3.<kind>.weight" (and ".bias"), "final_norm.weight" (and ".bias"), "head.weight" (absent
// if tied); of Mamba, beside its linears, "blocks.0.mamba.conv.weight", "….conv.bias",
// "….dt_bias", "….A_log", "….D", "….norm.weight".
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_MODEL_OUTLINE_H_
#define NIBBLE_MODEL_OUTLINE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/model_spec.h"

namespace nibble {

enum class Init : uint8_t {
  kZeros,
  kOnes,
  kNormal,      // N(0, scale²)
  kUniform,     // U(-scale, scale)
  kMambaDt,     // softplus⁻¹ of exp U(ln 1e-3, ln 0.1), at least 1e-4
  kMambaDecay,  // ln U(1, 16)
};

struct ParamInfo {
  std::string name;
  std::vector<int64_t> shape;  // linears [out, in], tables [rows, d_model], conv [channels, width]
  Init init = Init::kZeros;
  double scale = 0;     // of kNormal and kUniform
  bool decay = false;   // weight decay applies: linears, embedding, positions and head only
  int64_t block = -1;   // of the pattern, -1 outside
  int64_t linear = -1;  // index in Outline::linears of the layer whose weight this is

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
};

struct LinearInfo {
  std::string name;  // "blocks.3.mlp.up"
  // "attention.qkv" (rows q | k | v), "attention.out", "mlp.up" (SwiGLU: gate | up), "mlp.down",
  // "mamba.in_proj", "mamba.out_proj".
  std::string kind;
  int64_t block = 0;
  int64_t in = 0;
  int64_t out = 0;
  bool bias = false;
  int64_t weight = 0;  // index in Outline::params; the bias, if any, follows it
};

// Made by MakeOutline; its spec is valid.
struct Outline {
  ModelSpec spec;
  std::vector<ParamInfo> params;  // in the order of the forward pass
  std::vector<LinearInfo> linears;

  int64_t parameters() const;
  // NotFound with the name.
  absl::StatusOr<int64_t> Find(std::string_view param) const;
};

// InvalidArgument as Validate(spec).
absl::StatusOr<Outline> MakeOutline(const ModelSpec& spec);

struct PartCount {
  std::string part;
  int64_t parameters = 0;
};
// "embedding" (with learned positions), each mixer of the pattern by its name ("attention", "mlp",
// "mamba"), "norms" (of blocks, and the final one), "head" (0 if tied). They add up to
// Outline::parameters().
std::vector<PartCount> ParametersByPart(const Outline& outline);

// FLOP of the forward pass per token, averaged over the positions of a sequence. Multiply-adds
// count 2; backward is twice forward; attention is counted causally over `sequence` tokens. Only
// matmuls count: no norms, activations, softmax, exponents or optimizer.
struct FlopsPerToken {
  double linears = 0;
  double attention = 0;
  double scan = 0;  // Mamba's convolution and chunked scan
  double head = 0;
  double forward() const { return linears + attention + scan + head; }
  double training() const { return 3 * forward(); }
};
// `sequence` is at least 1.
FlopsPerToken CountFlops(const Outline& outline, int64_t sequence);

// Whether a linear's output is added to the residual stream: such linears may start smaller
// (ModelSpec::scale_output_init), so that the stream does not grow with the number of blocks.
enum class LinearEnd : uint8_t { kInside, kResidual };

// Adds one block's mixer to an Outline. Names, initialisation and decay of parameters and linears
// are decided here.
//
// Ownership: borrows the Outline and the mixer's name. Thread-safety: none, as the Outline's.
class BlockOutline {
 public:
  // `outline` has its spec; `mixer` is its MixerKind::name.
  BlockOutline(Outline& outline, int64_t block, std::string_view mixer)
      : outline_(outline), block_(block), mixer_(mixer) {}

  // "blocks.<block>.<mixer>.<name>": weight [out, in], and bias [out] where the model has biases.
  void AddLinear(std::string_view name, int64_t in, int64_t out, LinearEnd end);
  // "blocks.<block>.<mixer>.<name>", never decayed: the other parameters of a mixer are vectors, or
  // filters of one vector per channel.
  void AddParam(std::string_view name, std::vector<int64_t> shape, Init init, double scale = 0);

 private:
  Outline& outline_;
  const int64_t block_;
  const std::string_view mixer_;
};

// "<prefix>.weight" [width], ones, and with LayerNorm "<prefix>.bias" [width], zeros.
void AddNorm(Outline& outline, std::string_view prefix, int64_t block, int64_t width);

}  // namespace nibble

#endif  // NIBBLE_MODEL_OUTLINE_H_
