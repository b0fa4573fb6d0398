#include "worker/trainer/loop/trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/counted.h"
#include "common/status_macros.h"
#include "job/recipe_check.h"
#include "job/schedule.h"
#include "worker/link/trainer_exit.h"

namespace nibble {

namespace {

void SetSeconds(const StepSeconds& seconds, StepReport& report) {
  v1::StepSample& sample = report.sample;
  sample.set_data_seconds(seconds[StepPart::kData]);
  sample.set_weights_seconds(seconds[StepPart::kWeights]);
  sample.set_forward_seconds(seconds[StepPart::kForward]);
  sample.set_backward_seconds(seconds[StepPart::kBackward]);
  sample.set_reduce_seconds(seconds[StepPart::kReduce]);
  sample.set_update_seconds(seconds[StepPart::kUpdate]);
  const double total = seconds.total();
  sample.set_step_seconds(total);
  sample.set_tokens_per_second(total > 0 ? static_cast<double>(report.tokens) / total : 0);
}

}  // namespace

Trainer::Trainer(const JobSpec& spec, const Options& options)
    : spec_(spec),
      options_(options),
      micro_batches_(SequencesPerRank(spec) / MicroBatch(spec)),
      tokens_(MicroBatch(spec) * spec.data.sequence),
      timeline_(MakeTimeline(spec)),
      early_stop_(spec.early_stop.patience, spec.early_stop.min_delta),
      passes_(options.device.backend.compute(), exchange_),
      times_(options.device.backend,
             [&collective = options.collective] { return collective.seconds_inside(); }) {
  const GuardSpec& guards = spec.guards;
  if (guards.spike != SpikePolicy::kOff) {
    guard_.emplace(SpikeGuard::Options{.z = guards.spike_z, .window = guards.spike_window});
  }
  if (guards.gradient_norm != SpikePolicy::kOff) {
    norm_guard_.emplace(
        SpikeGuard::Options{.z = guards.gradient_norm_z, .window = guards.spike_window});
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
                            .weight_decay = static_cast<float>(o.weight_decay)}));
  trainer->optimizer_ = std::move(optimizer);
  trainer->exchange_.optimizer = trainer->optimizer_.get();
  if (options.parameters.weights_are_gathered()) {
    NIBBLE_ASSIGN_OR_RETURN(trainer->exchange_.weights,
                            WeightGathers::Create(options.device, options.parameters,
                                                  trainer->optimizer(), options.collective));
  }

  NIBBLE_RETURN_IF_ERROR(AllocateFloats(options.device.memory(), trainer->tokens_, trainer->loss_));
  NIBBLE_ASSIGN_OR_RETURN(trainer->feed_,
                          BatchFeed::Create(options.device.backend, trainer->tokens_));
  NIBBLE_ASSIGN_OR_RETURN(trainer->decision_,
                          StepDecision::Create(options.device, options.collective));
  NIBBLE_RETURN_IF_ERROR(trainer->SetRecipe(0));
  return trainer;
}

