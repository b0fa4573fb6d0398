#include "worker/agent/gang_rules.h"

#include <signal.h>

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace nibble {
namespace {

using Kind = AgentAction::Kind;

bool AnyRuns(const PresentGang& gang) {
  return std::any_of(gang.ranks.begin(), gang.ranks.end(),
                     [](const PresentRank& rank) { return !HasEnded(rank.state); });
}

// All of its ranks, or those that hang.
void Kill(const PresentGang& gang, bool all, const std::string& reason,
          std::vector<AgentAction>& actions) {
  for (const PresentRank& rank : gang.ranks) {
    if (HasEnded(rank.state) || rank.killed || (!all && !rank.hangs)) continue;
    actions.push_back({Kind::kKill, gang.job, gang.attempt, rank.rank, reason});
  }
}

const WantedGang* FindWanted(const std::vector<WantedGang>& wanted, const PresentGang& gang) {
  for (const WantedGang& one : wanted) {
    if (one.job == gang.job && one.attempt == gang.attempt) return &one;
  }
  return nullptr;
}

// If several attempts of one job are wanted or present, only the latest counts.
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

bool MayStart(const WantedGang& gang, const std::vector<WantedGang>& wanted,
              absl::Span<const PresentGang> present) {
  return std::none_of(present.begin(), present.end(), [&](const PresentGang& other) {
    if (other.job != gang.job) return AnyRuns(other) && Share(other.slots, gang.slots);
    if (other.attempt == gang.attempt) return true;  // it was started
    // One that is not wanted is closed first.
    return AnyRuns(other) || other.closing || FindWanted(wanted, other) == nullptr;
  });
}

void KillAll(const PresentGang& gang, const std::string& reason,
             std::vector<AgentAction>& actions) {
  Kill(gang, /*all=*/true, reason, actions);
}

// Whether its ranks can continue. If one hangs it writes its stacks first; if one has failed or
// hangs all are killed, or those that hang if the gang is spared.
bool MayContinue(const PresentGang& gang, std::vector<AgentAction>& actions) {
  bool waits_for_stacks = false;
  for (const PresentRank& rank : gang.ranks) {
    if (!rank.hangs || rank.dumped || HasEnded(rank.state)) continue;
    actions.push_back({Kind::kDumpStacks, gang.job, gang.attempt, rank.rank, "makes no step"});
    waits_for_stacks = true;
  }
  if (waits_for_stacks) return false;
  bool lost = false;
  for (const PresentRank& rank : gang.ranks) {
    if (rank.state != RankState::kFailed && !rank.hangs) continue;
    lost = true;
    if (gang.spared && !rank.hangs) continue;
    Kill(gang, /*all=*/!gang.spared,
         absl::StrCat("rank ", rank.rank, rank.hangs ? " makes no step" : " has failed"), actions);
    return false;
  }
  return !lost;
}

// The actions for a gang that is wanted and present.
void ActOn(const WantedGang& wanted, const PresentGang& gang, int64_t now_ms,
           std::vector<AgentAction>& actions) {
  if (!AnyRuns(gang) || !MayContinue(gang, actions)) return;
  const bool stops = wanted.order.command == v1::GANG_COMMAND_STOP;
  if (stops && wanted.stop_by_ms > 0 && now_ms > wanted.stop_by_ms) {
    return KillAll(gang, "has not stopped in time", actions);
  }
  if (gang.sent != wanted.order) actions.push_back({Kind::kSend, gang.job, gang.attempt});
}

constexpr size_t kMaxTailBytes = 1200;

// The trainer's last error line; empty if there is none.
std::string ComplaintIn(const std::string& log_tail) {
  absl::string_view complaint;
  for (absl::string_view line : absl::StrSplit(log_tail, '\n')) {
    if (absl::ConsumePrefix(&line, kTrainerComplaint)) complaint = line;
  }
  return Printable(std::string(complaint), kMaxTailBytes);
}

// Length of the UTF-8 sequence that begins with `lead`; 0 if none does.
size_t SequenceBytes(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  if (lead >= 0xf0 && lead < 0xf5) return 4;
  return 0;
}

}  // namespace

std::vector<AgentAction> Reconcile(const std::vector<WantedGang>* wanted,
                                   absl::Span<const PresentGang> present, int64_t now_ms) {
  std::vector<AgentAction> actions;
  if (wanted == nullptr) return actions;
  for (const PresentGang& gang : present) {
    if (gang.closing) continue;
    const WantedGang* const one = FindWanted(*wanted, gang);
    if (one != nullptr) {
      ActOn(*one, gang, now_ms, actions);
    } else if (AnyRuns(gang) && !gang.ours) {
      (void)MayContinue(gang, actions);
    } else if (AnyRuns(gang)) {
      if (gang.spared) {
        (void)MayContinue(gang, actions);
      } else {
        KillAll(gang, "the coordinator does not want it", actions);
      }
    } else {
      actions.push_back(
          {Kind::kClose, gang.job, gang.attempt, -1, "the coordinator does not want it"});
    }
  }
  for (const WantedGang& gang : *wanted) {
    if (IsStale(gang, *wanted, present) || !MayStart(gang, *wanted, present)) continue;
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

std::vector<HungRank> FindHung(const std::map<int32_t, LinkHost::Rank>& ranks,
                               const WatchdogLimits& limits, int64_t now_ms) {
  std::vector<HungRank> hung;
  for (const auto& [number, rank] : ranks) {
    // Without a median it is still loading or in its first steps.
    if (!rank.connected || rank.standing_by.has_value() ||
        rank.report.activity() != link::v1::RANK_ACTIVITY_STEPS || rank.median_step_ms == 0) {
      continue;
    }
    const int64_t since = now_ms - rank.step_at_ms;
    const auto allowed = std::max(
        limits.least_ms,
        static_cast<int64_t>(limits.median_steps * static_cast<double>(rank.median_step_ms)));
    if (since <= allowed) continue;
    const std::string& where = rank.waiting_in;
    hung.push_back({.rank = number,
                    .since_ms = since,
                    .waits = !where.empty(),
                    .detail = absl::StrCat("rank ", number, " has made no step for ", since,
                                           " ms, its median is ", rank.median_step_ms,
                                           " ms; before step ", rank.report.next_step(),
                                           where.empty() ? "" : ", waits in ", where)});
  }
  std::stable_partition(hung.begin(), hung.end(), [&ranks](const HungRank& one) {
    return ranks.at(one.rank).waiting_in.empty();
  });
  return hung;
}

std::string Printable(std::string text, size_t most) {
  if (text.size() > most) text = text.substr(text.size() - most);
  for (char& c : text) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c)) && c != '\n') c = '?';
  }
  return text;
}

