#include "worker/trainer/loop/job_run.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/disk.h"
#include "worker/trainer/data/prefetcher.h"
#include "worker/trainer/link/link_message.h"
#include "worker/trainer/loop/run_job.h"

namespace nibble {
namespace {

constexpr int kBatchesAhead = 2;

// A model or optimizer that rejects its configuration would reject it again.
absl::Status OfSpec(absl::Status status) {
  if (!absl::IsInvalidArgument(status) && !absl::IsUnimplemented(status)) return status;
  return WithExit(std::move(status), TrainerExit::kSpec);
}

// Missing or unusable data will not be better in another attempt; a full disk or a failed read may
// be.
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

// DataLoss and NotFound concern the stored bytes; FailedPrecondition means that the spec differs
// from the checkpoint's.
absl::Status OfCheckpoint(absl::Status status) {
  if (absl::IsDataLoss(status) || absl::IsNotFound(status)) {
    return WithExit(std::move(status), TrainerExit::kCheckpoint);
  }
  if (absl::IsFailedPrecondition(status)) return WithExit(std::move(status), TrainerExit::kSpec);
  return status;
}

}  // namespace

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
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

absl::Status JobRun::Prepare() {
  directory_ = OutputDirectory(spec_);
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<JobControl> control,
                          JobControl::Create(collective_, *options_.stop, options_.daemon_link,
                                             options_.checkpoints.attempt));
  control_ = std::move(control);
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
  // Other ranks of the node use the shards that one of them has made.
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

  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CpuDevice> device,
                          CpuDevice::Create(static_cast<int>(spec_.resources.threads),
                                            static_cast<size_t>(spec_.resources.memory_mib) << 20));
  device_ = std::move(device);
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

absl::Status JobRun::PrepareCheckpoints() {
  const RunCheckpoints& checkpoints = options_.checkpoints;
  if (checkpoints.resume_step >= 0) {
    NIBBLE_RETURN_IF_ERROR(Resume());
  } else if (spec_.init_from.any()) {
    // Do not begin with random weights instead.
    const bool named = !spec_.init_from.job.empty();
    return WithExit(
        absl::InvalidArgumentError(absl::StrCat(
            named ? "init_from.job: '" : "init_from.path: '",
            named ? spec_.init_from.job : spec_.init_from.path,
            "': this trainer was given no checkpoint of it to begin with; without a cluster, "
            "init_from.path names a checkpoint store")),
        TrainerExit::kSpec);
  }
  // A daemon may request one at any time.
  const bool wanted = spec_.checkpoints.any() || control_->has_daemon();
  if (checkpoints.host.empty() || !wanted) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CheckpointGuest> guest,
                          CheckpointGuest::Connect({.address = checkpoints.host,
                                                    .rank = collective_.rank(),
                                                    .attempt = checkpoints.attempt,
                                                    .slices = state_->slices(),
                                                    .clock = SteadySeconds}));
  guest_ = std::move(guest);
  return absl::OkStatus();
}

absl::Status JobRun::Resume() {
  const RunCheckpoints& from = options_.checkpoints;
  const double begin = SteadySeconds();
  // A fork resumes from its parent's store.
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
  // Report past revisions again: the coordinator may not know them if its store was restored from
  // an older copy.
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

absl::Status JobRun::ValidateAll() {
  const double begin = SteadySeconds();
  double sum = 0;
  for (const NamedValidation& validation : data_->validation()) {
    const double set_begin = SteadySeconds();
    const int64_t batches = validation.set.batches();
    NIBBLE_ASSIGN_OR_RETURN(
        const double loss, trainer_->Validate(
                               [&](int64_t step, int64_t micro) {
                                 return validation.set.Build({.step = step,
                                                              .rank = collective_.rank(),
                                                              .world = collective_.world(),
                                                              .micro = micro,
                                                              .micros = trainer_->micro_batches()});
                               },
                               batches));
    sum += loss;
    reporter_->Write(ValidationEvent{.step = trainer_->next_step(),
                                     .set = validation.name,
                                     .loss = loss,
                                     .batches = batches,
                                     .revision = reporter_->revision(),
                                     .seconds = SteadySeconds() - set_begin});
    if (reporter_->progress() != nullptr) {
      reporter_->progress()->ValidationDone(validation.name, loss);
    }
  }
  reporter_->Waited(SteadySeconds() - begin);
  if (!data_->validation().empty()) {
    trainer_->ObserveValidation(sum / static_cast<double>(data_->validation().size()));
  }
  return absl::OkStatus();
}

absl::Status JobRun::TrainAll() {
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
    // Checked first, for a run that resumes from the checkpoint that it ended with.
    if (trainer_->stops_early()) {
      reporter_->Note(absl::StrCat("ends before step ", trainer_->next_step(),
                                   ": the validation loss no longer improves"));
      summary_.reason = "early_stop";
      return absl::OkStatus();
    }
    NIBBLE_ASSIGN_OR_RETURN(const bool goes_on, PassBoundary());
    if (!goes_on) {
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
      // Validation uses the recipe of the next step.
      NIBBLE_RETURN_IF_ERROR(PrepareRecipe());
      NIBBLE_RETURN_IF_ERROR(ValidateAll());
    }
  }
  summary_.reason = "completed";
  return absl::OkStatus();
}

absl::StatusOr<RunSummary> JobRun::Execute() {
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
    // A guard ended the run, which will resume from the good checkpoint in flight.
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

absl::StatusOr<RunSummary> RunJob(const JobSpec& spec, Collective& collective,
                                  const RunOptions& options) {
  NIBBLE_RETURN_IF_ERROR(Validate(spec));
  return JobRun(spec, collective, options).Execute();
}

}  // namespace nibble
