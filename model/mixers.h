// The mixers a pattern is made of. Everything that depends on which mixer a block has is in its
// Mixer, and one table lists them: a new mixer is a new file, its line in the table of mixers.cc,
// and its sizes in ModelSpec.
//
// Thread-safety: constants and pure functions.
#ifndef NIBBLE_MODEL_MIXERS_H_
#define NIBBLE_MODEL_MIXERS_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "model/model_spec.h"
#include "model/outline.h"

namespace nibble {

struct Mixer {
  char symbol;            // in ModelSpec::pattern
  std::string_view name;  // in the names of parameters and in LinearInfo::kind

  // Of the fields that this mixer reads. InvalidArgument naming the field, its value and what is
  // allowed.
  absl::Status (*validate)(const ModelSpec& spec);

  // Adds one block's parameters and linears in the order of the forward pass. The functions from
  // here on take a spec that validate() accepts.
  void (*add)(const ModelSpec& spec, BlockOutline& block);

  // Adds what one block computes per token of a sequence, forward, beside its linears: products
  // only, each multiply-add 2.
  void (*add_flops)(const ModelSpec& spec, int64_t sequence, FlopsPerToken& flops);

  // Bytes per token that one block saves for its backward pass, beside its input and its norm.
  // BF16 but for what the numerics keep in FP32.
  int64_t (*saved_bytes)(const ModelSpec& spec);
};

// In the order of the table.
std::span<const Mixer* const> AllMixers();

// Null for a character that stands for no mixer; never for one of a validated pattern.
const Mixer* FindMixer(char symbol);

}  // namespace nibble

#endif  // NIBBLE_MODEL_MIXERS_H_
