#include "worker/trainer/loop/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "job/recipe_check.h"
#include "job/schedule.h"
#include "worker/link/trainer_exit.h"

namespace nibble {

// The time of a step's parts.
struct StepSeconds {
  double data = 0;
  double weights = 0;
  double forward = 0;
  double backward = 0;
  double reduce = 0;
  double update = 0;
};

namespace {

constexpr size_t kMaxBadOperands = 3;

absl::Status AllocateInts(Memory& memory, int64_t n, Buffer& out) {
  NIBBLE_ASSIGN_OR_RETURN(Buffer buffer, memory.Allocate(static_cast<size_t>(n) * sizeof(int32_t)));
  out = std::move(buffer);
  return absl::OkStatus();
}

// Adds the time since the last mark to one of the step's parts.
class Stopwatch {
 public:
  explicit Stopwatch(const Trainer::Clock& clock) : clock_(clock), mark_(clock()) {}
  void Lap(double& part) {
    const double now = clock_();
    part += now - mark_;
    mark_ = now;
  }

 private:
  const Trainer::Clock& clock_;
  double mark_;
};

void SetSeconds(const StepSeconds& seconds, double total, StepReport& report) {
  v1::StepSample& sample = report.sample;
  sample.set_data_seconds(seconds.data);
  sample.set_weights_seconds(seconds.weights);
  sample.set_forward_seconds(seconds.forward);
  sample.set_backward_seconds(seconds.backward);
  sample.set_reduce_seconds(seconds.reduce);
  sample.set_update_seconds(seconds.update);
  sample.set_step_seconds(total);
  sample.set_tokens_per_second(total > 0 ? static_cast<double>(report.tokens) / total : 0);
}

int64_t CountingTargets(const Batch& batch) {
  return static_cast<int64_t>(batch.targets.size()) -
         std::count(batch.targets.begin(), batch.targets.end(), kIgnoredTarget);
}

}  // namespace

Trainer::Trainer(const JobSpec& spec, const Options& options)
    : spec_(spec),
      options_(options),
      micro_batches_(SequencesPerRank(spec) / MicroBatch(spec)),
      tokens_(MicroBatch(spec) * spec.data.sequence),
      timeline_(MakeTimeline(spec)),
      early_stop_(spec.early_stop.patience, spec.early_stop.min_delta) {
  if (spec.guards.spike != SpikePolicy::kOff) {
    guard_.emplace(
        SpikeGuard::Options{.z = spec.guards.spike_z, .window = spec.guards.spike_window});
  }
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const JobSpec& spec,
                                                         const Options& options) {
  if (spec.resources.ranks != options.collective.world()) {
    return absl::InvalidArgumentError(absl::StrCat("resources.ranks: ", spec.resources.ranks,
                                                   ", but the group has ",
                                                   options.collective.world()));
  }
  std::unique_ptr<Trainer> trainer(new Trainer(spec, options));
  const OptimizerSpec& o = spec.optimizer;
  NIBBLE_ASSIGN_OR_RETURN(
      std::unique_ptr<ShardedAdamW> optimizer,
      ShardedAdamW::Create(options.device, options.parameters, options.collective,
                           {.beta1 = static_cast<float>(o.beta1),
                            .beta2 = static_cast<float>(o.beta2),
                            .epsilon = static_cast<float>(o.epsilon),
                            .weight_decay = static_cast<float>(o.weight_decay),
                            .clip_norm = static_cast<float>(o.clip_norm)}));
  trainer->optimizer_ = std::move(optimizer);

  Memory& memory = options.device.memory();
  const int64_t tokens = trainer->tokens_;
  NIBBLE_RETURN_IF_ERROR(AllocateInts(memory, tokens, trainer->token_ids_));
  NIBBLE_RETURN_IF_ERROR(AllocateInts(memory, tokens, trainer->targets_));
  NIBBLE_RETURN_IF_ERROR(AllocateInts(memory, tokens, trainer->doc_begin_));
  NIBBLE_RETURN_IF_ERROR(AllocateFloats(memory, tokens, trainer->loss_));
  NIBBLE_RETURN_IF_ERROR(trainer->SetRecipe(0));
  trainer->host_loss_.resize(tokens);
  return trainer;
}

Trainer::Position Trainer::position() const {
  return {.next_step = next_step_,
          .updates = updates_,
          .guard = guard_.has_value() ? guard_->state() : SpikeGuard::State(),
          .early_stop = early_stop_.state(),
          .timeline = timeline_};
}

absl::Status Trainer::Restore(Position position) {
  if (position.next_step < 0 || position.next_step > spec_.training.steps) {
    return absl::InvalidArgumentError(absl::StrCat("next step: ", position.next_step,
                                                   " is not in [0, ", spec_.training.steps,
                                                   "], training.steps"));
  }
  if (position.updates < 0 || position.updates > position.next_step) {
    return absl::InvalidArgumentError(
        absl::StrCat("updates: ", position.updates, " is not in [0, ", position.next_step, "]"));
  }
  if (position.timeline.revisions().empty()) {
    return absl::InvalidArgumentError("recipe timeline: it has no revision");
  }
  for (const Revision& revision : position.timeline.revisions()) {
    if (!revision.refused.empty()) continue;
    NIBBLE_RETURN_IF_ERROR(CheckRecipe(revision.recipe));
  }
  if (guard_.has_value()) {
    NIBBLE_RETURN_IF_ERROR(guard_->Restore(std::move(position.guard)));
  }
  early_stop_.Restore(position.early_stop);
  next_step_ = position.next_step;
  updates_ = position.updates;
  skipped_in_a_row_ = non_finite_in_a_row_ = 0;
  timeline_ = std::move(position.timeline);
  revision_ = 0;  // the number may be of another recipe now
  return absl::OkStatus();
}

absl::Status Trainer::CheckRecipe(const Recipe& recipe) const {
  return nibble::CheckRecipe(recipe, outline(), spec_);
}

absl::Status Trainer::PrepareRecipe() {
  return SetRecipe(std::min(next_step_, spec_.training.steps - 1));
}

absl::Status Trainer::SetRecipe(int64_t step) {
  const Revision& revision = timeline_.At(step);
  if (revision.number == revision_) return absl::OkStatus();
  revision_ = 0;
  NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe recipe,
                          Resolve(revision.recipe, outline(), tokens_));
  if (model_ == nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(
        std::unique_ptr<Model> model,
        Model::Create(
            options_.device, options_.parameters, recipe,
            {.activations =
                 spec_.training.precision == JobPrecision::kFp32 ? DType::kF32 : DType::kBf16,
             .sequences = MicroBatch(spec_),
             .length = spec_.data.sequence,
             .recompute = spec_.training.recompute == JobRecompute::kBlocks}));
    model_ = std::move(model);
  } else {
    NIBBLE_RETURN_IF_ERROR(model_->SetRecipe(recipe));
  }
  revision_ = revision.number;
  return absl::OkStatus();
}

