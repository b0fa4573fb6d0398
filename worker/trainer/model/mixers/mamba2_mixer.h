// The Mamba-2 mixer: in_proj to z | xBC | dt, convolution and SiLU over xBC, scan, gated norm,
// out_proj.
//
// Ownership, thread-safety: as Mixer.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_MIXERS_MAMBA2_MIXER_H_
#define NIBBLE_WORKER_TRAINER_MODEL_MIXERS_MAMBA2_MIXER_H_

#include <memory>

#include "worker/trainer/model/mixer.h"

namespace nibble {

absl::StatusOr<std::unique_ptr<Mixer>> MakeMamba2Mixer(const Device& device,
                                                       const Parameters& parameters, int64_t block,
                                                       DType dtype);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_MIXERS_MAMBA2_MIXER_H_
