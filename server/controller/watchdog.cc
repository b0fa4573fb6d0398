#include "server/controller/watchdog.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/state/decide.h"

namespace nibble {

bool PeersLost(const State& state, const v1::GangReport& gang) {
  const v1::JobRecord* const job = state.FindJob(gang.job());
  if (job == nullptr || !job->has_attempt() || job->attempt().number() != gang.attempt()) {
    return false;
  }
  const auto& placements = job->attempt().placements();
  return std::any_of(placements.begin(), placements.end(), [](const v1::Placement& placement) {
    return placement.phase() == v1::RANK_PHASE_FAILED;
  });
}

int64_t Watchdog::LimitMs(int64_t median_step_ms) const {
  return std::max(
      context_.options.hang_least_ms,
      static_cast<int64_t>(context_.options.hang_factor * static_cast<double>(median_step_ms)));
}

void Watchdog::Check(const std::string& worker, const v1::GangReport& gang, bool peers_lost) {
  CheckSteps(worker, gang);
  CheckSurvivors(worker, gang, peers_lost);
}

void Watchdog::CheckSteps(const std::string& worker, const v1::GangReport& gang) {
  // A rank that waits, such as for disk space, reports it and does not hang.
  if (gang.phase() != v1::RANK_PHASE_RUNNING || !gang.trouble().empty()) return;
  for (const v1::RankHealth& rank : gang.ranks()) {
    if (rank.median_step_ms() <= 0 || rank.since_step_ms() <= LimitMs(rank.median_step_ms())) {
      continue;
    }
    const std::string reason =
        absl::StrCat("rank ", rank.rank(), " on ", worker, " has made no step for ",
                     rank.since_step_ms(), " ms; its median step takes ", rank.median_step_ms(),
                     " ms", rank.waiting_in().empty() ? "" : "; it waits in ", rank.waiting_in());
    // A rank that waits for others in a collective is not to blame.
    const std::string blamed = rank.waiting_in().empty() ? worker : "";
    context_.ledger.ChangeUnawaited(
        [&](const State& state) {
          return DecideAttemptFailed(state, gang.job(), gang.attempt(), v1::ATTEMPT_OUTCOME_HUNG,
                                     blamed, reason, context_.coordinator());
        },
        absl::StrCat("watchdog of ", gang.job()));
    return;
  }
}

void Watchdog::CheckSurvivors(const std::string& worker, const v1::GangReport& gang,
                              bool peers_lost) {
  const int64_t now_ms = context_.clock.SteadyMs();
  int64_t since_ms = 0;
  {
    MutexLock lock(&mutex_);
    if (!peers_lost) {
      peer_losses_.erase(gang.job());
      return;
    }
    PeerLoss& loss = peer_losses_[gang.job()];
    if (loss.attempt != gang.attempt()) loss = {.attempt = gang.attempt(), .since_ms = now_ms};
    since_ms = now_ms - loss.since_ms;
  }
  int64_t median_step_ms = 0;
  for (const v1::RankHealth& rank : gang.ranks()) {
    median_step_ms = std::max(median_step_ms, rank.median_step_ms());
  }
  if (gang.phase() == v1::RANK_PHASE_FAILED || !gang.trouble().empty() ||
      since_ms <= LimitMs(median_step_ms)) {
    return;
  }
  context_.ledger.ChangeUnawaited(
      [&](const State& state) {
        return DecideAttemptFailed(
            state, gang.job(), gang.attempt(), v1::ATTEMPT_OUTCOME_HUNG, worker,
            absl::StrCat("ranks on ", worker, " have not ended within ", since_ms,
                         " ms after other ranks of their attempt failed"),
            context_.coordinator());
      },
      absl::StrCat("watchdog of ", gang.job()));
}

}  // namespace nibble