absl::Status Trainer::LoadBatch(const Batch& batch) {
  if (batch.sequences != MicroBatch(spec_) || batch.length != spec_.data.sequence) {
    return absl::InvalidArgumentError(absl::StrCat("micro-batch of [", batch.sequences, ", ",
                                                   batch.length, "], not [", MicroBatch(spec_),
                                                   ", ", spec_.data.sequence, "]"));
  }
  Memory& memory = options_.device.memory();
  const size_t bytes = static_cast<size_t>(tokens_) * sizeof(int32_t);
  NIBBLE_RETURN_IF_ERROR(memory.CopyIn(token_ids_.data(), batch.tokens.data(), bytes));
  NIBBLE_RETURN_IF_ERROR(memory.CopyIn(targets_.data(), batch.targets.data(), bytes));
  return memory.CopyIn(doc_begin_.data(), batch.doc_begin.data(), bytes);
}

StepContext Trainer::ContextFor(int64_t step, int64_t micro) const {
  const int64_t before = options_.collective.rank() * micro_batches_ + micro;
  return {.seed = spec_.training.seed,
          .step = step,
          .layout = {.sequences = MicroBatch(spec_),
                     .length = spec_.data.sequence,
                     .doc_begin = doc_begin_.data<int32_t>()},
          .first_token = before * tokens_,
          .batch_tokens = TokensPerStep(spec_),
          .first_micro_batch = micro == 0};
}

