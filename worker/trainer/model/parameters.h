// A model's parameters.
//
//   ParameterView   what layers are built over, in training and in inference
//   Parameters      of training: parameters and gradients as two flat FP32 vectors in the order of
//                   the outline, so that collectives, optimizer and checkpoints use one array and
//                   layers use named parts of it. Each parameter starts at a multiple of
//                   kParameterAlign elements; the gaps are always zero. Ranks share the vectors
//                   bucket by bucket.
//
// With several ranks each stores its part of the weights in a vector of its own, the masters, and
// gathers the others' for the passes. At the lowest level of sharding, and the next, what passes
// read in FP32 has a place of its own; weights of which layers keep working copies all step take
// turns in one slot, where they are only until these are made.
//
// With ranks that shard gradients or weights, such a vector is not in memory: its buckets take
// turns in slots, in the order of a pass: gradients in two, each of which is used again once its
// bucket has been reduced, weights in one, while the next bucket arrives elsewhere. The address of
// a parameter never changes, but several parameters have the same one.
//
// Ownership: Parameters owns all vectors, in the device's memory; the outline is copied.
// Thread-safety: none.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_PARAMETERS_H_
#define NIBBLE_WORKER_TRAINER_MODEL_PARAMETERS_H_

#include <array>
#include <cstddef>
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

// What the update of a weight may write for the next step, so that no pass over the weight makes it
// again.
struct WorkingCopy {
  uint16_t* bf16 = nullptr;  // [elements of the parameter], its BF16 rounding; or null
  float* amax = nullptr;     // [1], its largest magnitude; or null
};

// Adjacent parameters whose gradients are complete at one moment of the backward pass, and which
// ranks share as one: each owns an equal part, a multiple of kParameterAlign elements.
struct Bucket {
  int64_t first = 0;  // of the flat vectors
  int64_t elements = 0;
  // Complete after the backward pass of this block; of none before the first: at its end.
  int64_t block = 0;
  // Written from the backward pass of this block on; from that of the head, with the final norm:
  // spec.blocks().
  int64_t begins = 0;
  // Where it is in memory if buckets take turns. Of gradients adjacent buckets differ. The
  // embedding of a tied head is in use from the beginning to the end of a pass, and has slots of
  // its own.
  int gradient_slot = 0, weight_slot = 0;
  // Parts end between strips of this many rows of linear weights, so that the owner of a strip can
  // quantise it; 0: anywhere. Of a weight whose rows do not divide: of a common divisor.
  int64_t strip_rows = 0;
};

class Parameters : public ParameterView {
 public:
  // A smaller bucket is merged with those before it: an exchange has a cost of its own.
  static constexpr int64_t kBucketBytes = int64_t{16} << 20;

  static constexpr int kSlots = 3;
  // Strips have the rows of the largest blocks, of formats with a scale per 128, 32 or 16 elements,
  // for which a bucket grows by no more than a sixteenth (of needed rows: a half), or
  // kFreePadding.
  static constexpr std::array<int64_t, 3> kStripRows = {128, 32, 16};
  static constexpr int64_t kFreePadding = int64_t{1} << 16;  // elements

  struct Options {
    int world = 1;
    int64_t bucket_bytes = kBucketBytes;
    // The vector's buckets take turns in slots. Ignored with a world of 1, which shards nothing.
    bool shards_gradients = false;
    bool shards_weights = false;
    int rank = 0;  // the owner of the masters
    // Layers read linear weights in place, in FP32, and have no working copies.
    bool reads_fp32 = false;
    // The run's recipe needs strips of these rows (StripRowsOf() in linear.h).
    int64_t needed_strip_rows = kStripRows.back();
    int64_t most_strip_rows = kStripRows[0];
  };
  // Initialises each weight as a function of (seed, parameter's name, element), so that it does not
  // depend on ranks or the order of parameters. Gradients are zero.
  static absl::StatusOr<std::unique_ptr<Parameters>> Create(const Device& device,
                                                            const Outline& outline, uint64_t seed,
                                                            const Options& options);
  static absl::StatusOr<std::unique_ptr<Parameters>> Create(const Device& device,
                                                            const Outline& outline, uint64_t seed) {
    return Create(device, outline, seed, Options());
  }

  const Outline& outline() const override { return outline_; }
  // Elements of the flat vectors, gaps included.
  int64_t elements() const { return elements_; }
  int64_t offset(int64_t param) const { return offsets_[param]; }
  // In the order of the flat vectors, which they cover; the backward pass completes the last first.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  int64_t bucket_of(int64_t param) const { return bucket_of_[param]; }
  // The rows of the strips in which a linear weight is divided between ranks; 0: it has none.
  int64_t strip_rows(int64_t param) const;

  bool gradients_take_turns() const { return options_.shards_gradients && options_.world > 1; }
  bool weights_take_turns() const { return options_.shards_weights && options_.world > 1; }
  // Each rank stores its part of the weights.
  bool weights_are_gathered() const { return options_.world > 1; }
  // What gradients that take turns would not take of the memory.
  size_t BytesOfGradientTurns() const;
  // In memory.
  size_t gradient_bytes() const { return gradients_.bytes(); }
  size_t weight_bytes() const { return weights_.bytes() + masters_.bytes(); }

  // The flat vectors, null if there is none: of weights that are gathered, of gradients that take
  // turns.
  float* weights() const { return weights_are_gathered() ? nullptr : weights_.data<float>(); }
  float* gradients() const { return gradients_take_turns() ? nullptr : gradients_.data<float>(); }
  // [bucket.elements], in its slot if buckets take turns.
  float* bucket_gradients(int64_t bucket) const { return bucket_gradients_[bucket]; }
  // [elements() / world]: this rank's part of each bucket, one after another.
  float* masters() const { return (masters_ ? masters_ : weights_).data<float>(); }
  // [elements of the parameter, rounded up to kParameterAlign].
  float* weight(int64_t param) const override { return weight_places_[param]; }
  float* gradient(int64_t param) const override {
    const int64_t bucket = bucket_of_[param];
    return bucket_gradients_[bucket] + offsets_[param] - buckets_[bucket].first;
  }
  ConstMatrix matrix(int64_t param) const override;

 private:
  Parameters() = default;
  // The parameters [first, end) as a bucket: offsets in it, and its size.
  struct Layout {
    std::vector<int64_t> offsets;
    int64_t elements = 0;
  };
  Layout Place(size_t first, size_t end, int64_t strip_rows) const;
  void LayOut();
  absl::Status AllocateWeights(const Device& device);
  absl::Status AllocateGradients(const Device& device);
  // Whether passes read it in FP32, though its weights do not take turns.
  bool HasAPlace(const ParamInfo& param) const;
  // The elements of each slot.
  std::array<int64_t, kSlots> SlotSizes(int Bucket::*slot) const;
  absl::Status Initialise(const Device& device, uint64_t seed);

  Outline outline_;
  Options options_;
  std::vector<int64_t> offsets_, bucket_of_;
  std::vector<Bucket> buckets_;
  int64_t elements_ = 0;
  Buffer weights_, gradients_, masters_;
  std::vector<float*> weight_places_;     // by parameter
  std::vector<float*> bucket_gradients_;  // by bucket
};

// The request for the initial weights of one parameter. out: [param.elements()]
FillInitial InitialValues(const ParamInfo& param, uint64_t seed, float* out);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_PARAMETERS_H_
