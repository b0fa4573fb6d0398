// The kinds of mixers that a pattern may have. Everything about a model that depends on the kind of
// a block's mixer is in its MixerKind; one table lists them. A new kind is a new file, its line in
// the table of mixers.cc, and its sizes in ModelSpec. (The layers that compute are class Mixer,
// worker/trainer/model/mixer.h.)
//
// Thread-safety: constants and pure functions.
#ifndef NIBBLE_MODEL_MIXERS_H_
#define NIBBLE_MODEL_MIXERS_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "model/model_spec.h"
#include "model/outline.h"

namespace nibble {

// The BF16 and FP32 tensors of one block's passes, beside its input, its norm and the quantised
// copies of its linears: bytes per token of each. The first linear reads the norm's output, the
// last one what the mixer has computed.
struct MixerTensors {
  std::vector<int64_t> saved;     // from the forward to the backward pass, under any recipe
  std::vector<int64_t> backward;  // within the backward pass
  // The last linear's input, if nothing else of the backward pass reads it: saved only where that
  // linear's Wgrad takes it unquantised. 0: it is among `saved`.
  int64_t last_input = 0;
};

struct MixerKind {
  char symbol;            // in ModelSpec::pattern
  std::string_view name;  // in the names of parameters and in LinearInfo::kind

  // Checks the fields that this mixer reads. InvalidArgument naming the field, its value and what
  // is allowed.
  absl::Status (*validate)(const ModelSpec& spec);

  // Adds one block's parameters and linears in the order of the forward pass. The functions from
  // here on take a spec that validate() accepts.
  void (*add)(const ModelSpec& spec, BlockOutline& block);

  // Adds the operations of one block's forward pass per token of a sequence, without its linears:
  // matmuls only, each multiply-add 2.
  void (*add_flops)(const ModelSpec& spec, int64_t sequence, FlopsPerToken& flops);

  MixerTensors (*tensors)(const ModelSpec& spec);
};

// In the order of the table.
std::span<const MixerKind* const> AllMixerKinds();

// Null for a character that is not the symbol of a mixer; never null for a validated pattern.
const MixerKind* FindMixerKind(char symbol);

}  // namespace nibble

#endif  // NIBBLE_MODEL_MIXERS_H_