absl::StatusOr<double> Trainer::SumLosses() {
  NIBBLE_RETURN_IF_ERROR(options_.device.backend.Synchronize());
  NIBBLE_RETURN_IF_ERROR(options_.device.memory().CopyOut(host_loss_.data(), loss_.data(),
                                                          host_loss_.size() * sizeof(float)));
  double sum = 0;
  for (const float loss : host_loss_) sum += loss;
  return sum;
}

absl::Status Trainer::FindBadOperands(StepReport& report, int64_t& bad) {
  std::vector<OperandFigures> figures;
  NIBBLE_RETURN_IF_ERROR(model_->ReadFigures(figures));
  for (const OperandFigures& f : figures) {
    if (f.head.non_finite == 0) continue;
    bad += static_cast<int64_t>(f.head.non_finite);
    if (report.bad_operands.size() < kMaxBadOperands) {
      report.bad_operands.push_back({.linear = outline().linears[f.linear].name,
                                     .role = f.role,
                                     .count = static_cast<int64_t>(f.head.non_finite)});
    }
  }
  report.figures = std::move(figures);
  return absl::OkStatus();
}

absl::Status Trainer::RunMicroBatches(const BatchSource& batches, StepReport& report,
                                      StepSeconds& seconds, double& loss_sum, double& targets,
                                      int64_t& bad) {
  Stopwatch watch(options_.clock);
  const int64_t step = report.sample.step();
  const int64_t every = spec_.metrics.precision_every;
  const bool sampled = every > 0 && step % every == 0;
  for (int64_t micro = 0; micro < micro_batches_; ++micro) {
    NIBBLE_ASSIGN_OR_RETURN(Batch batch, batches(step, micro));
    NIBBLE_RETURN_IF_ERROR(LoadBatch(batch));
    targets += static_cast<double>(CountingTargets(batch));
    watch.Lap(seconds.data);

    StepContext context = ContextFor(step, micro);
    // Weights are quantised once a step, before the first micro-batch.
    context.statistics = sampled;
    if (micro == 0) NIBBLE_RETURN_IF_ERROR(model_->BeginStep(context));
    context.statistics = sampled && micro + 1 == micro_batches_;
    NIBBLE_RETURN_IF_ERROR(options_.device.backend.Synchronize());
    watch.Lap(seconds.weights);
    const ModelBatch view = {.tokens = token_ids_.data<int32_t>(),
                             .targets = targets_.data<int32_t>()};
    // Every token of the step has the same weight, in any rank and micro-batch.
    const auto scale = static_cast<float>(1.0 / static_cast<double>(TokensPerStep(spec_)));
    NIBBLE_RETURN_IF_ERROR(model_->Forward(context, view, scale, loss_.data<float>()));
    NIBBLE_ASSIGN_OR_RETURN(const double sum, SumLosses());
    loss_sum += sum;
    watch.Lap(seconds.forward);
    NIBBLE_RETURN_IF_ERROR(model_->Backward(context, view));
    NIBBLE_RETURN_IF_ERROR(FindBadOperands(report, bad));
    watch.Lap(seconds.backward);
  }
  if (!sampled) report.figures.clear();
  return absl::OkStatus();
}

absl::Status Trainer::JudgeNonFinite(StepReport& report) {
  const GuardSpec& guards = spec_.guards;
  const std::string what = absl::StrCat("step ", report.sample.step(), ": ", report.skip_reason);
  if (guards.non_finite == NonFinitePolicy::kStop) {
    return WithExit(absl::AbortedError(absl::StrCat("guards.non_finite: stop; ", what)),
                    TrainerExit::kGuardFail);
  }
  if (++non_finite_in_a_row_ < guards.max_skips) return absl::OkStatus();
  report.last_skip = true;
  TrainerExit exit = TrainerExit::kGuardPause;
  if (guards.after_skips == SkipsPolicy::kRollBack) exit = TrainerExit::kGuardRollback;
  if (guards.after_skips == SkipsPolicy::kFail) exit = TrainerExit::kGuardFail;
  return WithExit(absl::AbortedError(absl::StrCat("guards.max_skips: ", guards.max_skips,
                                                  " steps in a row were skipped, the last ", what)),
                  exit);
}

