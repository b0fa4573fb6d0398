#include "worker/trainer/optim/sharded_adamw.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {

absl::StatusOr<std::unique_ptr<ShardedAdamW>> ShardedAdamW::Create(const Device& device,
                                                                   Parameters& parameters,
                                                                   Collective& collective,
                                                                   const Options& options) {
  const int world = collective.world();
  std::unique_ptr<ShardedAdamW> optimizer(
      new ShardedAdamW(device, parameters, collective, options));
  for (const Bucket& bucket : parameters.buckets()) {
    if (bucket.elements % (world * kParameterAlign) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("bucket of parameters: ", bucket.elements,
                                                     " elements do not divide into ", world,
                                                     " parts of whole ", kParameterAlign, "s"));
    }
    const int64_t elements = bucket.elements / world;
    optimizer->parts_.push_back({.first = bucket.first + collective.rank() * elements,
                                 .elements = elements,
                                 .state = optimizer->elements_});
    optimizer->elements_ += elements;
  }
  Memory& memory = device.memory();
  const size_t bytes = static_cast<size_t>(optimizer->elements_) * sizeof(float);
  const std::pair<Buffer*, size_t> wanted[] = {
      {&optimizer->m_, bytes},
      {&optimizer->v_, bytes},
      {&optimizer->summed_, world > 1 ? bytes : 0},
  };
  for (const auto& [buffer, size] : wanted) {
    NIBBLE_ASSIGN_OR_RETURN(Buffer allocated, memory.Allocate(size));
    *buffer = std::move(allocated);
  }
  optimizer->PlanRuns();
  for (auto* events : {&optimizer->complete_, &optimizer->reduced_}) {
    events->resize(optimizer->parts_.size());
    for (std::unique_ptr<Event>& event : *events) {
      NIBBLE_ASSIGN_OR_RETURN(event, device.backend.NewEvent());
    }
  }
  optimizer->sent_.resize(
      std::max(optimizer->parts_.size(), static_cast<size_t>(Parameters::kSlots)));
  ElementwiseOps& ops = device.ops.elementwise();
  NIBBLE_RETURN_IF_ERROR(ops.Zero(optimizer->m_.data(), static_cast<int64_t>(bytes)));
  NIBBLE_RETURN_IF_ERROR(ops.Zero(optimizer->v_.data(), static_cast<int64_t>(bytes)));
  return optimizer;
}

void ShardedAdamW::SetCopies(std::vector<WorkingCopy> copies) {
  copies_ = std::move(copies);
  PlanRuns();
}

void ShardedAdamW::PlanRuns() {
  const std::vector<ParamInfo>& params = parameters_.outline().params;
  runs_.clear();
  first_runs_ = 0;
  for (size_t i = 0; i < params.size(); ++i) {
    const auto param = static_cast<int64_t>(i);
    const int64_t bucket = parameters_.bucket_of(param);
    const Bucket& within = parameters_.buckets()[bucket];
    const Part& part = parts_[bucket];
    const bool last = i + 1 == params.size() || parameters_.bucket_of(param + 1) != bucket;
    const int64_t next = last ? within.first + within.elements : parameters_.offset(param + 1);
    const int64_t from = std::max(parameters_.offset(param), part.first);
    int64_t to = std::min(next, part.first + part.elements);
    if (from >= to) continue;
    const WorkingCopy copy = copies_.empty() ? WorkingCopy() : copies_[i];
    const bool copied = copy.bf16 != nullptr || copy.amax != nullptr;
    // The gap behind a parameter stays zero, updated or not.
    if (copied) to = from + params[i].elements();
    const int64_t state = part.state + from - part.first;
    const AdamWRun run = {.n = to - from,
                          .param = weights(bucket) + from - part.first,
                          .m = m_.data<float>() + state,
                          .v = v_.data<float>() + state,
                          .grad = gradients() + state,
                          .decay = params[i].decay ? options_.weight_decay : 0.0f,
                          .bf16 = copy.bf16,
                          .amax = copy.amax};
    const bool apart = collective_.world() > 1 && bucket > 0 && runs_.size() == first_runs_;
    AdamWRun* const before = runs_.empty() || apart ? nullptr : &runs_.back();
    if (before != nullptr && !copied && before->bf16 == nullptr && before->amax == nullptr &&
        before->decay == run.decay && before->param + before->n == run.param &&
        before->m + before->n == run.m) {
      before->n += run.n;
    } else {
      runs_.push_back(run);
    }
    if (collective_.world() > 1 && bucket == 0) first_runs_ = runs_.size();
  }
}

const float* ShardedAdamW::gradients() const {
  return summed_ ? summed_.data<float>() : parameters_.gradients();
}

