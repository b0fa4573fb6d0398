#include "worker/trainer/loop/job_run.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "common/metrics/process_figures.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

// Between two agreements of paused ranks: shorter than the timeout of any collective.
constexpr std::chrono::milliseconds kStandPatience(500);
// Reading the memory figures takes as long as a small layer, so it is done at this interval.
constexpr double kMemorySeconds = 1;

}  // namespace

absl::StatusOr<JobControl::Boundary> JobRun::Agree(std::chrono::milliseconds patience) {
  if (guest_ != nullptr) {
    if (const auto outcome = guest_->Poll(); outcome.has_value()) ReportCheckpoint(*outcome);
  }
  return control_->Agree(guest_ != nullptr && guest_->in_flight().has_value(), patience);
}

absl::StatusOr<bool> JobRun::PassBoundary() {
  const double begin = SteadySeconds();
  std::chrono::milliseconds patience(0);
  while (true) {
    NIBBLE_ASSIGN_OR_RETURN(JobControl::Boundary boundary, Agree(patience));
    if (boundary.timeline.has_value()) Adopt(boundary);
    if (boundary.stop) {
      last_checkpoint_ = boundary.last_checkpoint;
      return false;
    }
    // Before a checkpoint, so that its timeline contains the refusals.
    NIBBLE_RETURN_IF_ERROR(PrepareRecipe());
    if (boundary.checkpoint_request > request_heard_) {
      request_heard_ = boundary.checkpoint_request;
      checkpoint_due_ = true;
    }
    NIBBLE_RETURN_IF_ERROR(MaybeCheckpoint(boundary.storing));
    if (!boundary.pause) break;
    if (patience.count() == 0) TellDaemon(RankNews::Doing::kStanding, nullptr);
    patience = kStandPatience;
  }
  if (patience.count() > 0) {
    TellDaemon(RankNews::Doing::kSteps, nullptr);
    // Pauses do not count as the steps' time.
    reporter_->Waited(SteadySeconds() - begin);
  }
  return true;
}

void JobRun::Adopt(const JobControl::Boundary& boundary) {
  const int64_t next = trainer_->next_step();
  absl::StatusOr<Timeline> adopted = *boundary.timeline;
  if (adopted.ok()) adopted = AdoptTimeline(trainer_->timeline(), *adopted, next);
  // An invalid timeline has no revision that could be marked as refused.
  if (!adopted.ok()) return TellRefused(boundary.revision, std::string(adopted.status().message()));
  trainer_->timeline() = *std::move(adopted);
  const std::vector<Revision> revisions = trainer_->timeline().revisions();
  // The first is never refused: a run that cannot use it ends when it prepares it.
  for (size_t i = 1; i < revisions.size(); ++i) {
    if (!revisions[i].refused.empty() || revisions[i].first_step < next) continue;
    const absl::Status fits = trainer_->CheckRecipe(revisions[i].recipe);
    if (!fits.ok()) Refuse(revisions[i].number, std::string(fits.message()));
  }
}

absl::Status JobRun::PrepareRecipe() {
  const int64_t step = std::min(trainer_->next_step(), spec_.training.steps - 1);
  while (trainer_->timeline().At(step).number != prepared_) {
    const Revision revision = trainer_->timeline().At(step);
    const absl::Status mine = NameBound(spec_, trainer_->PrepareRecipe());
    NIBBLE_ASSIGN_OR_RETURN(const std::string refusal, control_->AgreeOn(mine));
    prepared_ = revision.number;
    if (refusal.empty()) return absl::OkStatus();
    const int64_t first = trainer_->timeline().revisions().front().number;
    if (revision.first_step < trainer_->next_step() || revision.number == first) {
      return mine.ok() ? absl::FailedPreconditionError(
                             absl::StrCat("recipe revision ", revision.number, ": ", refusal))
                       : mine;
    }
    prepared_ = 0;  // whatever holds instead is to be put back
    Refuse(revision.number, refusal);
  }
  return absl::OkStatus();
}

void JobRun::Refuse(int64_t revision, const std::string& reason) {
  // Cannot fail: the revision exists and is not the first.
  (void)trainer_->timeline().Refuse(revision, reason);
  TellRefused(revision, reason);
}

void JobRun::TellRefused(int64_t revision, const std::string& reason) {
  const int64_t step = std::min(trainer_->next_step(), spec_.training.steps - 1);
  const std::string text =
      absl::StrCat("recipe revision ", revision, " refused, revision ",
                   trainer_->timeline().At(step).number, " stays in effect: ", reason);
  reporter_->Write(NoticeEvent{.step = trainer_->next_step(), .text = text});
  reporter_->Note(text);
  NoteRefused({revision, reason}, news_);
  TellDaemon(news_.doing, nullptr);
}

