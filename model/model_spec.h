// The architecture of a model, as data: a pattern of mixers and their sizes. Independent of
// devices, recipes and files.
//
// A model is an embedding, then a block `x + mixer(norm(x))` per character of the pattern (M
// Mamba-2, * attention, - MLP), then a final norm and a head.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_MODEL_MODEL_SPEC_H_
#define NIBBLE_MODEL_MODEL_SPEC_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nibble {

enum class NormKind : uint8_t { kRmsNorm, kLayerNorm };
// The MLP's activation: squared ReLU, GELU (tanh form), or SwiGLU, whose up-projection yields gate
// | up.
enum class Activation : uint8_t { kSquaredRelu, kGelu, kSwiglu };
enum class Positions : uint8_t { kNone, kRope, kLearned };

std::string_view NormKindName(NormKind kind);         // "rmsnorm", "layernorm"
std::string_view ActivationName(Activation kind);     // "relu2", "gelu", "swiglu"
std::string_view PositionsName(Positions positions);  // "none", "rope", "learned"

struct ModelSpec {
  std::string name;     // of its preset, or given by the job
  std::string pattern;  // one mixer per block
  int64_t vocab = 0;
  int64_t d_model = 0;

  NormKind norm = NormKind::kRmsNorm;
  double norm_eps = 1e-5;
  Positions positions = Positions::kNone;
  double rope_theta = 10000.0;
  int64_t max_positions = 0;  // rows of learned positions
  bool biases = false;        // of linears; norms have them with LayerNorm, conv1d always
  bool tied_head = false;

  // '-'
  int64_t d_ff = 0;
  Activation activation = Activation::kSquaredRelu;

  // '*'
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;

  // 'M'
  int64_t mamba_heads = 0;
  int64_t mamba_head_dim = 0;
  int64_t mamba_groups = 0;
  int64_t mamba_state = 0;
  int64_t conv_width = 4;
  int64_t chunk = 128;

  double init_std = 0.02;          // of linears, embedding, learned positions and head
  bool scale_output_init = false;  // output projections by 1/sqrt(2 · blocks)

  int64_t blocks() const { return static_cast<int64_t>(pattern.size()); }
  int64_t d_inner() const { return mamba_heads * mamba_head_dim; }
  int64_t conv_dim() const { return d_inner() + 2 * mamba_groups * mamba_state; }

  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

// Checks the fields that the pattern uses: sizes of mixers that it does not have are ignored. The
// bounds (model/limits.h) keep every derived number within 64 bits.
//
// InvalidArgument naming the field, its value and what is allowed.
absl::Status Validate(const ModelSpec& spec);

// Whether parameters of a model `theirs` have the shapes and meaning of those of a model `ours`:
// pattern and sizes are the same; names, constants and initialization may differ. InvalidArgument
// naming the first field that differs, as in a job's spec, both values, and `whose` (the owner of
// `theirs`). Both specs are valid.
absl::Status CheckSameShapes(const ModelSpec& ours, const ModelSpec& theirs,
                             std::string_view whose);

// Every preset is valid. NotFound with the nearest preset's name.
absl::StatusOr<ModelSpec> ModelPreset(std::string_view name);
const std::vector<std::string>& ModelPresetNames();

}  // namespace nibble

#endif  // NIBBLE_MODEL_MODEL_SPEC_H_
