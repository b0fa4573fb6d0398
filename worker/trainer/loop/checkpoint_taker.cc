#include "worker/trainer/loop/checkpoint_taker.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "worker/trainer/loop/run_errors.h"

namespace nibble {

CheckpointDecision DecideCheckpoint(const CheckpointMoment& moment) {
  const int64_t next = moment.next_step;
  const bool due = moment.due || (moment.every > 0 && next % moment.every == 0);
  if (next == 0 || next == moment.taken_step) {
    return moment.due ? CheckpointDecision::kLater : CheckpointDecision::kNone;
  }
  if (!due) return CheckpointDecision::kNone;
  const bool now = !moment.storing && moment.skipped_in_a_row == 0;
  return now ? CheckpointDecision::kNow : CheckpointDecision::kLater;
}

CheckpointTaker::CheckpointTaker(Options options)
    : spec_(options.spec),
      attempt_(options.attempt),
      trainer_(options.model.trainer()),
      state_(options.model.state()),
      reporter_(options.reporter),
      status_(options.status),
      client_(std::move(options.client)),
      pinned_(std::move(options.pinned)),
      taken_step_(options.resumed_step),
      summary_({.last_step = options.resumed_step}) {}

void CheckpointTaker::Poll() {
  if (client_ == nullptr) return;
  if (const auto outcome = client_->Poll(); outcome.has_value()) Handle(*outcome);
}

void CheckpointTaker::Wait() {
  if (client_ == nullptr) return;
  if (const auto outcome = client_->Wait(); outcome.has_value()) Handle(*outcome);
}

void CheckpointTaker::Request(int64_t number) {
  if (number <= requested_) return;
  requested_ = number;
  due_ = true;
}

absl::Status CheckpointTaker::TakeIfDue(bool storing) {
  if (client_ == nullptr) return absl::OkStatus();
  const CheckpointDecision decision =
      DecideCheckpoint({.next_step = trainer_.next_step(),
                        .taken_step = taken_step_,
                        .every = spec_.checkpoints.every,
                        .due = due_,
                        .storing = storing,
                        .skipped_in_a_row = trainer_.skipped_in_a_row()});
  due_ = decision == CheckpointDecision::kLater;
  return decision == CheckpointDecision::kNow ? Take() : absl::OkStatus();
}

absl::Status CheckpointTaker::Take() {
  CheckpointHeader header = state_.Header();
  header.attempt = attempt_;
  header.time_unix_nanos = absl::ToUnixNanos(absl::Now());
  answered_ = requested_;
  taken_step_ = header.step;
  const double begin = SteadySeconds();
  const absl::Status status = client_->Snapshot(
      header,
      [this](absl::Span<const absl::Span<std::byte>> buffers) { return state_.Save(buffers); },
      [this](bool wait) { return state_.Saved(wait); });
  // The stall does not count as the steps' time.
  reporter_.Waited(SteadySeconds() - begin);
  // Unavailable means a failed checkpoint; another error, such as an unreadable device, ends the
  // run.
  if (status.ok() || !absl::IsUnavailable(status)) return status;
  Handle({.step = header.step, .status = status});
  return absl::OkStatus();
}

absl::Status CheckpointTaker::Finish(bool requested) {
  if (client_ == nullptr) return absl::OkStatus();
  const int64_t next = trainer_.next_step();
  // Without a deadline, for example while the disk is full: there are no more steps to delay.
  status_.Send(link::v1::RANK_ACTIVITY_PAUSED, next, reporter_.trouble());
  Wait();
  const bool wanted = spec_.checkpoints.at_end || requested;
  if (!wanted || next == taken_step_ || next == 0) return absl::OkStatus();
  if (trainer_.skipped_in_a_row() > 0 && next < EndStep(spec_)) {
    reporter_.Notice(
        next, absl::StrCat("no last checkpoint: the last ", trainer_.skipped_in_a_row(),
                           " steps were skipped; the newest is of step ", summary_.last_step));
    return absl::OkStatus();
  }
  NIBBLE_RETURN_IF_ERROR(Take());
  Wait();
  return absl::OkStatus();
}

void CheckpointTaker::Handle(const CheckpointClient::Outcome& outcome) {
  summary_.status = OfDisk(outcome.status);
  status_.AddCheckpoint(outcome, answered_);
  status_.Send();
  if (outcome.status.ok()) {
    summary_.last_step = outcome.step;
  } else {
    ++summary_.failed;
  }
  if (!reporter_.writes()) return;
  const std::string problem(outcome.status.message());
  reporter_.Write(CheckpointEvent{.step = outcome.step,
                                  .stored = outcome.status.ok(),
                                  .bytes = outcome.bytes,
                                  .deleted = outcome.deleted,
                                  .stall_seconds = outcome.stall_seconds,
                                  .write_seconds = outcome.write_seconds,
                                  .direct = outcome.direct,
                                  .problem = problem});
  if (!outcome.status.ok()) {
    reporter_.Note(absl::StrCat("no checkpoint of step ", outcome.step, ": ", problem,
                                "; training continues"));
  }
}

}  // namespace nibble
