// The trainer's guards: what they find wrong with a step, and what follows from it. Every decision
// that acts is made from numbers that all ranks have, so that all make the same one, and a run that
// resumes from a checkpoint before it makes it again.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/counted.h"
#include "common/status_macros.h"
#include "worker/link/trainer_exit.h"
#include "worker/trainer/loop/trainer.h"

namespace nibble {
namespace {

constexpr size_t kMaxOperandsShown = 3;
// Beyond this, the spec's promote_layers take the place of the layers that a guard found.
constexpr size_t kMaxLayersNamed = 32;

// The end of a run by a guard.
absl::Status End(const char* field, const std::string& policy, int64_t step,
                 const std::string& detail, TrainerExit exit) {
  return WithExit(absl::AbortedError(
                      absl::StrCat("guards.", field, ": ", policy, "; step ", step, ": ", detail)),
                  exit);
}

struct OperandRule {
  const char* field;  // of the spec's guards
  OperandPolicy policy;
};

OperandRule RuleOf(OperandGuard guard, const GuardSpec& guards) {
  switch (guard) {
    case OperandGuard::kRelativeError:
      return {"relative_error", guards.relative_error};
    case OperandGuard::kUnderflow:
      return {"underflow", guards.underflow};
    case OperandGuard::kClipped:
      break;
  }
  return {"clipped", guards.clipped};
}

bool Acts(OperandPolicy policy) {
  return policy != OperandPolicy::kOff && policy != OperandPolicy::kObserve;
}

OperandBounds BoundsOf(const GuardSpec& guards) {
  OperandBounds bounds;
  bounds[OperandGuard::kRelativeError] = guards.relative_error_above;
  bounds[OperandGuard::kUnderflow] = guards.underflow_above;
  bounds[OperandGuard::kClipped] = guards.clipped_above;
  return bounds;
}

}  // namespace

std::string_view GuardActionOf(std::string_view policy) {
  if (policy == "observe") return "observed";
  if (policy == "skip") return "skipped";
  if (policy == "promote") return "promoted";
  if (policy == "stop") return "stopped";
  return policy;
}

absl::Status Trainer::FindBadOperands(StepReport& report) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<OperandFigures> counts, model_->ReadNonFinite());
  for (const OperandFigures& f : counts) {
    if (f.head.non_finite == 0) continue;
    report.bad_operands.push_back({.linear = outline().linears[f.linear].name,
                                   .role = f.role,
                                   .count = static_cast<int64_t>(f.head.non_finite)});
    if (report.bad_operands.size() == kMaxOperandsShown) break;
  }
  return absl::OkStatus();
}

std::string Trainer::Promote(const std::string& guard, const std::string& layers,
                             const StepReport& report) {
  const int64_t first = report.sample.step() + 1;
  const int64_t end = first + spec_.guards.promote_steps;
  timeline_.Promote({.first_step = first, .end_step = end, .layers = layers, .guard = guard});
  return absl::StrCat(layers, " in BF16 in steps ", first, " to ", end - 1);
}

absl::Status Trainer::JudgeNonFinite(StepReport& report) {
  const GuardSpec& guards = spec_.guards;
  const int64_t step = report.sample.step();
  GuardDecision& decision = report.decisions.emplace_back();
  decision = {.guard = "non-finite",
              .action = "skipped",
              .detail = report.skip_reason,
              .harmed_steps = ++harmed_in_a_row_};
  for (const BadOperand& bad : report.bad_operands) {
    decision.operands.push_back(absl::StrCat(
        bad.linear, " ", std::string(OperandRoleName(bad.role)), ": ", bad.count, " values"));
  }
  if (guards.non_finite == NonFinitePolicy::kStop) {
    decision.action = "stopped";
    return End("non_finite", "stop", step, report.skip_reason, TrainerExit::kGuardFail);
  }
  if (guards.non_finite == NonFinitePolicy::kRollBack) {
    decision.action = "roll_back";
    return End("non_finite", "roll_back", step, report.skip_reason, TrainerExit::kGuardRollback);
  }
  if (++non_finite_in_a_row_ < guards.max_skips) {
    if (guards.non_finite == NonFinitePolicy::kPromote) {
      decision.action = "promoted";
      const std::string layers = Promote(decision.guard, PromotedLayers(guards), report);
      absl::StrAppend(&decision.detail, "; ", layers);
    }
    return absl::OkStatus();
  }
  report.last_skip = true;
  decision.action = std::string(ChoiceName(guards.after_skips));
  TrainerExit exit = TrainerExit::kGuardPause;
  if (guards.after_skips == SkipsPolicy::kRollBack) exit = TrainerExit::kGuardRollback;
  if (guards.after_skips == SkipsPolicy::kFail) exit = TrainerExit::kGuardFail;
  return WithExit(absl::AbortedError(absl::StrCat("guards.max_skips: ", guards.max_skips,
                                                  " steps in a row were skipped, the last step ",
                                                  step, ": ", report.skip_reason)),
                  exit);
}

