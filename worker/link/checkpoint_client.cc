#include "worker/link/checkpoint_client.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/link/link_messages.h"

namespace nibble {

absl::StatusOr<std::unique_ptr<CheckpointClient>> CheckpointClient::Create(
    RankLink& link, std::vector<TensorSlice> slices, Clock clock) {
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<SnapshotArea> area,
                          SnapshotArea::Create(std::move(slices)));
  NIBBLE_RETURN_IF_ERROR(link.OfferArea(area->descriptor()));
  return std::unique_ptr<CheckpointClient>(
      new CheckpointClient(link, std::move(area), std::move(clock)));
}

absl::Status CheckpointClient::Snapshot(const CheckpointHeader& header, Copy copy, Ended ended) {
  if (in_flight_.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat("no checkpoint of step ", header.step,
                                                      ": that of step ", *in_flight_,
                                                      " is still being written"));
  }
  const double begin = clock_();
  const std::string note = EncodeHeader(header);
  NIBBLE_RETURN_IF_ERROR(area_->SetNote(note));
  NIBBLE_RETURN_IF_ERROR(copy(area_->buffers()));
  in_flight_ = header.step;
  note_bytes_ = static_cast<int64_t>(note.size());
  ended_ = ended ? std::move(ended) : [](bool) -> absl::StatusOr<bool> { return true; };
  const absl::Status announced = Announce(/*wait=*/false).status();
  stall_seconds_ = clock_() - begin;
  if (!announced.ok()) in_flight_.reset();
  return announced;
}

absl::StatusOr<bool> CheckpointClient::Announce(bool wait) {
  if (!ended_) return true;
  NIBBLE_ASSIGN_OR_RETURN(const bool ended, ended_(wait));
  if (!ended) return false;
  ended_ = {};
  NIBBLE_RETURN_IF_ERROR(link_.SendSnapshot(*in_flight_, note_bytes_));
  return true;
}

CheckpointClient::Outcome CheckpointClient::NoOutcome(const absl::Status& why) {
  ended_ = {};
  return {.step = *std::exchange(in_flight_, std::nullopt), .status = why};
}

CheckpointClient::Outcome CheckpointClient::OutcomeOf(const link::v1::CheckpointOutcome& message) {
  const int64_t step = *std::exchange(in_flight_, std::nullopt);
  return {.step = step,
          .status = StatusOf(message.outcome()),
          .bytes = area_->bytes(),
          .deleted = message.deleted(),
          .stall_seconds = stall_seconds_,
          .write_seconds = message.write_seconds(),
          .direct = message.direct()};
}

std::optional<CheckpointClient::Outcome> CheckpointClient::Poll() {
  if (!in_flight_.has_value()) return std::nullopt;
  const absl::StatusOr<bool> announced = Announce(/*wait=*/false);
  if (!announced.ok()) return NoOutcome(announced.status());
  if (!*announced) return std::nullopt;
  const std::optional<link::v1::CheckpointOutcome> message = link_.TakeOutcome();
  if (!message.has_value()) return std::nullopt;
  return OutcomeOf(*message);
}

std::optional<CheckpointClient::Outcome> CheckpointClient::Wait() {
  if (!in_flight_.has_value()) return std::nullopt;
  const absl::StatusOr<bool> announced = Announce(/*wait=*/true);
  if (!announced.ok()) return NoOutcome(announced.status());
  return OutcomeOf(link_.AwaitOutcome());
}

}  // namespace nibble
