// A run's state as named tensors, and back: what a checkpoint holds, so that training from it is
// bitwise the training that it was taken from.
//
// Every rank gives what it owns of weights and moments (ZeRO-1), rank 0 the rest; any world loads
// it. The tensors are named in worker/weights/state_names.h.
// Step, seed, recipe timeline, spec and formula version are in the checkpoint's header.
//
// Ownership: borrows the trainer. Thread-safety: none; between two steps.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_RUN_STATE_H_
#define NIBBLE_WORKER_TRAINER_LOOP_RUN_STATE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "job/job_spec.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/tensor_slice.h"
#include "worker/trainer/loop/trainer.h"
#include "worker/trainer/model/device.h"

namespace nibble {

class RunState {
 public:
  RunState(const JobSpec& spec, const Device& device, Trainer& trainer);

  // What this rank gives, always the same.
  const std::vector<TensorSlice>& slices() const { return slices_; }
  // Into buffers[i]: [SliceBytes(slices()[i])]. Waits for the device's queue.
  absl::Status Save(absl::Span<const absl::Span<std::byte>> buffers) const;
  // Of the step to come. The caller adds attempt and time.
  CheckpointHeader Header() const;

  // Puts the trainer where the checkpoint was taken. FailedPrecondition where it is of a newer
  // formula version or its run differs in what decides the numbers: names the field. An error of
  // reading leaves the trainer between two states: it is good for nothing more.
  absl::Status Load(const CheckpointReader& checkpoint);
  // Takes only the weights of a checkpoint of another job: the trainer stays at its first step.
  // FailedPrecondition naming the field where that job's model has other shapes; otherwise as Load.
  absl::Status LoadWeightsOf(const CheckpointReader& checkpoint);

 private:
  struct Piece {  // of a flat vector
    const float* from;
    size_t bytes;
  };
  absl::Status LoadWeights(const CheckpointReader& checkpoint);
  absl::Status LoadMoments(const CheckpointReader& checkpoint);
  absl::Status LoadCounters(const CheckpointReader& checkpoint, Trainer::Position& position);

  const JobSpec& spec_;
  Device device_;
  Trainer& trainer_;
  std::vector<TensorSlice> slices_;
  std::vector<Piece> pieces_;  // of the first slices; those of rank 0 follow
};

// What in `now` would make other numbers than `then`, besides length, schedule and places: the name
// of the first field that differs, or empty.
std::string DecisiveDifference(const JobSpec& then, const JobSpec& now);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_RUN_STATE_H_
