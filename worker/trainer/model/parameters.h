// A model's parameters.
//
//   ParameterView   what layers are built over, in training and in inference
//   Parameters      of training: parameters and gradients as two flat FP32 vectors in the order of
//                   the outline, so that collectives, optimizer and checkpoints use one array and
//                   layers use named parts of it. Each parameter starts at a multiple of
//                   kParameterAlign elements; the gaps are always zero. Ranks share the vectors
//                   bucket by bucket.
//
// Ownership: Parameters owns both vectors, in the device's memory; the outline is copied.
// Thread-safety: none.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_PARAMETERS_H_
#define NIBBLE_WORKER_TRAINER_MODEL_PARAMETERS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor/matrix.h"
#include "kernels/tensor/memory.h"
#include "model/outline.h"
#include "worker/trainer/model/device.h"

namespace nibble {

inline constexpr int64_t kParameterAlign = 64;

// Parameters by their index in the outline, in the device's memory.
class ParameterView {
 public:
  virtual ~ParameterView() = default;
  virtual const Outline& outline() const = 0;
  // The values of a parameter that is stored in FP32: in inference, of none that matrix() gives in
  // another type.
  virtual float* weight(int64_t param) const = 0;
  // Layers add the gradient here, FP32. Null in inference.
  virtual float* gradient(int64_t param) const = 0;
  // [shape[0], …], in the type in which it is stored: FP32 in training.
  virtual ConstMatrix matrix(int64_t param) const = 0;
};

// Adjacent parameters whose gradients are complete at one moment of the backward pass, and which
// ranks share as one: each owns an equal part, a multiple of kParameterAlign elements.
struct Bucket {
  int64_t first = 0;  // of the flat vectors
  int64_t elements = 0;
  // Complete after the backward pass of this block; of none before the first: at its end.
  int64_t block = 0;
};

class Parameters : public ParameterView {
 public:
  // A smaller bucket is merged with those before it: an exchange has a cost of its own.
  static constexpr int64_t kBucketBytes = int64_t{16} << 20;

  // Initialises each weight as a function of (seed, parameter's name, element), so that it does not
  // depend on ranks or the order of parameters. Gradients are zero.
  static absl::StatusOr<std::unique_ptr<Parameters>> Create(const Device& device,
                                                            const Outline& outline, uint64_t seed,
                                                            int world = 1,
                                                            int64_t bucket_bytes = kBucketBytes);

  const Outline& outline() const override { return outline_; }
  // Elements of the flat vectors, gaps included.
  int64_t elements() const { return elements_; }
  int64_t offset(int64_t param) const { return offsets_[param]; }
  // In the order of the flat vectors, which they cover; the backward pass completes the last first.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  int64_t bucket_of(int64_t param) const { return bucket_of_[param]; }

  float* weights() const { return weights_.data<float>(); }
  float* gradients() const { return gradients_.data<float>(); }
  float* weight(int64_t param) const override { return weights() + offsets_[param]; }
  float* gradient(int64_t param) const override { return gradients() + offsets_[param]; }
  ConstMatrix matrix(int64_t param) const override;

 private:
  Parameters() = default;
  void LayOut(int world, int64_t bucket_bytes);

  Outline outline_;
  std::vector<int64_t> offsets_, bucket_of_;
  std::vector<Bucket> buckets_;
  int64_t elements_ = 0;
  Buffer weights_, gradients_;
};

// The request for the initial weights of one parameter. out: [param.elements()]
FillInitial InitialValues(const ParamInfo& param, uint64_t seed, float* out);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_PARAMETERS_H_
