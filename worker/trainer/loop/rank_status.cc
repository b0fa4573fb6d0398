#include "worker/trainer/loop/rank_status.h"

#include <algorithm>

#include "common/metrics/process_figures.h"
#include "worker/link/link_messages.h"

namespace nibble {
namespace {

// Reading the memory figures takes as long as a small layer, so it is done at this interval.
constexpr double kMemorySeconds = 1;

// A decision this soon after the same one of its guard belongs to the same incident, of which the
// coordinator receives only the first.
constexpr int64_t kIncidentSteps = 16;

void Cut(std::string& name) {
  if (name.size() > kMaxLayerNameBytes) name.resize(kMaxLayerNameBytes);
}

}  // namespace

void RankStatus::AddStep(const StepReport& step,
                         const std::vector<link::v1::PrecisionSample>& precision) {
  link::v1::StepTotals& totals = *report_.mutable_totals();
  totals.set_steps(totals.steps() + 1);
  totals.set_skipped(totals.skipped() + (step.sample.updated() ? 0 : 1));
  totals.set_tokens(totals.tokens() + step.tokens);
  AddFigures(step.sample, *totals.mutable_sums());
  AddDecisions(step);
  *report_.mutable_sample() = step.sample;
  report_.clear_precision();
  for (const link::v1::PrecisionSample& sample : precision) {
    if (report_.precision_size() == kMaxPrecisionSamples) break;
    link::v1::PrecisionSample& added = *report_.add_precision();
    added = sample;
    Cut(*added.mutable_layer());
    Cut(*added.mutable_operand());
    Cut(*added.mutable_format());
  }
}

void RankStatus::AddGuards(const GuardSpec& guards) {
  const auto add = [this](const char* guard, auto policy) {
    if (const std::string_view name = ChoiceName(policy); name != "off") {
      TotalOf(guard, GuardActionOf(name));
    }
  };
  add("non-finite", guards.non_finite);
  add("spike", guards.spike);
  add("gradient-norm", guards.gradient_norm);
  add("relative-error", guards.relative_error);
  add("underflow", guards.underflow);
  add("clipped", guards.clipped);
}

link::v1::GuardTotal& RankStatus::TotalOf(std::string_view guard, std::string_view action) {
  for (link::v1::GuardTotal& total : *report_.mutable_guards()) {
    if (total.guard() == guard && total.action() == action) return total;
  }
  link::v1::GuardTotal& added = *report_.add_guards();
  added.set_guard(std::string(guard));
  added.set_action(std::string(action));
  return added;
}

void RankStatus::AddDecisions(const StepReport& step) {
  for (const GuardDecision& decision : step.decisions) {
    link::v1::GuardTotal& total = TotalOf(decision.guard, decision.action);
    total.set_decisions(total.decisions() + 1);
    // Operands that a guard only observes are many, and in the event log.
    if (!decision.acts() && !decision.operands.empty()) continue;
    const int64_t at = step.sample.step();
    const auto [last, is_new] = decided_at_.try_emplace({decision.guard, decision.action}, at);
    const bool again = !is_new && at > last->second && at - last->second < kIncidentSteps;
    last->second = at;
    if (again) continue;
    auto& decided = *report_.mutable_decided();
    if (decided.size() == kMaxDecisions) decided.erase(decided.begin());
    v1::GuardDecision& added = *decided.Add();
    added.set_step(at);
    added.set_guard(decision.guard);
    added.set_action(decision.action);
    added.set_detail(decision.detail);
    if (decision.action != "roll_back") continue;
    added.set_harmed_steps(decision.harmed_steps);
    *added.mutable_layers() = {decision.layers.begin(), decision.layers.end()};
  }
}

bool RankStatus::AddRevision(int64_t revision, int64_t first_step) {
  auto& begun = *report_.mutable_begun();
  if (!begun.empty() && begun.rbegin()->revision() == revision &&
      begun.rbegin()->first_step() == first_step) {
    return false;
  }
  if (begun.size() == kMaxRevisionsBegun) begun.erase(begun.begin());
  v1::RevisionStart& start = *begun.Add();
  start.set_revision(revision);
  start.set_first_step(first_step);
  return true;
}

void RankStatus::SetProducts(const std::vector<link::v1::ProductPath>& products) {
  *report_.mutable_products() = {products.begin(), products.end()};
}

void RankStatus::AddRefusal(int64_t revision, const std::string& reason) {
  auto& refused = *report_.mutable_refused();
  if (refused.size() == kMaxRevisionsRefused) refused.erase(refused.begin());
  link::v1::RevisionRefused& refusal = *refused.Add();
  refusal.set_revision(revision);
  refusal.set_reason(reason);
}

void RankStatus::AddHistory(const Timeline& timeline, int64_t next_step) {
  const std::vector<Revision>& revisions = timeline.revisions();
  for (size_t i = 1; i < revisions.size(); ++i) {
    const Revision& revision = revisions[i];
    if (!revision.refused.empty()) {
      AddRefusal(revision.number, revision.refused);
    } else if (revision.first_step < next_step &&
               timeline.At(revision.first_step).number == revision.number) {
      AddRevision(revision.number, revision.first_step);
    }
  }
}

void RankStatus::AddCheckpoint(const CheckpointClient::Outcome& outcome, int64_t request) {
  link::v1::CheckpointTotals& totals = *report_.mutable_checkpoints();
  totals.set_stall_seconds(totals.stall_seconds() + outcome.stall_seconds);
  totals.set_write_seconds(totals.write_seconds() + outcome.write_seconds);
  if (!outcome.status.ok()) {
    totals.set_failed(totals.failed() + 1);
    return;
  }
  totals.set_stored(totals.stored() + 1);
  totals.set_bytes(totals.bytes() + outcome.bytes);
  report_.set_checkpoint_request(std::max(report_.checkpoint_request(), request));
}

void RankStatus::AddTrace(int64_t number, const absl::Status& status) {
  report_.set_traced(number);
  report_.set_trace_problem(OutcomeOf(status).text());
}

void RankStatus::Send(link::v1::RankActivity activity, int64_t next_step,
                      const std::string& trouble) {
  if (link_ == nullptr) return;
  report_.set_activity(activity);
  report_.set_next_step(next_step);
  report_.set_trouble(trouble);
  if (const double now = clock_(); now - memory_read_at_ > kMemorySeconds) {
    memory_read_at_ = now;
    report_.set_memory_bytes(ReadProcessFigures().resident_bytes);
    if (memory_ != nullptr) {
      report_.set_device_memory_bytes(static_cast<int64_t>(memory_->use().used));
    }
  }
  Send();
}

void RankStatus::Send() {
  if (link_ != nullptr) link_->Report(report_);
}

}  // namespace nibble