void JobRun::BeginRevision() {
  const Revision& revision = trainer_->timeline().At(trainer_->next_step());
  if (!NoteBegun({.revision = revision.number, .first_step = revision.first_step}, news_)) return;
  TellDaemon(RankNews::Doing::kSteps, nullptr);
}

void JobRun::TellDaemon(RankNews::Doing doing, const StepReport* report) {
  if (!control_->has_daemon()) return;
  news_.doing = doing;
  news_.trouble = reporter_->trouble();
  news_.next_step = trainer_->next_step();
  if (const double now = SteadySeconds(); now - memory_read_at_ > kMemorySeconds) {
    memory_read_at_ = now;
    news_.memory_bytes = ReadProcessFigures().resident_bytes;
  }
  if (report != nullptr) {
    AddStep(*report, trainer_->outline(), trainer_->timeline(), collective_.rank() == 0, news_);
  }
  control_->Report(news_);
}

absl::Status JobRun::MaybeCheckpoint(bool storing) {
  const int64_t next = trainer_->next_step();
  const int64_t every = spec_.checkpoints.every;
  if (guest_ == nullptr || next == 0 || next == taken_step_) return absl::OkStatus();
  checkpoint_due_ |= every > 0 && next % every == 0;
  // A checkpoint that is due too early waits for a later boundary, the same on all ranks. So does
  // one after a skipped step: a run that skips every step keeps its good checkpoints.
  if (!checkpoint_due_ || storing || trainer_->skipped_in_a_row() > 0) return absl::OkStatus();
  return TakeCheckpoint();
}

absl::Status JobRun::TakeCheckpoint() {
  CheckpointHeader header = state_->Header();
  header.attempt = options_.checkpoints.attempt;
  header.time_unix_nanos = absl::ToUnixNanos(absl::Now());
  checkpoint_due_ = false;
  request_taken_ = request_heard_;
  taken_step_ = header.step;
  const double begin = SteadySeconds();
  const absl::Status status = guest_->Snapshot(
      header,
      [this](absl::Span<const absl::Span<std::byte>> buffers) { return state_->Save(buffers); });
  // The stall does not count as the steps' time.
  reporter_->Waited(SteadySeconds() - begin);
  // Unavailable means a failed checkpoint; another error, such as an unreadable device, ends the
  // run.
  if (status.ok() || !absl::IsUnavailable(status)) return status;
  ReportCheckpoint({.step = header.step, .status = status});
  return absl::OkStatus();
}

absl::Status JobRun::FinishCheckpoints() {
  if (guest_ == nullptr) return absl::OkStatus();
  // Without a deadline, for example while the disk is full: there are no more steps to delay.
  TellDaemon(RankNews::Doing::kStanding, nullptr);
  if (const auto outcome = guest_->Wait(); outcome.has_value()) ReportCheckpoint(*outcome);
  const bool wanted = spec_.checkpoints.at_end || last_checkpoint_;
  if (!wanted || trainer_->next_step() == taken_step_ || trainer_->next_step() == 0) {
    return absl::OkStatus();
  }
  if (trainer_->skipped_in_a_row() > 0 && trainer_->next_step() < spec_.training.steps) {
    const std::string text =
        absl::StrCat("no last checkpoint: the last ", trainer_->skipped_in_a_row(),
                     " steps were skipped; the newest is of step ", summary_.last_checkpoint);
    reporter_->Write(NoticeEvent{.step = trainer_->next_step(), .text = text});
    reporter_->Note(text);
    return absl::OkStatus();
  }
  NIBBLE_RETURN_IF_ERROR(TakeCheckpoint());
  if (const auto outcome = guest_->Wait(); outcome.has_value()) ReportCheckpoint(*outcome);
  return absl::OkStatus();
}

void JobRun::ReportCheckpoint(const CheckpointGuest::Outcome& outcome) {
  summary_.checkpoint_status = OfDisk(outcome.status);
  AddCheckpoint(outcome, news_);
  if (outcome.status.ok()) {
    summary_.last_checkpoint = outcome.step;
    news_.checkpoint_request = std::max(news_.checkpoint_request, request_taken_);
  } else {
    ++summary_.failed_checkpoints;
  }
  control_->Report(news_);
  if (!reporter_->speaks()) return;
  const std::string problem(outcome.status.message());
  reporter_->Write(CheckpointEvent{.step = outcome.step,
                                   .stored = outcome.status.ok(),
                                   .bytes = outcome.bytes,
                                   .deleted = outcome.deleted,
                                   .stall_seconds = outcome.stall_seconds,
                                   .write_seconds = outcome.write_seconds,
                                   .direct = outcome.direct,
                                   .problem = problem});
  if (!outcome.status.ok()) {
    reporter_->Note(
        absl::StrCat("no checkpoint of step ", outcome.step, ": ", problem, "; training goes on"));
  }
}

}  // namespace nibble
