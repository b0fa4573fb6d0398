#include "worker/agent/reconcile.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

using Kind = AgentAction::Kind;

bool AnyRuns(const PresentGang& gang) {
  return std::any_of(gang.ranks.begin(), gang.ranks.end(),
                     [](const PresentRank& rank) { return !HasEnded(rank.state); });
}

void KillAll(const PresentGang& gang, const std::string& reason,
             std::vector<AgentAction>& actions) {
  for (const PresentRank& rank : gang.ranks) {
    if (HasEnded(rank.state) || rank.killed) continue;
    actions.push_back({Kind::kKill, gang.job, gang.attempt, rank.rank, reason});
  }
}

const WantedGang* FindWanted(const std::vector<WantedGang>& wanted, const PresentGang& gang) {
  for (const WantedGang& one : wanted) {
    if (one.job == gang.job && one.attempt == gang.attempt) return &one;
  }
  return nullptr;
}

// Of two wishes for one job only the later attempt counts, also against what is here.
bool IsStale(const WantedGang& gang, const std::vector<WantedGang>& wanted,
             absl::Span<const PresentGang> present) {
  const auto later = [&gang](const auto& other) {
    return other.job == gang.job && other.attempt > gang.attempt;
  };
  return std::any_of(wanted.begin(), wanted.end(), later) ||
         std::any_of(present.begin(), present.end(), later);
}

bool Share(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return std::any_of(a.begin(), a.end(),
                     [&b](int32_t slot) { return std::find(b.begin(), b.end(), slot) != b.end(); });
}

bool MayStart(const WantedGang& gang, absl::Span<const PresentGang> present) {
  return std::none_of(present.begin(), present.end(), [&gang](const PresentGang& other) {
    if (other.job == gang.job && other.attempt == gang.attempt) return true;  // was started
    return AnyRuns(other) && (other.job == gang.job || Share(other.slots, gang.slots));
  });
}

// Whether its ranks can go on: one that hangs writes its stacks first; where one has failed or
// hangs all are killed.
bool MayGoOn(const PresentGang& gang, std::vector<AgentAction>& actions) {
  bool waits_for_stacks = false;
  for (const PresentRank& rank : gang.ranks) {
    if (!rank.hangs || rank.dumped || HasEnded(rank.state)) continue;
    actions.push_back({Kind::kDumpStacks, gang.job, gang.attempt, rank.rank, "makes no step"});
    waits_for_stacks = true;
  }
  if (waits_for_stacks) return false;
  for (const PresentRank& rank : gang.ranks) {
    if (rank.state != RankState::kFailed && !rank.hangs) continue;
    KillAll(gang, absl::StrCat("rank ", rank.rank, rank.hangs ? " makes no step" : " has failed"),
            actions);
    return false;
  }
  return true;
}

// A gang that is wanted, as it is now.
void Tend(const WantedGang& wanted, const PresentGang& gang, int64_t now_ms,
          std::vector<AgentAction>& actions) {
  if (!AnyRuns(gang) || !MayGoOn(gang, actions)) return;
  const bool stops = wanted.order.wish == GangWish::kStop;
  if (stops && wanted.stop_by_ms > 0 && now_ms > wanted.stop_by_ms) {
    return KillAll(gang, "has not stopped in time", actions);
  }
  if (gang.told != wanted.order) actions.push_back({Kind::kTell, gang.job, gang.attempt});
}

}  // namespace

std::vector<AgentAction> Reconcile(const std::vector<WantedGang>* wanted,
                                   absl::Span<const PresentGang> present, int64_t now_ms) {
  std::vector<AgentAction> actions;
  if (wanted == nullptr) return actions;
  for (const PresentGang& gang : present) {
    const WantedGang* const one = FindWanted(*wanted, gang);
    if (one != nullptr) {
      Tend(*one, gang, now_ms, actions);
    } else if (AnyRuns(gang) && !gang.ours) {
      (void)MayGoOn(gang, actions);
    } else if (AnyRuns(gang)) {
      KillAll(gang, "the coordinator does not want it", actions);
    } else {
      actions.push_back(
          {Kind::kForget, gang.job, gang.attempt, -1, "the coordinator does not want it"});
    }
  }
  for (const WantedGang& gang : *wanted) {
    if (IsStale(gang, *wanted, present) || !MayStart(gang, present)) continue;
    actions.push_back({Kind::kStart, gang.job, gang.attempt});
  }
  return actions;
}

RankState StateOfGang(const PresentGang& gang) {
  RankState least = RankState::kSucceeded;
  for (const PresentRank& rank : gang.ranks) {
    if (rank.state == RankState::kFailed || (rank.hangs && rank.dumped)) return RankState::kFailed;
    least = std::min(least, rank.state);
  }
  return least;
}

}  // namespace nibble
