#include "worker/link/trainer_exit.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

constexpr char kPayload[] = "nibble/trainer-exit";

}  // namespace

absl::Status WithExit(absl::Status status, TrainerExit exit) {
  if (status.ok() || status.GetPayload(kPayload).has_value()) return status;
  status.SetPayload(kPayload, absl::Cord(absl::StrCat(static_cast<int>(exit))));
  return status;
}

TrainerExit ExitOf(const absl::Status& status) {
  if (status.ok()) return TrainerExit::kDone;
  const auto payload = status.GetPayload(kPayload);
  int code = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &code)) {
    return TrainerExit::kError;
  }
  return TrainerExitFrom(code).value_or(TrainerExit::kError);
}

std::optional<TrainerExit> TrainerExitFrom(int code) {
  const bool known = (code >= 0 && code <= static_cast<int>(TrainerExit::kGuardFail)) ||
                     code == static_cast<int>(TrainerExit::kStopped);
  return known ? std::optional(static_cast<TrainerExit>(code)) : std::nullopt;
}

}  // namespace nibble
