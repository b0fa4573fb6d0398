#include "server/scheduler/plan.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "server/scheduler/check_snapshot.h"
#include "server/scheduler/drain.h"
#include "server/scheduler/grow.h"
#include "server/scheduler/pass.h"
#include "server/scheduler/reservations.h"
#include "server/scheduler/victims.h"
#include "server/scheduler/words.h"
#include "server/scheduler/world.h"

namespace nibble::scheduler {
namespace {

Decision Describe(const World& world, int job) {
  const JobState& state = world.job(job);
  Decision decision{.action = state.action, .job = state.job->name, .reason = state.reason};
  if (state.action != Action::kPreempt) decision.placement = world.cluster().Named(state.active);
  if (state.action != Action::kStart) {
    decision.deadline_ms = world.now_ms() + world.policy().grace_ms;
  } else {
    decision.reason = StartWords(world, job);
  }
  for (int other : state.waits_for) decision.waits_for.push_back(world.name(other));
  std::sort(decision.waits_for.begin(), decision.waits_for.end());
  if (state.helps >= 0) decision.helps = world.name(state.helps);
  return decision;
}

}  // namespace

absl::StatusOr<Decisions> Plan(const Snapshot& snapshot, int64_t now_ms, const Policy& policy) {
  const absl::Status status = CheckSnapshot(snapshot);
  if (!status.ok()) return status;

  World world(snapshot, now_ms, policy);
  std::vector<Remark> stay = Drain(world);
  const Victims victims(world);
  Reservations reservations(world);
  std::optional<Pass> pass;
  do {
    pass.emplace(world, victims, reservations);
  } while (pass->Run());

  Decisions decisions;
  decisions.waiting = pass->TakeWaiting();
  decisions.remarks = std::move(stay);
  std::vector<Remark> spares = pass->TakeRemarks();
  std::move(spares.begin(), spares.end(), std::back_inserter(decisions.remarks));
  std::vector<Remark> small = Grow(world);
  std::move(small.begin(), small.end(), std::back_inserter(decisions.remarks));
  for (size_t j = 0; j < world.jobs().size(); ++j) {
    if (world.jobs()[j].changed) decisions.actions.push_back(Describe(world, static_cast<int>(j)));
  }
  std::stable_sort(decisions.actions.begin(), decisions.actions.end(),
                   [](const Decision& a, const Decision& b) { return a.action < b.action; });
  return decisions;
}

}  // namespace nibble::scheduler
