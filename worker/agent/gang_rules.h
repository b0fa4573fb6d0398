// The rules of gangs, as pure functions, so that each can be tested without a process: what a
// daemon has to do (Reconcile), which ranks hang (FindHung), and how a rank's process ended
// (EndOf).
//
// Reconcile compares the desired state with the present one:
//   - a desired gang that is absent is started, once: an attempt never starts a second time, the
//     coordinator makes a new one;
//   - it waits until any gang that occupies one of its slots has ended, and any older attempt of
//     its job is closed;
//   - a gang that is not desired is killed, and closed once all of its ranks have ended;
//   - unless another coordinator store, or an earlier epoch of this one, ordered it: then it is
//     left alone, because the present store may not know of it;
//   - an order for a lower attempt than the one present is ignored;
//   - if one rank has failed or hangs, the other ranks of the gang are killed, or spared for a
//     while if their processes are to be kept: then only those that hang are killed;
//   - a rank that hangs writes its stacks first;
//   - a gang that is to stop is sent the order, and killed at its deadline;
//   - any other change of the order is sent to its ranks.
// Without a desired state nothing changes: training continues while the coordinator is away.
//
// A rank hangs if it is connected and has made no step for many times its median step time. Ranks
// that are paused or have not begun to train are exempt.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_AGENT_GANG_RULES_H_
#define NIBBLE_WORKER_AGENT_GANG_RULES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/nibble/v1/job.pb.h"
#include "worker/agent/process_supervisor.h"
#include "worker/link/link_host.h"
#include "worker/link/trainer_exit.h"

namespace nibble {

// The order that a gang carries out at a step boundary.
struct GangOrder {
  v1::GangCommand command = v1::GANG_COMMAND_RUN;
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
  int64_t stop_by_ms =
      0;  // of GANG_COMMAND_STOP, on the clock of Reconcile's `now_ms`; 0: no limit
};

// kPreparing: to be started when its checkpoint and its peers are ready.
enum class RankState : uint8_t { kPreparing, kRunning, kPaused, kStopped, kSucceeded, kFailed };

struct PresentRank {
  int32_t rank = 0;
  RankState state = RankState::kRunning;
  bool hangs = false;
  bool dumped = false;  // its stacks are written, or could not be
  bool killed = false;  // a SIGKILL was sent

  friend bool operator==(const PresentRank&, const PresentRank&) = default;
};

struct PresentGang {
  std::string job;
  int64_t attempt = 0;
  std::vector<int32_t> slots;
  std::vector<PresentRank> ranks;
  std::optional<GangOrder> sent;  // the order that it was sent last
  // Whether it was ordered by the store, in the epoch, of the desired state.
  bool ours = true;
  // Its ranks are not killed yet, except those that hang, although another rank is lost.
  bool spared = false;
  // Its ranks have ended, and it finishes their checkpoints; then it is removed.
  bool closing = false;

  friend bool operator==(const PresentGang&, const PresentGang&) = default;
};

struct AgentAction {
  enum class Kind : uint8_t { kStart, kSend, kDumpStacks, kKill, kClose };

  Kind kind = Kind::kStart;
  std::string job;
  int64_t attempt = 0;
  int32_t rank = -1;   // of kDumpStacks and kKill
  std::string reason;  // for people; empty of kStart and kSend

  friend bool operator==(const AgentAction&, const AgentAction&) = default;
};

// `wanted` is null before the first desired state; `now_ms` is monotonic. The actions are to be
// carried out in order; each remains valid if only some of those before it were.
std::vector<AgentAction> Reconcile(const std::vector<WantedGang>* wanted,
                                   absl::Span<const PresentGang> present, int64_t now_ms);

// The state of the least advanced rank; kFailed if any rank has failed or hangs.
RankState StateOfGang(const PresentGang& gang);

// How long ranks are spared, to notice that another one is lost: the watch of ranks on cards looks
// ten times a second.
inline constexpr int64_t kSpareMs = 2000;

inline bool HasEnded(RankState state) { return state >= RankState::kStopped; }

// --- Ranks that hang

struct WatchdogLimits {
  double median_steps = 20;    // without a step for this multiple of the median
  int64_t least_ms = 120'000;  // at least; checkpoints and validation take long
};

struct HungRank {
  int32_t rank = 0;
  int64_t since_ms = 0;  // without a step
  bool waits = false;    // in a collective
  std::string detail;    // names the rank, the step and the collective, for people
};

// Sorted by rank, but those that wait in no collective come first. All ranks that hang together are
// named, because it is unknown from outside which one blocks the others.
std::vector<HungRank> FindHung(const std::map<int32_t, LinkHost::Rank>& ranks,
                               const WatchdogLimits& limits, int64_t now_ms);

// --- How a rank ended

struct RankEnd {
  RankState state = RankState::kFailed;                    // kSucceeded, kStopped or kFailed
  v1::FailureCause cause = v1::FAILURE_CAUSE_UNSPECIFIED;  // of kFailed
  std::string detail;                                      // of kFailed, for people
};

// `asked_to_stop`: a rank that has not connected yet is stopped by SIGTERM, which then is not a
// failure.
RankEnd EndOf(int32_t rank, const ProcessExit& end, bool asked_to_stop);

v1::FailureCause CauseOf(TrainerExit exit);

// The cause of an error of the daemon before the ranks could start: by its WithExit code; without
// one, DataLoss means the checkpoint and ResourceExhausted the disk.
v1::FailureCause CauseOf(const absl::Status& status);

// The last `most` bytes of a program's output, with non-printable bytes replaced by '?', for
// messages, which are UTF-8.
std::string Printable(std::string text, size_t most);

// With each byte that is not part of valid UTF-8 replaced by '?'. A message with another text in it
// cannot be parsed.
std::string Utf8(std::string text);

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_GANG_RULES_H_
