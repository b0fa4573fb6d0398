// A model spelled out: its parameters, and its linear layers, which are the only places that
// quantise. Recipes resolve against it, trainers and checkpoints allocate and name by it.
//
// Names: "embedding.weight", "positions.weight", "blocks.3.norm.weight" (and ".bias"), linears
// "blocks.3.<kind>.weight" (and ".bias"), "final_norm.weight" (and ".bias"), "head.weight" (absent
// where tied); of Mamba beside its linears "blocks.0.mamba.conv.weight", "….conv.bias",
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
  int64_t weight = 0;  // index in Outline::params; the bias, where there is one, follows it
};

// Made by MakeOutline; what reads one relies on its spec being valid.
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
// "mamba"), "norms" (of blocks, and the final one), "head" (0 where tied). They add up to
// Outline::parameters().
std::vector<PartCount> ParametersByPart(const Outline& outline);

// Forward, per token, averaged over the positions of a sequence. Multiply-adds count 2; backward is
// twice forward; attention is counted causally at `sequence`. What is not a product (norms,
// activations, softmax, exponents, the optimizer) is not counted.
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

// Adds one block's mixer to an Outline: the one place that knows how parameters and linears are
// named, initialised and decayed.
//
// Ownership: borrows the Outline and the mixer's name. Thread-safety: none, as the Outline's.

// Whether a linear's result goes to the residual stream: those may start smaller
// (ModelSpec::scale_output_init), so that the stream does not grow with the number of blocks.
enum class LinearEnd : uint8_t { kInside, kResidual };

class BlockOutline {
 public:
  // `outline` has its spec; `mixer` is its Mixer::name.
  BlockOutline(Outline& outline, int64_t block, std::string_view mixer)
      : outline_(outline), block_(block), mixer_(mixer) {}

  // "blocks.<block>.<mixer>.<name>": weight [out, in], and bias [out] where the model has biases.
  void AddLinear(std::string_view name, int64_t in, int64_t out, LinearEnd end);
  // "blocks.<block>.<mixer>.<name>", never decayed: what a mixer has beside its linears is vectors,
  // or filters of one vector per channel.
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