absl::Status Trainer::Step(const BatchSource& batches, StepReport& report) {
  const int64_t step = next_step_;
  report = {.tokens = TokensPerStep(spec_)};
  v1::StepSample& sample = report.sample;
  sample.set_step(step);
  sample.set_tokens((step + 1) * report.tokens);
  const double begin = options_.clock();
  NIBBLE_RETURN_IF_ERROR(SetRecipe(step));
  sample.set_revision(revision_);
  sample.set_revision_first_step(timeline_.At(step).first_step);
  sample.set_learning_rate(LearningRate(spec_.optimizer, spec_.training.steps, step));

  StepSeconds seconds;
  double loss_sum = 0;
  double targets = 0;
  int64_t bad = 0;
  absl::Status status = RunMicroBatches(batches, report, seconds, loss_sum, targets, bad);
  if (!status.ok()) return status;

  Stopwatch watch(options_.clock);
  NIBBLE_ASSIGN_OR_RETURN(const float norm, optimizer_->ReduceGradients());
  double shared[] = {loss_sum, targets, static_cast<double>(bad)};
  status = options_.collective.AllReduce(shared, 3, Reduction::kSum);
  if (!status.ok()) return status;
  watch.Lap(seconds.reduce);
  sample.set_loss(shared[1] > 0 ? shared[0] / shared[1] : 0.0);
  sample.set_gradient_norm(norm);
  sample.set_updated(true);

  const bool finite =
      std::isfinite(sample.loss()) && std::isfinite(sample.gradient_norm()) && shared[2] == 0;
  if (!finite) {
    sample.set_updated(false);
    report.skip_reason =
        absl::StrCat("not finite: loss ", sample.loss(), ", gradient norm ", sample.gradient_norm(),
                     ", ", static_cast<int64_t>(shared[2]), " elements of quantised operands");
  } else if (guard_.has_value()) {
    const SpikeGuard::Verdict verdict = guard_->Observe(sample.loss());
    report.spike = verdict.spike;
    report.spike_z = verdict.z;
    if (verdict.spike && spec_.guards.spike == SpikePolicy::kSkip) {
      sample.set_updated(false);
      report.skip_reason = absl::StrCat("loss ", sample.loss(), " is a spike: z ", verdict.z);
    }
  }
  if (sample.updated()) {
    status = optimizer_->Update(updates_ + 1, sample.learning_rate());
    if (status.ok()) status = options_.device.backend.Synchronize();
    if (!status.ok()) return status;
    ++updates_;
    skipped_in_a_row_ = non_finite_in_a_row_ = 0;
  } else {
    ++skipped_in_a_row_;
  }
  watch.Lap(seconds.update);
  SetSeconds(seconds, options_.clock() - begin, report);
  if (!finite) {
    if (status = JudgeNonFinite(report); !status.ok()) return status;
  }
  ++next_step_;
  return absl::OkStatus();
}

absl::StatusOr<double> Trainer::Validate(const BatchSource& batches, int64_t count) {
  absl::Status status = PrepareRecipe();
  if (!status.ok()) return status;
  double shared[] = {0, 0};
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t micro = 0; micro < micro_batches_; ++micro) {
      NIBBLE_ASSIGN_OR_RETURN(Batch batch, batches(i, micro));
      status = LoadBatch(batch);
      if (!status.ok()) return status;
      const StepContext context = ContextFor(i, micro);
      if (i == 0 && micro == 0) status = model_->BeginStep(context);
      const ModelBatch view = {.tokens = token_ids_.data<int32_t>(),
                               .targets = targets_.data<int32_t>()};
      if (status.ok()) status = model_->Evaluate(context, view, loss_.data<float>());
      if (!status.ok()) return status;
      NIBBLE_ASSIGN_OR_RETURN(const double sum, SumLosses());
      shared[0] += sum;
      shared[1] += static_cast<double>(CountingTargets(batch));
    }
  }
  status = options_.collective.AllReduce(shared, 2, Reduction::kSum);
  if (!status.ok()) return status;
  return shared[1] > 0 ? shared[0] / shared[1] : 0.0;
}

}  // namespace nibble
