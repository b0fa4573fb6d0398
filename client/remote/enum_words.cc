#include "client/remote/enum_words.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace nibble {
namespace {

std::string WordOf(absl::string_view name, absl::string_view prefix) {
  absl::ConsumePrefix(&name, prefix);
  return absl::StrReplaceAll(absl::AsciiStrToLower(name), {{"_", " "}});
}

}  // namespace

#define NIBBLE_WORD(Enum, prefix) \
  std::string Word(v1::Enum value) { return WordOf(v1::Enum##_Name(value), prefix); }
NIBBLE_WORD(JobState, "JOB_STATE_")
NIBBLE_WORD(JobGoal, "JOB_GOAL_")
NIBBLE_WORD(AttemptOutcome, "ATTEMPT_OUTCOME_")
NIBBLE_WORD(RankPhase, "RANK_PHASE_")
NIBBLE_WORD(CheckpointState, "CHECKPOINT_STATE_")
NIBBLE_WORD(CheckpointTaskKind, "CHECKPOINT_TASK_KIND_")
NIBBLE_WORD(CheckpointTaskState, "CHECKPOINT_TASK_STATE_")
NIBBLE_WORD(WorkerMode, "WORKER_MODE_")
NIBBLE_WORD(Device, "DEVICE_")
#undef NIBBLE_WORD

}  // namespace nibble
