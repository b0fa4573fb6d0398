#include "worker/trainer/loop/run_job.h"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errno_error.h"
#include "common/status_macros.h"
#include "worker/link/checkpoint_client.h"
#include "worker/link/rank_link.h"
#include "worker/link/trainer_exit.h"
#include "worker/trainer/data/prefetcher.h"
#include "worker/trainer/loop/checkpoint_taker.h"
#include "worker/trainer/loop/job_control.h"
#include "worker/trainer/loop/job_data.h"
#include "worker/trainer/loop/rank_status.h"
#include "worker/trainer/loop/recipe_switch.h"
#include "worker/trainer/loop/run_errors.h"
#include "worker/trainer/loop/run_model.h"
#include "worker/trainer/loop/run_reporter.h"
#include "worker/trainer/loop/run_trace.h"

namespace nibble {
namespace {

constexpr int kBatchesAhead = 2;
// Between two agreements of paused ranks: shorter than the timeout of any collective.
constexpr std::chrono::milliseconds kPausePatience(500);

// The objects of a run, in the order in which they are made, and the loop over its steps.
class JobRun {
 public:
  JobRun(const JobSpec& spec, std::unique_ptr<TrainDevice> device,
         std::unique_ptr<Collective> collective, const RunOptions& options,
         std::unique_ptr<RankLink>& link)
      : spec_(spec),
        device_(std::move(device)),
        ranks_(std::move(collective)),
        collective_(*ranks_),
        options_(options),
        trace_(device_->device(), collective_),
        link_(link) {
    if (!options.trace.path.empty()) {
      trace_.TraceToFile(options.trace.path, options.trace.after, options.trace.steps);
    }
  }

  absl::StatusOr<RunSummary> Execute();

 private:
  absl::Status Prepare();
  absl::Status OpenData();
  // Loads the checkpoint to begin from, if there is one. Returns its step for a resumed run, else
  // -1.
  absl::StatusOr<int64_t> Load();
  void WriteStart();
  absl::Status TrainAll();
  absl::Status ValidateAll();
  // Runs the agreements of a step boundary, and waits while the job is paused. False: stop.
  absl::StatusOr<bool> PassBoundary();
  void Send(link::v1::RankActivity activity) {
    status_->Send(activity, trainer().next_step(), reporter_->trouble());
  }
  Trainer& trainer() { return model_->trainer(); }

