#include "worker/trainer/model/recorded_passes.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "common/status_macros.h"

namespace nibble {

absl::Status RecordedPasses::Run(const Key& key, bool exchanges,
                                 absl::FunctionRef<absl::Status()> pass) {
  if (!queue_.records()) return pass();
  const auto known = passes_.find(key);
  if (known == passes_.end()) {
    if (passes_.size() < kMostRecordings) passes_.emplace(key, Pass());
    return pass();
  }
  Pass& recorded = known->second;
  if (recorded.pieces.empty()) {
    const absl::Status made = Record(exchanges, pass, recorded);
    if (made.ok()) {
      ++replays_;
    } else {
      recorded = {};
    }
    return made;
  }
  const bool valid =
      std::all_of(recorded.pieces.begin(), recorded.pieces.end(),
                  [this](const auto& piece) { return piece == nullptr || queue_.IsValid(*piece); });
  if (!valid) {
    // Memory that it uses may be gone: start over as if the pass had never run.
    recorded = {};
    return pass();
  }
  for (size_t i = 0; i < recorded.pieces.size(); ++i) {
    if (i > 0) {
      const Hook& hook = recorded.hooks[i - 1];
      NIBBLE_RETURN_IF_ERROR((hooks_.*hook.call)(hook.part));
    }
    NIBBLE_RETURN_IF_ERROR(RunPiece(recorded, i));
  }
  ++replays_;
  return absl::OkStatus();
}

absl::Status RecordedPasses::Record(bool exchanges, absl::FunctionRef<absl::Status()> pass,
                                    Pass& recorded) {
  recorded_ = &recorded;
  divides_ = exchanges;
  NIBBLE_RETURN_IF_ERROR(queue_.BeginRecording());
  in_piece_ = true;
  const absl::Status passed = pass();
  // An error of a hook comes between two pieces.
  const absl::Status ended = in_piece_ ? EndPiece() : absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(passed);
  NIBBLE_RETURN_IF_ERROR(ended);
  return RunPiece(recorded, recorded.pieces.size() - 1);
}

absl::Status RecordedPasses::EndPiece() {
  in_piece_ = false;
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Recording> piece, queue_.EndRecording());
  recorded_->pieces.push_back(std::move(piece));
  return absl::OkStatus();
}

absl::Status RecordedPasses::RunPiece(const Pass& pass, size_t piece) {
  const Recording* const recording = pass.pieces[piece].get();
  return recording == nullptr ? absl::OkStatus() : queue_.Run(*recording);
}

absl::Status RecordedPasses::Call(const Hook& hook) {
  if (!in_piece_ || !divides_) return (hooks_.*hook.call)(hook.part);
  NIBBLE_RETURN_IF_ERROR(EndPiece());
  NIBBLE_RETURN_IF_ERROR(RunPiece(*recorded_, recorded_->hooks.size()));
  recorded_->hooks.push_back(hook);
  NIBBLE_RETURN_IF_ERROR((hooks_.*hook.call)(hook.part));
  NIBBLE_RETURN_IF_ERROR(queue_.BeginRecording());
  in_piece_ = true;
  return absl::OkStatus();
}

}  // namespace nibble
