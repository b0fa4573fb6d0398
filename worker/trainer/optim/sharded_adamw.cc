#include "worker/trainer/optim/sharded_adamw.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {

absl::StatusOr<std::unique_ptr<ShardedAdamW>> ShardedAdamW::Create(const Device& device,
                                                                   Parameters& parameters,
                                                                   Collective& collective,
                                                                   const Options& options) {
  const int world = collective.world();
  if (parameters.elements() % (world * kParameterAlign) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("flat parameters: ", parameters.elements(),
                                                   " elements do not divide into ", world,
                                                   " parts of whole ", kParameterAlign, "s"));
  }
  std::unique_ptr<ShardedAdamW> optimizer(
      new ShardedAdamW(device, parameters, collective, options));
  optimizer->elements_ = parameters.elements() / world;
  optimizer->first_ = collective.rank() * optimizer->elements_;
  const int64_t end = optimizer->first_ + optimizer->elements_;
  const std::vector<ParamInfo>& params = parameters.outline().params;
  for (size_t i = 0; i < params.size(); ++i) {
    const int64_t begin = parameters.offset(static_cast<int64_t>(i));
    const int64_t next = i + 1 < params.size() ? parameters.offset(static_cast<int64_t>(i) + 1)
                                               : parameters.elements();
    const int64_t from = std::max(begin, optimizer->first_);
    const int64_t to = std::min(next, end);
    if (from >= to) continue;
    std::vector<Run>& runs = optimizer->runs_;
    if (!runs.empty() && runs.back().decay == params[i].decay) {
      runs.back().elements += to - from;
    } else {
      runs.push_back({from - optimizer->first_, to - from, params[i].decay});
    }
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
  NIBBLE_ASSIGN_OR_RETURN(CollectiveTurn turn, CollectiveTurn::Create(device.backend));
  optimizer->turn_.emplace(std::move(turn));
  ElementwiseOps& ops = device.ops.elementwise();
  NIBBLE_RETURN_IF_ERROR(ops.Zero(optimizer->m_.data(), static_cast<int64_t>(bytes)));
  NIBBLE_RETURN_IF_ERROR(ops.Zero(optimizer->v_.data(), static_cast<int64_t>(bytes)));
  return optimizer;
}

const float* ShardedAdamW::gradients() const {
  return summed_ ? summed_.data<float>() : parameters_.gradients();
}

absl::Status ShardedAdamW::ReduceGradients(StepNumbers* numbers) {
  if (summed_) {
    NIBBLE_RETURN_IF_ERROR(turn_->Run([&] {
      return collective_.ReduceScatter(parameters_.gradients(), summed_.data<float>(), elements_);
    }));
  }
  return device_.ops.optimizer().Run(
      SumOfSquares{.x = gradients(), .n = elements_, .sum = &numbers->squares, .add = true});
}

absl::Status ShardedAdamW::Update(const StepOutcome* outcome, int64_t update, double lr) {
  const auto t = static_cast<double>(update);
  AdamW step = {.outcome = outcome,
                .lr = static_cast<float>(lr),
                .beta1 = options_.beta1,
                .beta2 = options_.beta2,
                .eps = options_.epsilon,
                .correction1 = static_cast<float>(1.0 - std::pow(double{options_.beta1}, t)),
                .correction2 = static_cast<float>(1.0 - std::pow(double{options_.beta2}, t))};
  float* const weights = parameters_.weights() + first_;
  for (const Run& run : runs_) {
    step.n = run.elements;
    step.param = weights + run.first;
    step.m = m_.data<float>() + run.first;
    step.v = v_.data<float>() + run.first;
    step.grad = gradients() + run.first;
    step.decay = run.decay ? options_.weight_decay : 0.0f;
    NIBBLE_RETURN_IF_ERROR(device_.ops.optimizer().Run(step));
  }
  if (!summed_) return absl::OkStatus();
  return turn_->Run([&] {
    return collective_.AllGather(weights, parameters_.weights(),
                                 elements_ * int64_t{sizeof(float)});
  });
}

}  // namespace nibble