std::string Utf8(std::string text) {
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const size_t bytes = SequenceBytes(lead);
    bool good = bytes > 0 && at + bytes <= text.size();
    for (size_t i = 1; good && i < bytes; ++i) {
      good = (static_cast<unsigned char>(text[at + i]) & 0xc0) == 0x80;
    }
    if (good && bytes >= 3) {
      const auto second = static_cast<unsigned char>(text[at + 1]);
      const bool overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
      const bool beyond = (lead == 0xed && second >= 0xa0) || (lead == 0xf4 && second >= 0x90);
      good = !overlong && !beyond;
    }
    if (!good) text[at] = '?';
    at += good ? bytes : 1;
  }
  return text;
}

v1::FailureCause CauseOf(TrainerExit exit) {
  switch (exit) {
    case TrainerExit::kSpec:
      return v1::FAILURE_CAUSE_SPEC;
    case TrainerExit::kCheckpoint:
      return v1::FAILURE_CAUSE_CHECKPOINT;
    case TrainerExit::kDisk:
      return v1::FAILURE_CAUSE_DISK;
    case TrainerExit::kPeer:
      return v1::FAILURE_CAUSE_PEER;
    case TrainerExit::kGuardPause:
      return v1::FAILURE_CAUSE_GUARD_PAUSE;
    case TrainerExit::kGuardRollback:
      return v1::FAILURE_CAUSE_GUARD_ROLLBACK;
    case TrainerExit::kGuardFail:
      return v1::FAILURE_CAUSE_GUARD_FAIL;
    // The daemon has checked the spec and made the flags, so the trainer that refuses them is of
    // another version.
    case TrainerExit::kUsage:
    case TrainerExit::kError:
    case TrainerExit::kDone:
    case TrainerExit::kStopped:
      break;
  }
  return v1::FAILURE_CAUSE_MACHINE;
}

v1::FailureCause CauseOf(const absl::Status& status) {
  if (const TrainerExit exit = ExitOf(status); exit != TrainerExit::kError) return CauseOf(exit);
  if (absl::IsDataLoss(status)) return v1::FAILURE_CAUSE_CHECKPOINT;
  if (absl::IsResourceExhausted(status)) return v1::FAILURE_CAUSE_DISK;
  return v1::FAILURE_CAUSE_MACHINE;
}

RankEnd EndOf(int32_t rank, const ProcessExit& end, bool asked_to_stop) {
  if (end.ok()) return {.state = RankState::kSucceeded};
  const bool by_itself = end.signal == 0;
  if ((by_itself && end.exit_code == static_cast<int>(TrainerExit::kStopped)) ||
      (asked_to_stop && end.signal == SIGTERM)) {
    return {.state = RankState::kStopped};
  }
  const TrainerExit exit = by_itself ? TrainerExitFrom(end.exit_code).value_or(TrainerExit::kError)
                                     : TrainerExit::kError;
  RankEnd result = {.cause = CauseOf(exit)};
  const std::string complaint = ComplaintIn(end.log_tail);
  if (result.cause == v1::FAILURE_CAUSE_MACHINE || complaint.empty()) {
    result.detail =
        absl::StrCat("rank ", rank, " ", Describe(end),
                     "; the end of its output: ", Printable(end.log_tail, kMaxTailBytes));
  } else if (result.cause == v1::FAILURE_CAUSE_SPEC || IsGuards(exit)) {
    // Any rank would report the same.
    result.detail = complaint;
  } else {
    result.detail = absl::StrCat("rank ", rank, ": ", complaint);
  }
  return result;
}

}  // namespace nibble
