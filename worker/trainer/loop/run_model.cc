#include "worker/trainer/loop/run_model.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/trainer/loop/run_errors.h"
#include "worker/trainer/loop/run_reporter.h"

namespace nibble {
namespace {

// An opened checkpoint, and the job that wrote it.
struct OpenedCheckpoint {
  std::string job;
  std::unique_ptr<CheckpointStore> store;
  std::shared_ptr<const CheckpointReader> reader;
};

absl::StatusOr<OpenedCheckpoint> Open(const std::string& path, int64_t step) {
  NIBBLE_ASSIGN_OR_RETURN(const StoreIdentity identity, CheckpointStore::IdentityOf(path));
  OpenedCheckpoint opened = {.job = identity.job};
  NIBBLE_ASSIGN_OR_RETURN(opened.store,
                          CheckpointStore::Open(path, {.identity = identity, .read_only = true}));
  NIBBLE_ASSIGN_OR_RETURN(opened.reader, opened.store->OpenCheckpoint(step));
  return opened;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunModel>> RunModel::Create(const JobSpec& spec,
                                                           const std::string& tokenizer,
                                                           const Device& device,
                                                           Collective& collective) {
  std::unique_ptr<RunModel> run(new RunModel(spec));
  run->recorded_.data.tokenizer_label = tokenizer;
  const absl::StatusOr<Outline> outline = MakeOutline(spec.model);
  if (!outline.ok()) return OfSpec(outline.status());
  absl::StatusOr<std::unique_ptr<Parameters>> parameters =
      Parameters::Create(device, *outline, spec.training.seed,
                         {.world = collective.world(),
                          .shards_gradients = spec.resources.sharding != JobSharding::kOptimizer,
                          .shards_weights = spec.resources.sharding == JobSharding::kWeights,
                          .rank = collective.rank(),
                          .reads_fp32 = spec.training.precision == JobPrecision::kFp32});
  if (!parameters.ok()) return OfSpec(NameBound(spec, parameters.status()));
  run->parameters_ = *std::move(parameters);
  absl::StatusOr<std::unique_ptr<Trainer>> trainer = Trainer::Create(
      spec, {.device = device, .collective = collective, .parameters = *run->parameters_});
  if (!trainer.ok()) return OfSpec(NameBound(spec, trainer.status()));
  run->trainer_ = *std::move(trainer);
  run->state_ = std::make_unique<RunState>(run->recorded_, device, *run->trainer_);
  return run;
}

int64_t RunModel::revision() const {
  const int64_t step = std::min(trainer_->next_step(), recorded_.training.steps - 1);
  return trainer_->timeline().At(step).number;
}

absl::StatusOr<RunModel::Resumed> RunModel::Resume(const std::string& path, int64_t step,
                                                   int64_t attempt) {
  const double begin = SteadySeconds();
  const absl::StatusOr<OpenedCheckpoint> opened = Open(path, step);
  if (!opened.ok()) return OfCheckpoint(opened.status());
  const absl::StatusOr<std::string> loaded = state_->Load(*opened->reader);
  if (!loaded.ok()) return OfCheckpoint(loaded.status());
  const CheckpointHeader& header = opened->reader->manifest().header;
  return Resumed{ResumeEvent{.step = trainer_->next_step(),
                             .checkpoint_attempt = header.attempt,
                             .checkpoint_ranks = header.world,
                             .attempt = attempt,
                             .revision = revision(),
                             .seconds = SteadySeconds() - begin},
                 *loaded};
}

absl::StatusOr<std::string> RunModel::LoadWeights(const std::string& path, int64_t step) {
  const absl::StatusOr<OpenedCheckpoint> opened = Open(path, step);
  if (!opened.ok()) return OfCheckpoint(opened.status());
  const absl::Status loaded = state_->LoadWeightsOf(*opened->reader);
  if (!loaded.ok()) return OfCheckpoint(loaded);
  return absl::StrCat("begins with the weights of ", opened->job, ", checkpoint of step ", step);
}

}  // namespace nibble
