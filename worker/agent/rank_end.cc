#include "worker/agent/rank_end.h"

#include <signal.h>

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace nibble {
namespace {

constexpr size_t kMaxTailBytes = 1200;

// The trainer's own last word; empty where it had none.
std::string ComplaintIn(const std::string& log_tail) {
  absl::string_view complaint;
  for (absl::string_view line : absl::StrSplit(log_tail, '\n')) {
    if (absl::ConsumePrefix(&line, kTrainerComplaint)) complaint = line;
  }
  return Printable(std::string(complaint), kMaxTailBytes);
}

}  // namespace

std::string Printable(std::string text, size_t most) {
  if (text.size() > most) text = text.substr(text.size() - most);
  for (char& c : text) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c)) && c != '\n') c = '?';
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
    // The daemon has read the spec and made the flags: a trainer that refuses them is another one.
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

RankEnd EndOf(int32_t rank, const ProcessExit& end, bool told_to_stop) {
  if (end.ok()) return {.state = RankState::kSucceeded};
  const bool by_itself = end.signal == 0;
  if ((by_itself && end.exit_code == static_cast<int>(TrainerExit::kStopped)) ||
      (told_to_stop && end.signal == SIGTERM)) {
    return {.state = RankState::kStopped};
  }
  const TrainerExit exit = by_itself ? TrainerExitFrom(end.exit_code).value_or(TrainerExit::kError)
                                     : TrainerExit::kError;
  RankEnd result = {.cause = CauseOf(exit)};
  const std::string complaint = ComplaintIn(end.log_tail);
  if (result.cause == v1::FAILURE_CAUSE_MACHINE || complaint.empty()) {
    result.detail = absl::StrCat("rank ", rank, " ", Describe(end),
                                 "; last words: ", Printable(end.log_tail, kMaxTailBytes));
  } else if (result.cause == v1::FAILURE_CAUSE_SPEC || IsGuards(exit)) {
    // Any rank would have said it.
    result.detail = complaint;
  } else {
    result.detail = absl::StrCat("rank ", rank, ": ", complaint);
  }
  return result;
}

}  // namespace nibble