absl::Status Trainer::JudgeSpike(SpikeGuard& guard, SpikePolicy policy, const char* field,
                                 const char* name, const char* value_name, double value,
                                 StepReport& report) {
  const SpikeGuard::Verdict verdict = guard.Observe(value);
  if (!verdict.spike) return absl::OkStatus();
  GuardDecision& decision = report.decisions.emplace_back();
  decision = {
      .guard = name, .action = "observed", .z = verdict.z, .harmed_steps = harmed_in_a_row_ + 1};
  decision.detail = absl::StrFormat("%s %g is a spike: z %.1f", value_name, value, verdict.z);
  if (verdict.new_level) absl::StrAppend(&decision.detail, "; accepted as the new level");
  // Observed spikes of one guard do not keep the other from skipping the update.
  if (policy == SpikePolicy::kObserve) return absl::OkStatus();
  if (report.skip_reason.empty()) report.skip_reason = decision.detail;
  decision.action = std::string(GuardActionOf(ChoiceName(policy)));
  if (policy == SpikePolicy::kPromote) {
    absl::StrAppend(&decision.detail, "; no update, ",
                    Promote(name, PromotedLayers(spec_.guards), report));
  }
  if (policy != SpikePolicy::kRollBack && policy != SpikePolicy::kStop) return absl::OkStatus();
  return End(field, std::string(ChoiceName(policy)), report.sample.step(), decision.detail,
             policy == SpikePolicy::kStop ? TrainerExit::kGuardFail : TrainerExit::kGuardRollback);
}

absl::Status Trainer::JudgeOperands(StepReport& report) {
  const GuardSpec& guards = spec_.guards;
  const OperandBounds bounds = BoundsOf(guards);
  const auto linears = static_cast<int64_t>(outline().linears.size());
  Collective& ranks = options_.collective;
  absl::Status end;
  for (const OperandGuard guard : kOperandGuards) {
    const OperandRule rule = RuleOf(guard, guards);
    const bool acts = Acts(rule.policy);
    // Without an action there is nothing to agree on, and only rank 0's report is read.
    if (rule.policy == OperandPolicy::kOff || (!acts && ranks.rank() != 0)) continue;
    const std::vector<OperandBreach> breaches = BreachesOf(guard, report.figures, bounds);
    std::vector<uint64_t> layers = LayerBits(breaches, linears);
    if (acts && ranks.world() > 1) {
      const size_t words = layers.size();
      NIBBLE_ASSIGN_OR_RETURN(layers, ranks.ExchangeSmall(layers));
      layers.resize(words);  // rank 0's
    }
    const std::vector<int64_t> found = LayersOf(layers);
    if (found.empty()) continue;
    GuardDecision& decision = report.decisions.emplace_back();
    decision = {.guard = std::string(OperandGuardName(guard)),
                .action = "observed",
                .harmed_steps = std::max<int64_t>(harmed_in_a_row_, 1)};
    for (const OperandBreach& breach : breaches) {
      if (decision.operands.size() == kMaxOperandsShown) break;
      decision.operands.push_back(
          absl::StrFormat("%s %s: %.4f", outline().linears[breach.linear].name,
                          std::string(OperandRoleName(breach.role)), breach.value));
    }
    decision.detail =
        absl::StrFormat("%s above %g in %s of %d", rule.field, bounds[guard],
                        Counted(static_cast<int64_t>(found.size()), "layer"), linears);
    if (!decision.operands.empty()) {
      absl::StrAppend(&decision.detail, ", most ", decision.operands.front());
    }
    if (!acts) continue;
    if (rule.policy == OperandPolicy::kPromote) {
      decision.action = "promoted";
      for (const int64_t layer : found) {
        const std::string text = Promote(decision.guard, outline().linears[layer].name, report);
        if (layer == found.front()) absl::StrAppend(&decision.detail, "; ", text);
      }
      continue;
    }
    const bool stops = rule.policy == OperandPolicy::kStop;
    decision.action = stops ? "stopped" : "roll_back";
    if (found.size() <= kMaxLayersNamed) {
      for (const int64_t layer : found) decision.layers.push_back(outline().linears[layer].name);
    }
    if (!end.ok()) continue;
    end = End(rule.field, stops ? "stop" : "roll_back", report.sample.step(), decision.detail,
              stops ? TrainerExit::kGuardFail : TrainerExit::kGuardRollback);
  }
  return end;
}

absl::Status Trainer::Judge(const StepOutcome& outcome, StepReport& report) {
  v1::StepSample& sample = report.sample;
  sample.set_loss(outcome.loss);
  sample.set_gradient_norm(outcome.norm);
  sample.set_updated(outcome.update != 0);
  if (outcome.update != 0) {
    ++updates_;
    skipped_in_a_row_ = non_finite_in_a_row_ = 0;
  } else {
    ++skipped_in_a_row_;
  }
  const bool finite =
      std::isfinite(outcome.loss) && std::isfinite(outcome.norm) && outcome.non_finite == 0;
  if (!finite) {
    report.skip_reason =
        absl::StrCat("not finite: loss ", sample.loss(), ", gradient norm ", sample.gradient_norm(),
                     ", ", outcome.non_finite, " elements of quantised operands");
    if (outcome.non_finite > 0) NIBBLE_RETURN_IF_ERROR(FindBadOperands(report));
    return JudgeNonFinite(report);
  }
  // Both guards see every value, whatever the other decides.
  absl::Status end;
  if (guard_.has_value()) {
    end = JudgeSpike(*guard_, spec_.guards.spike, "spike", "spike", "loss", sample.loss(), report);
  }
  if (norm_guard_.has_value()) {
    end.Update(JudgeSpike(*norm_guard_, spec_.guards.gradient_norm, "gradient_norm",
                          "gradient-norm", "gradient norm", sample.gradient_norm(), report));
  }
  harmed_in_a_row_ = report.decisions.empty() ? 0 : harmed_in_a_row_ + 1;
  if (!end.ok() || report.figures.empty()) return end;
  return JudgeOperands(report);
}

}  // namespace nibble
