#include "worker/trainer/loop/run_errors.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/link/trainer_exit.h"

namespace nibble {

absl::Status OfSpec(absl::Status status) {
  if (!absl::IsInvalidArgument(status) && !absl::IsUnimplemented(status)) return status;
  return WithExit(std::move(status), TrainerExit::kSpec);
}

absl::Status OfData(absl::Status status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return WithExit(std::move(status), TrainerExit::kDisk);
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kDataLoss:
      return WithExit(std::move(status), TrainerExit::kSpec);
    default:
      return status;
  }
}

absl::Status OfCheckpoint(absl::Status status) {
  if (absl::IsDataLoss(status) || absl::IsNotFound(status)) {
    return WithExit(std::move(status), TrainerExit::kCheckpoint);
  }
  if (absl::IsFailedPrecondition(status)) return WithExit(std::move(status), TrainerExit::kSpec);
  return status;
}

absl::Status OfDisk(absl::Status status) {
  if (!absl::IsResourceExhausted(status)) return status;
  return WithExit(std::move(status), TrainerExit::kDisk);
}

absl::Status NameBound(const JobSpec& spec, const absl::Status& status) {
  if (!absl::IsResourceExhausted(status) || spec.resources.memory_mib == 0) return status;
  return WithExit(
      absl::ResourceExhaustedError(absl::StrCat("resources.memory_mib: ", spec.resources.memory_mib,
                                                " MiB are too few: ", status.message())),
      TrainerExit::kSpec);
}

}  // namespace nibble
