// Causal grouped-query attention: qkv projection, rotary positions, attention, output projection.
//
// Ownership, thread-safety: as Mixer.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_MIXERS_ATTENTION_MIXER_H_
#define NIBBLE_WORKER_TRAINER_MODEL_MIXERS_ATTENTION_MIXER_H_

#include <memory>

#include "worker/trainer/model/mixer.h"

namespace nibble {

absl::StatusOr<std::unique_ptr<Mixer>> MakeAttentionMixer(const Device& device,
                                                          const Parameters& parameters,
                                                          int64_t block, DType dtype);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_MIXERS_ATTENTION_MIXER_H_
