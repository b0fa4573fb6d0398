#include "worker/trainer/model/recorded_passes.h"

#include <utility>

#include "absl/status/statusor.h"
#include "common/status_macros.h"

namespace nibble {

absl::Status RecordedPasses::Run(const Key& key, absl::FunctionRef<absl::Status()> pass) {
  if (!queue_.records()) return pass();
  const auto known = passes_.find(key);
  if (known == passes_.end()) {
    if (passes_.size() < kMostRecordings) passes_.emplace(key, nullptr);
    return pass();
  }
  std::unique_ptr<Recording>& recording = known->second;
  if (recording == nullptr) NIBBLE_RETURN_IF_ERROR(Record(recording, pass));
  const absl::Status ran = queue_.Run(*recording);
  if (absl::IsFailedPrecondition(ran)) {
    // Memory that it uses may be gone: start over as if the pass had never run.
    recording = nullptr;
    return pass();
  }
  ++replays_;
  return ran;
}

absl::Status RecordedPasses::Record(std::unique_ptr<Recording>& recording,
                                    absl::FunctionRef<absl::Status()> pass) {
  NIBBLE_RETURN_IF_ERROR(queue_.BeginRecording());
  const absl::Status passed = pass();
  absl::StatusOr<std::unique_ptr<Recording>> ended = queue_.EndRecording();
  NIBBLE_RETURN_IF_ERROR(passed);
  NIBBLE_RETURN_IF_ERROR(ended.status());
  recording = *std::move(ended);
  return absl::OkStatus();
}

}  // namespace nibble
