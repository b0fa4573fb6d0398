// Saves a run's state as the named tensors of a checkpoint, and loads it: training resumes bit for
// bit.
//
// Every rank saves the weights and moments that it owns, rank 0 also the rest; any world size and
// any level of sharding can load the result. worker/weights/checkpoint_weights.h names the tensors.
// Step, seed, recipe timeline, spec and formula version are in the checkpoint's header.
//
// Ownership: borrows the trainer. Thread-safety: none; between two steps.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_RUN_STATE_H_
#define NIBBLE_WORKER_TRAINER_LOOP_RUN_STATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "job/job_spec.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/manifest.h"
#include "worker/trainer/loop/trainer.h"
#include "worker/trainer/model/device.h"

namespace nibble {

class RunState {
 public:
  RunState(const JobSpec& spec, const Device& device, Trainer& trainer);

  // The tensors that this rank saves; constant.
  const std::vector<TensorSlice>& slices() const { return slices_; }
  // Begins to copy into buffers[i], pinned: [SliceBytes(slices()[i])]. The copy runs beside the
  // next step, whose update waits for it.
  absl::Status Save(absl::Span<const absl::Span<std::byte>> buffers);
  // Whether the copy has ended. With `wait`, returns once it has.
  absl::StatusOr<bool> Saved(bool wait);
  // For a checkpoint of the next step. The caller adds attempt and time.
  CheckpointHeader Header() const;

  // Restores the trainer to the checkpoint. FailedPrecondition, naming the field, if the checkpoint
  // has a newer formula version or its run differs in a field that affects the numbers. After a
  // read error the trainer's state is inconsistent and it must not be used. Returns a notice for
  // people if the bits of the run will differ from here on, because its GEMMs were computed by
  // another library or card.
  absl::StatusOr<std::string> Load(const CheckpointReader& checkpoint);
  // Loads only the weights, of another job's checkpoint: the trainer stays at its first step.
  // FailedPrecondition, naming the field, if that job's model has other shapes; otherwise as
  // Load().
  absl::Status LoadWeightsOf(const CheckpointReader& checkpoint);

 private:
  struct Piece {  // a range of a flat vector
    const float* from;
    size_t bytes;
  };
  absl::Status LoadWeights(const CheckpointReader& checkpoint);
  absl::Status LoadMoments(const CheckpointReader& checkpoint);
  absl::Status LoadCounters(const CheckpointReader& checkpoint, Trainer::Position& position);
  absl::Status LoadEarlyStop(const CheckpointReader& checkpoint, Trainer::Position& position);

  const JobSpec& spec_;
  Device device_;
  Trainer& trainer_;
  std::vector<TensorSlice> slices_;
  std::vector<Piece> pieces_;  // of the first slices; the slices of rank 0 alone follow
  std::unique_ptr<Event> updated_, saved_;  // null until the first Save()
};

// The name of the first field that differs and affects the numbers, apart from length, schedule and
// paths; empty if there is none.
std::string DecisiveDifference(const JobSpec& then, const JobSpec& now);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_RUN_STATE_H_
