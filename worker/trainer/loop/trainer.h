// One rank of a training run, step by step. A step is a function of the spec, its number and the
// state before it; there is no I/O and no clock here.
//
// A step: recipe in effect → working weights → micro-batches forward and backward → gradients
// summed over ranks → decision → update. All of it is enqueued on the device; then the host waits
// for the decision's few numbers, while the update runs. All ranks call the same methods in the
// same order, and every decision is made from numbers that all of them have.
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
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_spec.h"
#include "proto/nibble/v1/metrics.pb.h"
#include "recipe/timeline.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/data/batch.h"
#include "worker/trainer/loop/batch_feed.h"
#include "worker/trainer/loop/step_times.h"
#include "worker/trainer/model/model.h"
#include "worker/trainer/model/recorded_passes.h"
#include "worker/trainer/optim/loss_guards.h"
#include "worker/trainer/optim/operand_guards.h"
#include "worker/trainer/optim/sharded_adamw.h"
#include "worker/trainer/optim/step_decision.h"
#include "worker/trainer/optim/weight_gathers.h"

namespace nibble {

// A quantised operand with NaN or infinities.
struct BadOperand {
  std::string linear;
  OperandRole role = OperandRole::kFpropActivation;
  int64_t count = 0;
};

// A guard found something wrong with the step. Equal on all ranks, except for operands that a guard
// only observes, and for the texts about operands: those are rank 0's.
struct GuardDecision {
  // non-finite, spike (of the loss), gradient-norm, relative-error, underflow or clipped
  std::string guard;
  // observed, skipped (no update), promoted, roll_back, stopped, or the value of guards.after_skips
  std::string action;
  double z = 0;                       // of a spike: standard deviations above the mean
  std::string detail;                 // for people
  std::vector<std::string> operands;  // with their values, three at most
  // For roll_back: the number of consecutive steps up to this one in which a guard of the loss, the
  // norm or non-finite values found something, at least 1; and the layers that a guard of operands
  // found, all or, if they are too many to name, none.
  int64_t harmed_steps = 1;
  std::vector<std::string> layers;
  bool acts() const { return action != "observed"; }
};

// The word in `action` for a policy of the spec, by its name: "promote" gives "promoted".
std::string_view GuardActionOf(std::string_view policy);

struct StepReport {
  // Every figure. The loss is the mean over the targets that are not ignored; without an update the
  // weights are unchanged; times are the device's (step_times.h).
  v1::StepSample sample;
  int64_t tokens = 0;       // of the step, of all ranks
  std::string skip_reason;  // if not updated
  bool last_skip = false;   // the spec allows no further skip in a row: the run ends
  std::vector<GuardDecision> decisions;
  std::vector<BadOperand> bad_operands;  // of this rank, three at most
  // Figures of this rank's last micro-batch, if the step samples them.
  std::vector<OperandFigures> figures;
};

class Trainer {
 public:
  // Micro-batch `micro` of `step` for this rank; called in order.
  using BatchSource = std::function<absl::StatusOr<Batch>(int64_t step, int64_t micro)>;

  struct Options {
    Device device;
    Collective& collective;
    Parameters& parameters;
    // Ranks send quantised weights packed; otherwise as they are read to quantise them: for
    // comparisons.
    bool packs_weights = true;
  };
  // `spec` is valid (job/job_spec.h) and has collective.world() ranks.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const JobSpec& spec,
                                                         const Options& options);

  // The next step; spec.training.steps after the last one.
  int64_t next_step() const { return next_step_; }
  // Consecutive steps without an update up to the last one. Checkpoints are taken only after an
  // update, so a resumed run counts from 0.
  int64_t skipped_in_a_row() const { return skipped_in_a_row_; }
  int64_t micro_batches() const { return micro_batches_; }

  // Plans memory and layouts of the next step under its recipe, so that the step itself only
  // computes. After an error the trainer has no recipe: change the timeline for that step and call
  // again.
  absl::Status PrepareRecipe();
  // Checks a recipe against the trainer's model, batch and precision, but not against memory.
  absl::Status CheckRecipe(const Recipe& recipe) const;

  // The words of a rank's host to the others, sent with a step's numbers and requested as late as
  // possible; and the words of each rank, by rank.
  using Ask = absl::FunctionRef<HostWords()>;
  using Hear = absl::FunctionRef<void(std::vector<HostWords>)>;

  // Runs one step. Aborted, with the exit code of the policy, if a guard ends the run, at once or
  // after the allowed number of skipped steps; `report` describes the decision. After any other
  // error the step is incomplete and the state inconsistent.
  absl::Status Step(const BatchSource& batches, StepReport& report, Ask ask, Hear hear);
  absl::Status Step(const BatchSource& batches, StepReport& report) {
    return Step(
        batches, report, [] { return HostWords(); }, [](std::vector<HostWords>) {});
  }

  // Mean loss over batches 0 … count − 1 of a source, under the recipe of the next step.
  absl::StatusOr<double> Validate(const BatchSource& batches, int64_t count);

  // Records the mean loss of the validation sets; stops_early() is true once it no longer improves.
  void ObserveValidation(double loss) { early_stop_.Observe(loss); }
  bool stops_early() const { return early_stop_.stops(); }

