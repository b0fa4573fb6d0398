// What a daemon has to do, given what should be and what is: a pure function, so that every rule
// can be tested without a process.
//
// The rules:
//   - a gang that should be and is not is started, once: an attempt never starts a second time, the
//     coordinator makes a new one;
//   - not before whatever holds one of its slots, or is an older attempt of its job, is gone;
//   - a gang that should not be is killed, and forgotten once nothing of it is left;
//   - but where another store of a coordinator has ordered it, or an earlier epoch of this one, it
//     is left alone: that the present one does not want it says nothing;
//   - a wish older than what is here (a lower attempt of the job) is not carried out;
//   - where one rank has failed or hangs, the others have nobody to talk to and are killed;
//   - a rank that hangs writes its stacks first;
//   - a gang that is to stop is told so, and killed when its time is up;
//   - whatever else is asked for, and has changed, is handed on.
// Without word from the coordinator nothing changes: training goes on while it is away.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_AGENT_RECONCILE_H_
#define NIBBLE_WORKER_AGENT_RECONCILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace nibble {

enum class GangWish : uint8_t { kRun, kPause, kStop };

// What a gang is asked for at its step boundaries.
struct GangOrder {
  GangWish wish = GangWish::kRun;
  int64_t checkpoint_request = 0;
  int64_t timeline_revision = 0;

  friend bool operator==(const GangOrder&, const GangOrder&) = default;
};

struct WantedGang {
  std::string job;
  int64_t attempt = 0;
  int32_t first_rank = 0;
  std::vector<int32_t> slots;  // of each of its ranks here
  GangOrder order;
  int64_t stop_by_ms = 0;  // of kStop, on the clock of Reconcile's `now_ms`; 0: no limit
};

// kPrepares: it will be started when what it needs is here.
enum class RankState : uint8_t { kPrepares, kRuns, kStands, kStopped, kSucceeded, kFailed };

struct PresentRank {
  int32_t rank = 0;
  RankState state = RankState::kRuns;
  bool hangs = false;
  bool dumped = false;  // its stacks are written, or could not be
  bool killed = false;  // was told so
};

struct PresentGang {
  std::string job;
  int64_t attempt = 0;
  std::vector<int32_t> slots;
  std::vector<PresentRank> ranks;
  std::optional<GangOrder> told;
  // Its ranks run by an order of the store, in the epoch, that what is wanted follows from.
  bool ours = true;
};

struct AgentAction {
  enum class Kind : uint8_t { kStart, kTell, kDumpStacks, kKill, kForget };

  Kind kind = Kind::kStart;
  std::string job;
  int64_t attempt = 0;
  int32_t rank = -1;   // of kDumpStacks and kKill
  std::string reason;  // for people; empty of kStart and kTell

  friend bool operator==(const AgentAction&, const AgentAction&) = default;
};

// `wanted` is null where the coordinator has not spoken yet; `now_ms` is monotonic. The actions may
// be carried out in order; each is still right if only some of those before it were.
std::vector<AgentAction> Reconcile(const std::vector<WantedGang>* wanted,
                                   absl::Span<const PresentGang> present, int64_t now_ms);

// Of a gang's ranks the least advanced, a failed one before all; one that hangs has failed.
RankState StateOfGang(const PresentGang& gang);

inline bool HasEnded(RankState state) { return state >= RankState::kStopped; }

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_RECONCILE_H_
