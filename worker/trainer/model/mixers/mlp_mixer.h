// The feed-forward mixer: up-projection, non-linearity, down-projection.
//
// Ownership, thread-safety: as Mixer.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_MIXERS_MLP_MIXER_H_
#define NIBBLE_WORKER_TRAINER_MODEL_MIXERS_MLP_MIXER_H_

#include <memory>

#include "worker/trainer/model/mixer.h"

namespace nibble {

absl::StatusOr<std::unique_ptr<Mixer>> MakeMlpMixer(const Device& device,
                                                    const Parameters& parameters, int64_t block,
                                                    DType dtype);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_MIXERS_MLP_MIXER_H_