  // The state of the run apart from weights and moments.
  struct Position {
    int64_t next_step = 0;
    int64_t updates = 0;           // steps without the skipped ones
    SpikeGuard::State guard;       // of losses
    SpikeGuard::State norm_guard;  // of gradient norms
    EarlyStop::State early_stop;
    Timeline timeline;
  };
  Position position() const;
  // Between two steps, after the weights and moments of that position are loaded. InvalidArgument
  // names the invalid field; the trainer is then unchanged.
  absl::Status Restore(Position position);

  // While set, the passes of every step are enqueued operation by operation, none from a recording.
  void EnqueueEach(bool each) { enqueue_each_ = each; }
  // Between steps: weights were written by others than the update, so that the next step makes its
  // working copies from them. Restore() implies it.
  void WeightsWereWritten() { copies_are_current_ = false; }
  // The parts of the last step, in seconds after `origin`, an event of the queue of the
  // computation. Waits for the step's update.
  absl::StatusOr<std::vector<StepTimes::Span>> LastParts(const Event& origin) {
    return times_.Spans(origin);
  }

  // No update begins before the place that the event marks, while something else reads the weights
  // and the moments. The event outlives the trainer.
  void UpdateAfter(const Event& event) { update_after_ = &event; }

  // May be changed between steps, see Timeline::Append(); a revision takes effect at its step.
  Timeline& timeline() { return timeline_; }
  const Timeline& timeline() const { return timeline_; }
  const Model& model() const { return *model_; }
  // Under the recipe in effect. Without the buffers of GEMMs and attention, which the device makes
  // in the first step, and without batches.
  MemoryPlan memory() const;
  const Outline& outline() const { return options_.parameters.outline(); }
  const Parameters& parameters() const { return options_.parameters; }
  const ShardedAdamW& optimizer() const { return *optimizer_; }
  const WeightGathers* weight_gathers() const { return exchange_.weights.get(); }  // null: none
  int64_t replayed_passes() const { return passes_.replays(); }                    // for tests
  int rank() const { return options_.collective.rank(); }

 private:
  // What ranks exchange during the passes: gradients that are complete, and weights.
  struct Exchange : PassHooks {
    absl::Status BeforeForward(int64_t part) override;
    absl::Status BeforeBackward(int64_t part) override;
    absl::Status AfterBackward(int64_t part) override;

    ShardedAdamW* optimizer = nullptr;
    std::unique_ptr<WeightGathers> weights;  // null: they are all in memory
    bool trains = false;                     // a backward pass follows the forward pass
    bool first = true, last = true;          // micro-batch of the step
  };

  Trainer(const JobSpec& spec, const Options& options);

  // Puts the recipe of `step` in effect.
  absl::Status SetRecipe(int64_t step);
  Model::Options ModelOptions() const;
  // For a model that does not fit: names the nearest settings with which it would.
  std::string WhatFits(const ResolvedRecipe& recipe) const;
  absl::StatusOr<FedBatch> LoadBatch(int64_t step, const Batch& batch);
  StepContext ContextFor(int64_t step, int64_t micro, const FedBatch& batch) const;
  // `slot`: of the first micro-batch, if what the step begins with may run from a recording.
  absl::Status BeginStep(const StepContext& context, std::optional<size_t> slot);
  absl::Status RunMicroBatches(const BatchSource& batches, int64_t step, bool sampled);
  absl::Status FindBadOperands(StepReport& report);
  // Records the outcome in the report, and applies the guards (trainer_guards.cc).
  absl::Status Judge(const StepOutcome& outcome, StepReport& report);
  // Applies the spec's policy for a step with non-finite numbers.
  absl::Status JudgeNonFinite(StepReport& report);
  // `field`: of the spec; `name`: of the guard in decisions.
  absl::Status JudgeSpike(SpikeGuard& guard, SpikePolicy policy, const char* field,
                          const char* name, const char* value_name, double value,
                          StepReport& report);
  // All ranks apply the guards to rank 0's figures of a sampled step.
  absl::Status JudgeOperands(StepReport& report);
  // The layers are BF16 in the steps after the report's. Returns a text about them.
  std::string Promote(const std::string& guard, const std::string& layers,
                      const StepReport& report);

  JobSpec spec_;
  Options options_;
  int64_t micro_batches_;
  int64_t tokens_;  // of a micro-batch
  Timeline timeline_;
  int64_t revision_ = 0;               // in effect; 0: no recipe is
  std::vector<std::string> promoted_;  // layers, in the recipe in effect
  size_t fixed_memory_ = 0;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ShardedAdamW> optimizer_;
  Exchange exchange_;
  std::optional<SpikeGuard> guard_, norm_guard_;  // of losses, of gradient norms
  EarlyStop early_stop_;
  int64_t next_step_ = 0;
  int64_t updates_ = 0;
  int64_t skipped_in_a_row_ = 0;
  int64_t non_finite_in_a_row_ = 0;  // of them, since the last update
  int64_t harmed_in_a_row_ = 0;      // steps in which guards of loss and norms found something
  Buffer loss_;                      // [tokens]
  std::unique_ptr<BatchFeed> feed_;
  std::unique_ptr<StepDecision> decision_;
  RecordedPasses passes_;
  StepTimes times_;
  bool enqueue_each_ = false;
  // With one rank: the working copies of the weights are those of the next step, because the last
  // update wrote them.
  bool copies_are_current_ = false;
  const Event* update_after_ = nullptr;
  Buffer figures_, strip_figures_;  // of a sampled step, pinned; of packed weights, by rank
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_TRAINER_H_