absl::Status ShardedAdamW::Settle(Sent& sent) {
  if (sent.bucket < 0) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(device_.backend.compute().WaitFor(*reduced_[sent.bucket]));
  if (sent.adds) {
    const Part& part = parts_[sent.bucket];
    const float* from = parameters_.bucket_gradients(sent.bucket) + part.first -
                        parameters_.buckets()[sent.bucket].first;
    const int64_t rows = part.elements / kParameterAlign;
    NIBBLE_RETURN_IF_ERROR(device_.ops.elementwise().Run(Accumulate{
        .from = ConstMatrix::Of(from, rows, kParameterAlign),
        .to = MutableMatrix::Of(summed_.data<float>() + part.state, rows, kParameterAlign)}));
  }
  sent = {};
  return absl::OkStatus();
}

absl::Status ShardedAdamW::BeginGradients(int64_t part) {
  for (size_t b = 0; b < parts_.size(); ++b) {
    if (parameters_.buckets()[b].begins != part) continue;
    NIBBLE_RETURN_IF_ERROR(Settle(SentOf(static_cast<int64_t>(b))));
  }
  return absl::OkStatus();
}

absl::Status ShardedAdamW::BeginReduce(int64_t block, bool first, bool last) {
  if (!summed_) return absl::OkStatus();
  for (size_t b = parts_.size(); b-- > 0;) {
    const Bucket& bucket = parameters_.buckets()[b];
    if (bucket.block != block) continue;
    const auto index = static_cast<int64_t>(b);
    const Part& part = parts_[b];
    float* const gradients = parameters_.bucket_gradients(index);
    float* const sums = first ? summed_.data<float>() + part.state
                              : gradients + part.first - bucket.first;  // in place
    Queue& transfers = device_.backend.transfers();
    NIBBLE_RETURN_IF_ERROR(device_.backend.compute().Record(*complete_[b]));
    NIBBLE_RETURN_IF_ERROR(transfers.WaitFor(*complete_[b]));
    const Beside beside = last && b == 0 ? Beside::kNothing : Beside::kComputation;
    NIBBLE_RETURN_IF_ERROR(collective_.ReduceScatter(gradients, sums, part.elements, beside));
    NIBBLE_RETURN_IF_ERROR(transfers.Record(*reduced_[b]));
    SentOf(index) = {.bucket = index, .adds = !first};
  }
  return absl::OkStatus();
}

absl::Status ShardedAdamW::FinishReduce(StepNumbers* numbers) {
  const auto add_squares = [&](int64_t first, int64_t n) {
    return device_.ops.optimizer().Run(
        SumOfSquares{.x = gradients() + first, .n = n, .sum = &numbers->squares, .add = true});
  };
  if (!summed_) return add_squares(0, elements_);
  // The first bucket is the last one that the backward pass completes.
  Queue& compute = device_.backend.compute();
  const int64_t first = parts_.front().elements;
  if (parts_.size() > 1) {
    NIBBLE_RETURN_IF_ERROR(compute.WaitFor(*reduced_[1]));
    for (Sent& sent : sent_) {
      if (sent.bucket != 0) NIBBLE_RETURN_IF_ERROR(Settle(sent));
    }
    NIBBLE_RETURN_IF_ERROR(add_squares(first, elements_ - first));
  }
  NIBBLE_RETURN_IF_ERROR(compute.WaitFor(*reduced_.front()));
  for (Sent& sent : sent_) NIBBLE_RETURN_IF_ERROR(Settle(sent));
  return add_squares(0, first);
}

absl::Status ShardedAdamW::Update(const StepOutcome* outcome, int64_t update, double lr,
                                  absl::FunctionRef<absl::Status()> first_updated) {
  const auto t = static_cast<double>(update);
  const auto run = [&](std::span<const AdamWRun> runs) {
    return device_.ops.optimizer().Run(
        AdamW{.runs = runs,
              .outcome = outcome,
              .lr = static_cast<float>(lr),
              .beta1 = options_.beta1,
              .beta2 = options_.beta2,
              .eps = options_.epsilon,
              .correction1 = static_cast<float>(1.0 - std::pow(double{options_.beta1}, t)),
              .correction2 = static_cast<float>(1.0 - std::pow(double{options_.beta2}, t))});
  };
  const std::span<const AdamWRun> all = runs_;
  if (first_runs_ > 0) NIBBLE_RETURN_IF_ERROR(run(all.first(first_runs_)));
  NIBBLE_RETURN_IF_ERROR(first_updated());
  return all.size() == first_runs_ ? absl::OkStatus() : run(all.subspan(first_runs_));
}

}  // namespace nibble
