// A model's parameters and gradients: two flat FP32 vectors in the order of the outline, so that
// collectives, optimizer and checkpoints see one run of numbers and layers see named pieces.
//
// Each parameter starts at a multiple of kParameterAlign elements; the gaps are zero and stay so.
//
// Ownership: owns both vectors, in the device's memory; the outline is copied. Thread-safety: none.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_PARAMETERS_H_
#define NIBBLE_WORKER_TRAINER_MODEL_PARAMETERS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor/memory.h"
#include "model/outline.h"

namespace nibble {

inline constexpr int64_t kParameterAlign = 64;

class Parameters {
 public:
  // Weights drawn from the seed: each is a function of (seed, parameter's name, element), so that
  // neither ranks nor the order of parameters change it. Gradients are zero. The flat vectors are
  // padded to whole parts of kParameterAlign elements for each of `world` ranks.
  static absl::StatusOr<std::unique_ptr<Parameters>> Create(Memory& memory, const Outline& outline,
                                                            uint64_t seed, int world = 1);

  const Outline& outline() const { return outline_; }
  // Elements of the flat vectors, gaps included.
  int64_t elements() const { return elements_; }
  int64_t offset(int64_t param) const { return offsets_[param]; }

  float* weights() const { return weights_.data<float>(); }
  float* gradients() const { return gradients_.data<float>(); }
  float* weight(int64_t param) const { return weights() + offsets_[param]; }
  float* gradient(int64_t param) const { return gradients() + offsets_[param]; }

 private:
  Parameters() = default;

  Outline outline_;
  std::vector<int64_t> offsets_;
  int64_t elements_ = 0;
  Buffer weights_, gradients_;
};

// What Create writes for one parameter. out: [param.elements()]
void InitialValues(const ParamInfo& param, uint64_t seed, float* out);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_PARAMETERS_H_