Trainer::Position Trainer::position() const {
  return {.next_step = next_step_,
          .updates = updates_,
          .guard = guard_.has_value() ? guard_->state() : SpikeGuard::State(),
          .norm_guard = norm_guard_.has_value() ? norm_guard_->state() : SpikeGuard::State(),
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
  if (!position.timeline.promotions().empty()) {
    NIBBLE_RETURN_IF_ERROR(CheckRecipe(position.timeline.RecipeAt(position.next_step)));
  }
  if (guard_.has_value()) {
    NIBBLE_RETURN_IF_ERROR(guard_->Restore(std::move(position.guard)));
  }
  if (norm_guard_.has_value()) {
    NIBBLE_RETURN_IF_ERROR(norm_guard_->Restore(std::move(position.norm_guard)));
  }
  early_stop_.Restore(position.early_stop);
  copies_are_current_ = false;
  if (exchange_.weights != nullptr) exchange_.weights->Forget();
  next_step_ = position.next_step;
  updates_ = position.updates;
  skipped_in_a_row_ = non_finite_in_a_row_ = harmed_in_a_row_ = 0;
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

namespace {

absl::Status CheckNative(const std::vector<ProductUse>& products) {
  for (const ProductUse& product : products) {
    if (!product.quantized || product.native) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("training.products: native, but ", std::string(LinearGemmName(product.gemm)),
                     " of ", Counted(product.linears, "linear layer"), " would be ", product.path,
                     ": ", product.reason, "; fastest allows it"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Trainer::SetRecipe(int64_t step) {
  const Revision& revision = timeline_.At(step);
  std::vector<std::string> promoted = timeline_.PromotedAt(step);
  if (revision.number == revision_ && promoted == promoted_) return absl::OkStatus();
  revision_ = 0;
  passes_.Clear();
  copies_are_current_ = false;
  optimizer_->SetCopies({});
  NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe recipe,
                          Resolve(timeline_.RecipeAt(step), outline(), tokens_));
  if (model_ == nullptr) {
    absl::StatusOr<std::unique_ptr<Model>> model =
        Model::Create(options_.device, options_.parameters, recipe, ModelOptions());
    if (absl::IsResourceExhausted(model.status()) && options_.device.memory().use().capacity > 0) {
      return WithExit(absl::ResourceExhaustedError(
                          absl::StrCat(model.status().message(), "; ", WhatFits(recipe))),
                      TrainerExit::kSpec);
    }
    NIBBLE_RETURN_IF_ERROR(model.status());
    model_ = *std::move(model);
    model_->set_hooks(&passes_);
    // Nothing else is allocated yet but what the plan knows, and no pass has run.
    const MemoryPlan plan = memory();
    const size_t used = options_.device.memory().use().used;
    fixed_memory_ = used - std::min(used, plan.total() - plan.operations);
  } else {
    NIBBLE_RETURN_IF_ERROR(model_->SetRecipe(recipe));
  }
  if (exchange_.weights != nullptr) {
    NIBBLE_RETURN_IF_ERROR(exchange_.weights->SetModel(*model_));
  } else {
    optimizer_->SetCopies(model_->UpdatedCopies());
  }
  if (spec_.training.products == JobProducts::kNative) {
    NIBBLE_RETURN_IF_ERROR(CheckNative(model_->Products()));
  }
  revision_ = revision.number;
  promoted_ = std::move(promoted);
  return absl::OkStatus();
}

Model::Options Trainer::ModelOptions() const {
  return {
      .activations = spec_.training.precision == JobPrecision::kFp32 ? DType::kF32 : DType::kBf16,
      .sequences = MicroBatch(spec_),
      .length = spec_.data.sequence,
      .recompute = spec_.training.recompute == JobRecompute::kBlocks,
      .new_gradients = options_.collective.world() > 1};
}

MemoryPlan Trainer::memory() const {
  MemoryPlan plan = model_->memory();
  constexpr size_t kBytes = sizeof(float);
  plan.weights = parameters().weight_bytes();
  if (exchange_.weights != nullptr) plan.weights += exchange_.weights->message_bytes();
  plan.gradients = parameters().gradient_bytes() + optimizer_->sum_bytes();
  plan.moments = 2 * static_cast<size_t>(optimizer_->elements()) * kBytes;
  plan.fixed = fixed_memory_;
  return plan;
}

std::string Trainer::WhatFits(const ResolvedRecipe& recipe) const {
  const MemoryUse use = options_.device.memory().use();
  const size_t left = use.capacity - std::min(use.used, use.capacity);
  const Model::Options asked = ModelOptions();
  size_t least = 0;  // of the last settings that were tried
  const auto fits = [&](const Model::Options& options, size_t freed = 0) {
    const absl::StatusOr<MemoryPlan> plan =
        Model::Measure(options_.device, options_.parameters, recipe, options);
    if (!plan.ok()) return false;
    least = plan->of_model();
    return least <= left + freed;
  };
  const size_t freed = parameters().BytesOfGradientTurns();
  const bool sharding_helps = freed > 0 && fits(asked, freed);
  std::vector<std::string> found;
  Model::Options with = asked;
  with.recompute = true;
  if (!asked.recompute && fits(with)) {
    found.push_back(absl::StrCat("training.recompute: blocks (", BytesOfMemory(least), ")"));
  }
  // The greatest number of sequences that divides a rank's share of the batch.
  const int64_t share = SequencesPerRank(spec_);
  for (const bool recompute : {asked.recompute, true}) {
    for (int64_t sequences = asked.sequences - 1; sequences > 0; --sequences) {
      if (share % sequences != 0) continue;
      with.sequences = sequences;
      with.recompute = recompute;
      if (!fits(with)) continue;
      found.push_back(
          absl::StrCat("training.micro_batch: ", sequences,
                       recompute && !asked.recompute ? " and training.recompute: blocks" : "", " (",
                       BytesOfMemory(least), ")"));
      break;
    }
    if (!found.empty()) break;
  }
  if (sharding_helps) {
    found.push_back(
        absl::StrCat("resources.sharding: gradients, which takes ", BytesOfMemory(freed), " less"));
  }
  if (found.empty()) {
    return absl::StrCat("nor does one sequence at a time with training.recompute: blocks fit (",
                        BytesOfMemory(least), ")");
  }
  return absl::StrCat("it fits with ", absl::StrJoin(found, ", or with "));
}

absl::StatusOr<FedBatch> Trainer::LoadBatch(int64_t step, const Batch& batch) {
  if (batch.sequences != MicroBatch(spec_) || batch.length != spec_.data.sequence) {
    return absl::InvalidArgumentError(absl::StrCat("micro-batch of [", batch.sequences, ", ",
                                                   batch.length, "], not [", MicroBatch(spec_),
                                                   ", ", spec_.data.sequence, "]"));
  }
  return feed_->Load(step, batch);
}

StepContext Trainer::ContextFor(int64_t step, int64_t micro, const FedBatch& batch) const {
  const int64_t before = options_.collective.rank() * micro_batches_ + micro;
  return {.seed = RepeatSeed(spec_.training),
          .step = step,
          .step_on_device = batch.step,
          .layout = {.sequences = MicroBatch(spec_),
                     .length = spec_.data.sequence,
                     .doc_begin = batch.doc_begin},
          .first_token = before * tokens_,
          .batch_tokens = TokensPerStep(spec_),
          .new_gradients = micro == 0 || options_.collective.world() > 1};
}

absl::Status Trainer::Exchange::BeforeForward(int64_t part) {
  return weights == nullptr ? absl::OkStatus() : weights->BeforeForward(part, trains);
}

absl::Status Trainer::Exchange::BeforeBackward(int64_t part) {
  if (weights != nullptr) NIBBLE_RETURN_IF_ERROR(weights->BeforeBackward(part));
  return optimizer->BeginGradients(part);
}

absl::Status Trainer::Exchange::AfterBackward(int64_t part) {
  return optimizer->BeginReduce(part, first, last);
}

absl::Status Trainer::BeginStep(const StepContext& context, std::optional<size_t> slot) {
  if (exchange_.weights != nullptr) {
    NIBBLE_RETURN_IF_ERROR(
        exchange_.weights->BeginStep(options_.packs_weights, context.statistics));
    return model_->BeginStep(context);
  }
  model_->SetCopiesAreCurrent(copies_are_current_);
  const auto begin = [&] { return model_->BeginStep(context); };
  if (!slot.has_value()) return begin();
  return passes_.Run(
      {.kind = RecordedPasses::Kind::kWeights, .slot = *slot, .current = copies_are_current_},
      /*exchanges=*/false, begin);
}

absl::Status Trainer::RunMicroBatches(const BatchSource& batches, int64_t step, bool sampled) {
  const bool exchanges = options_.collective.world() > 1;
  const bool as_always = !sampled && !enqueue_each_;
  exchange_.trains = true;
  for (int64_t micro = 0; micro < micro_batches_; ++micro) {
    NIBBLE_ASSIGN_OR_RETURN(const Batch batch, batches(step, micro));
    NIBBLE_ASSIGN_OR_RETURN(const FedBatch fed, LoadBatch(step, batch));
    NIBBLE_RETURN_IF_ERROR(times_.End(StepPart::kData));

    StepContext context = ContextFor(step, micro, fed);
    // Weights are quantised once a step, before the first micro-batch.
    context.statistics = sampled;
    if (micro == 0) {
      NIBBLE_RETURN_IF_ERROR(
          BeginStep(context, as_always ? std::optional<size_t>(fed.slot) : std::nullopt));
    }
    context.statistics = sampled && micro + 1 == micro_batches_;
    context.new_weights = micro == 0;
    NIBBLE_RETURN_IF_ERROR(times_.End(StepPart::kWeights));
    const ModelBatch view = {.tokens = fed.tokens, .targets = fed.targets};
    // Every token of the step has the same weight, in any rank and micro-batch.
    const auto scale = static_cast<float>(1.0 / static_cast<double>(TokensPerStep(spec_)));
    const auto forward = [&]() -> absl::Status {
      NIBBLE_RETURN_IF_ERROR(model_->Forward(context, view, scale, loss_.data<float>()));
      return options_.device.ops.step().Run(AddLosses{.x = loss_.data<float>(),
                                                      .targets = fed.targets,
                                                      .n = tokens_,
                                                      .numbers = decision_->mine()});
    };
    exchange_.first = micro == 0;
    exchange_.last = micro + 1 == micro_batches_;
    const auto backward = [&]() -> absl::Status {
      NIBBLE_RETURN_IF_ERROR(model_->Backward(context, view));
      return model_->CountNonFinite(decision_->mine());
    };
    const auto run = [&](RecordedPasses::Kind kind, bool hooked,
                         absl::FunctionRef<absl::Status()> pass) {
      return as_always ? passes_.Run({.kind = kind, .micro = micro, .slot = fed.slot}, hooked, pass)
                       : pass();
    };
    // The forward pass writes the head's gradients.
    NIBBLE_RETURN_IF_ERROR(optimizer_->BeginGradients(outline().spec.blocks()));
    const bool gathers = exchanges && (micro == 0 || parameters().weights_take_turns());
    NIBBLE_RETURN_IF_ERROR(run(RecordedPasses::Kind::kForward, gathers, forward));
    NIBBLE_RETURN_IF_ERROR(times_.End(StepPart::kForward));
    NIBBLE_RETURN_IF_ERROR(run(RecordedPasses::Kind::kBackward, exchanges, backward));
    NIBBLE_RETURN_IF_ERROR(times_.End(StepPart::kBackward));
  }
  if (!sampled) return absl::OkStatus();
  Memory& pinned = options_.device.backend.pinned();
  if (figures_.bytes() < model_->figure_bytes()) {
    figures_ = Buffer();
    NIBBLE_ASSIGN_OR_RETURN(figures_, pinned.Allocate(model_->figure_bytes()));
  }
  if (exchange_.weights != nullptr) {
    if (!strip_figures_) {
      NIBBLE_ASSIGN_OR_RETURN(strip_figures_, pinned.Allocate(exchange_.weights->figure_bytes()));
    }
    NIBBLE_RETURN_IF_ERROR(exchange_.weights->CopyFigures(strip_figures_.data()));
  }
  return model_->CopyFigures(options_.device.backend.compute(), figures_.data());
}

namespace {

// The value above which the step makes no update.
double UpdateBound(const std::optional<SpikeGuard>& guard, SpikePolicy policy) {
  const bool acts = policy != SpikePolicy::kOff && policy != SpikePolicy::kObserve;
  return acts && guard.has_value() ? guard->Bound() : std::numeric_limits<double>::infinity();
}

}  // namespace

absl::Status Trainer::Step(const BatchSource& batches, StepReport& report, Ask ask, Hear hear) {
  const int64_t step = next_step_;
  report = {.tokens = TokensPerStep(spec_)};
  v1::StepSample& sample = report.sample;
  sample.set_step(step);
  sample.set_tokens((step + 1) * report.tokens);
  NIBBLE_RETURN_IF_ERROR(times_.Begin());
  const int64_t sent_before = options_.collective.sent_bytes();
  NIBBLE_RETURN_IF_ERROR(SetRecipe(step));
  sample.set_revision(revision_);
  sample.set_revision_first_step(timeline_.At(step).first_step);
  sample.set_learning_rate(LearningRate(spec_.optimizer, spec_.training.steps, step) *
                           timeline_.At(step).lr_scale);

  const int64_t every = spec_.metrics.precision_every;
  const bool sampled = every > 0 && step % every == 0;
  NIBBLE_RETURN_IF_ERROR(decision_->Clear());
  NIBBLE_RETURN_IF_ERROR(RunMicroBatches(batches, step, sampled));
  NIBBLE_RETURN_IF_ERROR(optimizer_->FinishReduce(decision_->mine()));
  NIBBLE_RETURN_IF_ERROR(decision_->Decide(
      static_cast<float>(spec_.optimizer.clip_norm), UpdateBound(guard_, spec_.guards.spike),
      UpdateBound(norm_guard_, spec_.guards.gradient_norm), ask()));
  NIBBLE_RETURN_IF_ERROR(times_.End(StepPart::kReduce));
  if (update_after_ != nullptr) {
    NIBBLE_RETURN_IF_ERROR(options_.device.backend.compute().WaitFor(*update_after_));
  }
  NIBBLE_RETURN_IF_ERROR(
      optimizer_->Update(decision_->on_device(), updates_ + 1, sample.learning_rate(), [&] {
        const bool goes_on = exchange_.weights != nullptr && step + 1 < spec_.training.steps;
        return goes_on ? exchange_.weights->BeginNextStep() : absl::OkStatus();
      }));
  // Also if there was no update: then those of this step are.
  copies_are_current_ = true;
  NIBBLE_RETURN_IF_ERROR(times_.End(StepPart::kUpdate));

  NIBBLE_ASSIGN_OR_RETURN(const StepOutcome outcome, decision_->Read());
  std::vector<HostWords> said;
  for (int rank = 0; rank < options_.collective.world(); ++rank) {
    said.push_back(decision_->said(rank));
  }
  hear(std::move(said));
  NIBBLE_ASSIGN_OR_RETURN(const StepSeconds seconds, times_.Read());
  SetSeconds(seconds, report);
  sample.set_bytes_sent(static_cast<double>(options_.collective.sent_bytes() - sent_before));
  if (sampled) {
    report.figures = model_->FiguresOf(figures_.data());
    if (exchange_.weights != nullptr) {
      exchange_.weights->MergeFigures(strip_figures_.data(), report.figures);
    }
  }
  NIBBLE_RETURN_IF_ERROR(Judge(outcome, report));
  ++next_step_;
  return absl::OkStatus();
}

absl::StatusOr<double> Trainer::Validate(const BatchSource& batches, int64_t count) {
  NIBBLE_RETURN_IF_ERROR(PrepareRecipe());
  NIBBLE_RETURN_IF_ERROR(decision_->Clear());
  exchange_.trains = false;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t micro = 0; micro < micro_batches_; ++micro) {
      NIBBLE_ASSIGN_OR_RETURN(const Batch batch, batches(i, micro));
      NIBBLE_ASSIGN_OR_RETURN(const FedBatch fed, LoadBatch(i, batch));
      StepContext context = ContextFor(i, micro, fed);
      context.new_weights = i == 0 && micro == 0;
      if (context.new_weights) NIBBLE_RETURN_IF_ERROR(BeginStep(context, std::nullopt));
      const ModelBatch view = {.tokens = fed.tokens, .targets = fed.targets};
      NIBBLE_RETURN_IF_ERROR(model_->Evaluate(context, view, loss_.data<float>()));
      NIBBLE_RETURN_IF_ERROR(
          options_.device.ops.step().Run(AddLosses{.x = loss_.data<float>(),
                                                   .targets = fed.targets,
                                                   .n = tokens_,
                                                   .numbers = decision_->mine()}));
    }
  }
  NIBBLE_RETURN_IF_ERROR(decision_->Decide(/*max_norm=*/0, /*loss_bound=*/0, /*norm_bound=*/0));
  NIBBLE_ASSIGN_OR_RETURN(const StepOutcome outcome, decision_->Read());
  return outcome.loss;
}

}  // namespace nibble
