#include "worker/agent/desired_state.h"

#include <algorithm>
#include <utility>

#include "worker/agent/data_directory.h"

namespace nibble {
WantedGang WantedOf(const v1::DesiredGang& desired, const StopDeadlines& deadlines) {
  const auto deadline = deadlines.find({desired.job(), desired.attempt()});
  const int64_t revision = desired.revisions().empty() ? 0 : desired.revisions().rbegin()->number();
  return {.job = desired.job(),
          .attempt = desired.attempt(),
          .first_rank = desired.first_rank(),
          .slots = {desired.slots().begin(), desired.slots().end()},
          .order = {.command = desired.command(),
                    .checkpoint_request = desired.checkpoint_request(),
                    .timeline_revision = revision},
          .stop_by_ms = deadline == deadlines.end() ? 0 : deadline->second};
}

DesiredState::DesiredState(const DesiredState* before, v1::ConnectResponse response, int64_t now_ms)
    : response_(std::move(response)) {
  for (const v1::DesiredGang& gang : response_.gangs()) {
    if (gang.command() != v1::GANG_COMMAND_STOP || gang.stop_within_ms() <= 0) continue;
    const StopDeadlines::key_type key(gang.job(), gang.attempt());
    int64_t& deadline = stop_deadlines_[key] = now_ms + gang.stop_within_ms();
    if (before == nullptr) continue;
    const auto known = before->stop_deadlines_.find(key);
    if (known != before->stop_deadlines_.end()) deadline = std::min(deadline, known->second);
  }
  for (const v1::OrphanOrder& order : response_.orphans()) {
    if (!SameEpoch(order.store(), store())) removed_.insert(order.job());
  }
}

const v1::DesiredGang* DesiredState::Find(const std::string& job, int64_t attempt) const {
  for (const v1::DesiredGang& gang : response_.gangs()) {
    if (gang.job() == job && gang.attempt() == attempt) return &gang;
  }
  return nullptr;
}

const v1::DesiredGang* DesiredState::FindFor(const GangOrigin& gang) const {
  const v1::DesiredGang* const desired = Find(gang.job, gang.attempt);
  if (desired == nullptr || desired->command() == v1::GANG_COMMAND_STOP ||
      gang.store.id().empty() || gang.store.id() == store().id()) {
    return desired;
  }
  return nullptr;
}

std::vector<WantedGang> DesiredState::WantedGangs(absl::Span<const GangOrigin> here) const {
  std::vector<WantedGang> wanted;
  for (const v1::DesiredGang& desired : response_.gangs()) {
    const auto gang = std::find_if(here.begin(), here.end(), [&desired](const GangOrigin& one) {
      return one.job == desired.job() && one.attempt == desired.attempt();
    });
    const bool starts = desired.command() != v1::GANG_COMMAND_STOP || !desired.slots().empty();
    if (gang == here.end() ? starts : FindFor(*gang) != nullptr) {
      wanted.push_back(WantedOf(desired, stop_deadlines_));
    }
  }
  return wanted;
}

bool DesiredState::MayEnd(const GangOrigin& gang) const {
  return removed_.contains(gang.job) || SameEpoch(gang.store, store());
}

}  // namespace nibble
