#include "worker/trainer/loop/run_job.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "common/metrics/process_figures.h"
#include "worker/checkpoint/checkpoint_guest.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/disk.h"
#include "worker/trainer/data/prefetcher.h"
#include "worker/trainer/link/daemon_link.h"
#include "worker/trainer/link/trainer_exit.h"
#include "worker/trainer/loop/cpu_device.h"
#include "worker/trainer/loop/job_control.h"
#include "worker/trainer/loop/job_data.h"
#include "worker/trainer/loop/rank_news.h"
#include "worker/trainer/loop/run_events.h"
#include "worker/trainer/loop/run_reporter.h"
#include "worker/trainer/loop/run_state.h"
#include "worker/trainer/loop/trainer.h"

namespace nibble {
namespace {

constexpr int kBatchesAhead = 2;
// Between two agreements of ranks that stand: shorter than any collective's patience.
constexpr std::chrono::milliseconds kStandPatience(500);
// Asking the kernel takes as long as a small layer.
constexpr double kMemorySeconds = 1;

// A model or optimizer that refuses its numbers would refuse them again.
absl::Status OfSpec(absl::Status status) {
  if (!absl::IsInvalidArgument(status) && !absl::IsUnimplemented(status)) return status;
  return WithExit(std::move(status), TrainerExit::kSpec);
}

// Data that are not there or cannot be trained on do not become better by another attempt; a disk
// that is full, and a read that failed, may.
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

// DataLoss and NotFound are of the bytes; FailedPrecondition says in what the spec differs from
// that of the checkpoint.
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

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Names the bound of the spec that memory has run against.
absl::Status NameBound(const JobSpec& spec, const absl::Status& status) {
  if (!absl::IsResourceExhausted(status) || spec.resources.memory_mib == 0) return status;
  return WithExit(
      absl::ResourceExhaustedError(absl::StrCat("resources.memory_mib: ", spec.resources.memory_mib,
                                                " MiB are too few: ", status.message())),
      TrainerExit::kSpec);
}

class Run {
 public:
  Run(const JobSpec& spec, Collective& collective, const RunOptions& options)
      : spec_(spec), collective_(collective), options_(options) {}

  absl::StatusOr<RunSummary> Execute();

 private:
  absl::Status Prepare();
  absl::Status TrainAll();
  absl::Status ValidateAll();
  absl::Status PrepareCheckpoints();
  absl::Status Resume();
  // Takes in what all ranks agree on, and stands while they are to. False: the run is to stop.
  absl::StatusOr<bool> PassBoundary();
  absl::StatusOr<JobControl::Boundary> Agree(std::chrono::milliseconds patience);
  // Takes up a timeline that all ranks were offered, but for what the trainer cannot run.
  void Adopt(const JobControl::Boundary& boundary);
  // Puts the recipe of the step to come in effect on all ranks, or on none: where a rank cannot
  // take it, it is refused and the one before it stays. An error where that has begun already.
  absl::Status PrepareRecipe();
  void Refuse(int64_t revision, const std::string& reason);
  void TellRefused(int64_t revision, const std::string& reason);
  // Before the step to come: tells under which recipe it is made, where that is another.
  void BeginRevision();
  void TellDaemon(RankNews::Doing doing, const StepReport* report);
  // A checkpoint of the step to come, if it is due and the last one is out of the way.
  absl::Status MaybeCheckpoint(bool storing);
  absl::Status TakeCheckpoint();
  // After the last step: waits for what is on its way, and takes the last one.
  absl::Status FinishCheckpoints();
  void ReportCheckpoint(const CheckpointGuest::Outcome& outcome);

