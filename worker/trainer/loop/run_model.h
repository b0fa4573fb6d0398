// The objects that a run trains with: parameters, trainer, and the state that is saved to
// checkpoints and loaded from them.
//
// Ownership: owns all of them; borrows spec, device and collective. Thread-safety: one thread.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_RUN_MODEL_H_
#define NIBBLE_WORKER_TRAINER_LOOP_RUN_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "job/job_spec.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/loop/run_state.h"
#include "worker/trainer/loop/trainer.h"
#include "worker/trainer/report/events.h"

namespace nibble {

class RunModel {
 public:
  // `tokenizer`: the label of the data's tokenizer, which checkpoints record with the spec. Errors
  // have exit codes (run_errors.h).
  static absl::StatusOr<std::unique_ptr<RunModel>> Create(const JobSpec& spec,
                                                          const std::string& tokenizer,
                                                          const Device& device,
                                                          Collective& collective);
  RunModel(const RunModel&) = delete;
  RunModel& operator=(const RunModel&) = delete;

  // Loads the checkpoint of `step` in the store at `path`, which may be another job's if this one
  // is its fork. `attempt`: the number of this launch, for the event.
  struct Resumed {
    ResumeEvent event;
    std::string notice;  // for people, or empty
  };
  absl::StatusOr<Resumed> Resume(const std::string& path, int64_t step, int64_t attempt);
  // Loads only the weights of a checkpoint; training begins at the first step. Returns a notice for
  // people.
  absl::StatusOr<std::string> LoadWeights(const std::string& path, int64_t step);

  Trainer& trainer() { return *trainer_; }
  RunState& state() { return *state_; }
  // The number of the recipe's revision in the next step, or in the last one after it.
  int64_t revision() const;

 private:
  explicit RunModel(const JobSpec& spec) : recorded_(spec) {}

  JobSpec recorded_;  // the spec with the label of the data's tokenizer; stored in checkpoints
  std::unique_ptr<Parameters> parameters_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<RunState> state_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_RUN_MODEL_H_
