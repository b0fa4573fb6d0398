// One rank of a training run: steps, one at a time. What a step does is a function of the spec, the
// step's number and the state before it; time, disk and network stay outside.
//
// A step: recipe in force → working weights → micro-batches forward and backward → gradients summed
// over ranks → guards → update. All ranks call the same methods in the same order, and every
// decision is made from numbers that all of them share.
//
// Ownership: borrows device, collective and parameters; owns model, optimizer state and buffers.
// Thread-safety: none.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_TRAINER_H_
#define NIBBLE_WORKER_TRAINER_LOOP_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_spec.h"
#include "recipe/timeline.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/data/batch.h"
#include "worker/trainer/model/model.h"
#include "worker/trainer/optim/early_stop.h"
#include "worker/trainer/optim/sharded_adamw.h"
#include "worker/trainer/optim/spike_guard.h"

namespace nibble {

// Where a step's time went, by the injected clock.
struct StepSeconds {
  double data = 0;  // waiting for batches
  double weights = 0;
  double forward = 0;
  double backward = 0;
  double reduce = 0;  // gradients over ranks, and their norm
  double update = 0;  // AdamW and the weights' gathering
  double total = 0;
};

// A quantised operand that held NaN or infinities.
struct BadOperand {
  std::string linear;
  OperandRole role = OperandRole::kFpropActivation;
  int64_t count = 0;
};

struct StepReport {
  int64_t step = 0;
  int64_t tokens = 0;  // of all ranks
  double loss = 0;     // mean over the tokens that count
  double gradient_norm = 0;
  double learning_rate = 0;
  int64_t revision = 0;
  bool updated = true;      // false: the weights are those of the step before
  std::string skip_reason;  // where not updated
  bool last_skip = false;   // of those in a row that the spec allows: the run ends with it
  bool spike = false;       // the guard took this loss for one
  double spike_z = 0;
  std::vector<BadOperand> bad_operands;  // of this rank, three at most
  // Of this rank's last micro-batch, where the step samples them.
  std::vector<OperandFigures> figures;
  StepSeconds seconds;
};

class Trainer {
 public:
  // Micro-batch `micro` of `step` for this rank; steps and micros come in order.
  using BatchSource = std::function<absl::StatusOr<Batch>(int64_t step, int64_t micro)>;
  using Clock = std::function<double()>;  // seconds, monotonic

  struct Options {
    Device device;
    Collective& collective;
    Parameters& parameters;
    Clock clock;
  };
  // `spec` is valid (job/job_spec.h) and of collective.world() ranks.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const JobSpec& spec,
                                                         const Options& options);

  // The step to come; spec.training.steps when the run is over.
  int64_t next_step() const { return next_step_; }
  // Steps without an update up to the last one. A checkpoint is taken after an update, so that one
  // who resumes counts from 0.
  int64_t skipped_in_a_row() const { return skipped_in_a_row_; }
  int64_t micro_batches() const { return micro_batches_; }

  // Plans the memory and layouts of the step to come under its recipe, so that the step itself can
  // only compute. After an error the trainer has no recipe: make the timeline name another one for
  // that step and call again.
  absl::Status PrepareRecipe();
  // Whether the trainer's model, batch and precision can take a recipe; memory is not looked at.
  absl::Status CheckRecipe(const Recipe& recipe) const;

  // Runs one step. Aborted, with the exit code of the policy, where numbers that are not finite end
  // the run, at once or after so many skipped steps: nothing was updated, and *report says what was
  // found. Any other error leaves the step undone halfway.
  absl::Status Step(const BatchSource& batches, StepReport& report);

  // Mean loss over batches 0 … count − 1 of a source, under the recipe of the step to come.
  absl::StatusOr<double> Validate(const BatchSource& batches, int64_t count);

  // Takes the mean loss of the validation sets; whether the run is over because it no longer
  // improves.
  void ObserveValidation(double loss) { early_stop_.Observe(loss); }
  bool stops_early() const { return early_stop_.stops(); }

  // Where the run is, beside weights and moments.
  struct Position {
    int64_t next_step = 0;
    int64_t updates = 0;  // made; steps that were skipped are not among them
    SpikeGuard::State guard;
    EarlyStop::State early_stop;
    Timeline timeline;
  };
  Position position() const;
  // Between two steps, with the weights and moments of that position in place. InvalidArgument
  // names what cannot be; the trainer is then as it was.
  absl::Status Restore(Position position);

  // Adds to the timeline; see Timeline::Append. The change takes force at its step, whichever step
  // that is.
  Timeline& timeline() { return timeline_; }
  const Timeline& timeline() const { return timeline_; }
  const Model& model() const { return *model_; }
  const Outline& outline() const { return options_.parameters.outline(); }
  const Parameters& parameters() const { return options_.parameters; }
  const ShardedAdamW& optimizer() const { return *optimizer_; }
  int rank() const { return options_.collective.rank(); }

 private:
  Trainer(const JobSpec& spec, const Options& options);

  // Puts the recipe of `step` in force.
  absl::Status SetRecipe(int64_t step);
  absl::Status LoadBatch(const Batch& batch);
  StepContext ContextFor(int64_t step, int64_t micro) const;
  // Sum of the losses of the micro-batch that ran last.
  absl::StatusOr<double> SumLosses();
  absl::Status RunMicroBatches(const BatchSource& batches, StepReport& report, double& loss_sum,
                               double& targets, int64_t& bad);
  absl::Status FindBadOperands(StepReport& report, int64_t& bad);
  // What the spec makes of a step whose numbers are not finite.
  absl::Status JudgeNonFinite(StepReport& report);

  JobSpec spec_;
  Options options_;
  int64_t micro_batches_;
  int64_t tokens_;  // of a micro-batch
  Timeline timeline_;
  int64_t revision_ = 0;  // in force
  std::unique_ptr<Model> model_;
  std::unique_ptr<ShardedAdamW> optimizer_;
  std::optional<SpikeGuard> guard_;
  EarlyStop early_stop_;
  int64_t next_step_ = 0;
  int64_t updates_ = 0;
  int64_t skipped_in_a_row_ = 0;
  int64_t non_finite_in_a_row_ = 0;         // of them, since the last update
  Buffer token_ids_, targets_, doc_begin_;  // [tokens] int32
  Buffer loss_;                             // [tokens]
  std::vector<float> host_loss_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_TRAINER_H_