  const JobSpec& spec_;
  const std::unique_ptr<TrainDevice> device_;
  const std::unique_ptr<Collective> ranks_;
  Collective& collective_;
  const RunOptions& options_;
  RunTrace trace_;
  std::unique_ptr<RankLink>& link_;  // null: no process serves this rank
  std::unique_ptr<JobControl> control_;
  std::unique_ptr<RunReporter> reporter_;
  std::optional<JobData> data_;
  std::unique_ptr<RunModel> model_;
  std::optional<RankStatus> status_;
  std::optional<RecipeSwitch> recipes_;
  std::unique_ptr<CheckpointTaker> checkpoints_;
  std::optional<RunModel::Resumed> resumed_;
  std::string begins_with_;        // notice of a run that starts from another job's weights
  bool final_checkpoint_ = false;  // the run stops with a checkpoint, whatever the spec requests
  RunSummary summary_;
};

absl::Status JobRun::OpenData() {
  const std::string directory = OutputDirectory(spec_);
  std::vector<std::string> notices;
  if (options_.prepares_data) {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) {
      return OfDisk(
          ErrnoError(error.value(), absl::StrCat("output.directory: cannot make ", directory)));
    }
    absl::StatusOr<std::vector<std::string>> prepared = JobData::Prepare(spec_, directory);
    if (!prepared.ok()) return OfData(prepared.status());
    notices = *std::move(prepared);
  }
  // Other ranks of the node use the shards that one of them has made.
  NIBBLE_RETURN_IF_ERROR(collective_.Barrier());
  absl::StatusOr<std::unique_ptr<RunReporter>> reporter =
      RunReporter::Open(spec_, {.directory = directory,
                                .writes = collective_.rank() == 0,
                                .progress = options_.progress,
                                .terminal = options_.terminal,
                                .clock = SteadySeconds});
  if (!reporter.ok()) return OfDisk(reporter.status());
  reporter_ = *std::move(reporter);
  absl::StatusOr<JobData> data = JobData::Open(spec_, directory);
  if (!data.ok()) return OfData(data.status());
  data_.emplace(*std::move(data));
  notices.insert(notices.end(), data_->notices().begin(), data_->notices().end());
  for (const std::string& notice : notices) reporter_->Note(notice);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> JobRun::Load() {
  const RunCheckpoints& from = options_.checkpoints;
  if (from.resume_step < 0) {
    if (!spec_.init_from.any()) return -1;
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
  if (from.weights_only) {
    NIBBLE_ASSIGN_OR_RETURN(begins_with_, model_->LoadWeights(from.store, from.resume_step));
    return -1;
  }
  NIBBLE_ASSIGN_OR_RETURN(resumed_, model_->Resume(from.store, from.resume_step, from.attempt));
  status_->AddHistory(trainer().timeline(), trainer().next_step());
  return from.resume_step;
}

absl::Status JobRun::Prepare() {
  if (!options_.link.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(link_, RankLink::Connect({.address = options_.link,
                                                      .rank = collective_.rank(),
                                                      .attempt = options_.checkpoints.attempt}));
    if (options_.page != nullptr) *options_.page = &link_->page();
  }
  control_ = std::make_unique<JobControl>(collective_, *options_.stop, link_.get());
  NIBBLE_RETURN_IF_ERROR(OpenData());
  NIBBLE_ASSIGN_OR_RETURN(
      model_, RunModel::Create(spec_, data_->tokenizer(), trace_.device(), collective_));
  status_.emplace(link_.get(), SteadySeconds, &device_->device().memory());
  status_->AddGuards(spec_.guards);
  recipes_.emplace(spec_, trainer(), *control_, *reporter_, *status_);
  NIBBLE_ASSIGN_OR_RETURN(const int64_t resumed_step, Load());
  std::unique_ptr<CheckpointClient> client;
  PinnedRange pinned;
  if (link_ != nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(
        client, CheckpointClient::Create(*link_, model_->state().slices(), SteadySeconds));
    NIBBLE_ASSIGN_OR_RETURN(pinned,
                            PinnedRange::Create(device_->device().backend, client->memory().data(),
                                                client->memory().size()));
  }
  checkpoints_ = std::make_unique<CheckpointTaker>(
      CheckpointTaker::Options{.spec = spec_,
                               .attempt = options_.checkpoints.attempt,
                               .model = *model_,
                               .reporter = *reporter_,
                               .status = *status_,
                               .client = std::move(client),
                               .pinned = std::move(pinned),
                               .resumed_step = resumed_step});
  return absl::OkStatus();
}

absl::StatusOr<bool> JobRun::PassBoundary() {
  const double begin = SteadySeconds();
  std::chrono::milliseconds patience(0);
  while (true) {
    checkpoints_->Poll();
    NIBBLE_ASSIGN_OR_RETURN(const JobControl::Boundary boundary,
                            control_->Agree(checkpoints_->in_flight(), patience));
    recipes_->Adopt(boundary);
    if (boundary.stop) {
      final_checkpoint_ = boundary.last_checkpoint;
      return false;
    }
    // Before a checkpoint, so that its timeline contains the refusals.
    NIBBLE_RETURN_IF_ERROR(recipes_->Prepare());
    checkpoints_->Request(boundary.checkpoint_request);
    NIBBLE_RETURN_IF_ERROR(checkpoints_->TakeIfDue(boundary.storing));
    if (!boundary.pause) break;
    if (patience.count() == 0) Send(link::v1::RANK_ACTIVITY_PAUSED);
    patience = kPausePatience;
  }
  if (patience.count() > 0) {
    Send(link::v1::RANK_ACTIVITY_STEPS);
    // Pauses do not count as the steps' time.
    reporter_->Waited(SteadySeconds() - begin);
  }
  return true;
}

absl::Status JobRun::ValidateAll() {
  const double begin = SteadySeconds();
  double sum = 0;
  for (const NamedValidation& validation : data_->validation()) {
    const double set_begin = SteadySeconds();
    const int64_t batches = validation.set.batches();
    NIBBLE_ASSIGN_OR_RETURN(
        const double loss, trainer().Validate(
                               [&](int64_t step, int64_t micro) {
                                 return validation.set.Build({.step = step,
                                                              .rank = collective_.rank(),
                                                              .world = collective_.world(),
                                                              .micro = micro,
                                                              .micros = trainer().micro_batches()});
                               },
                               batches));
    sum += loss;
    reporter_->Write(ValidationEvent{.step = trainer().next_step(),
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
    trainer().ObserveValidation(sum / static_cast<double>(data_->validation().size()));
  }
  return absl::OkStatus();
}

absl::Status JobRun::TrainAll() {
  const int64_t micros = trainer().micro_batches();
  Prefetcher prefetcher(
      [&](int64_t number) {
        return data_->training().Build({.step = number / micros,
                                        .rank = collective_.rank(),
                                        .world = collective_.world(),
                                        .micro = number % micros,
                                        .micros = micros});
      },
      trainer().next_step() * micros, kBatchesAhead);
  const Trainer::BatchSource batches = [&](int64_t, int64_t) {
    return trace_.Host("wait for a batch", [&] { return prefetcher.Next(); });
  };
  const int64_t every = spec_.training.validate_every;
  while (trainer().next_step() < EndStep(spec_)) {
    // Checked first, for a run that resumes from the checkpoint that it ended with.
    if (trainer().stops_early()) {
      reporter_->Note(absl::StrCat("ends before step ", trainer().next_step(),
                                   ": the validation loss no longer improves"));
      summary_.reason = "early_stop";
      return absl::OkStatus();
    }
    trace_.TakeRequest(link_.get(), &*status_);
    NIBBLE_RETURN_IF_ERROR(trace_.BeforeStep(trainer()));
    NIBBLE_ASSIGN_OR_RETURN(const bool continues,
                            trace_.Host("boundary", [&] { return PassBoundary(); }));
    if (!continues) {
      summary_.reason = "stopped";
      return absl::OkStatus();
    }
    recipes_->Begin();
    StepReport report;
    const absl::Status status = trace_.Host("step", [&] {
      return trainer().Step(
          batches, report,
          [&] {
            checkpoints_->Poll();
            return control_->Ask(checkpoints_->in_flight());
          },
          [&](std::vector<HostWords> said) { control_->Hear(std::move(said)); });
    });
    for (const std::string& notice : device_->device().gemm.TakeNotices()) {
      reporter_->Notice(trainer().next_step(), notice);
    }
    if (status.ok()) {
      const absl::Status traced = trace_.AfterStep(trainer());
      if (!traced.ok()) reporter_->Notice(trainer().next_step(), std::string(traced.message()));
    }
    if (status.ok() || absl::IsAborted(status)) {
      std::vector<link::v1::PrecisionSample> precision;
      if (collective_.rank() == 0) {
        precision = PrecisionOf(report, trainer().outline(), trainer().timeline());
      }
      reporter_->StepDone(report, trainer(), precision);
      status_->AddStep(report, precision);
      Send(link::v1::RANK_ACTIVITY_STEPS);
    }
    if (!status.ok()) return status;
    ++summary_.steps;
    summary_.loss = report.sample.loss();
    if (!report.sample.updated()) ++summary_.skipped_steps;
    const int64_t next = trainer().next_step();
    if (next == EndStep(spec_) || (every > 0 && next % every == 0)) {
      // Validation uses the recipe of the next step.
      NIBBLE_RETURN_IF_ERROR(recipes_->Prepare());
      NIBBLE_RETURN_IF_ERROR(ValidateAll());
    }
  }
  summary_.reason = "completed";
  return absl::OkStatus();
}

void JobRun::WriteStart() {
  const int64_t next = trainer().next_step();
  reporter_->Begin();
  reporter_->Write(
      StartOf(spec_, trainer().outline(), next, device_->threads(), collective_.Name()));
  const MemoryUse use = device_->device().memory().use();
  reporter_->Write(MemoryOf(trainer(), use, next));
  reporter_->Note(
      absl::StrCat("memory: ", MemoryPlanText(trainer().memory()),
                   use.capacity > 0 ? absl::StrCat("; of ", BytesOfMemory(use.capacity)) : ""));
  if (reporter_->progress() != nullptr) reporter_->progress()->Start(next, EndStep(spec_));
  for (const std::string& notice : options_.checkpoints.notices) reporter_->Notice(next, notice);
  if (!begins_with_.empty()) reporter_->Notice(next, begins_with_);
  if (resumed_.has_value()) {
    reporter_->Write(resumed_->event);
    reporter_->Note(absl::StrCat("resumes from the checkpoint of step ", resumed_->event.step));
    if (!resumed_->notice.empty()) reporter_->Notice(next, resumed_->notice);
  }
}

absl::StatusOr<RunSummary> JobRun::Execute() {
  NIBBLE_RETURN_IF_ERROR(Prepare());
  const double begin = SteadySeconds();
  WriteStart();
  absl::Status status = TrainAll();
  if (status.ok()) {
    status = checkpoints_->Finish(final_checkpoint_);
  } else if (IsGuards(ExitOf(status))) {
    // A guard ended the run, which will resume from the good checkpoint in flight.
    checkpoints_->Wait();
  }
  const int64_t next = trainer().next_step();
  if (const absl::Status traced = trace_.End(); !traced.ok()) {
    reporter_->Notice(next, std::string(traced.message()));
  }
  if (!status.ok()) {
    reporter_->Write(ErrorEvent{.step = next,
                                .code = absl::StatusCodeToString(status.code()),
                                .message = std::string(status.message())});
    reporter_->Close();
    return status;
  }
  summary_.failed_checkpoints = checkpoints_->summary().failed;
  summary_.last_checkpoint = checkpoints_->summary().last_step;
  summary_.checkpoint_status = checkpoints_->summary().status;
  const double seconds = SteadySeconds() - begin;
  const auto tokens = static_cast<double>(summary_.steps * TokensPerStep(spec_));
  reporter_->Write(
      FinishEvent{.steps = next,
                  .tokens = next * TokensPerStep(spec_),
                  .loss = summary_.loss,
                  .skipped_steps = summary_.skipped_steps,
                  .failed_checkpoints = summary_.failed_checkpoints,
                  .last_checkpoint = summary_.last_checkpoint,
                  .memory_peak = static_cast<int64_t>(device_->device().memory().use().peak),
                  .seconds = seconds,
                  .tokens_per_second = seconds > 0 ? tokens / seconds : 0.0,
                  .reason = summary_.reason});
  reporter_->Close();
  return summary_;
}

}  // namespace

absl::StatusOr<RunSummary> RunJob(const JobSpec& spec, std::unique_ptr<Collective> hosts,
                                  const RunOptions& options) {
  NIBBLE_RETURN_IF_ERROR(Validate(spec));
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<TrainDevice> device,
                          options.device(spec, options.local_rank));
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Collective> ranks,
                          device->Ranks(std::move(hosts), options.join));
  std::unique_ptr<RankLink> link;
  const absl::StatusOr<RunSummary> summary =
      JobRun(spec, std::move(device), std::move(ranks), options, link).Execute();
  if (options.link_after != nullptr) *options.link_after = std::move(link);
  return summary;
}

}  // namespace nibble