  const JobSpec& spec_;
  JobSpec recorded_;  // spec_ with the tokenizer that the data has: what checkpoints carry
  Collective& collective_;
  const RunOptions& options_;
  std::string directory_;
  std::unique_ptr<RunReporter> reporter_;
  std::optional<JobData> data_;
  std::unique_ptr<CpuDevice> device_;
  std::unique_ptr<Parameters> parameters_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<RunState> state_;
  std::unique_ptr<CheckpointGuest> guest_;  // null: no checkpoints
  std::unique_ptr<JobControl> control_;
  RankNews news_;         // what the daemon was told last
  int64_t prepared_ = 0;  // revision that all ranks have in effect; 0: not agreed yet
  double memory_read_at_ = 0;
  std::optional<ResumeEvent> resumed_;
  std::string begins_with_;  // of a run that takes another's weights, for people
  bool checkpoint_due_ = false;
  int64_t request_heard_ = 0;     // greatest number of a checkpoint that was asked for
  int64_t request_taken_ = 0;     // of which the checkpoint that is on its way is
  bool last_checkpoint_ = false;  // the run stops with a checkpoint, whatever the spec says
  int64_t taken_step_ = -1;       // of the newest checkpoint that was begun or resumed from
  RunSummary summary_;
  double began_ = 0;
};

absl::Status Run::Prepare() {
  directory_ = OutputDirectory(spec_);
  absl::StatusOr<std::unique_ptr<JobControl>> control = JobControl::Create(
      collective_, *options_.stop, options_.daemon_link, options_.checkpoints.attempt);
  if (!control.ok()) return control.status();
  control_ = *std::move(control);
  absl::Status status;
  if (options_.prepares_data) {
    std::error_code error;
    std::filesystem::create_directories(directory_, error);
    if (error) {
      return OfDisk(
          ErrnoStatus(error.value(), absl::StrCat("output.directory: cannot make ", directory_)));
    }
    status = OfData(JobData::Prepare(spec_, directory_));
    if (!status.ok()) return status;
  }
  // The others find the shards that one of their node has made.
  status = collective_.Barrier();
  if (!status.ok()) return status;
  absl::StatusOr<std::unique_ptr<RunReporter>> reporter =
      RunReporter::Open(spec_, {.directory = directory_,
                                .speaks = collective_.rank() == 0,
                                .progress = options_.progress,
                                .terminal = options_.terminal,
                                .clock = SteadySeconds});
  if (!reporter.ok()) return OfDisk(reporter.status());
  reporter_ = *std::move(reporter);
  absl::StatusOr<JobData> data = JobData::Open(spec_, directory_);
  if (!data.ok()) return OfData(data.status());
  data_.emplace(*std::move(data));
  for (const std::string& notice : data_->notices()) reporter_->Note(notice);

  absl::StatusOr<std::unique_ptr<CpuDevice>> device =
      CpuDevice::Create(static_cast<int>(spec_.resources.threads),
                        static_cast<size_t>(spec_.resources.memory_mib) << 20);
  if (!device.ok()) return device.status();
  device_ = *std::move(device);
  const absl::StatusOr<Outline> outline = MakeOutline(spec_.model);
  if (!outline.ok()) return OfSpec(outline.status());
  absl::StatusOr<std::unique_ptr<Parameters>> parameters = Parameters::Create(
      device_->backend->memory(), *outline, spec_.training.seed, collective_.world());
  if (!parameters.ok()) return OfSpec(NameBound(spec_, parameters.status()));
  parameters_ = *std::move(parameters);
  absl::StatusOr<std::unique_ptr<Trainer>> trainer =
      Trainer::Create(spec_, {.device = device_->device(),
                              .collective = collective_,
                              .parameters = *parameters_,
                              .clock = SteadySeconds});
  if (!trainer.ok()) return OfSpec(NameBound(spec_, trainer.status()));
  trainer_ = *std::move(trainer);
  recorded_ = spec_;
  recorded_.data.tokenizer_label = data_->tokenizer();
  state_ = std::make_unique<RunState>(recorded_, device_->device(), *trainer_);
  return PrepareCheckpoints();
}

absl::Status Run::PrepareCheckpoints() {
  const RunCheckpoints& checkpoints = options_.checkpoints;
  if (checkpoints.resume_step >= 0) {
    if (absl::Status status = Resume(); !status.ok()) return status;
  } else if (spec_.init_from.any()) {
    // Random weights are not what was asked for.
    const bool named = !spec_.init_from.job.empty();
    return WithExit(
        absl::InvalidArgumentError(absl::StrCat(
            named ? "init_from.job: '" : "init_from.path: '",
            named ? spec_.init_from.job : spec_.init_from.path,
            "': this trainer was given no checkpoint of it to begin with; without a cluster, "
            "init_from.path names a checkpoint store")),
        TrainerExit::kSpec);
  }
  // A daemon may ask for one at any time.
  const bool wanted = spec_.checkpoints.any() || control_->has_daemon();
  if (checkpoints.host.empty() || !wanted) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<CheckpointGuest>> guest =
      CheckpointGuest::Connect({.address = checkpoints.host,
                                .rank = collective_.rank(),
                                .attempt = checkpoints.attempt,
                                .slices = state_->slices(),
                                .clock = SteadySeconds});
  if (!guest.ok()) return guest.status();
  guest_ = *std::move(guest);
  return absl::OkStatus();
}

absl::Status Run::Resume() {
  const RunCheckpoints& from = options_.checkpoints;
  const double begin = SteadySeconds();
  // A fork begins in its parent's store.
  const absl::StatusOr<StoreIdentity> identity = CheckpointStore::IdentityOf(from.store);
  if (!identity.ok()) return OfCheckpoint(identity.status());
  const absl::StatusOr<std::unique_ptr<CheckpointStore>> store =
      CheckpointStore::Open(from.store, {.identity = *identity, .read_only = true});
  if (!store.ok()) return OfCheckpoint(store.status());
  const auto reader = (*store)->OpenCheckpoint(from.resume_step);
  if (!reader.ok()) return OfCheckpoint(reader.status());
  const absl::Status loaded =
      from.weights_only ? state_->LoadWeightsOf(**reader) : state_->Load(**reader);
  if (!loaded.ok()) return OfCheckpoint(loaded);
  if (from.weights_only) {
    begins_with_ = absl::StrCat("begins with the weights of ", identity->job,
                                ", checkpoint of step ", from.resume_step);
    return absl::OkStatus();
  }
  taken_step_ = summary_.last_checkpoint = from.resume_step;
  const CheckpointHeader& header = (*reader)->manifest().header;
  const int64_t next = trainer_->next_step();
  // What the run has been through may be news: a store that was restored is an older copy of itself.
  const std::vector<Revision>& revisions = trainer_->timeline().revisions();
  for (size_t i = 1; i < revisions.size(); ++i) {
    const Revision& revision = revisions[i];
    if (!revision.refused.empty()) {
      NoteRefused({revision.number, revision.refused}, news_);
    } else if (revision.first_step < next &&
               trainer_->timeline().At(revision.first_step).number == revision.number) {
      NoteBegun({.revision = revision.number, .first_step = revision.first_step}, news_);
    }
  }
  resumed_ = ResumeEvent{
      .step = next,
      .checkpoint_attempt = header.attempt,
      .checkpoint_ranks = header.world,
      .attempt = from.attempt,
      .revision = trainer_->timeline().At(std::min(next, spec_.training.steps - 1)).number,
      .seconds = SteadySeconds() - begin};
  return absl::OkStatus();
}

absl::StatusOr<JobControl::Boundary> Run::Agree(std::chrono::milliseconds patience) {
  if (guest_ != nullptr) {
    if (const auto outcome = guest_->Poll(); outcome.has_value()) ReportCheckpoint(*outcome);
  }
  return control_->Agree(guest_ != nullptr && guest_->in_flight().has_value(), patience);
}

absl::StatusOr<bool> Run::PassBoundary() {
  const double begin = SteadySeconds();
  std::chrono::milliseconds patience(0);
  while (true) {
    absl::StatusOr<JobControl::Boundary> boundary = Agree(patience);
    if (!boundary.ok()) return boundary.status();
    if (boundary->timeline.has_value()) Adopt(*boundary);
    if (boundary->stop) {
      last_checkpoint_ = boundary->last_checkpoint;
      return false;
    }
    // Before a checkpoint, so that its timeline says what was refused.
    if (absl::Status status = PrepareRecipe(); !status.ok()) return status;
    if (boundary->checkpoint_request > request_heard_) {
      request_heard_ = boundary->checkpoint_request;
      checkpoint_due_ = true;
    }
    if (absl::Status status = MaybeCheckpoint(boundary->storing); !status.ok()) return status;
    if (!boundary->pause) break;
    if (patience.count() == 0) TellDaemon(RankNews::Doing::kStanding, nullptr);
    patience = kStandPatience;
  }
  if (patience.count() > 0) {
    TellDaemon(RankNews::Doing::kSteps, nullptr);
    // Standing is not the steps' time.
    reporter_->Waited(SteadySeconds() - begin);
  }
  return true;
}

void Run::Adopt(const JobControl::Boundary& boundary) {
  const int64_t next = trainer_->next_step();
  absl::StatusOr<Timeline> adopted = *boundary.timeline;
  if (adopted.ok()) adopted = AdoptTimeline(trainer_->timeline(), *adopted, next);
  // What is no timeline has no revision that could be marked.
  if (!adopted.ok()) return TellRefused(boundary.revision, std::string(adopted.status().message()));
  trainer_->timeline() = *std::move(adopted);
  const std::vector<Revision> revisions = trainer_->timeline().revisions();
  // The first always holds: a run that cannot take it ends when it is to be prepared.
  for (size_t i = 1; i < revisions.size(); ++i) {
    if (!revisions[i].refused.empty() || revisions[i].first_step < next) continue;
    const absl::Status fits = trainer_->CheckRecipe(revisions[i].recipe);
    if (!fits.ok()) Refuse(revisions[i].number, std::string(fits.message()));
  }
}

absl::Status Run::PrepareRecipe() {
  const int64_t step = std::min(trainer_->next_step(), spec_.training.steps - 1);
  while (trainer_->timeline().At(step).number != prepared_) {
    const Revision revision = trainer_->timeline().At(step);
    const absl::Status mine = NameBound(spec_, trainer_->PrepareRecipe());
    const absl::StatusOr<std::string> refusal = control_->AgreeOn(mine);
    if (!refusal.ok()) return refusal.status();
    prepared_ = revision.number;
    if (refusal->empty()) return absl::OkStatus();
    const int64_t first = trainer_->timeline().revisions().front().number;
    if (revision.first_step < trainer_->next_step() || revision.number == first) {
      return mine.ok() ? absl::FailedPreconditionError(
                             absl::StrCat("recipe revision ", revision.number, ": ", *refusal))
                       : mine;
    }
    prepared_ = 0;  // whatever holds instead is to be put back
    Refuse(revision.number, *refusal);
  }
  return absl::OkStatus();
}

void Run::Refuse(int64_t revision, const std::string& reason) {
  // It is there, and not the first.
  (void)trainer_->timeline().Refuse(revision, reason);
  TellRefused(revision, reason);
}

void Run::TellRefused(int64_t revision, const std::string& reason) {
  const int64_t step = std::min(trainer_->next_step(), spec_.training.steps - 1);
  const std::string text =
      absl::StrCat("recipe revision ", revision, " refused, revision ",
                   trainer_->timeline().At(step).number, " stays in effect: ", reason);
  reporter_->Write(NoticeEvent{.step = trainer_->next_step(), .text = text});
  reporter_->Note(text);
  NoteRefused({revision, reason}, news_);
  TellDaemon(news_.doing, nullptr);
}

void Run::BeginRevision() {
  const Revision& revision = trainer_->timeline().At(trainer_->next_step());
  if (!NoteBegun({.revision = revision.number, .first_step = revision.first_step}, news_)) return;
  TellDaemon(RankNews::Doing::kSteps, nullptr);
}

void Run::TellDaemon(RankNews::Doing doing, const StepReport* report) {
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

void Run::ReportCheckpoint(const CheckpointGuest::Outcome& outcome) {
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

absl::Status Run::MaybeCheckpoint(bool storing) {
  const int64_t next = trainer_->next_step();
  const int64_t every = spec_.checkpoints.every;
  if (guest_ == nullptr || next == 0 || next == taken_step_) return absl::OkStatus();
  checkpoint_due_ |= every > 0 && next % every == 0;
  // One that comes too early waits for a later boundary, the same on all ranks. So does one after
  // a step that was skipped: a run that skips every step keeps the checkpoints that it has.
  if (!checkpoint_due_ || storing || trainer_->skipped_in_a_row() > 0) return absl::OkStatus();
  return TakeCheckpoint();
}

absl::Status Run::TakeCheckpoint() {
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
  // What was waited for is not the steps' time.
  reporter_->Waited(SteadySeconds() - begin);
  // Only a device that cannot be read ends the run.
  if (status.ok() || !absl::IsUnavailable(status)) return status;
  ReportCheckpoint({.step = header.step, .status = status});
  return absl::OkStatus();
}

absl::Status Run::FinishCheckpoints() {
  if (guest_ == nullptr) return absl::OkStatus();
  // However long it takes, as on a disk without room: no step is to be waited for any more.
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
  if (absl::Status status = TakeCheckpoint(); !status.ok()) return status;
  if (const auto outcome = guest_->Wait(); outcome.has_value()) ReportCheckpoint(*outcome);
  return absl::OkStatus();
}

absl::Status Run::ValidateAll() {
  const double begin = SteadySeconds();
  double sum = 0;
  for (const NamedValidation& validation : data_->validation()) {
    const double set_begin = SteadySeconds();
    const int64_t batches = validation.set.batches();
    const absl::StatusOr<double> loss = trainer_->Validate(
        [&](int64_t step, int64_t micro) {
          return validation.set.Build({.step = step,
                                       .rank = collective_.rank(),
                                       .world = collective_.world(),
                                       .micro = micro,
                                       .micros = trainer_->micro_batches()});
        },
        batches);
    if (!loss.ok()) return loss.status();
    sum += *loss;
    reporter_->Write(ValidationEvent{.step = trainer_->next_step(),
                                     .set = validation.name,
                                     .loss = *loss,
                                     .batches = batches,
                                     .revision = reporter_->revision(),
                                     .seconds = SteadySeconds() - set_begin});
    if (reporter_->progress() != nullptr) {
      reporter_->progress()->ValidationDone(validation.name, *loss);
    }
  }
  reporter_->Waited(SteadySeconds() - begin);
  if (!data_->validation().empty()) {
    trainer_->ObserveValidation(sum / static_cast<double>(data_->validation().size()));
  }
  return absl::OkStatus();
}

absl::Status Run::TrainAll() {
  const int64_t micros = trainer_->micro_batches();
  Prefetcher prefetcher(
      [&](int64_t number) {
        return data_->training().Build({.step = number / micros,
                                        .rank = collective_.rank(),
                                        .world = collective_.world(),
                                        .micro = number % micros,
                                        .micros = micros});
      },
      trainer_->next_step() * micros, kBatchesAhead, SteadyNanos);
  const Trainer::BatchSource batches = [&](int64_t, int64_t) { return prefetcher.Next(); };
  const int64_t every = spec_.training.validate_every;
  while (trainer_->next_step() < spec_.training.steps) {
    // Also where a run continues from the checkpoint that it ended with.
    if (trainer_->stops_early()) {
      reporter_->Note(absl::StrCat("ends before step ", trainer_->next_step(),
                                   ": the validation loss no longer improves"));
      summary_.reason = "early_stop";
      return absl::OkStatus();
    }
    const absl::StatusOr<bool> goes_on = PassBoundary();
    if (!goes_on.ok()) return goes_on.status();
    if (!*goes_on) {
      summary_.reason = "stopped";
      return absl::OkStatus();
    }
    BeginRevision();
    StepReport report;
    const absl::Status status = trainer_->Step(batches, report);
    if (status.ok() || absl::IsAborted(status)) {
      reporter_->StepDone(report, *trainer_);
      TellDaemon(RankNews::Doing::kSteps, &report);
    }
    if (!status.ok()) return status;
    ++summary_.steps;
    summary_.loss = report.loss;
    if (!report.updated) ++summary_.skipped_steps;
    const int64_t next = trainer_->next_step();
    if (next == spec_.training.steps || (every > 0 && next % every == 0)) {
      // Under the recipe of the step to come.
      if (absl::Status prepared = PrepareRecipe(); !prepared.ok()) return prepared;
      if (absl::Status valid = ValidateAll(); !valid.ok()) return valid;
    }
  }
  summary_.reason = "completed";
  return absl::OkStatus();
}

absl::StatusOr<RunSummary> Run::Execute() {
  absl::Status status = Prepare();
  if (!status.ok()) return status;
  began_ = SteadySeconds();
  reporter_->Begin();
  reporter_->Write(StartOf(spec_, trainer_->outline(), trainer_->next_step(),
                           device_->backend->pool().threads()));
  if (reporter_->progress() != nullptr) {
    reporter_->progress()->Start(trainer_->next_step(), spec_.training.steps);
  }
  for (const std::string& notice : options_.checkpoints.notices) {
    reporter_->Write(NoticeEvent{.step = trainer_->next_step(), .text = notice});
    reporter_->Note(notice);
  }
  if (!begins_with_.empty()) {
    reporter_->Write(NoticeEvent{.step = trainer_->next_step(), .text = begins_with_});
    reporter_->Note(begins_with_);
  }
  if (resumed_.has_value()) {
    reporter_->Write(*resumed_);
    reporter_->Note(absl::StrCat("goes on from the checkpoint of step ", resumed_->step));
  }
  status = TrainAll();
  if (status.ok()) {
    status = FinishCheckpoints();
  } else if (IsGuards(ExitOf(status)) && guest_ != nullptr) {
    // A guard ends the run: the good checkpoint that is on its way is what it is resumed from.
    if (const auto outcome = guest_->Wait(); outcome.has_value()) ReportCheckpoint(*outcome);
  }
  if (!status.ok()) {
    reporter_->Write(ErrorEvent{.step = trainer_->next_step(),
                                .code = absl::StatusCodeToString(status.code()),
                                .message = std::string(status.message())});
    reporter_->Close();
    return status;
  }
  const double seconds = SteadySeconds() - began_;
  const int64_t tokens = summary_.steps * TokensPerStep(spec_);
  reporter_->Write(
      FinishEvent{.steps = trainer_->next_step(),
                  .tokens = trainer_->next_step() * TokensPerStep(spec_),
                  .loss = summary_.loss,
                  .skipped_steps = summary_.skipped_steps,
                  .failed_checkpoints = summary_.failed_checkpoints,
                  .last_checkpoint = summary_.last_checkpoint,
                  .seconds = seconds,
                  .tokens_per_second = seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0,
                  .reason = summary_.reason});
  reporter_->Close();
  return summary_;
}

}  // namespace

absl::StatusOr<RunSummary> RunJob(const JobSpec& spec, Collective& collective,
                                  const RunOptions& options) {
  if (absl::Status status = Validate(spec); !status.ok()) return status;
  return Run(spec, collective, options).Execute();
}

}  // namespace nibble
